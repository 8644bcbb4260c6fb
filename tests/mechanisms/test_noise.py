"""Integer Gaussian noise: its law, its tails, its entropy."""

import random

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import NoiseShares, SecureSource, SeededSource, gaussian, noise, rounded_gaussian

FLAKE = 1e-9  # chance that a statistical test fails although the code is right
ALL_ONES = 2**64 - 1


class Words:
    """A source of given words that counts how many were asked for."""

    secure = False

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self.left = self.left[:count], self.left[count:]
        assert len(taken) == count, "more words were drawn than expected"
        return np.array(taken, dtype=np.uint64)


def draw(scale: float, word: int, low_bits: int | None = None) -> int:
    """One draw from a given word; ``low_bits`` must be used exactly when they are given."""
    source = Words(word) if low_bits is None else Words(word, low_bits)
    value = int(rounded_gaussian(scale, 1, source)[0])
    assert not source.left
    return value


def is_right(value: int, scale: float, word: int, low_bits: int = 2**63) -> bool:
    """Whether ``value`` is the rounded quantile of a word, decided by the distribution function alone."""
    magnitude = abs(value)
    with mpmath.workdps(60):
        tail = mpmath.mpf(2 * (((word & (2**63 - 1)) << 64) + low_bits) + 1) / mpmath.mpf(2) ** 129

        def survival(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        above = survival((magnitude + mpmath.mpf("0.5")) / scale)
        below = survival((magnitude - mpmath.mpf("0.5")) / scale) if magnitude else mpmath.mpf("0.5")
        signed = value == 0 or (value < 0) == bool(word >> 63)
        return signed and above <= tail <= below


@pytest.mark.parametrize("scale", [16.0, 64.0, 1e5])
def test_law_is_that_of_a_rounded_normal(scale: float) -> None:
    count = 1_000_000
    draws = rounded_gaussian(scale, count)
    assert draws.dtype == np.int64
    if scale == 16.0:  # one bin per integer
        edges = np.arange(-65, 66) + 0.5
    else:
        edges = np.unique(np.round(scale * ndtri(np.linspace(0.002, 0.998, 300)))) + 0.5
    probabilities = np.diff(np.concatenate([[0.0], ndtr(edges / scale), [1.0]]))
    observed = np.histogram(draws, np.concatenate([[-np.inf], edges, [np.inf]]))[0]
    assert probabilities.min() * count > 5
    assert stats.chisquare(observed, probabilities * count).pvalue > FLAKE


@pytest.mark.parametrize("scale", [16.0, 64.0, 1e5])
def test_variance_mean_and_independence(scale: float) -> None:
    count = 500_000
    draws = rounded_gaussian(scale, count).astype(np.float64)
    variance = scale**2 + 1 / 12
    z = stats.norm.isf(FLAKE / 2)
    assert abs(draws.mean()) < z * np.sqrt(variance / count)
    assert abs(np.mean(draws**2) / variance - 1) < z * np.sqrt(2 / count)
    assert abs(np.mean(draws[1:] * draws[:-1]) / variance) < z / np.sqrt(count - 1)


def test_extreme_words_reach_thirteen_deviations_symmetrically() -> None:
    for scale in (16.0, 1e5):
        top = draw(scale, 0, low_bits=0)
        assert top > 13 * scale
        assert draw(scale, 1 << 63, low_bits=0) == -top
        assert is_right(top, scale, 0, 0)
        # a generator of 53 bits stops at 8.2 to 8.6 deviations
        rare = int(rounded_gaussian(scale, 1, Words(12, 77))[0])
        assert rare > 8.7 * scale
        assert is_right(rare, scale, 12, 77)


def test_words_at_the_centre_give_zero() -> None:
    assert draw(1e5, 2**63 - 1) == 0
    assert draw(1e5, ALL_ONES) == 0


def test_float_path_agrees_with_sixty_digits() -> None:
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**64, 200, dtype=np.uint64)
    words[:60] >>= rng.integers(1, 40, 60).astype(np.uint64)  # tails
    for scale in (16.0, 1e5):
        for word in (int(w) for w in words):
            source = Words(word, 2**63)
            assert is_right(int(rounded_gaussian(scale, 1, source)[0]), scale, word)


def test_exact_path_agrees_with_the_distribution_function() -> None:
    rng = np.random.default_rng(6)
    for scale in (16.0, 777.25, 2.0**52):
        for _ in range(40):
            word = int(rng.integers(0, 2**64, dtype=np.uint64)) >> int(rng.integers(0, 50))
            low_bits = int(rng.integers(0, 2**64, dtype=np.uint64))
            value = noise._exact_draw(scale, word, Words(low_bits))
            assert is_right(value, scale, word, low_bits)


def test_an_interval_that_holds_a_boundary_is_decided_by_more_bits() -> None:
    scale, value = 2.0**20, 700_000
    with mpmath.workdps(60):
        boundary = mpmath.erfc((value + mpmath.mpf("0.5")) / scale / mpmath.sqrt(2)) / 2
        word = int(mpmath.floor(boundary * 2**64))
    assert draw(scale, word, low_bits=0) == value + 1
    assert draw(scale, word, low_bits=ALL_ONES) == value
    # neighbouring intervals are near the boundary too, but lie on one side of it whatever the low bits
    for low_bits in (0, ALL_ONES):
        assert draw(scale, word - 1, low_bits) == value + 1
        assert draw(scale, word + 1, low_bits) == value


