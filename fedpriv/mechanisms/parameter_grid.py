"""A grid per parameter tensor on which adding a perturbation and taking it back is exact."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.validators import InvalidArgument

#: Bits of a tensor's grid below its largest magnitude; the mantissa has three more, headroom for sums.
GRID_BITS = {4: 21, 8: 50}

#: Largest coordinate of a direction, in units of 1/sqrt(d): a normal number is beyond with chance 1e-57.
LARGEST_COORDINATE = 16.0


def largest_move(dimension: int, smoothing: float) -> float:
    """Largest change of one of d coordinates by a perturbation of norm xi; larger ones are cut to it."""
    return smoothing * min(1.0, LARGEST_COORDINATE / math.sqrt(dimension))


def grid_step(largest: float, move: float, itemsize: int) -> float:
    """Step of a tensor's grid: a power of two.

    Parameters
    ----------
    largest : float
        Largest magnitude in the tensor.
    move : float
        Largest change of a coordinate, see :func:`largest_move`.
    itemsize : int
        Bytes of a coordinate: 4 (float32) or 8 (float64).
    """
    bits = GRID_BITS[itemsize]
    mantissa, exponent = math.frexp(max(largest, move))
    # A magnitude that would round up to the next power of two takes that one's grid, so that putting a tensor
    # on its grid twice changes nothing.
    if mantissa >= 1.0 - 2.0 ** -(bits + 2):
        exponent += 1
    return 2.0 ** (exponent - 1 - bits)


def rounding_of_perturbation(tensors: Iterable[NDArray], smoothing: float) -> float:
    """How coarse a perturbation is: typical norm of its rounding error over its own norm.

    Parameters
    ----------
    tensors : iterable of np.ndarray
        The model. float32 and float64 are rounded to their grids, narrower types to their own precision.
    smoothing : float
        Norm xi of the perturbation.
    """
    arrays = list(tensors)
    move = largest_move(max(1, sum(array.size for array in arrays)), smoothing)
    squares = 0.0
    for array in arrays:
        if array.dtype.itemsize in GRID_BITS:
            largest = max(float(np.max(array, initial=0.0)), -float(np.min(array, initial=0.0)))
            squares += array.size * grid_step(largest, move, array.dtype.itemsize) ** 2 / 12.0
        else:
            spacing = np.spacing(np.abs(array)).astype(np.float64)
            squares += float(np.sum(spacing**2)) / 12.0
    return math.sqrt(squares) / smoothing


def check_resolution(arrays: Mapping[str, NDArray], smoothing: float, most: float = 0.25) -> None:
    """Refuse a perturbation that the parameters' precision cannot hold.

    Raises
    ------
    InvalidArgument
        With the smallest xi that would do.
    """
    rounding = rounding_of_perturbation(arrays.values(), smoothing)
    if rounding > most:
        raise InvalidArgument(
            f"smoothing: {smoothing:g} spread over these parameters is lost in their rounding "
            f"({rounding:.0%} of it); use at least {smoothing * rounding / most:.2g}"
        )
