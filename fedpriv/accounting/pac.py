"""PAC privacy of one silo (PACZero): information about a secret subset, in nats. Not differential privacy.

A silo trains on one of M balanced subsets of a fixed universe, chosen uniformly; every record lies in
exactly half of them. A round releases one bit: the sign that the subsets agree on (free), or, when they
disagree, the secret subset's sign plus Gaussian noise, or a fair coin (ZPL: no information, the posterior
never moves). The information that the noisy sign gives about the secret, at posterior weight q of "+1", is
that of a binary-input Gaussian channel,

    I(q, sigma) = q E[-log(q + (1-q) e^U)] + (1-q) E[-log(1-q + q e^U)],    U = -2/sigma^2 + 2 Z/sigma,

and the chain rule adds rounds up. By Fano-type data processing the posterior success p of guessing one
record's membership obeys KL(p || 1/2) <= I. Source: arXiv 2605.06505.

Numerics. The trapezoid rule on [-12, 12] is exponentially accurate here (the integrand is analytic in a
strip of width about sigma). Everything is divided by the smaller weight, so that only logarithms of weights
are needed. Below a weight of 1e-20 the tail beyond 12 matters to the second mean, which is then taken in
the measure of the first.

Formal guarantees
-----------------
* `binary_channel_information` has relative accuracy 1e-9 for sigma in [0.05, 1e5] and any weight, is
  decreasing in the noise, at most ``2 q (1-q) / sigma^2`` and at most the entropy of the weight.
* `binary_channel_noise_std` never spends more than asked for, and at most a relative 1e-9 less.
* The posterior is kept in logarithms: a subset never drops out by underflow, so disagreement is never
  mistaken for unanimity.
* `PacBudget` never grants more than its total over all rounds.
* `membership_success` is the exact solution of KL(p || 1/2) = I, from above; no epsilon of differential
  privacy follows from it: `pure_dp_epsilon_with_equal_posterior` is a comparison only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpriv.accounting.solvers import secant_decreasing
from fedpriv.accounting.validators import InvalidArgument, check_integer, check_non_negative, check_positive

ENTROPY_SHARE: Final = 0.999
"""At most this part of a bit's entropy is released: all of it would need no noise at all."""

_Z: Final = np.linspace(-12.0, 12.0, 1201)
_WEIGHTS: Final = np.exp(-0.5 * _Z**2) / np.exp(-0.5 * _Z**2).sum()
_LOG_SMALL_WEIGHT: Final = -46.0
_MOST_CERTAIN: Final = 700.0
"""Beyond these log-odds a bit has less than 1e-300 nats; it gets the noise that they would get, which is more."""


def binary_entropy(weight: float) -> float:
    """Entropy in nats of a bit that is 1 with probability ``weight`` in [0, 1]."""
    _check_weight(weight)
    smaller = min(weight, 1 - weight)
    return 0.0 if smaller == 0 else smaller * _entropy_over_weight(math.log(smaller) - math.log1p(-smaller))


def binary_channel_information(weight: float, noise_std: float) -> float:
    """Exact mutual information between a sign and the sign plus Gaussian noise.

    Parameters
    ----------
    weight : float
        q in [0, 1]: probability of +1.
    noise_std : float
        sigma >= 0 on a sign of size 1; 0 gives the entropy.

    Returns
    -------
    float
        In nats.
    """
    _check_weight(weight)
    check_non_negative(noise_std=noise_std)
    smaller = min(weight, 1 - weight)
    if smaller == 0:
        return 0.0
    log_odds = math.log(smaller) - math.log1p(-smaller)
    return smaller * _information_over_weight(log_odds, noise_std)


def binary_channel_noise_std(weight: float, mutual_information: float) -> float:
    """Smallest noise with which the sign's release gives at most ``mutual_information``.

    Parameters
    ----------
    weight : float
        q in (0, 1): probability of +1.
    mutual_information : float
        Target in nats, >= 0; above 0.999 of the entropy that much is released.

    Returns
    -------
    float
        The end of the bracket that spends at most the target; infinite (a fair coin) for a target of 0.
    """
    _check_weight(weight)
    if not 0 < weight < 1:
        raise InvalidArgument(f"weight must be in (0, 1) for a noisy release, got {weight!r}")
    return noise_std_from_log_odds(math.log(weight) - math.log1p(-weight), mutual_information)


