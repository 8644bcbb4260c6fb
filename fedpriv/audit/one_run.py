"""Auditing with one training run and many canaries (Steinke, Nasr, Jagielski 2023, arXiv 2305.08846).

Each of m canaries is in or out by its own fair coin. The auditor sees the output and guesses r of the m coins,
abstaining from the others. Theorem 5.2 there: if the mechanism is (epsilon, delta)-DP for one canary then the
number V of right guesses obeys, for every v,

    P[V >= v] <= beta + 2 m delta max_{1 <= i <= m} P[v > W >= v - i] / i,
    beta = P[W >= v],  W ~ Binomial(r, e^epsilon / (1 + e^epsilon)),

whatever the canaries do to each other: nothing needs to be independent but the coins. The largest epsilon for
which the right side is below the error probability is refuted.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrc, ndtr

from fedpriv.accounting.validators import InvalidArgument, check_delta, check_integer, check_positive
from fedpriv.audit.bounds import LowerBound, check_confidence


@dataclass(frozen=True, eq=False)
class OneRun:
    """What one run showed.

    Parameters
    ----------
    included : np.ndarray
        Shape (m,), bool: the coins.
    scores : np.ndarray
        Shape (m,): the larger, the likelier the canary is in.
    """

    included: np.ndarray
    scores: np.ndarray

    def right_guesses(self, guesses: int) -> int:
        """Right guesses when the highest scores are called in, as many of the lowest out, ``guesses`` in all."""
        order = np.argsort(self.scores, kind="stable")
        low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
        return int(np.sum(~self.included[low]) + np.sum(self.included[high]))


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Largest probability, over all (epsilon, delta)-DP mechanisms, of so many right guesses (Theorem 5.2)."""
    check_integer(1, canaries=canaries, guesses=guesses)
    check_integer(0, right=right)
    if not right <= guesses <= canaries:
        raise InvalidArgument(f"right, guesses: {right} and {guesses} of {canaries} canaries")
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    beta = 1.0 if right == 0 else float(bdtrc(right - 1, guesses, accuracy))
    alpha = 0.0
    if delta > 0 and right > 0:
        # P[v > W >= v - i] for i = 1 .. v; beyond that it no longer grows while i does
        below = np.arange(right - 1, -1, -1, dtype=np.float64)
        under = np.where(below > 0, bdtr(np.maximum(below - 1, 0), guesses, accuracy), 0.0)
        masses = float(bdtr(right - 1, guesses, accuracy)) - under
        alpha = float(np.max(masses / np.arange(1, right + 1)))
    return min(1.0, beta + 2.0 * canaries * delta * alpha)


def one_run_lower_bound(run: OneRun, guesses: int, delta: float, confidence: float = 0.95) -> LowerBound:
    """Lower bound on epsilon from one run.

    Parameters
    ----------
    run : OneRun
        Coins and scores.
    guesses : int
        r, fixed before the run was looked at (see :func:`best_guesses`).
    delta : float
        In [0, 1).
    confidence : float
        In (0, 1).
    """
    check_delta(delta=delta)
    check_confidence(confidence)
    canaries, right = len(run.included), run.right_guesses(guesses)
    epsilon = _refuted(canaries, guesses, right, delta, 1.0 - confidence)
    detail = f"{right} of {guesses} guesses right, {canaries} canaries"
    return LowerBound(epsilon, delta, confidence, 1, detail)


@functools.lru_cache(maxsize=4096)
def _refuted(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest epsilon whose p-value is at most the error; 0 when there is none."""
    if p_value(canaries, guesses, right, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, 1.0
    while high < 60.0 and p_value(canaries, guesses, right, high, delta) <= error:
        low, high = high, 2.0 * high
    for _ in range(50):
        middle = (low + high) / 2
        if p_value(canaries, guesses, right, middle, delta) <= error:
            low = middle
        else:
            high = middle
    return low


def best_guesses(canaries: int, mu: float, delta: float, confidence: float = 0.95) -> tuple[int, float]:
    """Number of guesses with the best expected bound for scores of unit variance that are ``mu`` apart.

    Chosen from the claim alone, so that it may be used on the run that is judged.

    Returns
    -------
    tuple of int and float
        Guesses, and the bound that the expected number of right ones would give.
    """
    check_integer(2, canaries=canaries)
    check_positive(mu=mu)
    scores = np.linspace(-8.0, 8.0 + mu, 4001)
    inside, outside = ndtr(mu - scores), ndtr(-scores)  # P[score > s] with and without
    best = (2, 0.0)
    for fraction in np.geomspace(2.0 / canaries, 1.0, 40):
        guesses = 2 * max(1, round(fraction * canaries / 2))
        called = (inside + outside) / 2
        at = int(np.argmin(np.abs(called - guesses / 2 / canaries)))
        accuracy = inside[at] / max(inside[at] + outside[at], 1e-300)
        right = math.floor(guesses * accuracy)
        bound = _refuted(canaries, guesses, right, delta, 1.0 - confidence)
        if bound > best[1]:
            best = (guesses, bound)
    return best
