"""Lower bounds on epsilon from the scores of an attack in many runs with and without the canary.

A test that says "present" above a threshold has a true-positive rate TPR and a false-positive rate FPR. If the
mechanism is (epsilon, delta)-DP then ``TPR <= e^epsilon FPR + delta`` and the same with the two worlds swapped
(Kairouz, Oh, Viswanath 2015, arXiv 1311.0776). With exact binomial confidence limits of both rates (Clopper and
Pearson 1934) this gives a lower bound on epsilon (Jagielski, Ullman, Oprea 2020, arXiv 2006.07709).

Formal guarantees
-----------------
* The scores are the attack's, whatever it is: a poor attack gives a small bound, never a wrong one.
* Statistic, threshold and direction are chosen on one half of the runs and judged on the other half, so no
  correction for the choice is needed. The two rates are bounded at half of the error probability each.
* `epsilon_lower_bound` exceeds the true epsilon with probability at most ``1 - confidence``.
* `gaussian_lower_bound` does so for mechanisms that are mu-Gaussian-DP (Dong, Roth, Su 2019, arXiv 1905.02383),
  which compositions of Gaussian releases are: every test obeys
  ``Phi^-1(TPR) - Phi^-1(FPR) <= mu``, hence a lower bound on mu, and epsilon at delta from the exact curve
  (Nasr et al. 2023, arXiv 2302.07956). It may refute a claim that says "Gaussian" and is labelled as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import betainccinv, betaincinv, ndtri

from fedpriv.accounting.gaussian import gaussian_epsilon
from fedpriv.accounting.validators import InvalidArgument, check_delta

Family = Literal["any", "gaussian"]

#: Thresholds that are tried per statistic: quantiles of the scores in the selection half.
MAX_THRESHOLDS = 400


@dataclass(frozen=True, eq=False)
class Trials:
    """Scores of an attack.

    Parameters
    ----------
    present, absent : np.ndarray
        Shape (runs, statistics): larger says "present". Runs are independent of each other.
    """

    present: np.ndarray
    absent: np.ndarray

    def __post_init__(self) -> None:
        for name in ("present", "absent"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            values = values[:, None] if values.ndim == 1 else values
            if values.ndim != 2 or len(values) < 4 or np.isnan(values).any():
                raise InvalidArgument(
                    f"{name}: needs at least 4 runs of scores that are numbers, got shape {values.shape}"
                )
            object.__setattr__(self, name, values)
        if self.present.shape[1] != self.absent.shape[1]:
            raise InvalidArgument(
                f"absent: {self.absent.shape[1]} statistics, but present has {self.present.shape[1]}"
            )

    @property
    def runs(self) -> int:
        """Runs in both worlds."""
        return len(self.present) + len(self.absent)

    def halves(self) -> tuple[Trials, Trials]:
        """Runs to choose the test on, and runs to judge it on."""
        first, second = len(self.present) // 2, len(self.absent) // 2
        return (
            Trials(self.present[:first], self.absent[:second]),
            Trials(self.present[first:], self.absent[second:]),
        )


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon.

    Parameters
    ----------
    epsilon : float
        The bound, >= 0.
    delta : float
        At which delta.
    confidence : float
        Probability with which the bound is not above the truth.
    runs : int
        Runs in all, those of the selection included.
    detail : str
        The test and what it scored on the judged half.
    mu : float or None
        Lower bound on mu where the bound is by Gaussian DP.
    """

    epsilon: float
    delta: float
    confidence: float
    runs: int
    detail: str
    mu: float | None = None


def check_confidence(confidence: float) -> None:
    """Require a number in (0, 1).

    Raises
    ------
    InvalidArgument
        When it is not.
    """
    if isinstance(confidence, bool) or not 0.0 < confidence < 1.0:
        raise InvalidArgument(f"confidence: {confidence!r} is outside (0, 1)")


