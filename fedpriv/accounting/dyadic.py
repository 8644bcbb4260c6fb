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
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Side = Literal["upper", "lower"]

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
        raw = _deposit(values - centre, mass, spacing, self.half, two_sided, self.side)
        return self._replaced(raw, centre=centre, spacing=spacing, two_sided=two_sided)

    def coarsened(self) -> "DyadicLaw":
        """Double the spacing of block 0 (blocks 0 and 1 become one)."""
        origin, half = self.origin, self.half
        merged = _coarsen(self.mass[0], self.offset[0], origin, self.side)
        blocks = max(self.mass.shape[0] - 1, 1)
        mass = np.zeros((blocks, self.mass.shape[1]))
        offset = np.zeros_like(mass)
        if self.mass.shape[0] > 1:
            mass[:] = self.mass[1:]
            offset[:] = self.offset[1:]
        low = origin - (half // 2 if origin else 0)
        mass[0, low : origin + half // 2 + 1] += merged[0]
        offset[0, low : origin + half // 2 + 1] += merged[1]
        raw = [_widened(m, o, origin, half) for m, o in zip(mass, offset, strict=True)]
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
                values = self.centre * part + (index * part + offset[block, columns]) * self.spacing * 2.0**block
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
        raw = _square(self) if other is self else _product(self, other)
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
            *_settle(raw, self.half, self.origin > 0, self.side),
            self.dropped_mass + other.dropped_mass,
            mean / (first + second),
        )

    def _replaced(
        self,
        raw: list[tuple[FloatArray, FloatArray]],
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
            *_settle(raw, self.half, both, self.side),
            self.dropped_mass,
            self.dropped_mean,
        )


CellMoments = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]
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
    block, index = _grid_indices(half, blocks, two_sided)
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
    raw = [_widened(m, o, origin, half) for m, o in zip(grid, offset, strict=True)]
    return DyadicLaw(side, 1, centre, spacing, half, *_settle(raw, half, two_sided, side), *outside)


def _grid_indices(half: int, blocks: int, two_sided: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Blocks and indices of all grid points, in increasing order of position, with both end points."""
    inner = np.arange(-half + 1 if two_sided else 0, half)
    outer = np.arange(half // 2, half)
    block = [np.zeros(inner.size, dtype=np.int64)]
    index = [inner]
    for k in range(1, blocks):
        block.append(np.full(outer.size, k))
        index.append(outer)
        if two_sided:
            block.insert(0, np.full(outer.size, k))
            index.insert(0, -outer[::-1])
    block.append(np.array([blocks]))
    index.append(np.array([half // 2]))
    if two_sided:
        block.insert(0, np.array([blocks]))
        index.insert(0, np.array([-(half // 2)]))
    return np.concatenate(block), np.concatenate(index)


def _deposit(
    distance: FloatArray, mass: FloatArray, spacing: float, half: int, two_sided: bool, side: Side
) -> list[tuple[FloatArray, FloatArray]]:
    """Distribute atoms at ``centre + distance`` over the (not yet settled) blocks of a grid."""
    mantissa, exponent = np.frexp(np.abs(distance) / (half * spacing))
    block = np.maximum(exponent, 0)
    # A cell that ends exactly at the inner border of a negative block belongs to the finer block.
    block -= (distance < 0) & (mantissa == 0.5) & (exponent > 0)
    scaled = distance / (spacing * np.exp2(block))
    index = np.floor(scaled)
    moment = mass * (scaled - index)
    origin = 2 * half if two_sided else 0
    width = origin + 2 * half + 1
    blocks = int(block.max(initial=0)) + 1
    flat = (block * width + index.astype(np.int64) + origin).astype(np.int64)
    size = blocks * width + 1
    if side == "upper":
        grid = np.bincount(flat, mass - moment, size) + np.bincount(flat + 1, moment, size)
        shift = np.zeros(size)
    else:
        grid, shift = np.bincount(flat, mass, size), np.bincount(flat, moment, size)
    return list(
        zip(grid[:-1].reshape(blocks, width), shift[:-1].reshape(blocks, width), strict=True),
    )


def _widened(mass: FloatArray, offset: FloatArray, origin: int, half: int) -> tuple[FloatArray, FloatArray]:
    """A block as a raw block, whose indices run to 2 R on each used side."""
    pad = (half if origin else 0, half)
    return np.pad(mass, pad), np.pad(offset, pad)


def _coarsen(mass: FloatArray, offset: FloatArray, origin: int, side: Side) -> tuple[FloatArray, FloatArray]:
    """Move a block to twice its spacing; the result has its index 0 at ``origin // 2`` (origin is even)."""
    size = mass.size // 2 + 1
    result = np.zeros(size)
    shift = np.zeros(size)
    even, odd = mass[0::2], mass[1::2]
    result[: even.size] = even
    if side == "upper":
        result[: odd.size] += 0.5 * odd
        result[1 : odd.size + 1] += 0.5 * odd
        return result, shift
    result[: odd.size] += odd
    shift[: even.size] = 0.5 * offset[0::2]
    shift[: odd.size] += 0.5 * (offset[1::2] + odd)
    return result, shift


def _convolve(first: FloatArray, second: FloatArray, out: FloatArray, shift: int) -> None:
    """Add the convolution to ``out[shift:]``, skipping zeros at the ends."""
    used_first, used_second = np.flatnonzero(first), np.flatnonzero(second)
    if used_first.size == 0 or used_second.size == 0:
        return
    a0, a1, b0, b1 = used_first[0], used_first[-1] + 1, used_second[0], used_second[-1] + 1
    start = shift + a0 + b0
    out[start : start + (a1 - a0) + (b1 - b0) - 1] += np.convolve(first[a0:a1], second[b0:b1])


def _accumulate(
    raw: tuple[FloatArray, FloatArray],
    first: tuple[FloatArray, FloatArray],
    second: tuple[FloatArray, FloatArray],
    side: Side,
) -> None:
    """Add the law of a sum of two blocks (equal spacing, equal origin) to a raw block."""
    _convolve(first[0], second[0], raw[0], 0)
    if side == "lower":
        # Pairs are grouped by the sum of their indices; the group's position is its conditional mean.
        _convolve(first[0], second[1], raw[1], 0)
        _convolve(first[1], second[0], raw[1], 0)


def _halves(pair: tuple[FloatArray, FloatArray], origin: int) -> list[tuple[FloatArray, FloatArray]]:
    """The two sides of a block as separate arrays of full width (so that the gap between them costs nothing)."""
    if origin == 0:
        return [pair]
    below, above = (pair[0].copy(), pair[1].copy()), (pair[0].copy(), pair[1].copy())
    for array in below:
        array[origin:] = 0.0
    for array in above:
        array[:origin] = 0.0
    return [below, above]


def _square(law: DyadicLaw) -> list[tuple[FloatArray, FloatArray]]:
    """Raw blocks of the sum of two independent copies."""
    origin, blocks, width = law.origin, law.mass.shape[0], law.mass.shape[1]
    raw = [(np.zeros(2 * width - 1), np.zeros(2 * width - 1)) for _ in range(blocks)]
    below = (np.zeros(width), np.zeros(width))
    for k in range(blocks):
        block = (law.mass[k], law.offset[k])
        partner = (2 * below[0] + block[0], 2 * below[1] + block[1])
        for part in _halves(block, origin) if k else [block]:
            _accumulate(raw[k], part, partner, law.side)
        below = _coarser_sum(below, block, origin, law.side)
    return raw


def _product(law: DyadicLaw, other: DyadicLaw) -> list[tuple[FloatArray, FloatArray]]:
    """Raw blocks of the sum of two independent variables."""
    origin, width = law.origin, law.mass.shape[1]
    blocks = max(law.mass.shape[0], other.mass.shape[0])
    empty = np.zeros(width)
    raw = [(np.zeros(2 * width - 1), np.zeros(2 * width - 1)) for _ in range(blocks)]
    below, other_below = (empty, empty), (empty, empty)
    for k in range(blocks):
        block = (law.mass[k], law.offset[k]) if k < law.mass.shape[0] else (empty, empty)
        partner = (other.mass[k], other.offset[k]) if k < other.mass.shape[0] else (empty, empty)
        whole = (other_below[0] + partner[0], other_below[1] + partner[1])
        for part in _halves(block, origin) if k else [block]:
            _accumulate(raw[k], part, whole, law.side)
        for part in _halves(partner, origin) if k else [partner]:
            _accumulate(raw[k], part, below, law.side)
        below = _coarser_sum(below, block, origin, law.side)
        other_below = _coarser_sum(other_below, partner, origin, law.side)
    return raw


def _coarser_sum(
    below: tuple[FloatArray, FloatArray], block: tuple[FloatArray, FloatArray], origin: int, side: Side
) -> tuple[FloatArray, FloatArray]:
    """Everything up to and including a block, on the spacing of the next one."""
    mass, offset = _coarsen(below[0] + block[0], below[1] + block[1], origin, side)
    width = below[0].size
    start = origin - origin // 2
    result = (np.zeros(width), np.zeros(width))
    result[0][start : start + mass.size] = mass
    result[1][start : start + mass.size] = offset
    return result


def _settle(
    raw: list[tuple[FloatArray, FloatArray]], half: int, two_sided: bool, side: Side
) -> tuple[FloatArray, FloatArray]:
    """Move every atom to the block it belongs to; returns (mass, offset)."""
    origin = 2 * half if two_sided else 0
    levels = list(raw)
    if side == "lower":
        levels = [_carried(mass, offset) for mass, offset in levels]
    k = 0
    while k < len(levels):
        mass, offset = levels[k]
        first_outer = origin + half
        last_low = origin - half + (1 if side == "upper" else 0)
        outer = np.zeros_like(mass)
        outer[first_outer:] = mass[first_outer:]
        if two_sided:
            outer[:last_low] = mass[:last_low]
        if outer.any():
            if k + 1 == len(levels):
                levels.append((np.zeros_like(mass), np.zeros_like(mass)))
            moved = _coarsen(outer, np.where(outer > 0, offset, 0.0), origin, side)
            start = origin - origin // 2
            for target, source in zip(levels[k + 1], moved, strict=True):
                target[start : start + source.size] += source
            mass[outer > 0] = 0.0
            offset[outer > 0] = 0.0
        k += 1
    if two_sided:
        for k in range(len(levels) - 1, 0, -1):
            _push_down(levels[k], levels[k - 1], half, origin, side)
    low = origin - half if two_sided else 0
    mass = np.stack([level[0][low : origin + half + 1] for level in levels])
    offset = np.stack([level[1][low : origin + half + 1] for level in levels])
    return mass, offset


def _carried(mass: FloatArray, offset: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Move atoms whose position has left their cell to the next one (positions of sums are in [0, 2))."""
    over = offset >= mass
    over &= mass > 0
    if not over.any():
        return mass, offset
    carried, rest = np.where(over, mass, 0.0), np.where(over, offset - mass, 0.0)
    mass, offset = mass - carried, np.where(over, 0.0, offset)
    mass[1:] += carried[:-1]
    offset[1:] += rest[:-1]
    return mass, offset


def _push_down(
    level: tuple[FloatArray, FloatArray],
    finer: tuple[FloatArray, FloatArray],
    half: int,
    origin: int,
    side: Side,
) -> None:
    """Move atoms that lie inside the region of the next finer block to it; exact, nothing is rounded."""
    mass, offset = level
    high = origin + half // 2
    low = origin - half // 2 + (1 if side == "upper" else 0)
    inner, shift = mass[low:high].copy(), offset[low:high].copy()
    if not inner.any():
        return
    mass[low:high] = 0.0
    offset[low:high] = 0.0
    target = 2 * (np.arange(low, high) - origin) + origin
    if side == "upper":
        finer[0][target] += inner
        return
    upper_half = 2 * shift >= inner
    finer[0][target] += np.where(upper_half, 0.0, inner)
    finer[1][target] += np.where(upper_half, 0.0, 2 * shift)
    finer[0][target + 1] += np.where(upper_half, inner, 0.0)
    finer[1][target + 1] += np.where(upper_half, 2 * shift - inner, 0.0)


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
