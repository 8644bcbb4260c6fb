"""Arithmetic on the blocks of a dyadic grid (`dyadic.py`): sums, coarsening, and putting atoms in their place.

A *raw* block is a pair (mass, offset) whose indices run from -2R to 2R (0 to 2R when nothing lies below the centre):
what a sum of two blocks produces before its atoms are moved to the blocks they belong to.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Side = Literal["upper", "lower"]
Block = tuple[FloatArray, FloatArray]


def grid_indices(half: int, blocks: int, two_sided: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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


def deposit(
    distance: FloatArray, mass: FloatArray, spacing: float, half: int, two_sided: bool, side: Side
) -> list[Block]:
    """Distribute atoms at ``centre + distance`` over the (not yet settled) blocks of a grid."""
    mantissa, exponent = np.frexp(np.abs(distance) / (half * spacing))
    block = np.maximum(exponent, 0).astype(np.int64)
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
        grid = _binned(flat, mass - moment, size) + _binned(flat + 1, moment, size)
        shift = np.zeros(size)
    else:
        grid, shift = _binned(flat, mass, size), _binned(flat, moment, size)
    return list(
        zip(grid[:-1].reshape(blocks, width), shift[:-1].reshape(blocks, width), strict=True),
    )


def _binned(place: NDArray[np.int64], values: FloatArray, size: int) -> FloatArray:
    """Sums of the values per place."""
    return np.bincount(place, values, size).astype(np.float64, copy=False)


def widened(mass: FloatArray, offset: FloatArray, origin: int, half: int) -> Block:
    """A block as a raw block, whose indices run to 2 R on each used side."""
    pad = (half if origin else 0, half)
    return np.pad(mass, pad), np.pad(offset, pad)


def coarsen(mass: FloatArray, offset: FloatArray, origin: int, side: Side) -> Block:
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
    raw: Block,
    first: Block,
    second: Block,
    side: Side,
) -> None:
    """Add the law of a sum of two blocks (equal spacing, equal origin) to a raw block."""
    _convolve(first[0], second[0], raw[0], 0)
    if side == "lower":
        # Pairs are grouped by the sum of their indices; the group's position is its conditional mean.
        _convolve(first[0], second[1], raw[1], 0)
        _convolve(first[1], second[0], raw[1], 0)


def _halves(pair: Block, origin: int) -> list[Block]:
    """The two sides of a block as separate arrays of full width (so that the gap between them costs nothing)."""
    if origin == 0:
        return [pair]
    below, above = (pair[0].copy(), pair[1].copy()), (pair[0].copy(), pair[1].copy())
    for array in below:
        array[origin:] = 0.0
    for array in above:
        array[:origin] = 0.0
    return [below, above]


def square(mass: FloatArray, offset: FloatArray, origin: int, side: Side) -> list[Block]:
    """Raw blocks of the sum of two independent copies; rows of the arrays are blocks."""
    blocks, width = mass.shape
    raw = [(np.zeros(2 * width - 1), np.zeros(2 * width - 1)) for _ in range(blocks)]
    below = (np.zeros(width), np.zeros(width))
    for k in range(blocks):
        block = (mass[k], offset[k])
        partner = (2 * below[0] + block[0], 2 * below[1] + block[1])
        for part in _halves(block, origin) if k else [block]:
            _accumulate(raw[k], part, partner, side)
        below = _coarser_sum(below, block, origin, side)
    return raw


def product(law: Block, other: Block, origin: int, side: Side) -> list[Block]:
    """Raw blocks of the sum of two independent variables; rows of the arrays are blocks."""
    width = law[0].shape[1]
    blocks = max(law[0].shape[0], other[0].shape[0])
    raw = [(np.zeros(2 * width - 1), np.zeros(2 * width - 1)) for _ in range(blocks)]
    below, other_below = (np.zeros(width), np.zeros(width)), (np.zeros(width), np.zeros(width))
    for k in range(blocks):
        block, partner = _row(law, k), _row(other, k)
        whole = (other_below[0] + partner[0], other_below[1] + partner[1])
        for part in _halves(block, origin) if k else [block]:
            _accumulate(raw[k], part, whole, side)
        for part in _halves(partner, origin) if k else [partner]:
            _accumulate(raw[k], part, below, side)
        below = _coarser_sum(below, block, origin, side)
        other_below = _coarser_sum(other_below, partner, origin, side)
    return raw


def _row(law: Block, k: int) -> Block:
    if k < law[0].shape[0]:
        return law[0][k], law[1][k]
    return np.zeros(law[0].shape[1]), np.zeros(law[0].shape[1])


def _coarser_sum(below: Block, block: Block, origin: int, side: Side) -> Block:
    """Everything up to and including a block, on the spacing of the next one."""
    mass, offset = coarsen(below[0] + block[0], below[1] + block[1], origin, side)
    width = below[0].size
    start = origin - origin // 2
    result = (np.zeros(width), np.zeros(width))
    result[0][start : start + mass.size] = mass
    result[1][start : start + mass.size] = offset
    return result


def settle(raw: list[Block], half: int, two_sided: bool, side: Side) -> Block:
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
            moved = coarsen(outer, np.where(outer > 0, offset, 0.0), origin, side)
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


def _carried(mass: FloatArray, offset: FloatArray) -> Block:
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
    level: Block,
    finer: Block,
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