def test_the_exact_path_is_rare() -> None:
    calls = []
    source = SecureSource()
    original = source.words

    def counted(count: int) -> np.ndarray:
        calls.append(count)
        return original(count)

    source.words = counted  # type: ignore[method-assign]
    rounded_gaussian(1e3, 300_000, source)
    assert len(calls) <= 3  # one chunk; an inconclusive draw has probability 3e-10


def test_quantile_function_is_as_accurate_as_assumed() -> None:
    grid = np.concatenate(
        [np.logspace(-38.5, -1, 700), np.linspace(0.1, 0.4999, 300), 0.5 - np.logspace(-12, -4, 60)]
    )
    worst = 0.0
    with mpmath.workdps(40):
        for p in grid:
            x = mpmath.mpf(float(ndtri(p)))
            error = mpmath.erfc(-x / mpmath.sqrt(2)) / 2 - mpmath.mpf(float(p))
            density = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)
            worst = max(worst, abs(float(error / density / x)))
    assert worst < 1e-14
    assert 10 * worst <= noise._QUANTILE_ERROR


def test_global_seeds_change_nothing() -> None:
    import torch

    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        drawn.append(rounded_gaussian(1e6, 50))
        state = np.random.get_state()[1]  # noqa: NPY002
        rounded_gaussian(1e6, 50)
        assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    assert not np.array_equal(drawn[0], drawn[1])


def test_seeded_source_is_reproducible_and_marked() -> None:
    first, again = SeededSource(3, "update", 7), SeededSource(3, "update", 7)
    assert np.array_equal(rounded_gaussian(64.0, 1000, first), rounded_gaussian(64.0, 1000, again))
    assert not first.secure
    others = [SeededSource(3, "update", 8), SeededSource(3, "updat", "e7"), SeededSource("3update", 7)]
    streams = {source.words(4).tobytes() for source in [SeededSource(3, "update", 7), *others]}
    assert len(streams) == 4


def test_secure_sources_are_secure_and_differ() -> None:
    first, second = SecureSource(), SecureSource()
    assert first.secure
    assert first.words(4).tobytes() != second.words(4).tobytes()
    assert first.words(4).tobytes() != first.words(4).tobytes()


def test_chunks_continue_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rounded_gaussian(64.0, 1000, SeededSource(1))
    monkeypatch.setattr(noise, "_CHUNK", 300)
    assert np.array_equal(rounded_gaussian(64.0, 1000, SeededSource(1)), whole)


@pytest.mark.parametrize("scale", [15.99, 1e-9, -64.0, float("nan"), float("inf"), 2.0**53])
def test_scales_outside_the_range_are_refused(scale: float) -> None:
    with pytest.raises(InvalidArgument, match="scale"):
        rounded_gaussian(scale, 3)


def test_no_noise_is_zeros() -> None:
    assert rounded_gaussian(0.0, 4).tolist() == [0, 0, 0, 0]


def test_shares_add_up_to_the_guarantee_without_the_uncounted_ones() -> None:
    shares = NoiseShares(total_std=30.0, min_survivors=12, colluders=2)
    assert shares.counted_shares == 9
    assert shares.share_std == pytest.approx(10.0)
    assert np.sqrt(shares.counted_shares) * shares.share_std == pytest.approx(30.0)
    assert shares.realised_std(16) == pytest.approx(40.0)
    # one share is never counted, even without colluders: every participant knows its own
    assert NoiseShares(30.0, 12).counted_shares == 11
    assert NoiseShares(30.0, 12).share_std > 30.0 / np.sqrt(12)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1.0, 1), "min_survivors"),
        ((1.0, 4, 3), "min_survivors"),
        ((1.0, 4, -1), "colluders"),
        ((-1.0, 4), "total_std"),
        ((float("nan"), 4), "total_std"),
    ],
)
def test_shares_refuse_what_leaves_no_noise(arguments: tuple, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        NoiseShares(*arguments)


def test_continuous_noise_is_normal() -> None:
    count = 200_000
    drawn = gaussian(2.5, count)
    assert stats.kstest(drawn / 2.5, "norm").pvalue > FLAKE
    assert abs(np.mean(drawn**2) / 6.25 - 1) < stats.norm.isf(FLAKE / 2) * np.sqrt(2 / count)
    assert gaussian(1.0, 2, Words(0, 1 << 63)).tolist() == pytest.approx([9.2, -9.2], abs=0.1)
    assert np.array_equal(gaussian(1.0, 5, SeededSource(1)), gaussian(1.0, 5, SeededSource(1)))
    assert not np.array_equal(gaussian(1.0, 5), gaussian(1.0, 5))
    assert gaussian(0.0, 3).tolist() == [0.0] * 3


@pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf")])
def test_bad_continuous_noise_is_refused(std: float) -> None:
    with pytest.raises(InvalidArgument, match="std"):
        gaussian(std, 3)
