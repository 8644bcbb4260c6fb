"""Epsilon, calibration and choice of the matrix for random allocation: the smallest of all valid bounds, named.

Bounds that are tried:

* ``profile``: the two-sided privacy profile of independent noise (`allocation_profile`, `ratio_products`);
* ``grouping``: the same after a reduction of correlated noise to independent noise (`allocation_gram`);
* ``unamplified``: the Gaussian release of everything a unit can touch;
* ``rdp``: Rényi curves (`allocation_renyi`, `allocation_banded`);
* ``conditional``: conditional composition (`allocation_conditional`), on request: it is slower.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedpriv.accounting.allocation_events import RandomAllocation
from fedpriv.accounting.allocation_gram import Reduction
from fedpriv.accounting.allocation_profile import COARSE, STANDARD, Resolution
from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.matrices import MatrixKind, StrategyMatrix, make_matrix
from fedpriv.accounting.solvers import secant_decreasing
from fedpriv.accounting.validators import InvalidArgument, check_delta, check_integer, check_positive

__all__ = [
    "AllocationCalibration",
    "AllocationEpsilon",
    "MatrixChoice",
    "RandomAllocation",
    "allocation_epsilon",
    "calibrate_allocation",
    "compare_matrices",
]

_ORDERS: Final = np.union1d(DEFAULT_ORDERS, np.arange(64.0, 257.0, 8))
"""The default orders leave a gap between 63 and 128 where many of the best ones lie."""

FAMILIES: Final[tuple[MatrixKind, ...]] = ("identity", "bsr", "bisr", "bandmf", "blt")


@dataclass(frozen=True)
class AllocationEpsilon:
    """Epsilon of a run with random allocation.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    bound : str
        Name of the bound that gave it.
    lower : float
        No proof can give less than this: the loss of a unit that contributes one fixed vector of norm 1, bounded from
        below (tight for independent noise).
    candidates : dict of str to float
        Epsilon by every bound that was tried.
    notes : tuple of str
        What a reader should know.
    """

    epsilon: float
    delta: float
    bound: str
    lower: float
    candidates: dict[str, float]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AllocationCalibration:
    """Smallest noise multiplier that meets a target, and the epsilon it gives."""

    noise_multiplier: float
    epsilon: AllocationEpsilon


@dataclass(frozen=True)
class MatrixChoice:
    """One matrix, calibrated to a target.

    Parameters
    ----------
    name : str
        Family.
    matrix : StrategyMatrix
        For all rounds of the run.
    noise_multiplier : float
        Standard deviation of Z over the clip norm.
    bound : str
        The bound that was active.
    epsilon : AllocationEpsilon
        At the calibrated noise.
    rmse, max_error : float
        Root mean square over rounds, and maximum, of the standard deviation of the prefix sums' error, in units of
        the clip norm.
    """

    name: str
    matrix: StrategyMatrix
    noise_multiplier: float
    bound: str
    epsilon: AllocationEpsilon
    rmse: float
    max_error: float


def allocation_epsilon(
    event: RandomAllocation,
    delta: float,
    resolution: Resolution = STANDARD,
    conditional: bool = False,
) -> AllocationEpsilon:
    """Smallest valid epsilon of a run with random allocation.

    Parameters
    ----------
    event : RandomAllocation
        The run.
    delta : float
        In [0, 1).
    resolution : Resolution
        Grid of the profile; `FINE` halves the distance between the bounds twice at four times the time.
    conditional : bool
        Also try conditional composition (seconds).

    Notes
    -----
    Formal guarantees: ``epsilon`` is the minimum of valid bounds; ``lower <= epsilon``; with independent noise the two
    differ by the grid only.
    """
    check_delta(delta=delta)
    if event.noise_multiplier == 0:
        return AllocationEpsilon(math.inf, delta, "none", math.inf, {}, ("no noise, no guarantee",))
    if delta == 0:
        return AllocationEpsilon(
            math.inf, delta, "none", math.inf, {}, ("Gaussian noise has no pure epsilon",)
        )
    directions, notes = _profile_candidates(event, delta, resolution)
    curves = event.curves(_ORDERS)
    directions["rdp"] = (curves.remove.to_epsilon(delta).epsilon, curves.add.to_epsilon(delta).epsilon)
    if conditional:
        from fedpriv.accounting.allocation_conditional import conditional_epsilon

        value = conditional_epsilon(event, delta)
        if value is not None:
            directions["conditional"] = (value, value)
    epsilon, bound = _smallest(directions)
    lower = 0.0
    try:
        lower = max(law.epsilon(delta) for law in event.lower_laws(delta, resolution))
    except OverflowError:
        notes.append("losses above 600 nats: no lower value")
    candidates = {name: max(pair) for name, pair in directions.items()}
    return AllocationEpsilon(epsilon, delta, bound, lower, candidates, tuple(notes))


def calibrate_allocation(
    event: RandomAllocation, target_epsilon: float, delta: float, resolution: Resolution = STANDARD
) -> AllocationCalibration:
    """Smallest noise multiplier with which the run meets the target.

    Parameters
    ----------
    event : RandomAllocation
        The run; its noise multiplier is ignored.
    target_epsilon : float
        In nats, > 0.
    delta : float
        In (0, 1).
    resolution : Resolution
        Grid of the profile.

    Returns
    -------
    AllocationCalibration
        A multiplier that meets the target, within a relative 1e-4 of the smallest one the bounds allow.

    Raises
    ------
    InvalidArgument
        When an argument is out of range or no noise meets the target.
    """
    check_positive(target_epsilon=target_epsilon)
    check_delta(delta=delta)
    if delta == 0:
        raise InvalidArgument("delta must be in (0, 1) to calibrate Gaussian noise, got 0")

    def quick(noise_multiplier: float) -> float:
        return _quick_epsilon(replace(event, noise_multiplier=noise_multiplier), delta, COARSE, False)

    def careful(noise_multiplier: float) -> float:
        return _quick_epsilon(replace(event, noise_multiplier=noise_multiplier), delta, resolution, exact)

    rough = secant_decreasing(quick, target_epsilon, start=1.0, relative_tolerance=0.02)
    trial = replace(event, noise_multiplier=rough or 1.0)
    # The Rényi curves are slow and seldom win: one look decides whether they take part.
    exact = event.matrix is not None and (
        _quick_epsilon(trial, delta, COARSE, True) < _quick_epsilon(trial, delta, COARSE, False)
    )
    found = secant_decreasing(careful, target_epsilon, start=rough or 1.0)
    if found is None:
        raise InvalidArgument(f"target_epsilon must be reachable with some noise, got {target_epsilon!r}")
    return AllocationCalibration(
        found, allocation_epsilon(replace(event, noise_multiplier=found), delta, resolution)
    )


def compare_matrices(
    bins: int,
    epochs: int,
    target_epsilon: float,
    delta: float,
    families: Iterable[MatrixKind] = FAMILIES,
    band: int = 4,
    buffers: int = 3,
    *,
    bands: Iterable[int] = (),
    redraw: bool = False,
    conditional: bool = False,
) -> list[MatrixChoice]:
    """Calibrate every family; the first of the list has the smallest error.

    Parameters
    ----------
    bins, epochs : int
        b and k.
    target_epsilon, delta : float
        The guarantee to meet.
    families : iterable of str
        Among ``identity, bsr, bisr, bandmf, blt``.
    band : int
        p of the banded families, at most ``bins``.
    buffers : int
        Number of buffers of the BLT.
    bands : iterable of int
        Bands to choose from instead: for each banded family the one with the smallest error, on a coarse grid.
    redraw : bool
        Bins are drawn again each epoch; the matrix is then that of one epoch, and the noise starts afresh.
    conditional : bool
        Also try conditional composition (seconds to minutes per matrix).
    """
    check_integer(1, bins=bins, epochs=epochs, band=band, buffers=buffers)
    widths = sorted({min(p, bins) for p in bands}) or [min(band, bins)]
    choices = []
    for name in families:
        tried = widths if name in ("bsr", "bisr", "bandmf") else widths[:1]
        matrices = [make_matrix(name, bins, 1 if redraw else epochs, p, buffers) for p in tried]
        events = [
            RandomAllocation(bins, 1.0, epochs, redraw, None if name == "identity" else m) for m in matrices
        ]
        best = 0
        if len(events) > 1:
            repeats = epochs if redraw else 1
            errors = [
                _coarse_noise(event, target_epsilon, delta) * run_errors(m, repeats)[0]
                for event, m in zip(events, matrices, strict=True)
            ]
            best = int(np.argmin(errors))
        choices.append(_matrix_choice(name, matrices[best], events[best], target_epsilon, delta, conditional))
    return sorted(choices, key=lambda choice: choice.rmse)


def run_errors(matrix: StrategyMatrix, repeats: int = 1) -> tuple[float, float]:
    """Root mean square over rounds, and maximum, of the deviation of prefix sums, for Z of standard deviation 1.

    Parameters
    ----------
    matrix : StrategyMatrix
        Of one epoch, or of the whole run.
    repeats : int
        How often it is used, each time with fresh noise: the errors of earlier epochs stay in the sums.
    """
    squares = np.cumsum(matrix.prefix_coefficients() ** 2)
    mean = float(squares.mean()) + (repeats - 1) / 2 * float(squares[-1])
    return math.sqrt(mean), math.sqrt(repeats * float(squares[-1]))


def _matrix_choice(
    name: str,
    matrix: StrategyMatrix,
    event: RandomAllocation,
    target_epsilon: float,
    delta: float,
    conditional: bool,
) -> MatrixChoice:
    result = calibrate_allocation(event, target_epsilon, delta)
    z, epsilon = result.noise_multiplier, result.epsilon
    if conditional:
        epsilon = allocation_epsilon(replace(event, noise_multiplier=z), delta, conditional=True)
        if epsilon.epsilon < (1 - 1e-3) * target_epsilon:
            z = (
                secant_decreasing(
                    lambda x: (
                        allocation_epsilon(
                            replace(event, noise_multiplier=x), delta, conditional=True
                        ).epsilon
                    ),
                    target_epsilon,
                    start=z,
                    relative_tolerance=1e-3,
                    first_factor=1.1,
                )
                or z
            )
            epsilon = allocation_epsilon(replace(event, noise_multiplier=z), delta, conditional=True)
    rmse, largest = run_errors(matrix, event.epochs if event.redraw else 1)
    return MatrixChoice(name, matrix, z, epsilon.bound, epsilon, z * rmse, z * largest)


def _coarse_noise(event: RandomAllocation, target_epsilon: float, delta: float) -> float:
    """Noise that meets the target by the profile on a coarse grid, within a percent."""
    found = secant_decreasing(
        lambda z: _quick_epsilon(replace(event, noise_multiplier=z), delta, COARSE, False),
        target_epsilon,
        start=1.0,
        relative_tolerance=0.01,
    )
    return math.inf if found is None else found


def _smallest(directions: dict[str, tuple[float, float]]) -> tuple[float, str]:
    """Each direction by its best bound; the larger epsilon, and the bound of that direction."""
    best = [min((pair[i], name) for name, pair in directions.items()) for i in (0, 1)]
    return max(best, key=lambda item: item[0])


def _profile_candidates(
    event: RandomAllocation, delta: float, resolution: Resolution
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    directions: dict[str, tuple[float, float]] = {}
    notes: list[str] = []
    choices: list[Reduction] = [event.best_reduction(delta)]
    if event.matrix is not None and choices[0].bins > 1:
        choices.append(event.reductions()[-1])
    for reduction in choices:
        name = "unamplified" if reduction.bins == 1 else "profile" if event.matrix is None else "grouping"
        try:
            law = event.upper_law(delta, reduction, resolution)
            directions[name] = (law.epsilon_remove(delta), law.epsilon_add(delta))
        except OverflowError:
            notes.append("losses above 600 nats: the privacy profile was not computed")
    return directions, notes


def _quick_epsilon(event: RandomAllocation, delta: float, resolution: Resolution, exact: bool) -> float:
    """Epsilon by the bounds that can win: the profile and, with ``exact``, the Rényi curves of each direction."""
    try:
        law = event.upper_law(delta, None, resolution)
        remove, add = law.epsilon_remove(delta), law.epsilon_add(delta)
    except OverflowError:
        return event.curves(_ORDERS).to_epsilon(delta).epsilon
    if exact and event.matrix is not None:
        curves = event.curves(_ORDERS)
        remove = min(remove, curves.remove.to_epsilon(delta).epsilon)
        add = min(add, curves.add.to_epsilon(delta).epsilon)
    return max(remove, add)
