"""Distances between two coupled runs, and the least energy that shifts one onto the other.

Two runs from neighbouring data are coupled by giving them the same noise. Their distance obeys ``z -> c_t z
+ e_t``, with c_t the Lipschitz constant of one noiseless step and e_t what does not contract (rounding,
finite differences, and the unit's own contribution where it counts as distance). Over the last j steps one
run is shifted toward the other by at most a_t per step,

    z_{t+1} = c_t z_t + e_t - a_t,        z_start given,  z_t >= 0,  z_end = 0,

and Gaussian noise of standard deviation nu_t pays ``alpha a_t^2 / (2 nu_t^2)`` for a shift at Rényi order
alpha (Feldman, Mironov, Talwar, Thakurta 2018, arXiv 1808.06651, in the form of adaptive composition). So
the quantity to minimise is the energy ``sum a_t^2 / nu_t^2``.

Let ``w_t`` be the product of the factors after step t. Measured in distance at the end, the remaining shift
``B_t = sum_{s>=t} w_s a_s`` must start at ``w z_start + sum w_s e_s``, end at 0, and never fall below the
drift still to come, ``R_t = sum_{s>=t} w_s e_s`` (that is ``z_t >= 0``). With ``tau_t = sum_{s>=t} w_s^2
nu_s^2`` as clock the energy is that of a path through the points (tau_t, B_t), so the optimum is a taut
string: the least concave majorant of the points (tau_t, R_t) and the raised starting point. Without drift
it is the straight line, i.e. Cauchy-Schwarz: ``energy = (w z)^2 / tau``. The formula ``(w z + sum w_s
e_s)^2 / tau`` for a positive drift is the straight line too, and is too small when that line dips below a
point, e.g. for z = 0 and c > 1.

Formal guarantees
-----------------
* `least_shift_energies` is the exact minimum for every window, for any factors, drifts and noises.
* It is non-decreasing in distances, factors and drifts, and non-increasing in the noise.
* `forward_distances` bounds the coupled distance after every number of steps, surely.
"""

import math
from bisect import bisect_left
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from fedpriv.accounting.curves import FloatArray

_LOG_RANGE: Final = 300.0
"""With drift, windows whose product of factors leaves exp(+-300) are not offered: squares would overflow."""

_SMALLEST_FACTOR: Final = 1e-100
"""A factor of 0 is raised to this, which only weakens the bound and keeps logarithms finite."""


def least_shift_energies(
    factors: FloatArray, drifts: FloatArray, noise_stds: FloatArray, distances: FloatArray
) -> FloatArray:
    """Least ``sum a_t^2 / nu_t^2`` that brings a distance to 0, for every window of last steps.

    Parameters
    ----------
    factors : array of shape (J,)
        Lipschitz constants c >= 0 of the last J steps, in order of time.
    drifts : array of shape (J,)
        What each of these steps adds to the distance, >= 0.
    noise_stds : array of shape (J,)
        Standard deviation per coordinate of the noise that absorbs the shift of each step, > 0.
    distances : array of shape (J,)
        ``distances[j - 1]``: distance before the last j steps.

    Returns
    -------
    array of shape (J,)
        Entry j - 1 belongs to the window of the last j steps; dimensionless. Infinite for windows whose
        products of factors leave the range of floating-point numbers (with drift only).
    """
    # Index 0 is the last step from here on.
    log_factors = np.log(np.maximum(factors[::-1], _SMALLEST_FACTOR))
    log_weights = np.concatenate(([0.0], np.cumsum(log_factors)))
    stds = noise_stds[::-1]
    if drifts.any() and np.ptp(factors) == np.ptp(drifts) == np.ptp(noise_stds) == 0:
        windows = np.arange(1, distances.size + 1)
        return constant_shift_energies(factors[0], float(drifts[0]), float(noise_stds[0]), windows, distances)
    if not drifts.any():
        # z^2 / sum_i nu_i^2 (w_i / w_start)^2, in logarithms: 1.1^(2 * 10,000) is no floating-point number.
        log_clock = np.logaddexp.accumulate(2 * (log_weights[:-1] + np.log(stds)))
        with np.errstate(over="ignore"):
            return np.square(distances) * np.exp(2 * log_weights[1:] - log_clock)
    return _taut_strings(log_weights, drifts[::-1], stds, distances)


