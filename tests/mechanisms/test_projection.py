"""Projection on the ball."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import Ball

SIZE = 6
models = hnp.arrays(np.float64, SIZE, elements=st.floats(-1e6, 1e6))
radii = st.floats(1e-3, 1e5)


@settings(max_examples=150, deadline=None)
@given(models, models, models, radii)
def test_projection_is_inside_nearest_idempotent_and_not_expansive(
    first: np.ndarray, second: np.ndarray, center: np.ndarray, radius: float
) -> None:
    for ball in (Ball(radius), Ball(radius, center)):
        middle = np.zeros(SIZE) if ball.center is None else ball.center
        slack = 1e-9 * (radius + np.max(np.abs(middle)) + 1)
        projected, other = ball.project(first), ball.project(second)
        assert np.linalg.norm(projected - middle) <= radius + slack
        assert np.allclose(ball.project(projected), projected, rtol=0, atol=slack)
        assert np.linalg.norm(projected - other) <= np.linalg.norm(first - second) + slack
        # nearest: the way back to the model points outwards at the projection
        for point in (middle, other):
            assert (first - projected) @ (point - projected) <= slack * (1 + np.linalg.norm(first))


def test_a_model_inside_is_returned_unchanged() -> None:
    model = np.array([0.3, -0.4])
    assert Ball(0.5).project(model) is model
    assert Ball(1.0, np.array([0.5, -0.5])).project(model) is model
    assert Ball(3.0).diameter == 6.0


def test_a_model_whose_norm_overflows_keeps_its_direction() -> None:
    assert Ball(1.0).project(np.array([1e200, 1e200])) == pytest.approx([np.sqrt(0.5)] * 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_an_error(bad: float) -> None:
    with pytest.raises(InvalidArgument, match="not finite"):
        Ball(1.0).project(np.array([bad, 0.0]))


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_radii_are_refused(radius: float) -> None:
    with pytest.raises(InvalidArgument, match="radius"):
        Ball(radius)
