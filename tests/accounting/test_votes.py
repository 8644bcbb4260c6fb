"""Sensitivity of ballots by enumeration, regret against simulation."""

import itertools
import math

import numpy as np
import pytest

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.accounting.votes import vote_regret_probability, vote_sensitivity


@pytest.mark.parametrize(("votes", "candidates"), [(1, 4), (2, 5), (3, 5), (4, 5), (5, 5), (1, 1)])
def test_sensitivity_by_enumeration(votes, candidates):
    ballots = [np.array(b) for b in itertools.product([0, 1], repeat=candidates) if sum(b) == votes]
    largest = max(np.linalg.norm(a - b) for a in ballots for b in ballots)
    assert vote_sensitivity(votes, candidates, "replace_one") == pytest.approx(largest)
    assert vote_sensitivity(votes, candidates, "add_or_remove") == pytest.approx(np.linalg.norm(ballots[0]))


def test_sensitivity_does_not_depend_on_many_candidates():
    assert vote_sensitivity(5, 12, "replace_one") == vote_sensitivity(5, 5000, "replace_one") == math.sqrt(10)


def test_regret_is_exact_for_two_candidates():
    # The difference of two noisy tallies is normal with standard deviation 5 sqrt 2.
    expected = 0.5 * (1 + math.erf(10 / (5 * math.sqrt(2)) / math.sqrt(2)))
    assert vote_regret_probability([30, 20], 5.0, 0) == pytest.approx(expected, rel=1e-12)


def test_regret_is_a_lower_bound_by_simulation():
    tallies, noise_std, gamma = np.array([30.0, 28, 22, 20, 15, 3]), 6.0, 5.0
    rng = np.random.default_rng(7)
    winners = (tallies + noise_std * rng.normal(size=(200_000, 6))).argmax(axis=1)
    observed = np.mean(tallies.max() - tallies[winners] <= gamma)
    bound = vote_regret_probability(tallies, noise_std, gamma)
    assert bound <= observed + 0.005
    assert bound > observed - 0.25


def test_regret_limits():
    assert vote_regret_probability([3, 2, 1], 0.0, 0) == 1.0
    assert vote_regret_probability([3, 2, 1], 100.0, 2) == 1.0
    assert vote_regret_probability(np.arange(50), 1e6, 0) == 0.0
    assert vote_regret_probability([5, 1], 2.0, 0) >= vote_regret_probability([5, 1], 4.0, 0)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: vote_sensitivity(0, 4, "replace_one"), "votes"),
        (lambda: vote_sensitivity(5, 4, "replace_one"), "votes"),
        (lambda: vote_sensitivity(1.0, 4, "replace_one"), "votes"),
        (lambda: vote_sensitivity(1, 4, "zero_out"), "adjacency"),
        (lambda: vote_regret_probability([], 1.0, 0), "tallies"),
        (lambda: vote_regret_probability([math.nan, 1], 1.0, 0), "tallies"),
        (lambda: vote_regret_probability([1, 2], -1.0, 0), "noise_std"),
        (lambda: vote_regret_probability([1, 2], 1.0, math.nan), "gamma"),
    ],
)
def test_rejections(call, name):
    with pytest.raises(InvalidArgument, match=f"{name} must be"):
        call()