def noise_std_from_log_odds(log_odds: float, mutual_information: float) -> float:
    """`binary_channel_noise_std` for a weight given as ``log(q / (1-q))``, finite but as extreme as it may be."""
    check_non_negative(mutual_information=mutual_information)
    if not math.isfinite(log_odds):
        raise InvalidArgument(f"log_odds must be finite: a certain sign needs no noise, got {log_odds!r}")
    if mutual_information == 0:
        return math.inf
    side = -min(abs(log_odds), _MOST_CERTAIN)
    log_weight = -float(np.logaddexp(0.0, -side))
    # Everything relative to the smaller weight, which may be no floating-point number.
    target = ENTROPY_SHARE * _entropy_over_weight(side)
    log_budget = math.log(mutual_information) - log_weight
    if log_budget < math.log(target):
        target = math.exp(log_budget)
    # I <= 2 q (1-q) / sigma^2 starts the search close by.
    cap = math.sqrt(2 * -math.expm1(log_weight) / target)
    found = secant_decreasing(
        lambda noise_std: _information_over_weight(side, noise_std),
        target,
        start=cap,
        relative_tolerance=1e-9,
        lower_limit=cap * 1e-6,
        upper_limit=cap * 2,
    )
    # Rounding alone could keep the computed information above a target of 1e-15 nats and less at the cap.
    return 2 * cap if found is None else found


def membership_success(mutual_information: float) -> float:
    """Largest success of guessing whether a record was used: p >= 1/2 with KL(p || 1/2) = I, rounded up.

    Parameters
    ----------
    mutual_information : float
        I in nats, >= 0. From log 2 on, success 1 is not excluded.
    """
    check_non_negative(mutual_information=mutual_information)
    if mutual_information >= math.log(2):
        return 1.0
    # Solve for the advantage a = 2p - 1, which stays accurate when I is tiny.
    low, high = 0.0, 1.0
    while high - low > 1e-15 * high and low < (low + high) / 2 < high:
        middle = (low + high) / 2
        if _divergence_of_advantage(middle) < mutual_information:
            low = middle
        else:
            high = middle
    return (1 + high) / 2


def mutual_information_for_success(success: float) -> float:
    """Information KL(p || 1/2) that a bound p in [1/2, 1] on the success of membership guesses allows."""
    if not 0.5 <= success <= 1:
        raise InvalidArgument(f"success must be in [0.5, 1], got {success!r}")
    return math.log(2) if success == 1 else _divergence_of_advantage(2 * success - 1)


def pure_dp_epsilon_with_equal_posterior(mutual_information: float) -> float:
    """Epsilon of pure DP whose posterior bound e^eps / (1 + e^eps) equals the membership success at I.

    A comparison for readers who think in epsilons. It is no guarantee: PAC privacy is not differential
    privacy.
    """
    success = membership_success(mutual_information)
    if success == 1:
        return math.inf
    advantage = 2 * success - 1
    return math.log1p(advantage) - math.log1p(-advantage)


