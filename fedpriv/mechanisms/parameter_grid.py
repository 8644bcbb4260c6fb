"""A grid per parameter tensor on which adding a perturbation and taking it back is exact."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

#: Bits of a tensor's grid below its largest magnitude; float32 has 24 and two are headroom for the sum.
GRID_BITS = 21


def grid_step(largest: float, smoothing: float) -> float:
    """Step of a tensor's grid: a power of two, from its largest magnitude and the perturbation's."""
    mantissa, exponent = math.frexp(max(largest, smoothing))
    # A magnitude that would round up to the next power of two takes that one's grid, so that putting a tensor
    # on its grid twice changes nothing.
    if mantissa >= 1.0 - 2.0 ** -(GRID_BITS + 2):
        exponent += 1
    return 2.0 ** (exponent - 1 - GRID_BITS)


def on_grid(array: NDArray, smoothing: float) -> NDArray:
    """Round one parameter array to its grid; the result is on its own grid.

    Narrower types than float32 have no bits to spare and come back unchanged.

    Parameters
    ----------
    array : np.ndarray
        One parameter tensor.
    smoothing : float
        Norm xi of the perturbation.
    """
    if array.dtype.itemsize < 4:
        return array
    step = grid_step(float(np.max(np.abs(array), initial=0.0)), smoothing)
    return (np.rint(array.astype(np.float64) / step) * step).astype(array.dtype)
