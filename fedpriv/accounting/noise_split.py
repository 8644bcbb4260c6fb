"""Split of one noise between sampled contributions and shifts: the free beta of amplification by iteration.

For a sampling rate q < 1 the best split has no closed form. At every order alpha minimise, over the
multiplier ``z' < z`` of the part that pays for contributions (share ``beta = (z'/z)^2`` of the variance)
and the window j,

    j S_alpha(q, z') + alpha E_j / (2 (1 - beta)).

For a given share only the windows on the lower convex hull of (j, E_j) can be best, and the best one is
found by its slope. Multipliers come from a fixed geometric grid, so that sampled-Gaussian curves are reused
from call to call and the result is monotone in z; then the order that the target delta picks is refined on
the continuum. Every choice gives a valid bound: the search only decides how tight it is.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from fedpriv.accounting.curves import FloatArray, RdpCurve, epsilon_of_arrays
from fedpriv.accounting.events import PoissonGaussian

_GRID_PER_OCTAVE: Final = 4
_OCTAVES: Final = 3
"""The contributions get between 1/64 and all of the variance."""
_REFINED_NEIGHBOURS: Final = 2
_HOPELESS: Final = 1.25
"""No refinement gains this factor: the grid is within a few percent of the best split."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Split:
    """One choice: the share of the variance for contributions, its noise multiplier, and the window."""

    share: float
    multiplier: float
    window: int
    order: float
    rdp: float


@dataclass(frozen=True, eq=False)
class SplitBound:
    """Rényi bound per order, and the choice at the order that the target delta picks."""

    rdp: FloatArray
    best: Split


def sampled_rdp(sampling_rate: float, noise_multiplier: float, orders: FloatArray) -> FloatArray:
    """S_alpha(q, z) of Mironov, Talwar, Zhang 2019 at the given orders."""
    return PoissonGaussian(sampling_rate, noise_multiplier).curves(np.ascontiguousarray(orders)).remove.rdp


def best_split(
    sampling_rate: float,
    noise_multiplier: float,
    energies: FloatArray,
    orders: FloatArray,
    delta: float | None,
    rival: float = math.inf,
) -> SplitBound:
    """Minimise the bound over split and window at every order.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1).
    noise_multiplier : float
        z > 0: whole noise over the contribution.
    energies : array of shape (J,)
        Shift energy of the last 1, ..., J rounds at the whole noise.
    orders : array of shape (n,)
        Orders > 1.
    delta : float, optional
        Refine near the order that is best at this delta.
    rival : float
        Epsilon of another bound at this delta; far above it nothing is refined.
    """
    hull = _lower_hull(np.minimum(energies, np.finfo(np.float64).max))
    whole = np.unique(np.append(orders[orders == np.floor(orders)], 2.0))
    rdp, picks = _on_grid(sampling_rate, noise_multiplier, energies, hull, whole)
    # One fixed pair of laws stands behind all orders, so the chord between integer orders is valid.
    values = RdpCurve(whole, rdp).at(orders).rdp
    epsilon, found = epsilon_of_arrays(orders, values, delta if delta is not None else 1e-6)
    index = found or 0
    nearest = int(np.argmin(np.abs(whole - orders[index])))
    best = picks[nearest]
    if delta is None or epsilon > _HOPELESS * rival:
        return SplitBound(values, best)
    values = values.copy()
    refined: dict[int, Split] = {}
    while index not in refined:
        last = min(orders.size - 1, index + _REFINED_NEIGHBOURS)
        for i in range(max(0, index - _REFINED_NEIGHBOURS), last + 1):
            if i not in refined:
                refined[i] = _refine(sampling_rate, noise_multiplier, energies, hull, float(orders[i]), best)
                values[i] = min(values[i], refined[i].rdp)
        index = epsilon_of_arrays(orders, values, delta)[1] or 0
        best = refined.get(index, best)
    return SplitBound(values, best)


def _on_grid(
    q: float, z: float, energies: FloatArray, hull: tuple[FloatArray, FloatArray], orders: FloatArray
) -> tuple[FloatArray, list[Split]]:
    top = math.ceil(math.log2(z) * _GRID_PER_OCTAVE) - 1
    multipliers = 2.0 ** (np.arange(top - _OCTAVES * _GRID_PER_OCTAVE, top + 1) / _GRID_PER_OCTAVE)
    multipliers = multipliers[multipliers < z * (1 - 1e-9)]
    values = np.full(orders.shape, np.inf)
    picks = [Split(0.5, z * math.sqrt(0.5), 1, float(a), math.inf) for a in orders]
    for multiplier in multipliers:
        share = (multiplier / z) ** 2
        sampled = _cached_rdp(q, float(multiplier), orders.tobytes())
        window = _best_windows(hull, sampled * (1 - share) * 2 / orders)
        with np.errstate(over="ignore"):
            candidates = window * sampled + orders / 2 * energies[window - 1] / (1 - share)
        for i in np.flatnonzero(candidates < values):
            picks[i] = Split(share, float(multiplier), int(window[i]), float(orders[i]), float(candidates[i]))
        values = np.minimum(values, candidates)
    return values, picks


def _refine(
    q: float, z: float, energies: FloatArray, hull: tuple[FloatArray, FloatArray], order: float, start: Split
) -> Split:
    """Golden section on the logarithm of the multiplier, at one order."""
    alpha = np.array([order])

    def at(log_multiplier: float) -> Split:
        multiplier = math.exp(log_multiplier)
        share = (multiplier / z) ** 2
        sampled = sampled_rdp(q, multiplier, alpha)
        window = int(_best_windows(hull, sampled * (1 - share) * 2 / alpha)[0])
        value = window * float(sampled[0]) + order / 2 * float(energies[window - 1]) / (1 - share)
        return Split(share, multiplier, window, order, value)

    step = 1.5 * math.log(2) / _GRID_PER_OCTAVE
    low = math.log(start.multiplier) - step
    high = min(math.log(start.multiplier) + step, math.log(z) + math.log1p(-1e-6))
    left, right = at(high - _GOLDEN * (high - low)), at(low + _GOLDEN * (high - low))
    for _ in range(11):
        if left.rdp <= right.rdp:
            high, right = math.log(right.multiplier), left
            left = at(high - _GOLDEN * (high - low))
        else:
            low, left = math.log(left.multiplier), right
            right = at(low + _GOLDEN * (high - low))
    return min(left, right, key=lambda split: split.rdp)


@lru_cache(maxsize=2048)
def _cached_rdp(q: float, multiplier: float, orders: bytes) -> FloatArray:
    return sampled_rdp(q, multiplier, np.frombuffer(orders, dtype=np.float64))


def _lower_hull(energies: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Windows on the lower convex hull of (j, E_j), and the falls of energy per round between them."""
    windows: list[int] = []
    for j in range(1, energies.size + 1):
        while len(windows) > 1:
            a, b = windows[-2], windows[-1]
            # b is above the chord from a to j
            if (energies[b - 1] - energies[a - 1]) * (j - a) >= (energies[j - 1] - energies[a - 1]) * (b - a):
                windows.pop()
            else:
                break
        windows.append(j)
    kept = np.array(windows)
    falls = -np.diff(energies[kept - 1]) / np.diff(kept)
    return kept, falls


def _best_windows(hull: tuple[FloatArray, FloatArray], prices: FloatArray) -> FloatArray:
    """argmin over windows of ``E_j + j price``: go on while the energy falls by more than the price."""
    kept, falls = hull
    with np.errstate(invalid="ignore"):
        return kept[np.searchsorted(-falls, -np.nan_to_num(prices, nan=np.inf), side="left")]
