"""Bounds from scores: against independent formulas, and against mechanisms whose epsilon is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedpriv.accounting import InvalidArgument, gaussian_epsilon
from fedpriv.audit import (
    OneRun,
    Trials,
    best_guesses,
    epsilon_lower_bound,
    gaussian_lower_bound,
    largest_possible_bound,
    one_run_lower_bound,
    success_lower_bound,
)
from fedpriv.audit.bounds import clopper_pearson
from fedpriv.audit.one_run import p_value


def gaussian_trials(rng: np.random.Generator, mu: float, runs: int) -> Trials:
    return Trials(rng.normal(mu, 1.0, runs // 2), rng.normal(0.0, 1.0, runs // 2))


@pytest.mark.parametrize("trials", [1, 7, 200])
@pytest.mark.parametrize("error", [0.025, 1e-9])
def test_clopper_pearson_is_the_beta_quantile(trials: int, error: float) -> None:
    counts = np.arange(trials + 1)
    lower, upper = clopper_pearson(counts, trials, error)
    for k in counts:
        # by definition: at the limits the tail probabilities are the error
        if k > 0:
            assert stats.binom.sf(k - 1, trials, lower[k]) == pytest.approx(error, rel=1e-6)
        if k < trials:
            assert stats.binom.cdf(k, trials, upper[k]) == pytest.approx(error, rel=1e-6)
    assert lower[0] == 0.0 and upper[trials] == 1.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-5, 0.05])
def test_bounds_hold_as_often_as_they_say(mu: float, delta: float) -> None:
    """60 seeded repetitions at 90 %: more than 22 misses have probability below 1e-7 if the level is kept."""
    rng = np.random.default_rng(17)
    truth = gaussian_epsilon(1 / mu, delta)
    misses = {"any": 0, "gaussian": 0}
    for _ in range(60):
        trials = gaussian_trials(rng, mu, 200)
        misses["any"] += epsilon_lower_bound(trials, delta, 0.9).epsilon > truth
        misses["gaussian"] += gaussian_lower_bound(trials, delta, 0.9).epsilon > truth
    assert max(misses.values()) <= 22
    assert misses["any"] <= misses["gaussian"] + 5  # the general bound gives more away


def test_bounds_approach_the_truth() -> None:
    rng = np.random.default_rng(3)
    trials = gaussian_trials(rng, 1.0, 400_000)
    truth = gaussian_epsilon(1.0, 0.02)
    assert 0.97 * truth < gaussian_lower_bound(trials, 0.02, 0.95).epsilon <= truth
    assert 0.90 * truth < epsilon_lower_bound(trials, 0.02, 0.95).epsilon <= truth


def test_both_directions_and_both_worlds_are_tried() -> None:
    """A score whose rare large values betray absence: only the swapped test sees it."""
    rng = np.random.default_rng(5)
    present, absent = rng.random(2000), np.where(rng.random(2000) < 0.2, 2.0, rng.random(2000))
    for trials in (Trials(present, absent), Trials(absent, present), Trials(-present, -absent)):
        assert epsilon_lower_bound(trials, 0.0, 0.95).epsilon > 2.0


def test_useless_scores_give_nothing() -> None:
    rng = np.random.default_rng(7)
    trials = Trials(rng.random((100, 3)), rng.random((100, 3)))
    assert epsilon_lower_bound(trials, 0.01).epsilon < 0.3
    constant = Trials(np.zeros(20), np.zeros(20))
    assert epsilon_lower_bound(constant, 0.01).epsilon == 0.0
    assert gaussian_lower_bound(constant, 0.01).epsilon == 0.0
    assert success_lower_bound(constant).epsilon == 0.5


def test_the_best_statistic_is_chosen_on_the_other_half() -> None:
    rng = np.random.default_rng(11)
    noise = rng.normal(size=(2, 400))
    signal = np.array([rng.normal(4.0, 1.0, 400), rng.normal(0.0, 1.0, 400)])
    both = Trials(np.column_stack([noise[0], signal[0]]), np.column_stack([noise[1], signal[1]]))
    alone = Trials(signal[0], signal[1])
    assert epsilon_lower_bound(both, 0.01).epsilon == epsilon_lower_bound(alone, 0.01).epsilon > 1.5


def test_no_privacy_at_all() -> None:
    trials = Trials(np.ones(200), np.zeros(200))
    found = epsilon_lower_bound(trials, 0.01, 0.95).epsilon
    assert found == largest_possible_bound(400, 0.01, 0.95)
    low = 0.025 ** (1 / 100)
    assert found == pytest.approx(math.log((low - 0.01) / (1 - low)))


def test_success_of_a_guess() -> None:
    rng = np.random.default_rng(13)
    trials = gaussian_trials(rng, 1.0, 40_000)
    truth = stats.norm.cdf(0.5)  # the best guess of a fair bit
    assert 0.97 * truth < success_lower_bound(trials).epsilon <= truth


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "epsilon", "delta"),
    [(50, 20, 18, 0.7, 1e-3), (300, 300, 200, 0.1, 1e-5), (40, 40, 40, 2.0, 0.0), (10, 4, 0, 1.0, 1e-2)],
)
def test_p_value_is_that_of_the_theorem(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> None:
    law = stats.binom(guesses, math.exp(epsilon) / (1 + math.exp(epsilon)))
    mass = law.pmf(np.arange(guesses + 1))
    beta = mass[right:].sum()
    alpha = max(2 / i * mass[max(0, right - i) : right].sum() for i in range(1, canaries + 1))
    expected = min(1.0, beta + alpha * canaries * delta)
    assert p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def randomized_response(rng: np.random.Generator, canaries: int, epsilon: float) -> OneRun:
    """The mechanism that makes the theorem tight at delta 0: each coin is told rightly with this probability."""
    included = rng.random(canaries) < 0.5
    truthful = rng.random(canaries) < 1 / (1 + math.exp(-epsilon))
    return OneRun(included, np.where(truthful, included, ~included) + 0.1 * rng.random(canaries))


def test_one_run_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(19)
    bounds = [
        one_run_lower_bound(randomized_response(rng, 200, 1.0), 200, 0.0, 0.9).epsilon for _ in range(300)
    ]
    assert sum(bound > 1.0 for bound in bounds) <= 55
    assert np.mean(bounds) > 0.7


def test_one_run_of_a_gaussian() -> None:
    rng = np.random.default_rng(23)
    canaries, mu, delta = 1000, 2.0, 1e-5
    guesses, expected = best_guesses(canaries, mu, delta)
    bounds = []
    for _ in range(40):
        included = rng.random(canaries) < 0.5
        scores = rng.normal(mu * included, 1.0)
        bounds.append(one_run_lower_bound(OneRun(included, scores), guesses, delta).epsilon)
    truth = gaussian_epsilon(1 / mu, delta)
    assert max(bounds) < truth
    assert np.mean(bounds) == pytest.approx(expected, rel=0.15)
    assert expected > 3.0


def test_more_delta_more_canaries_less_evidence() -> None:
    values = [p_value(100, 50, 45, 1.0, delta) for delta in (0.0, 1e-5, 1e-3, 1e-1)]
    assert values == sorted(values) and values[-1] == 1.0
    assert p_value(1000, 50, 45, 1.0, 1e-4) > p_value(100, 50, 45, 1.0, 1e-4)
    assert p_value(100, 50, 45, 2.0, 1e-4) > p_value(100, 50, 45, 1.0, 1e-4)


def test_bad_arguments_are_named() -> None:
    trials = Trials(np.zeros(8), np.zeros(8))
    with pytest.raises(InvalidArgument, match="confidence"):
        epsilon_lower_bound(trials, 0.1, 1.0)
    with pytest.raises(InvalidArgument, match="delta"):
        epsilon_lower_bound(trials, 1.5)
    with pytest.raises(InvalidArgument, match="present"):
        Trials(np.array([np.nan] * 8), np.zeros(8))
    with pytest.raises(InvalidArgument, match="statistics"):
        Trials(np.zeros((8, 2)), np.zeros((8, 1)))
    with pytest.raises(InvalidArgument, match="canaries"):
        p_value(10, 11, 3, 1.0, 0.0)
