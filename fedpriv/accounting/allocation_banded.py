"""Rényi divergence of random allocation under correlated noise, remove direction.

Bin i has mean vector m_i (`matrix_gram.py`); G is the Gram matrix of the bins over the noise
variance, with non-negative entries. For integer n

    E_Q (dP/dQ)^n = b^-n sum over (i_1..i_n) of exp( sum_{r<s} G[i_r, i_s] )

(Feldman and Shenfeld, arXiv 2601.21636, section 5): a sum over the counts (n_1..n_b) of the bins with weight
``n!/prod n_i! exp( sum_i n_i (n_i - 1)/2 G_ii + sum_{i<j} n_i n_j G_ij )``. When entries beyond cyclic distance p - 1
vanish, a dynamic programme over the bins needs the counts of the first and of the last p - 1 bins and the total.

Adaptive or shorter contributions only shrink the entries of G round by round, and the sum is increasing in each.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from scipy import special

from fedpriv.accounting.ratio_law import FloatArray
from fedpriv.accounting.validators import InvalidArgument, check_integer

_STATES: Final = 150_000
"""Largest number of transitions per bin: order 32 for band 2, 18 for band 3, 12 for band 4."""
_WORK: Final = 5e7
"""Largest number of transitions in all."""
_LARGEST_EXPONENT: Final = 650.0


@dataclass(frozen=True, eq=False)
class CyclicGram:
    """Gram matrix of the bins over the noise variance, up to a cyclic distance.

    Parameters
    ----------
    bands : array of shape (p, b)
        ``bands[d, i]`` is the entry of the bins i and i + d (mod b), >= 0; row 0 is the diagonal. Entries at larger
        cyclic distances are zero. ``2 p - 1 <= b``.
    """

    bands: FloatArray

    @property
    def band(self) -> int:
        """p: entries vanish from cyclic distance p on."""
        return self.bands.shape[0]

    @property
    def bins(self) -> int:
        """b."""
        return self.bands.shape[1]


def largest_exact_order(band: int, bins: int, largest_entry: float, limit: int = 32) -> int:
    """Largest integer order up to ``limit`` that `banded_log_moments` computes in a second or so (0: none).

    Parameters
    ----------
    band, bins : int
        p and b.
    largest_entry : float
        Largest entry of the Gram matrix over the noise variance: sums of exponentials must not overflow. Orders
        beyond have divergences of many nats and are of no use.
    limit : int
        Upper limit.
    """
    check_integer(1, band=band, bins=bins)
    if bins < max(2 * band - 1, 2):
        return 0
    order = limit
    while order >= 2 and (
        _transitions(band, order) > min(_STATES, _WORK / bins)
        or _largest_exponent(order, bins, largest_entry) > _LARGEST_EXPONENT
    ):
        order -= 1
    return order if order >= 2 else 0


def banded_log_moments(gram: CyclicGram, largest: int) -> FloatArray:
    """``log E_Q (dP/dQ)^n`` for n = 0..largest, exactly.

    Parameters
    ----------
    gram : CyclicGram
        With band p >= 2.
    largest : int
        Largest moment, from 2 to `largest_exact_order`.

    Raises
    ------
    InvalidArgument
        When an entry is negative or not finite, the band does not fit into the bins, or sums would overflow.

    Notes
    -----
    Formal guarantees: exact up to rounding (a sum of non-negative terms around 1: small divergences keep their
    digits); without off-diagonal entries it equals `allocation_renyi.log_moments`.
    """
    bands, p, b = gram.bands, gram.band, gram.bins
    check_integer(2, largest=largest, band=p)
    if not (np.isfinite(bands).all() and (bands >= 0).all()):
        raise InvalidArgument("the Gram matrix must have finite entries >= 0")
    if b < 2 * p - 1:
        raise InvalidArgument(f"bins must be at least 2 * band - 1 = {2 * p - 1}, got {b}")
    if _largest_exponent(largest, b, float(bands.max())) > _LARGEST_EXPONENT:
        raise InvalidArgument(f"largest must be small enough for exp(largest^2 G / 2), got {largest}")
    w = p - 1
    plan = _plan(w, largest)
    first, last, rest = plan.states[:, :w], plan.states[:, w : 2 * w], plan.states[:, 2 * w]
    # `excess` sums weight * (e^exponent - 1) and `plain` is the sum of the weights, in closed form: the moment minus 1
    # is a sum of non-negative terms and keeps all its digits.
    both = plan.states[:, : 2 * w]
    exponent = np.zeros(both.shape[0])
    for i in range(2 * w):
        exponent += 0.5 * both[:, i] * (both[:, i] - 1) * bands[0, i]
        for d in range(1, min(w, 2 * w - 1 - i) + 1):
            exponent += both[:, i] * both[:, i + d] * bands[d, i]
    excess = np.where(rest == 0, plan.weight * np.expm1(exponent), 0.0)
    known: tuple[float, ...] = ()
    growth = gain = np.zeros(0)
    for i in range(2 * w, b):
        entries = tuple(float(bands[d, i - d]) for d in range(p))
        if entries != known:
            # The newest bin has distance 1 from the last column of the state.
            known = entries
            step = 0.5 * plan.added * (plan.added - 1) * entries[0]
            for d in range(1, p):
                step += plan.added * plan.states[plan.source, 2 * w - d] * entries[d]
            gain = np.expm1(step) / plan.factorial_added
            growth = np.exp(step) / plan.factorial_added
        plain = plan.weight * float(i - 2 * w) ** rest
        terms = growth * excess[plan.source] + gain * plain[plan.source]
        excess = np.add.reduceat(terms, plan.starts)
    closing = np.zeros(plan.states.shape[0])
    for d in range(1, p):
        for i in range(b - d, b):
            # Bin i among the last w, and bin i + d - b among the first w.
            closing += last[:, i - (b - w)] * first[:, i + d - b] * bands[d, i]
    plain = plan.weight * float(b - 2 * w) ** rest
    excess = excess * np.exp(closing) + plain * np.expm1(closing)
    sums = np.bincount(plan.states.sum(axis=1).astype(np.int64), excess, largest + 1)
    n = np.arange(largest + 1)
    return np.log1p(sums * np.exp(special.gammaln(n + 1.0) - n * math.log(b)))


def _largest_exponent(order: int, bins: int, largest_entry: float) -> float:
    """Logarithm of a bound on every sum in `banded_log_moments`."""
    return 0.5 * order * (order - 1) * largest_entry + order * math.log(bins) - math.lgamma(order + 1)


def _transitions(band: int, order: int) -> int:
    return math.comb(order + 2 * band, 2 * band)


@dataclass(frozen=True, eq=False)
class _Plan:
    """Index arrays of one step of the dynamic programme, shared by all bins."""

    states: FloatArray
    weight: FloatArray
    source: np.ndarray
    added: FloatArray
    factorial_added: FloatArray
    starts: np.ndarray
    counts: np.ndarray


@lru_cache(maxsize=4)
def _plan(w: int, largest: int) -> _Plan:
    states = _compositions(2 * w + 1, largest)
    lookup = {tuple(row): i for i, row in enumerate(states.tolist())}
    moves = _compositions(2 * w + 2, largest)
    source = np.array([lookup[tuple(row)] for row in moves[:, : 2 * w + 1].tolist()])
    # first..., last_1, ..., last_w, rest, new  ->  first..., last_2, ..., last_w, new, rest + last_1
    oldest = moves[:, 2 * w : 2 * w + 1] + moves[:, w : w + 1]
    after = np.concatenate(
        [
            moves[:, :w],
            moves[:, w + 1 : 2 * w],
            moves[:, 2 * w + 1 :],
            oldest,
        ],
        axis=1,
    )
    target = np.array([lookup[tuple(row)] for row in after.tolist()])
    order = np.argsort(target, kind="stable")
    counts = np.bincount(target, minlength=states.shape[0])
    weight = np.exp(-special.gammaln(states + 1.0).sum(axis=1))
    added = moves[order, 2 * w + 1].astype(np.float64)
    return _Plan(
        states.astype(np.float64),
        weight,
        source[order],
        added,
        special.gamma(added + 1.0),
        np.cumsum(counts) - counts,
        counts,
    )


def _compositions(parts: int, largest: int) -> np.ndarray:
    """All tuples of ``parts`` non-negative integers with sum at most ``largest``."""
    rows = np.zeros((1, 0), dtype=np.int64)
    for _ in range(parts):
        room = largest - rows.sum(axis=1)
        repeated = np.repeat(rows, room + 1, axis=0)
        starts = np.cumsum(room + 1) - (room + 1)
        new = np.arange(repeated.shape[0]) - np.repeat(starts, room + 1)
        rows = np.concatenate([repeated, new[:, None]], axis=1)
    return rows