def constant_shift_energies(
    factors: ArrayLike, drift: float, noise_std: float, windows: ArrayLike, distances: ArrayLike
) -> FloatArray:
    """`least_shift_energies` where all steps of a window are alike, for many windows at once.

    For c <= 1 the points (tau_t, R_t) are convex and the string is straight. For c > 1 they are concave:
    the string leaves them at the point from which the rest is straight, and until then the drift is shifted
    away as it comes.

    Parameters
    ----------
    factors : array
        Lipschitz constant c >= 0 in each window.
    drift, noise_std : float
        e >= 0 and nu > 0.
    windows : array of int
        Numbers j >= 1 of last steps.
    distances : array
        Distances before them. The three arrays are broadcast.

    Returns
    -------
    array
        Energies. With drift, infinite where ``c^j`` leaves exp(+-300).
    """
    c, j, z = np.broadcast_arrays(np.asarray(factors, dtype=np.float64), np.asarray(windows), distances)
    log_c = np.log(np.maximum(c, _SMALLEST_FACTOR))
    if drift == 0:
        # (z w_start)^2 / sum w_i^2 with both sides divided by w_start^2 = c^(2j).
        with np.errstate(over="ignore"):
            return np.square(z / noise_std) / _geometric_sum(j, -2 * log_c) * np.exp(2 * log_c)
    in_range = np.abs(j * log_c) <= _LOG_RANGE
    j = np.where(in_range, j, 1)

    def clock(i: Any) -> Any:
        return _geometric_sum(i, 2 * log_c) * noise_std**2

    def coming(i: Any) -> Any:
        return _geometric_sum(i, log_c) * drift

    tau, start = clock(j), np.exp(j * log_c) * z + coming(j)
    # Largest i < j whose incoming slope, e / (c^(i-1) nu^2), is above the slope from i to the start.
    tangent = np.zeros(j.shape, dtype=np.int64)
    high = np.where(log_c > 0, j, 1)
    while (high - tangent > 1).any():
        middle = (tangent + high) // 2
        with np.errstate(divide="ignore", invalid="ignore"):
            outgoing = (start - coming(middle)) / (tau - clock(middle))
        open_ = high - tangent > 1
        above = open_ & (drift * np.exp(-(middle - 1) * log_c) / noise_std**2 > outgoing)
        tangent, high = np.where(above, middle, tangent), np.where(open_ & ~above, middle, high)
    rest = np.square(start - coming(tangent)) / (tau - clock(tangent))
    return np.where(in_range, tangent * (drift / noise_std) ** 2 + rest, np.inf)


def _geometric_sum(count: Any, log_ratio: Any) -> Any:
    """``1 + r + ... + r^(count - 1)`` for r = exp(log_ratio), stable around 1."""
    flat = log_ratio == 0
    with np.errstate(over="ignore"):
        return np.where(flat, count, np.expm1(count * log_ratio) / np.where(flat, 1.0, np.expm1(log_ratio)))


def _taut_strings(
    log_weights: FloatArray, drifts: FloatArray, stds: FloatArray, distances: FloatArray
) -> FloatArray:
    """Energies of the taut strings, window by window, over one hull that grows with the window."""
    energies = np.full(distances.shape, np.inf)
    in_range = np.abs(log_weights[1:]) <= _LOG_RANGE
    windows = distances.size if in_range.all() else int(np.argmin(in_range))
    weights = np.exp(log_weights[: windows + 1])
    clock = np.concatenate(([0.0], np.cumsum(np.square(weights[:-1] * stds[:windows]))))
    coming = np.concatenate(([0.0], np.cumsum(weights[:-1] * drifts[:windows])))
    # The hull of (clock, coming) from the end of time: abscissae, ordinates, negated slopes into each
    # vertex (these increase), and the energy up to each vertex.
    xs, ys, falling, spent = [0.0], [0.0], [-np.inf], [0.0]
    for j in range(1, windows + 1):
        x, start = float(clock[j]), float(weights[j] * distances[j - 1] + coming[j])
        vertex = _tangent(xs, ys, falling, x, start)
        energies[j - 1] = spent[vertex] + _square_over(start - ys[vertex], x - xs[vertex])
        y = float(coming[j])
        vertex = _tangent(xs, ys, falling, x, y)
        del xs[vertex + 1 :], ys[vertex + 1 :], falling[vertex + 1 :], spent[vertex + 1 :]
        if x > xs[-1]:
            spent.append(spent[-1] + _square_over(y - ys[-1], x - xs[-1]))
            falling.append(-(y - ys[-1]) / (x - xs[-1]))
            xs.append(x)
            ys.append(y)
    return energies


