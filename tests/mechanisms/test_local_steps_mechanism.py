"""Steps inside a silo: batches, clip per record, noise, projection, and the event they are charged with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedpriv.accounting import Accountant, Gaussian, InvalidArgument, NonPrivate
from fedpriv.accounting.local_steps import LocalSteps
from fedpriv.mechanisms import Ball, GridCodec, SecureSource, SeededSource, clip_to_norm
from fedpriv.mechanisms.local_steps import NoisedSteps
from fedpriv.mechanisms.per_example import clip_rows, encoded_sum, poisson_records

FLAKE = 1e-9
WIDE = Ball(1e6)


class Rows:
    """Records whose gradient is a fixed row, or what a function of (weights, index) says."""

    def __init__(
        self, rows: NDArray | Callable[[NDArray, int], NDArray], num_records: int | None = None
    ) -> None:
        self.rows = rows
        self.num_records: int = num_records or len(rows)  # type: ignore[arg-type]
        self.asked: list[NDArray] = []

    def gradients(self, weights: NDArray, records: NDArray) -> NDArray:
        self.asked.append(records)
        if callable(self.rows):
            return np.array([self.rows(weights, int(i)) for i in records])
        return self.rows[records]


def steps(**changes: object) -> NoisedSteps:
    values: dict = {
        "sampling_rate": 0.5,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "steps": 1,
        "length": 3,
    }
    return NoisedSteps.build(**(values | changes))


def test_every_record_tosses_its_own_coin() -> None:
    source, draws = SecureSource(), np.zeros(500)
    sizes = []
    for _ in range(400):
        batch = poisson_records(500, 0.3, source)
        draws[batch] += 1
        sizes.append(len(batch))
    chi = np.sum((draws - 120) ** 2 / (400 * 0.3 * 0.7))
    assert stats.chi2.ppf(FLAKE, 500) < chi < stats.chi2.isf(FLAKE, 500)
    # batch sizes vary as independent coins do; a batch of fixed size would have no variance
    spread = np.sum((np.array(sizes) - 150) ** 2) / (500 * 0.3 * 0.7)
    assert stats.chi2.ppf(FLAKE, 400) < spread < stats.chi2.isf(FLAKE, 400)


def test_rates_at_the_ends() -> None:
    assert poisson_records(5, 1.0, SecureSource()).tolist() == [0, 1, 2, 3, 4]
    assert poisson_records(5, 0.0, SecureSource()).size == 0
    assert poisson_records(0, 0.5, SecureSource()).size == 0
    with pytest.raises(InvalidArgument, match="rate"):
        poisson_records(5, 1.5, SecureSource())


BAD = [np.nan, np.inf, -np.inf, 1e200, -1e308, 0.0, 1e-320, 3.0, 4.0]


@given(
    st.lists(
        st.lists(st.one_of(st.sampled_from(BAD), st.floats(width=64)), min_size=3, max_size=3), max_size=6
    )
)
def test_rows_are_clipped_as_single_vectors_are(rows: list[list[float]]) -> None:
    values = np.array(rows).reshape(-1, 3)
    clipped = clip_rows(values, 1.5)
    for row, found in zip(values, clipped, strict=True):
        np.testing.assert_allclose(found, clip_to_norm(row, 1.5).vector, rtol=1e-15, atol=0)


@given(
    st.integers(1, 2**30),
    st.lists(st.lists(st.floats(width=32), min_size=4, max_size=4), min_size=1, max_size=5),
)
def test_a_record_moves_the_sum_by_at_most_the_clip(clip_units: int, rows: list[list[float]]) -> None:
    codec, values = GridCodec(0.7, clip_units), np.array(rows)
    with_all, without_last = encoded_sum(values, codec), encoded_sum(values[:-1], codec)
    moved = [int(x) for x in with_all - without_last]
    assert sum(x * x for x in moved) <= clip_units**2


def test_rounding_loses_little_and_never_grows() -> None:
    mechanism = steps(length=100)
    rows = np.random.default_rng(0).normal(size=(50, 100)) * 0.3
    total = mechanism.codec.decode(encoded_sum(rows, mechanism.codec))
    expected = clip_rows(rows, 1.0).sum(axis=0)
    assert np.linalg.norm(total - expected) < 50 * 2e-4


def test_one_step_is_the_sampled_gaussian_of_the_event() -> None:
    """A record whose gradient has the norm of the clip and others that are zero: (1 - q) N(0, s) + q N(C, s)."""
    rate, noise, others = 0.4, 0.8, 4
    mechanism = steps(sampling_rate=rate, noise_multiplier=noise, length=1)
    records = Rows(np.array([[-50.0]] + [[0.0]] * others))
    source, values = SecureSource(), []
    for _ in range(3000):
        moved = mechanism.descend(np.zeros(1), records, WIDE, 1.0, source)
        values.append(float(moved[0]) * rate * (1 + others))  # undo the fixed denominator
    law = lambda x: (1 - rate) * stats.norm.cdf(x, 0, noise) + rate * stats.norm.cdf(x, 1, noise)  # noqa: E731
    assert stats.kstest(values, law).pvalue > FLAKE
    assert stats.kstest(values, lambda x: stats.norm.cdf(x, 0, noise)).pvalue < FLAKE  # the test can fail
    assert mechanism.event() == LocalSteps(rate, noise, 1)


@pytest.mark.parametrize("count", [1, 5])
def test_the_noise_of_all_steps_has_the_variance_that_is_charged(count: int) -> None:
    d, n, rate, rate_of_steps, noise = 2000, 40, 0.25, 0.1, 3.0
    mechanism = steps(sampling_rate=rate, noise_multiplier=noise, steps=count, length=d)
    moved = mechanism.descend(np.zeros(d), Rows(np.zeros((n, d))), WIDE, rate_of_steps, SecureSource())
    std = rate_of_steps * noise / (rate * n) * math.sqrt(count)
    square = float(np.sum((moved / std) ** 2))
    assert stats.chi2.ppf(FLAKE, d) < square < stats.chi2.isf(FLAKE, d)


def test_an_empty_batch_still_gets_noise() -> None:
    mechanism = steps(sampling_rate=1e-9)
    records = Rows(np.ones((3, 3)))
    moved = mechanism.descend(np.zeros(3), records, WIDE, 1e-9, SecureSource())
    assert not records.asked and np.all(moved != 0)


def test_the_denominator_is_fixed_and_the_model_stays_in_the_ball() -> None:
    mechanism = steps(sampling_rate=1.0, noise_multiplier=1e-2, steps=3)
    records = Rows(np.tile([[-1.0, 0.0, 0.0]], (10, 1)))
    free = mechanism.descend(np.zeros(3), records, WIDE, 1.0, SecureSource())
    assert free[0] == pytest.approx(3.0, abs=0.05)  # three steps of mean gradient -1
    seen: list[NDArray] = []

    def gradient(weights: NDArray, index: int) -> NDArray:
        seen.append(weights)
        return np.array([-1.0, 0.0, 0.0])

    kept = mechanism.descend(np.full(3, 5.0), Rows(gradient, 10), Ball(2.0), 1.0, SecureSource())
    assert np.linalg.norm(kept) <= 2.0 + 1e-12
    # after each step, and the received model too
    assert all(np.linalg.norm(weights) <= 2.0 + 1e-12 for weights in seen)


def test_bad_gradients_count_as_zero_and_take_nobody_along() -> None:
    mechanism = steps(sampling_rate=1.0, noise_multiplier=1e-2)
    failures: list[BaseException] = []

    def gradient(weights: NDArray, index: int) -> NDArray:
        if index == 1:
            raise ValueError("this record cannot be read")
        return np.array([np.nan if index == 2 else -1.0, 0.0, 0.0])

    moved = mechanism.descend(np.zeros(3), Rows(gradient, 4), WIDE, 1.0, SecureSource(), failures.append)
    assert moved[0] == pytest.approx(0.5, abs=0.05)  # two of four records are left
    assert [type(error) for error in failures] == [ValueError]


@pytest.mark.parametrize(
    "rows", [np.ones((4, 2)), np.ones((4, 3), dtype=np.int64), np.ones(3)], ids=["width", "type", "shape"]
)
def test_a_gradient_function_that_returns_something_else_contributes_nothing(rows: NDArray) -> None:
    class Wrong:
        num_records = 4

        def gradients(self, weights: NDArray, records: NDArray) -> NDArray:
            return rows

    moved = steps(noise_multiplier=1e-2, sampling_rate=1.0).descend(
        np.zeros(3), Wrong(), WIDE, 1.0, SecureSource()
    )
    assert np.linalg.norm(moved) < 0.1


def test_seeded_steps_repeat_and_secure_ones_do_not() -> None:
    mechanism, records = steps(steps=2), Rows(np.eye(3))
    run = lambda source: mechanism.descend(np.zeros(3), records, WIDE, 1.0, source)  # noqa: E731
    assert np.array_equal(run(SeededSource("a")), run(SeededSource("a")))
    assert not np.array_equal(run(SecureSource()), run(SecureSource()))


def test_large_batches_go_in_chunks() -> None:
    mechanism = steps(sampling_rate=1.0, noise_multiplier=1e-3)
    records = Rows(np.tile([[-1.0, 0.0, 0.0]], (5000, 1)))
    moved = mechanism.descend(np.zeros(3), records, WIDE, 1.0, SecureSource())
    assert moved[0] == pytest.approx(1.0, abs=1e-3)
    assert max(len(asked) for asked in records.asked) <= 1024
    assert sum(len(asked) for asked in records.asked) == 5000


def test_events() -> None:
    assert steps(steps=4).event() == LocalSteps(0.5, 1.0, 4)
    whole = steps(steps=4, sampling_rate=1.0, noise_multiplier=3.0)
    assert whole.event() == Gaussian(1.5)
    replaced = steps(steps=4, sampling_rate=1.0, noise_multiplier=3.0, adjacency="replace_one")
    assert replaced.event() == Gaussian(0.75)
    # four full-batch steps with one record replaced, against the exact Gaussian of sensitivity 2 C
    one = Accountant("replace_one", "record").compose(Gaussian(1.5), 4).epsilon(1e-5).epsilon
    assert Accountant("replace_one", "record").compose(replaced.event()).epsilon(
        1e-5
    ).epsilon == pytest.approx(one)
    assert isinstance(steps(noise_multiplier=0.0).event(), NonPrivate)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.1}, "sampling_rate"),
        ({"steps": 0}, "steps"),
        ({"adjacency": "replace_one"}, "Poisson batches"),
        ({"adjacency": "swap"}, "adjacency"),
        ({"noise_multiplier": 1e-9}, "noise_std_units"),
    ],
)
def test_bad_arguments(changes: dict, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        steps(**changes)
