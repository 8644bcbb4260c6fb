"""Flat L2 clipping of a client's whole update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.accounting.validators import check_positive


@dataclass(frozen=True)
class ClippedUpdate:
    """A clipped vector and what happened to it (for silo-local diagnostics only, never to be sent).

    Parameters
    ----------
    vector : np.ndarray
        Shape (d,), float64, finite, L2 norm at most the clipping norm up to rounding.
    norm : float
        L2 norm before clipping; ``nan`` when the input was not finite.
    clipped : bool
        True when the vector was shrunk.
    finite : bool
        False when the input held NaN or infinity; the whole contribution is then zero.
    """

    vector: np.ndarray
    norm: float
    clipped: bool
    finite: bool


def clip_to_norm(vector: np.ndarray, clipping_norm: float) -> ClippedUpdate:
    """Scale a vector to L2 norm at most ``clipping_norm``, with one factor for all coordinates.

    A vector with a NaN or an infinite coordinate becomes all zeros: scaling it would let the bad
    coordinate pass the clip. A zero vector is returned unchanged (no division by its norm), and a
    vector whose squared norm would overflow is scaled by its largest coordinate first.

    Parameters
    ----------
    vector : np.ndarray
        Shape (d,), any floating dtype.
    clipping_norm : float
        The bound C > 0, in the units of ``vector``.

    Returns
    -------
    ClippedUpdate

    Raises
    ------
    InvalidArgument
        When ``clipping_norm`` is not positive and finite.

    Examples
    --------
    >>> clipped = clip_to_norm(np.array([3.0, 4.0]), clipping_norm=2.5)
    >>> clipped.vector.tolist(), clipped.norm
    ([1.5, 2.0], 5.0)
    """
    check_positive(clipping_norm=clipping_norm)
    values = np.asarray(vector, dtype=np.float64)
    if not np.all(np.isfinite(values)):
        return ClippedUpdate(np.zeros_like(values), float("nan"), clipped=True, finite=False)
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0.0:
        return ClippedUpdate(values.copy(), 0.0, clipped=False, finite=True)
    unit = values / largest
    relative = float(np.sqrt(np.dot(unit, unit)))
    norm = relative * largest  # may be infinite; only reported
    # clipping_norm / largest / relative never overflows, unlike clipping_norm / norm for a huge norm
    factor = clipping_norm / largest / relative
    if factor >= 1.0:
        return ClippedUpdate(values.copy(), norm, clipped=False, finite=True)
    return ClippedUpdate(unit * (clipping_norm / relative), norm, clipped=True, finite=True)