def _tangent(xs: list[float], ys: list[float], falling: list[float], x: float, y: float) -> int:
    """Index of the hull vertex from which the string goes straight to the new rightmost point (x, y)."""
    # Vertex v stays on the string when the slope into it is above the slope from it to the point. This
    # holds up to the tangent vertex and fails after it.
    return bisect_left(range(1, len(xs)), 1, key=lambda v: int(-falling[v] <= _slope(y - ys[v], x - xs[v])))


def _slope(rise: float, run: float) -> float:
    if run > 0:
        return rise / run
    return np.inf if rise > 0 else -np.inf


def _square_over(rise: float, run: float) -> float:
    if rise == 0:
        return 0.0
    return rise * rise / run if run > 0 else np.inf


def forward_distances(
    factors: FloatArray,
    drifts: FloatArray,
    contributions: FloatArray,
    diameter: float,
    largest_moves: FloatArray | None = None,
) -> FloatArray:
    """Distance of the two coupled runs after 0, 1, ..., T steps from a common start.

    ``w_0 = 0`` and ``w_{t+1} = min(diameter, min(c_t w_t + e_t, w_t + g_t) + s_t)``.

    Parameters
    ----------
    factors, drifts : arrays of shape (T,)
        Lipschitz constants of the noiseless step without the unit, and what it adds to a distance besides.
    contributions : array of shape (T,)
        Largest effect s_t >= 0 of the unit on one step.
    diameter : float
        Diameter of the set that both runs are projected to after each step; may be infinite.
    largest_moves : array of shape (T,), optional
        Sure bound g_t on the difference of the two runs' moves in one step, the unit apart (clipped
        gradients move both runs by a bounded amount, whatever the smoothness).

    Returns
    -------
    array of shape (T + 1,)
    """
    moves = np.full(factors.shape, np.inf) if largest_moves is None else largest_moves
    if factors.size and all(
        (series == series[0]).all() for series in (factors, drifts, contributions, moves)
    ):
        return _constant_forward_distances(
            float(factors[0]),
            float(drifts[0]),
            float(contributions[0]),
            float(moves[0]),
            diameter,
            factors.size,
        )
    distances = np.empty(factors.size + 1)
    distances[0] = distance = 0.0
    steps = zip(factors.tolist(), drifts.tolist(), moves.tolist(), contributions.tolist(), strict=True)
    for t, (factor, drift, move, contribution) in enumerate(steps):
        distance = min(diameter, min(factor * distance + drift, distance + move) + contribution)
        distances[t + 1] = distance
    return distances


def _constant_forward_distances(
    factor: float, drift: float, contribution: float, move: float, diameter: float, steps: int
) -> FloatArray:
    """The recursion with constants, in closed form: distances grow, so the smaller branch changes at most once."""
    t = np.arange(steps + 1)
    branches = ((factor, drift + contribution), (1.0, move + contribution))
    if drift > move or (drift == move and factor > 1):
        branches = branches[::-1]
    (first, first_add), (second, second_add) = branches
    distances = affine_iterates(first, first_add, 0.0, t)
    with np.errstate(over="ignore"):
        changed = second * distances + second_add < first * distances + first_add
    if changed.any():
        begin = int(np.argmax(changed))
        later = affine_iterates(second, second_add, float(distances[begin]), t[: steps + 1 - begin])
        distances[begin:] = later
    return np.minimum(distances, diameter)


def affine_iterates(factor: float, addend: float, start: ArrayLike, counts: ArrayLike) -> FloatArray:
    """``z`` after ``counts`` steps of ``z -> factor z + addend`` from ``start``; may be infinite."""
    log_factor = math.log(max(factor, _SMALLEST_FACTOR))
    begin = np.asarray(start, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        grown = np.where(begin > 0, begin * np.exp(np.asarray(counts) * log_factor), 0.0)
        added = addend * _geometric_sum(np.asarray(counts), log_factor) if addend > 0 else 0.0
        return grown + added