@dataclass
class PacBudget:
    """Information that one silo may still release over the rest of its rounds.

    Parameters
    ----------
    total : float
        Nats for the whole run, >= 0.
    rounds : int
        T >= 0.
    used : float
        Nats granted so far (restored from disk after a restart).
    round : int
        Rounds completed so far.
    """

    total: float
    rounds: int
    used: float = 0.0
    round: int = 0

    def __post_init__(self) -> None:
        check_non_negative(total=self.total, used=self.used)
        check_integer(0, rounds=self.rounds, round=self.round)

    def allowance(self, log_odds: float) -> float:
        """Nats for the next round: an equal part of the rest, at most 0.999 of the bit's entropy.

        Parameters
        ----------
        log_odds : float
            ``log(q / (1-q))`` of the posterior weight of "+1"; infinite when the subsets agree (0 nats).
        """
        left = self.rounds - self.round
        if left <= 0 or math.isinf(log_odds):
            return 0.0
        side = -min(abs(log_odds), _MOST_CERTAIN)
        entropy = math.exp(-float(np.logaddexp(0.0, -side))) * _entropy_over_weight(side)
        return min(max(0.0, self.total - self.used) / left, ENTROPY_SHARE * entropy)

    def charge(self, nats: float) -> None:
        """Count one round that may release ``nats``; call it before the release.

        Raises
        ------
        InvalidArgument
            When the rounds are over or the total would be exceeded.
        """
        check_non_negative(nats=nats)
        if self.round >= self.rounds:
            raise InvalidArgument(f"round must be below rounds = {self.rounds}, got {self.round}")
        if self.used + nats > self.total * (1 + 1e-12):
            raise InvalidArgument(
                f"nats must be at most {self.total - self.used!r}, what is left, got {nats!r}"
            )
        self.used += nats
        self.round += 1


@dataclass
class SubsetPosterior:
    """Posterior over the M subsets given all releases so far, in logarithms.

    Parameters
    ----------
    log_weights : array of shape (M,)
        Unnormalised log posterior, finite. Uniform to begin with: see `uniform`.
    """

    log_weights: NDArray[np.float64] = field(repr=False)

    def __post_init__(self) -> None:
        weights = np.array(self.log_weights, dtype=np.float64)
        if weights.ndim != 1 or weights.size < 2 or not np.isfinite(weights).all():
            raise InvalidArgument(
                f"log_weights must be at least two finite numbers in one dimension, got shape {weights.shape}"
            )
        self.log_weights = weights - weights.max()

    @classmethod
    def uniform(cls, subsets: int) -> "SubsetPosterior":
        """The prior: every one of ``subsets`` >= 2 is equally likely."""
        check_integer(2, subsets=subsets)
        return cls(np.zeros(subsets))

    def log_odds(self, signs: ArrayLike) -> float:
        """``log P(+1) - log P(-1)`` of the secret subset's sign; infinite only if all subsets agree.

        Parameters
        ----------
        signs : array of shape (M,)
            +1 or -1 for every subset.
        """
        positive = self._positive(signs)
        if positive.all():
            return math.inf
        if not positive.any():
            return -math.inf
        up, down = self.log_weights[positive], self.log_weights[~positive]
        return float(np.logaddexp.reduce(up) - np.logaddexp.reduce(down))

    def update(self, signs: ArrayLike, released: float, noise_std: float) -> None:
        """Condition on a released value (the real number, before its sign is taken).

        Parameters
        ----------
        signs : array of shape (M,)
            +1 or -1 for every subset, as in the release.
        released : float
            Sign of the secret subset plus noise.
        noise_std : float
            Standard deviation of that noise, > 0; infinite for a fair coin, which moves nothing.
        """
        if noise_std == math.inf:
            return
        check_positive(noise_std=noise_std)
        if not math.isfinite(released):
            raise InvalidArgument(f"released must be finite, got {released!r}")
        signed = np.where(self._positive(signs), 1.0, -1.0)
        # -(y - s)^2 / (2 sigma^2) up to what all subsets share.
        moved = self.log_weights + signed * (released / noise_std / noise_std)
        self.log_weights = moved - moved.max()

    def to_list(self) -> list[float]:
        """Log weights as plain numbers, for a state file; the constructor reads them back."""
        return [float(value) for value in self.log_weights]

    def _positive(self, signs: ArrayLike) -> NDArray[np.bool_]:
        array = np.asarray(signs)
        if array.shape != self.log_weights.shape or not np.isin(array, (-1, 1)).all():
            raise InvalidArgument(
                f"signs must be +1 or -1 for each of the {self.log_weights.size} subsets, got shape {array.shape}"
            )
        return array == 1


