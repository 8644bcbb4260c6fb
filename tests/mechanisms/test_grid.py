"""The grid: integer norms are bounded exactly, sums never wrap."""

import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import GridCodec, clip_to_norm
from fedpriv.mechanisms.grid import MAX_CLIP_UNITS

vectors = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6))
norms = st.floats(1e-3, 1e4)
units = st.integers(1, MAX_CLIP_UNITS)


def square_norm(values: np.ndarray) -> int:
    return sum(int(v) ** 2 for v in values)


@settings(max_examples=300, deadline=None)
@given(vectors, norms, units)
@example(np.array([3.0, 4.0]), 5.0, 5)
@example(np.full(25, 1.0), 5.0, MAX_CLIP_UNITS)
def test_integer_norm_never_exceeds_the_clip(vector: np.ndarray, clip: float, clip_units: int) -> None:
    codec = GridCodec(clip, clip_units)
    clipped = clip_to_norm(vector, clip).vector
    encoded = codec.encode(clipped)
    assert encoded.dtype == np.int64
    assert square_norm(encoded) <= clip_units**2
    back = codec.decode(encoded)
    slack = 1e-9 * clip
    assert np.all(np.abs(back) <= np.abs(clipped) + slack)  # toward zero
    assert np.all(np.abs(clipped - back) <= codec.step + slack)  # by less than a step
    assert np.all(back * clipped >= 0)


@settings(max_examples=100, deadline=None)
@given(vectors, norms)
def test_float_error_above_the_clip_is_taken_off(vector: np.ndarray, clip: float) -> None:
    clipped = clip_to_norm(vector * 1e7, clip).vector * (1 + 9e-7)
    encoded = GridCodec(clip, MAX_CLIP_UNITS).encode(clipped)
    assert square_norm(encoded) <= MAX_CLIP_UNITS**2


def test_norm_beyond_float_error_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="clip before encoding"):
        GridCodec(1.0, 1000).encode(np.array([1.0, 0.01]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(InvalidArgument, match="not finite"):
        GridCodec(1.0, 1000).encode(np.array([bad, 0.0]))


def test_rounding_is_toward_zero_on_both_sides() -> None:
    codec = GridCodec(4.0, 4)
    assert codec.encode(np.array([1.999, -1.999, 0.999, -0.999])).tolist() == [1, -1, 0, 0]


def test_small_value_is_not_lost_under_a_range_that_comes_from_the_clip() -> None:
    codec = GridCodec.choose(1.0, length=10, share_std=0.5)
    assert codec.decode(codec.encode(np.full(10, 0.1)))[0] == pytest.approx(0.1, abs=codec.step)
    codec = GridCodec.choose(0.01, length=10, share_std=0.005)
    assert codec.decode(codec.encode(np.full(10, 0.001)))[0] == pytest.approx(0.001, abs=codec.step)


@settings(max_examples=100, deadline=None)
@given(norms, st.integers(1, 10**7), st.floats(1e-4, 1e4))
def test_chosen_grid_is_fine_and_noise_is_smooth_on_it(clip: float, length: int, multiplier: float) -> None:
    codec = GridCodec.choose(clip, length, multiplier * clip)
    assert codec.step * np.sqrt(length) / 2 <= 0.01 * clip * (1 + 1e-9)
    assert multiplier * clip / codec.step >= 64 * (1 - 1e-9)


def test_chosen_grid_stops_at_the_finest() -> None:
    assert GridCodec.choose(1.0, 10, 1e-12).clip_units == MAX_CLIP_UNITS


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 2**26), st.floats(0, 2.0**30))
def test_modulus_holds_signal_and_noise_and_largest_n_is_exact(n: int, clip_units: int, share: float) -> None:
    codec = GridCodec(1.0, clip_units)
    bits = codec.modulus_bits(n, share)
    largest = n * clip_units + 12 * share * np.sqrt(n)
    assert largest < 2 ** (bits - 1)
    codec.check_modulus(bits, n, share)
    most = codec.max_clients(bits, share)
    assert most >= n
    codec.check_modulus(bits, most, share)
    with pytest.raises(InvalidArgument):
        codec.check_modulus(bits, most + 1, share)


def test_a_sum_at_the_top_of_the_range_does_not_wrap() -> None:
    codec = GridCodec(1.0, 2**21)
    n = codec.max_clients(32, 0.0)
    total = n * int(codec.encode(np.array([1.0]))[0])
    assert total == n * 2**21
    assert total < 2**31
    wrapped = (total + 2**31) % 2**32 - 2**31
    assert wrapped == total


def test_1025_clients_at_the_top_of_a_22_bit_range_are_refused_and_the_largest_n_named() -> None:
    codec = GridCodec(1.0, 2**21)  # 1025 * 2^21 > 2^31
    with pytest.raises(InvalidArgument, match=r"1025 clients") as refused:
        codec.check_modulus(32, 1025, 0.0)
    most = int(re.search(r"at most (\d+) fit", str(refused.value)).group(1))  # type: ignore[union-attr]
    assert most == codec.max_clients(32, 0.0) < 1025
    codec.check_modulus(32, most, 0.0)
    assert codec.modulus_bits(1025, 0.0) == 62


def test_a_grid_too_large_for_any_modulus_names_the_largest_n() -> None:
    codec = GridCodec(1.0, 2**30)
    with pytest.raises(InvalidArgument, match="at most 2147483"):
        codec.modulus_bits(2**32, 0.0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0.0, 10), "clipping_norm"),
        ((float("nan"), 10), "clipping_norm"),
        ((1.0, 0), "clip_units"),
        ((1.0, MAX_CLIP_UNITS + 1), "clip_units"),
        ((1.0, 2.5), "clip_units"),
        ((1e-300, MAX_CLIP_UNITS), "clipping_norm"),
    ],
)
def test_bad_grids_are_refused(arguments: tuple, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        GridCodec(*arguments)
