"""Records one by one: a secret batch, and what each record of it contributes, clipped and on the grid."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.validators import check_integer, check_positive, check_probability
from fedpriv.mechanisms.grid import GridCodec
from fedpriv.mechanisms.noise import RandomSource

_COIN_BITS = 53  # rates are binary64 numbers: 53 bits decide them up to 2^-53, always downward


class RecordGradients(Protocol):
    """Gradients of a model's loss, one per record of a silo.

    Attributes
    ----------
    num_records : int
        Records of the silo.
    """

    @property
    def num_records(self) -> int: ...

    def gradients(self, weights: NDArray[np.float64], records: NDArray[np.int64]) -> NDArray:
        """Gradient of the loss of each record at the weights.

        A row must depend on its own record alone: no batch statistics, nothing remembered from other calls.

        Parameters
        ----------
        weights : np.ndarray
            Shape (d,): the arrays that travel, flat, in their order.
        records : np.ndarray
            Shape (m,): which records.

        Returns
        -------
        np.ndarray
            Shape (m, d), any floating type.
        """


def poisson_records(num_records: int, rate: float, source: RandomSource) -> NDArray[np.int64]:
    """Draw a batch: every record by its own coin.

    Parameters
    ----------
    num_records : int
        Records of the silo, >= 0.
    rate : float
        q in [0, 1]; a record is drawn with probability floor(q 2^53) / 2^53.
    source : RandomSource
        Of the coins; secret.

    Returns
    -------
    np.ndarray
        Ascending indices, int64; may be empty.
    """
    check_integer(0, num_records=num_records)
    check_probability(rate=rate)
    if rate >= 1.0:
        return np.arange(num_records)
    coins = source.words(num_records) >> np.uint64(64 - _COIN_BITS)
    return np.flatnonzero(coins < np.uint64(int(rate * 2**_COIN_BITS)))


def clip_rows(rows: NDArray, clipping_norm: float) -> NDArray[np.float64]:
    """Scale every row to L2 norm at most the clip; a row that is not finite becomes zeros.

    The rule of :func:`fedpriv.mechanisms.clip_to_norm`, for many vectors at once: a zero row stays zero, and a
    row whose squared norm would overflow is scaled by its largest coordinate first.

    Parameters
    ----------
    rows : np.ndarray
        Shape (m, d).
    clipping_norm : float
        C > 0.

    Returns
    -------
    np.ndarray
        Shape (m, d), float64.
    """
    check_positive(clipping_norm=clipping_norm)
    values = np.array(rows, dtype=np.float64)
    finite = np.isfinite(values).all(axis=1)
    values[~finite] = 0.0
    largest = np.abs(values).max(axis=1, initial=0.0)
    nonzero = np.flatnonzero(largest > 0.0)
    unit = values[nonzero] / largest[nonzero, None]
    relative = np.sqrt(np.einsum("ij,ij->i", unit, unit))
    with np.errstate(over="ignore"):  # a tiny row: infinite, so not shrunk
        factor = clipping_norm / largest[nonzero] / relative
    shrunk = factor < 1.0
    values[nonzero[shrunk]] = unit[shrunk] * (clipping_norm / relative[shrunk])[:, None]
    return values


def encoded_sum(rows: NDArray, codec: GridCodec) -> NDArray[np.int64]:
    """Clip every row, round it toward zero to the grid, and add the rows up.

    Guarantee: a row moves the sum by an integer vector of L2 norm at most ``codec.clip_units``, checked in
    integers, whatever the row holds.

    Parameters
    ----------
    rows : np.ndarray
        Shape (m, d).
    codec : GridCodec
        Clip and grid.

    Returns
    -------
    np.ndarray
        Shape (d,), int64.
    """
    clipped = clip_rows(rows, codec.clipping_norm)
    units = np.trunc(clipped / codec.step).astype(np.int64)
    squares = np.einsum("ij,ij->i", units, units)
    for index in np.flatnonzero(squares > codec.clip_units**2):  # float error of the clip
        units[index] = codec.encode(clipped[index])
    total: NDArray[np.int64] = units.sum(axis=0)
    return total
