"""Laws on a dyadic grid, summed with rigorous rounding in convex order.

The law of a sum of n independent copies of a variable is built by doubling. After each sum the law is put back on a
grid in one of two ways, both exact statements about *every* convex payoff f:

* ``upper``: each atom is split between its two neighbours on the grid so that its mean is kept (a mean-preserving
  spread), hence E f can only grow;
* ``lower``: the atoms of a cell are merged into their conditional mean (Jensen), hence E f can only shrink.

Sums of independent variables keep the convex order (Shaked and Shanthikumar 2007, theorem 3.A.12), so the two laws
of the final sum bracket the true one. All terms are non-negative: there is no cancellation, no Fourier floor and no
wrap-around, whatever the depth of the tail.

The grid resembles floating-point numbers around a centre c: block 0 has spacing s_0 and indices below R in absolute
value, block k spacing ``s_0 2^k`` and indices between R/2 and R. A sum of an atom of block k and one of a finer block
lands on the spacing of block k after the finer block has been coarsened once, so that a doubling costs one short
``numpy.convolve`` per block instead of an outer sum over all pairs of atoms.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpriv.accounting.dyadic_blocks import (
    Block,
    FloatArray,
    Side,
    coarsen,
    deposit,
    grid_indices,
    product,
    settle,
    square,
    widened,
)

_DUST = 1e-150
"""Smaller masses are dropped: their products would be denormal numbers, which are slow and imprecise."""


@dataclass(frozen=True, eq=False)
class DyadicLaw:
    """The law of a non-negative variable with mean ``count``, up to a dropped event.

    Parameters
    ----------
    side : {"upper", "lower"}
        Which rounding made it.
    count : int
        Number of summands; also the mean of the exact law.
    centre, spacing : float
        Where the grid is dense, and the spacing s_0 of block 0.
    half : int
        R, a power of two, at least 8.
    mass, offset : arrays of shape (blocks, width)
        Mass per grid index and, for ``lower``, mass times the position inside the cell in [0, 1] (zeros for
        ``upper``, whose atoms sit on the grid). Width is ``2 R + 1`` (indices -R..R), or ``R + 1`` when nothing lies
        below the centre.
    dropped_mass, dropped_mean : float
        Probability of an event that the law leaves out, and an upper bound on the expectation over that event of the
        variable divided by ``count``.
    """

    side: Side
    count: int
    centre: float
    spacing: float
    half: int
    mass: FloatArray
    offset: FloatArray
    dropped_mass: float = 0.0
    dropped_mean: float = 0.0

    @property
    def origin(self) -> int:
        """Column of index 0: R for a two-sided grid, 0 for a one-sided one."""
        return self.mass.shape[1] - 1 - self.half

    def atoms(self) -> tuple[FloatArray, FloatArray]:
        """Values in increasing order and their masses (only positive masses)."""
        block, column = np.nonzero(self.mass)
        mass = self.mass[block, column]
        index = (column - self.origin) + self.offset[block, column] / mass
        values = self.centre + index * (self.spacing * np.exp2(block))
        order = np.argsort(values, kind="stable")
        return values[order], mass[order]

    def split(self, centre: float, spacing: float, two_sided: bool) -> "DyadicLaw":
        """Put the atoms on another grid (again rounded in convex order)."""
        values, mass = self.atoms()
        raw = deposit(values - centre, mass, spacing, self.half, two_sided, self.side)
        return self._replaced(raw, centre=centre, spacing=spacing, two_sided=two_sided)

    def coarsened(self) -> "DyadicLaw":
        """Double the spacing of block 0 (blocks 0 and 1 become one)."""
        origin, half = self.origin, self.half
        merged = coarsen(self.mass[0], self.offset[0], origin, self.side)
        blocks = max(self.mass.shape[0] - 1, 1)
        mass = np.zeros((blocks, self.mass.shape[1]))
        offset = np.zeros_like(mass)
        if self.mass.shape[0] > 1:
            mass[:] = self.mass[1:]
            offset[:] = self.offset[1:]
        low = origin - (half // 2 if origin else 0)
        mass[0, low : origin + half // 2 + 1] += merged[0]
        offset[0, low : origin + half // 2 + 1] += merged[1]
        raw = [widened(m, o, origin, half) for m, o in zip(mass, offset, strict=True)]
        # Index R/2 of block 0 meets the first index of the old block 1; an index R moves up when settled.
        return self._replaced(raw, spacing=2 * self.spacing)

    def trimmed(self, allowed_mass: float, allowed_mean: float) -> "DyadicLaw":
        """Drop outermost half blocks whose mass and mean are within the allowance.

        Parameters
        ----------
        allowed_mass, allowed_mean : float
            Largest mass, and largest mean divided by ``count``, that each of the two ends may lose.
        """
        mass, offset = self.mass, self.offset
        lost_mass, lost_mean = 0.0, 0.0
        origin = self.origin
        for columns in (slice(origin, None), slice(0, origin)):
            left_mass, left_mean = allowed_mass, allowed_mean
            for block in range(mass.shape[0] - 1, 0, -1):
                part = mass[block, columns]
                if not part.any():
                    continue
                index = np.arange(mass.shape[1])[columns] - origin
                values = (
                    self.centre * part + (index * part + offset[block, columns]) * self.spacing * 2.0**block
                )
                q, p = float(part.sum()), max(0.0, float(values.sum()) / self.count)
                if q > left_mass or p > left_mean:
                    break
                if mass is self.mass:
                    mass, offset = mass.copy(), offset.copy()
                mass[block, columns] = 0.0
                offset[block, columns] = 0.0
                left_mass, left_mean = left_mass - q, left_mean - p
                lost_mass, lost_mean = lost_mass + q, lost_mean + p
        used = np.flatnonzero(mass.any(axis=1))
        blocks = int(used[-1]) + 1 if used.size else 1
        if lost_mass == 0 and lost_mean == 0 and blocks == mass.shape[0]:
            return self
        return DyadicLaw(
            self.side,
            self.count,
            self.centre,
            self.spacing,
            self.half,
            mass[:blocks],
            offset[:blocks],
            self.dropped_mass + lost_mass,
            self.dropped_mean + lost_mean,
        )

    def __add__(self, other: "DyadicLaw") -> "DyadicLaw":
        """Law of the sum of two independent variables on grids of equal spacing, size and kind."""
        if (self.side, self.spacing, self.half, self.origin) != (
            other.side,
            other.spacing,
            other.half,
            other.origin,
        ):
            raise ValueError("laws add on grids of one kind and spacing only")
        laws = (self.mass, self.offset), (other.mass, other.offset)
        raw = (
            square(*laws[0], self.origin, self.side)
            if other is self
            else product(*laws, self.origin, self.side)
        )
        first, second = self.count, other.count
        # Either event spoils the sum; on the event of the first the second still contributes its mean.
        mean = first * (self.dropped_mean + other.dropped_mass) + second * (
            other.dropped_mean + self.dropped_mass
        )
        return DyadicLaw(
            self.side,
            first + second,
            self.centre + other.centre,
            self.spacing,
            self.half,
            *settle(raw, self.half, self.origin > 0, self.side),
            self.dropped_mass + other.dropped_mass,
            mean / (first + second),
        )

    def _replaced(
        self,
        raw: list[Block],
        centre: float | None = None,
        spacing: float | None = None,
        two_sided: bool | None = None,
    ) -> "DyadicLaw":
        both = self.origin > 0 if two_sided is None else two_sided
        return DyadicLaw(
            self.side,
            self.count,
            self.centre if centre is None else centre,
            self.spacing if spacing is None else spacing,
            self.half,
            *settle(raw, self.half, both, self.side),
            self.dropped_mass,
            self.dropped_mean,
        )


CellMoments = Callable[[FloatArray, FloatArray], Block]
"""Function (left, right) -> (mass, relative first moment) of the cells [left, right): the second is the integral of
``(x - left) / (right - left)``."""


def discretize(
    cells: CellMoments,
    side: Side,
    centre: float,
    spacing: float,
    half: int,
    blocks: int,
    two_sided: bool,
    dropped: Callable[[float, float], tuple[float, float]],
) -> DyadicLaw:
    """Put a continuous law with mean 1 on a grid.

    Parameters
    ----------
    cells : callable
        Mass and relative first moment of cells.
    side, centre, spacing, half, two_sided
        As in `DyadicLaw`.
    blocks : int
        Number of blocks, at least 1.
    dropped : callable
        (low, high) -> probability of, and expectation over, values outside [low, high].
    """
    block, index = grid_indices(half, blocks, two_sided)
    points = centre + index * (spacing * np.exp2(block))
    mass, moment = cells(points[:-1], points[1:])
    outside = dropped(points[0], points[-1])
    origin = half if two_sided else 0
    grid = np.zeros((blocks + 1, origin + half + 1))
    offset = np.zeros_like(grid)
    if side == "upper":
        np.add.at(grid, (block[:-1], index[:-1] + origin), np.maximum(mass - moment, 0.0))
        np.add.at(grid, (block[1:], index[1:] + origin), moment)
    else:
        # A negative cell belongs to the block of its right end.
        home, place = block[:-1].copy(), index[:-1].copy()
        shifted = (place < 0) & (home > 0) & (place == -(half // 2))
        home[shifted] -= 1
        place[shifted] = -half
        grid[home, place + origin] = mass
        offset[home, place + origin] = moment
    raw = [widened(m, o, origin, half) for m, o in zip(grid, offset, strict=True)]
    return DyadicLaw(side, 1, centre, spacing, half, *settle(raw, half, two_sided, side), *outside)


def dusted(law: DyadicLaw) -> DyadicLaw:
    """Drop masses too small for products of two of them to be ordinary floating-point numbers."""
    small = (law.mass > 0) & (law.mass < _DUST)
    if not small.any():
        return law
    block, column = np.nonzero(small)
    lost = law.mass[block, column]
    values = law.centre + (column - law.origin + 1) * (law.spacing * np.exp2(block))
    return DyadicLaw(
        law.side,
        law.count,
        law.centre,
        law.spacing,
        law.half,
        np.where(small, 0.0, law.mass),
        np.where(small, 0.0, law.offset),
        law.dropped_mass + float(lost.sum()),
        law.dropped_mean + max(0.0, float((lost * np.maximum(values, 0.0)).sum()) / law.count),
    )