def clopper_pearson(successes: np.ndarray | int, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact one-sided binomial limits, lower and upper, each wrong with probability at most ``error``.

    Parameters
    ----------
    successes : int or np.ndarray
        Number of successes.
    trials : int
        Number of trials.
    error : float
        Error probability of each limit, in (0, 1).

    Returns
    -------
    tuple of np.ndarray
        Lower and upper limits, of the shape of ``successes``.
    """
    k = np.asarray(successes, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        lower = np.where(k <= 0, 0.0, betaincinv(np.maximum(k, 1e-9), trials - k + 1, error))
        upper = np.where(k >= trials, 1.0, betainccinv(k + 1, np.maximum(trials - k, 1e-9), error))
    return lower, upper


@dataclass(frozen=True)
class _Test:
    """Says "present" above the threshold (``high``) or below it, in one of the two orders of the worlds."""

    statistic: int
    threshold: float
    swapped: bool
    high: bool

    def counts(self, trials: Trials) -> tuple[int, int, int, int]:
        """Hits and runs in the first world, hits and runs in the second."""
        first, second = trials.present, trials.absent
        if self.swapped:
            first, second = second, first
        a, b = first[:, self.statistic], second[:, self.statistic]
        hits = [int(np.sum(x > self.threshold if self.high else x <= self.threshold)) for x in (a, b)]
        return hits[0], len(a), hits[1], len(b)

    def __str__(self) -> str:
        return f"statistic {self.statistic} {'>' if self.high else '<='} {self.threshold:.4g}"


def _values(
    hits: np.ndarray | int, runs: int, others: np.ndarray | int, other_runs: int, delta: float, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Lower bounds on epsilon (any mechanism) and on mu (Gaussian ones) of tests."""
    low, _ = clopper_pearson(hits, runs, error / 2)
    _, high = clopper_pearson(others, other_runs, error / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(low > delta, np.log(np.maximum(low - delta, 1e-300) / high), -np.inf)
        mu = ndtri(low) - ndtri(high)
    return np.maximum(ratio, 0.0), np.where(np.isnan(mu), 0.0, np.maximum(mu, 0.0))


def _select(trials: Trials, delta: float, error: float, family: Family) -> _Test:
    """The test with the best bound on the selection half."""
    best, found = -1.0, _Test(0, 0.0, False, True)
    for statistic in range(trials.present.shape[1]):
        a, b = trials.present[:, statistic], trials.absent[:, statistic]
        pooled = np.unique(np.concatenate([a, b]))
        if len(pooled) > MAX_THRESHOLDS:
            pooled = pooled[np.linspace(0, len(pooled) - 1, MAX_THRESHOLDS).astype(int)]
        middles = (pooled[1:] + pooled[:-1]) / 2 if len(pooled) > 1 else pooled
        above = [np.array([np.sum(x > t) for t in middles]) for x in (a, b)]
        for swapped in (False, True):
            first, second = (b, a) if swapped else (a, b)
            up_first, up_second = reversed(above) if swapped else above
            for high in (True, False):
                hits = up_first if high else len(first) - up_first
                others = up_second if high else len(second) - up_second
                epsilon, mu = _values(hits, len(first), others, len(second), delta, error)
                value = epsilon if family == "any" else mu
                index = int(np.argmax(value))
                # ties (all zero, with few runs): the test that separates the halves best
                score = float(value[index]) + 1e-6 * float(
                    np.abs(hits[index] / len(first) - others[index] / len(second))
                )
                if score > best:
                    best, found = score, _Test(statistic, float(middles[index]), swapped, high)
    return found


def _judge(
    trials: Trials, delta: float, confidence: float, family: Family
) -> tuple[float, float, _Test, tuple[int, int, int, int]]:
    check_delta(delta=delta)
    check_confidence(confidence)
    selection, judged = trials.halves()
    test = _select(selection, delta, 1.0 - confidence, family)
    counts = test.counts(judged)
    epsilon, mu = _values(*counts, delta, 1.0 - confidence)
    return float(epsilon), float(mu), test, counts


def epsilon_lower_bound(trials: Trials, delta: float, confidence: float = 0.95) -> LowerBound:
    """Lower bound on epsilon at ``delta`` for any mechanism.

    Parameters
    ----------
    trials : Trials
        Scores, at least 8 runs per world.
    delta : float
        In [0, 1).
    confidence : float
        In (0, 1).

    Returns
    -------
    LowerBound

    Raises
    ------
    InvalidArgument
        When an argument is out of range; the message names it.
    """
    epsilon, _, test, (hits, runs, others, other_runs) = _judge(trials, delta, confidence, "any")
    detail = f"{test}: {hits}/{runs} against {others}/{other_runs}"
    return LowerBound(epsilon, delta, confidence, trials.runs, detail)


def gaussian_lower_bound(trials: Trials, delta: float, confidence: float = 0.95) -> LowerBound:
    """Lower bound on mu of a mechanism that is mu-Gaussian-DP, and the epsilon at ``delta`` that goes with it.

    Parameters are those of :func:`epsilon_lower_bound`. Stronger than that bound at small delta, and valid only
    against a claim that is itself Gaussian.
    """
    _, mu, test, (hits, runs, others, other_runs) = _judge(trials, delta, confidence, "gaussian")
    epsilon = 0.0
    if mu > 0:
        epsilon = gaussian_epsilon(1.0 / mu, delta) if math.isfinite(mu) else math.inf
    detail = f"{test}: {hits}/{runs} against {others}/{other_runs}, mu >= {mu:.3f}"
    return LowerBound(epsilon, delta, confidence, trials.runs, detail, mu)


def success_lower_bound(trials: Trials, confidence: float = 0.95) -> LowerBound:
    """Lower bound on the success of guessing a fair secret bit (present or absent), for PAC privacy.

    The test is chosen on one half of the runs; its average success over the two worlds on the other half is bounded
    from below by both Clopper-Pearson limits. The ``epsilon`` of the answer is that probability.
    """
    check_confidence(confidence)
    selection, judged = trials.halves()
    error = 1.0 - confidence
    test = _select(selection, 0.0, error, "gaussian")
    hits, runs, others, other_runs = test.counts(judged)
    low, _ = clopper_pearson(hits, runs, error / 2)
    _, high = clopper_pearson(others, other_runs, error / 2)
    success = max(0.5, float(0.5 * low + 0.5 * (1.0 - high)))
    detail = f"{test}: {hits}/{runs} against {others}/{other_runs}"
    return LowerBound(success, 0.0, confidence, trials.runs, detail)


def largest_possible_bound(runs: int, delta: float, confidence: float = 0.95) -> float:
    """What `epsilon_lower_bound` can say at most, of a mechanism without any privacy, with so many runs.

    Parameters
    ----------
    runs : int
        Runs in all, in equal parts with and without the canary.
    """
    judged = runs // 2 - runs // 4
    return float(_values(judged, judged, 0, judged, delta, 1.0 - confidence)[0])
