"""Flat clipping: one factor for the whole update, and nothing bad passes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import ArrayLayout, clip_to_norm

finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 20), elements=finite), st.floats(1e-6, 1e6))
def test_norm_is_bounded_and_direction_kept(vector: np.ndarray, clip: float) -> None:
    with np.errstate(over="ignore"):
        clipped = clip_to_norm(vector, clip)
    assert np.all(np.isfinite(clipped.vector))
    scale = np.max(np.abs(clipped.vector), initial=0.0) or 1.0
    norm = scale * np.linalg.norm(clipped.vector / scale)
    assert norm <= clip * (1 + 1e-12)
    if not clipped.clipped:
        assert np.array_equal(clipped.vector, vector)
    else:
        assert norm == pytest.approx(clip, rel=1e-12)
        largest = np.max(np.abs(vector))
        assert np.allclose(clipped.vector / clip, vector / largest * np.max(np.abs(clipped.vector)) / clip)


def test_zero_update_stays_zero() -> None:
    clipped = clip_to_norm(np.zeros(3), 1.0)
    assert clipped.vector.tolist() == [0.0, 0.0, 0.0]
    assert clipped.finite
    assert not clipped.clipped


@pytest.mark.parametrize("bad", [[np.nan, 1e9], [np.inf, 0.0], [-np.inf, np.nan], [np.nan]])
def test_not_finite_becomes_zero_as_a_whole(bad: list[float]) -> None:
    clipped = clip_to_norm(np.array(bad), 1.0)
    assert clipped.vector.tolist() == [0.0] * len(bad)
    assert not clipped.finite


def test_norm_that_overflows_is_clipped() -> None:
    clipped = clip_to_norm(np.array([1e200, 1e200]), 1.0)
    assert clipped.vector == pytest.approx([np.sqrt(0.5), np.sqrt(0.5)])
    largest = np.full(1000, np.finfo(np.float64).max)
    assert np.linalg.norm(clip_to_norm(largest, 2.0).vector) == pytest.approx(2.0)


def test_denormal_update_is_not_lost_to_division() -> None:
    tiny = np.array([5e-324, 0.0])
    assert clip_to_norm(tiny, 1.0).vector.tolist() == tiny.tolist()


def test_two_tensors_share_one_factor() -> None:
    arrays = {"a": np.array([3.0, 0.0]), "b": np.array([[0.0], [4.0]])}
    layout = ArrayLayout.of(arrays)
    back = layout.unflatten(clip_to_norm(layout.flatten(arrays), 1.0).vector)
    assert back["a"] == pytest.approx(np.array([0.6, 0.0]))
    assert back["b"] == pytest.approx(np.array([[0.0], [0.8]]))


def test_zero_dimensional_parameter_is_clipped_with_the_rest() -> None:
    arrays = {"temperature": np.array(100.0), "w": np.zeros(2)}
    layout = ArrayLayout.of(arrays)
    assert layout.size == 3
    back = layout.unflatten(clip_to_norm(layout.flatten(arrays), 1.0).vector)
    assert back["temperature"].shape == ()
    assert float(back["temperature"]) == pytest.approx(1.0)


def test_the_input_is_not_changed() -> None:
    vector = np.array([30.0, 40.0])
    clip_to_norm(vector, 1.0).vector[0] = 7.0
    clip_to_norm(vector, 100.0).vector[0] = 7.0
    assert vector.tolist() == [30.0, 40.0]


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf")])
def test_clip_must_be_positive(clip: float) -> None:
    with pytest.raises(InvalidArgument, match="clipping_norm"):
        clip_to_norm(np.ones(2), clip)