def check_balanced(subsets: Sequence[Sequence[int]] | Any) -> None:
    """Require that every record lies in exactly half of the subsets, which the guarantee rests on.

    Parameters
    ----------
    subsets : array of shape (M, N)
        Membership of N records in M subsets, as 0 and 1.
    """
    members = np.asarray(subsets)
    if members.ndim != 2 or members.shape[0] < 2 or not np.isin(members, (0, 1)).all():
        raise InvalidArgument(f"subsets must be a 0/1 array of shape (M, N) with M >= 2, got {members.shape}")
    counts = members.sum(axis=0, dtype=np.int64)
    if (2 * counts != members.shape[0]).any():
        record = int(np.argmax(2 * counts != members.shape[0]))
        raise InvalidArgument(
            f"subsets must contain every record in exactly half of {members.shape[0]}, "
            f"got {int(counts[record])} for record {record}"
        )


def _information_over_weight(log_odds: float, noise_std: float) -> float:
    """I(q, sigma) / q for log-odds <= 0 of q <= 1/2; finite when q itself underflows."""
    if noise_std == 0:
        return _entropy_over_weight(log_odds)
    log_q, log_p = -float(np.logaddexp(0.0, -log_odds)), -float(np.logaddexp(0.0, log_odds))
    shift, spread = 2 / noise_std / noise_std, 2 * _Z / noise_std
    first = float(_WEIGHTS @ _minus_log_mixture(log_q, log_p, spread - shift))
    if log_q >= _LOG_SMALL_WEIGHT:
        second = float(_WEIGHTS @ _minus_log_mixture(log_p, log_q, spread - shift))
        return max(0.0, first + math.exp(log_p - log_q) * second)
    # With x = q (e^v - 1) of mean 0: E_-[-log(1+x)] = E_-[x - log(1+x)] = E_+[e^-v (x - log(1+x))].
    v = spread + shift
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        q_ev = np.exp(np.minimum(log_q + v, 700.0))
        x = q_ev - math.exp(log_q)
        tail = 1 / 2 - x * (1 / 3 - x * (1 / 4 - x / 5))
        series = q_ev * np.square(np.expm1(-np.maximum(v, -300.0))) * tail
        plain = -np.expm1(-v) - np.log1p(x) / q_ev
        tiny = np.abs(x) < 1e-3
    return first + math.exp(log_p) * float(_WEIGHTS @ np.where(tiny, series, plain))


def _minus_log_mixture(log_first: float, log_second: float, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """``-log(a + b e^u)`` with a + b = 1 given in logarithms, accurate around u = 0 too."""
    near = np.log1p(math.exp(log_second) * np.expm1(np.clip(u, -1.0, 1.0)))
    return -np.where(np.abs(u) < 1, near, np.logaddexp(log_first, log_second + u))


def _entropy_over_weight(log_odds: float) -> float:
    """h(q) / q for log-odds <= 0 of q <= 1/2: ``-log q - (1-q) log(1-q) / q``."""
    log_q, log_p = -np.logaddexp(0.0, -log_odds), -np.logaddexp(0.0, log_odds)
    rest = 1.0 if log_q < -40 else -float(log_p) * math.exp(log_p - log_q)
    return float(-log_q) + rest


def _divergence_of_advantage(advantage: float) -> float:
    """KL((1+a)/2 || 1/2) = ((1+a) log(1+a) + (1-a) log(1-a)) / 2."""
    a = advantage
    if a < 1e-2:
        # a^2/2 + a^4/12 + a^6/30 + a^8/56 + ...: the logarithms cancel.
        s = a * a
        return s * (1 / 2 + s * (1 / 12 + s * (1 / 30 + s * (1 / 56 + s / 90))))
    if a == 1:
        return math.log(2)
    return ((1 + a) * math.log1p(a) + (1 - a) * math.log1p(-a)) / 2


def _check_weight(weight: float) -> None:
    if not 0 <= weight <= 1:
        raise InvalidArgument(f"weight must be a probability in [0, 1], got {weight!r}")
