"""Random allocation under correlated noise, reduced to independent noise.

Let G be the Gram matrix of the bins' mean vectors (`matrix_gram.py`), clip norm 1, noise standard deviation sigma.
Under Q the ratio is the average over bins of correlated log-normals of mean 1 with log-covariance ``G / sigma^2``.

**Comparison.** For convex f, ``E f(average)`` grows with every entry of G (Kahane's convexity inequality, Israel
Journal of Mathematics 55, 1986). Both payoffs of the privacy profile are convex, so in both directions

* adaptive and shorter contributions are covered, since they shrink the Gram entries row by row (C is non-negative);
* if off-diagonal entries are at most tau and diagonal ones at most g, G may be replaced by ``(g - tau) I + tau``,
  which is random allocation with *independent* noise ``sigma / sqrt(g - tau)`` composed with one Gaussian release of
  noise multiplier ``sigma / sqrt(tau)``;
* dropping all off-diagonal entries gives a *lower* bound.

**Rotation.** The average over bins is the average over the b rotations r of the averages over r, r + q, r + 2q, ...
(floor(b/q) bins at cyclic distance at least q). By convexity the profile is at most that of one such group, whose tau
is the largest entry at cyclic distance at least q: zero when C is p-banded and q >= p.

Every spacing q gives a valid bound in both directions, for the profile and for Rényi divergence, where the second
factor costs ``tau alpha / (2 sigma^2)`` as in Feldman and Shenfeld (arXiv 2601.21636) for truncation.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from fedpriv.accounting.allocation_banded import CyclicGram, banded_log_moments, largest_exact_order
from fedpriv.accounting.allocation_renyi import allocation_curves
from fedpriv.accounting.curves import DirectionalCurves, RdpCurve
from fedpriv.accounting.matrices import StrategyMatrix
from fedpriv.accounting.matrix_gram import first_bin_mean, gram_bands, gram_lags
from fedpriv.accounting.ratio_law import FloatArray

_MOST_SPACINGS: Final = 16


@dataclass(frozen=True)
class Reduction:
    """Independent noise that dominates the correlated mechanism.

    Parameters
    ----------
    spacing : int
        q, the cyclic distance between bins of one group.
    bins : int
        ``floor(b / q)``.
    squared_norm : float
        ``g - tau``: squared contribution of a bin, independent noise.
    common : float
        ``tau``: squared sensitivity of the Gaussian release composed with it.
    """

    spacing: int
    bins: int
    squared_norm: float
    common: float


@lru_cache(maxsize=128)
def reductions(matrix: StrategyMatrix, bins: int) -> tuple[Reduction, ...]:
    """Useful spacings, from 1 to no amplification at all (one bin).

    Raises
    ------
    InvalidArgument
        When the number of rounds is not a multiple of ``bins``.
    """
    lags = gram_lags(matrix, bins)
    largest = float(lags[0])
    # taus[q] bounds all entries at cyclic distance q or more.
    taus = np.append(np.maximum.accumulate(lags[::-1])[::-1], 0.0)
    spacings = np.unique(np.geomspace(1, bins // 2 + 1, _MOST_SPACINGS).astype(int))
    if matrix.band is not None:
        spacings = np.unique(np.append(spacings[spacings < matrix.band], min(matrix.band, bins // 2 + 1)))
    found: list[Reduction] = []
    for q in spacings.tolist():
        count, tau = bins // q, float(taus[min(q, taus.size - 1)])
        if count > 1 and largest - tau > 1e-9 * largest and (not found or tau < found[-1].common):
            found.append(Reduction(q, count, largest - tau, tau))
    found.append(Reduction(bins, 1, largest, 0.0))
    return tuple(found)


@dataclass(frozen=True)
class Core:
    """Bins for a lower bound: ``bins`` of them with squared norm at least ``squared_norm``; the rest tell nothing."""

    bins: int
    squared_norm: float


@lru_cache(maxsize=128)
def cores(matrix: StrategyMatrix, bins: int) -> tuple[Core, ...]:
    """Ways to bound the loss from below: leave out some of the last bins, whose columns are cut off by the last row.

    Replacing the ratios of bins by their mean 1 is a contraction (Jensen), and so is dropping the correlations.
    """
    squares = np.cumsum(first_bin_mean(matrix, bins) ** 2)
    size = squares.size
    left_out = {0, bins // 32, bins // 16, bins // 8, bins // 4}
    if matrix.band is not None:
        left_out.add(matrix.band - 1)
    # Bin i keeps the first N - i rows of m_0: the last bin that counts has the smallest norm.
    return tuple(Core(bins - n, float(squares[size - (bins - n)])) for n in sorted(left_out) if n < bins)


def matrix_curves(
    matrix: StrategyMatrix, bins: int, noise_multiplier: float, orders: FloatArray
) -> DirectionalCurves:
    """Rényi curves of random allocation with kept bins under correlated noise.

    The smallest of, per order: some of the reductions to independent noise; in the remove direction also the exact
    dynamic programme (`exact_remove_curve`); in the add direction also the AM-GM bound
    ``((alpha-1) |mean m_i|^2 + mean |m_i|^2) / (2 sigma^2)`` of Feldman and Shenfeld (arXiv 2601.21636).

    Parameters
    ----------
    matrix : StrategyMatrix
        For N = bins * epochs rounds.
    bins : int
        b.
    noise_multiplier : float
        Standard deviation of Z over the clip norm, > 0.
    orders : array of shape (n,)
        Orders > 1.

    Notes
    -----
    Formal guarantees: an upper bound per order and direction, for adaptive contributions too; exact in the remove
    direction, up to the orders of the programme, when C has at most 4 bands that fit into the bins.
    """
    remove, add = _matrix_divergences(matrix, int(bins), float(noise_multiplier), orders.tobytes())
    return DirectionalCurves(RdpCurve(orders, remove), RdpCurve(orders, add))


def exact_remove_curve(
    matrix: StrategyMatrix, bins: int, noise_multiplier: float, orders: FloatArray
) -> RdpCurve:
    """Remove direction by the dynamic programme on G cut to a band p <= 4: ``G <= (G - tau)_+ + tau``.

    Exact up to order 32 for band 2, 18 for band 3 and 12 for band 4 (less for very many bins or very little noise);
    infinite at larger orders.
    """
    remove = _exact_divergences(matrix, int(bins), float(noise_multiplier), orders.tobytes())
    return RdpCurve(orders, remove)


@lru_cache(maxsize=64)
def _matrix_divergences(
    matrix: StrategyMatrix, bins: int, noise_multiplier: float, orders_bytes: bytes
) -> tuple[FloatArray, FloatArray]:
    orders = np.frombuffer(orders_bytes, dtype=np.float64)
    variance = noise_multiplier**2
    remove, add = (
        _exact_divergences(matrix, bins, noise_multiplier, orders_bytes),
        _am_gm(matrix, bins, variance, orders),
    )
    choices = reductions(matrix, bins)
    # Neighbouring spacings differ little.
    for reduction in choices[:: 1 + len(choices) // 6] + choices[-2:]:
        s = noise_multiplier / reduction.squared_norm**0.5
        extra = reduction.common * orders / (2 * variance)
        curves = allocation_curves(s, reduction.bins, orders)
        remove = np.minimum(remove, curves.remove.rdp + extra)
        add = np.minimum(add, curves.add.rdp + extra)
    return remove, add


@lru_cache(maxsize=64)
def _exact_divergences(
    matrix: StrategyMatrix, bins: int, noise_multiplier: float, orders_bytes: bytes
) -> FloatArray:
    orders = np.frombuffer(orders_bytes, dtype=np.float64)
    remove = np.full(orders.shape, np.inf)
    for band in sorted({min(matrix.band or 4, 4), min(matrix.band or 2, 2)} - {1}):
        remove = np.minimum(remove, _truncated(matrix, bins, band, noise_multiplier**2, orders))
    return remove


def _am_gm(matrix: StrategyMatrix, bins: int, variance: float, orders: FloatArray) -> FloatArray:
    mean = first_bin_mean(matrix, bins)
    # Row n of the average of the bins is the average of the last b entries of m_0 up to n.
    sums = np.cumsum(mean)
    sums[bins:] -= sums[:-bins].copy()
    average_square = float(np.sum((sums / bins) ** 2))
    square_average = float(np.cumsum(mean**2)[mean.size - bins :].mean())
    return ((orders - 1) * average_square + square_average) / (2 * variance) * (1 + 1e-12)


def _truncated(
    matrix: StrategyMatrix, bins: int, band: int, variance: float, orders: FloatArray
) -> FloatArray:
    """Exact moments of the Gram matrix cut to a band, plus the price of the cut."""
    band = min(band, (bins + 1) // 2)
    lags = gram_lags(matrix, bins)
    largest = largest_exact_order(band, bins, float(lags[0]) / variance)
    largest = min(largest, int(np.ceil(orders[orders <= largest].max(initial=2.0)))) if largest else 0
    if band < 2 or largest < 2:
        return np.full(orders.shape, np.inf)
    tau = float(lags[band:].max(initial=0.0))
    # Without a band entries change slowly from bin to bin: the largest of each distance saves time.
    coarse = np.repeat(lags[:band, None], bins, axis=1)
    entries = coarse if matrix.band is None else gram_bands(matrix, bins, band)
    moments = banded_log_moments(CyclicGram(np.maximum(entries - tau, 0.0) / variance), largest)
    integers = np.arange(2, largest + 1, dtype=np.float64)
    divergence = moments[2:] / (integers - 1) + tau * integers / (2 * variance)
    return RdpCurve(integers, divergence).at(orders).rdp
