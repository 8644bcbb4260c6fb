"""Conditional composition: the events it pays for, and its place above the profile."""

import math

import numpy as np
import pytest

from fedpriv.accounting.allocation_conditional import conditional_epsilon, mixture_weights, sampling_rates
from fedpriv.accounting.allocation_events import RandomAllocation
from fedpriv.accounting.matrices import bsr, identity


def posterior_rates(s, bins, runs, rng, present):
    """Posterior of the current bin before each round, by simulation."""
    z = rng.normal(size=(runs, bins))
    if present:
        z[np.arange(runs), rng.integers(bins, size=runs)] += 1 / s
    x = np.exp(z / s - 0.5 / s**2)
    seen = np.concatenate([np.zeros((runs, 1)), np.cumsum(x, axis=1)[:, :-1]], axis=1)
    return 1 / (bins - np.arange(bins) + seen)


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize(("s", "bins"), [(1.0, 30), (3.0, 100)])
def test_rates_bound_the_posterior_but_for_the_failure(s, bins, present):
    failure, runs = 0.05, 40_000
    rates = sampling_rates(s, bins, failure)
    assert rates[0] == pytest.approx(1 / bins)
    assert (rates <= 1).all()
    posterior = posterior_rates(s, bins, runs, np.random.default_rng(bins), present)
    failed = (posterior > rates * (1 + 1e-12)).any(axis=1).mean()
    assert failed <= failure
    # The bound is not vacuous: rates ten percent lower are exceeded often.
    assert (posterior > 0.9 * rates).any(axis=1).mean() > failure


def test_weights_bound_the_posterior_of_correlated_noise():
    s, bins, failure, runs = 2.0, 12, 0.05, 20_000
    dense = bsr(bins, 3).dense()
    means = dense  # one epoch: bin i has column i
    levels, weights = mixture_weights(means, s, failure)
    assert (np.diff(weights, axis=1) <= 0).all()
    rng = np.random.default_rng(5)
    for present in (False, True):
        noise = rng.normal(size=(runs, bins))
        if present:
            noise += dense[:, rng.integers(bins, size=runs)].T / s
        log_ratio = np.zeros((runs, bins))
        failed = np.zeros(runs, dtype=bool)
        exceeded = 0.0
        for n in range(bins):
            posterior = np.exp(log_ratio - log_ratio.max(axis=1, keepdims=True))
            posterior /= posterior.sum(axis=1, keepdims=True)
            edges = np.concatenate([[0.0], levels[:-1]])
            for m, edge in enumerate(edges):
                above = posterior[:, means[n] > edge * (1 + 1e-9)].sum(axis=1)
                failed |= above > weights[n, m] + 1e-9
                exceeded = max(exceeded, float((above > 0.3 * weights[n, m]).mean()))
            row = means[n] / s
            log_ratio += row[None, :] * noise[:, n : n + 1] - 0.5 * row[None, :] ** 2
        assert failed.mean() <= failure
        assert exceeded > failure


@pytest.mark.parametrize(("s", "low", "high"), [(1.0, 1.05, 1.25), (4.0, 0.085, 0.095)])
def test_epsilon_of_independent_noise(s, low, high):
    """About 1.14 and .090 for b = 100 and delta = 1e-5; the profile says .621 and .076."""
    event = RandomAllocation(100, s)
    epsilon = conditional_epsilon(event, 1e-5)
    assert low < epsilon < high
    assert epsilon > event.upper_law(1e-5).epsilon(1e-5)


def test_the_general_method_agrees_with_the_special_one():
    event = RandomAllocation(12, 4.0)
    special = conditional_epsilon(event, 1e-5)
    general = conditional_epsilon(RandomAllocation(12, 4.0, matrix=identity(12)), 1e-5)
    lower = max(law.epsilon(1e-5) for law in event.lower_laws(1e-5))
    assert lower < special <= general < 1.1 * special


def test_correlated_noise_dominates_the_lower_value():
    event = RandomAllocation(6, 5.0, matrix=bsr(6, 2))
    epsilon = conditional_epsilon(event, 1e-5)
    assert max(law.epsilon(1e-5) for law in event.lower_laws(1e-5)) < epsilon < math.inf


def test_redrawn_epochs_compose():
    one = conditional_epsilon(RandomAllocation(12, 4.0), 1e-5)
    four = conditional_epsilon(RandomAllocation(12, 4.0, epochs=4, redraw=True), 1e-5)
    assert one < four < 4 * one
    lower = next(RandomAllocation(12, 4.0, epochs=4, redraw=True).lower_laws(1e-5)).epsilon(1e-5)
    assert lower < four


def test_not_offered():
    assert conditional_epsilon(RandomAllocation(1, 1.0), 1e-5) is None
    assert conditional_epsilon(RandomAllocation(10, 0.0), 1e-5) is None
    assert conditional_epsilon(RandomAllocation(10, 1.0), 0.0) is None
    assert conditional_epsilon(RandomAllocation(2000, 1.0, matrix=bsr(2000, 2)), 1e-5) is None
