"""What a unit of each bin adds to the releases of a matrix mechanism, and the Gram matrix of the bins.

A unit of bin i takes part in the rounds i, i + b, i + 2 b, ...; its mean vector m_i is the sum of those columns of C,
for contributions of norm 1. C is Toeplitz, so m_i is m_0 shifted by i rounds and cut at the last row: every Gram
entry is a partial sum of an autocorrelation of m_0.
"""

import math
from typing import Final

import numpy as np

from fedpriv.accounting.matrices import StrategyMatrix, first_bin_of
from fedpriv.accounting.ratio_law import FloatArray
from fedpriv.accounting.validators import InvalidArgument, check_integer

_FFT_FROM: Final = 4096


def first_bin_mean(matrix: StrategyMatrix, bins: int) -> FloatArray:
    """m_0 of shape (N,): what a unit of the first bin adds to ``C X``; bin i has it shifted by i rounds.

    Raises
    ------
    InvalidArgument
        When the number of rounds is not a multiple of ``bins``.
    """
    check_integer(1, bins=bins)
    if matrix.rounds % bins:
        raise InvalidArgument(f"rounds must be a multiple of bins = {bins}, got {matrix.rounds}")
    return first_bin_of(matrix.column(), bins)


def gram(matrix: StrategyMatrix, bins: int) -> FloatArray:
    """Gram matrix of the mean vectors m_0..m_{b-1}, of shape (b, b)."""
    mean = first_bin_mean(matrix, bins)
    vectors = np.zeros((bins, mean.size))
    for i in range(bins):
        vectors[i, i:] = mean[: mean.size - i]
    return vectors @ vectors.T


def gram_lags(matrix: StrategyMatrix, bins: int) -> FloatArray:
    """Largest Gram entry at each *cyclic* distance 0..b//2 between bins, rounded up.

    The entry of bins i <= j is a partial sum of that of bins 0 and j - i, and the cyclic distance d is reached by
    j - i = d and by j - i = b - d.
    """
    mean = first_bin_mean(matrix, bins)
    lags = _autocorrelation(mean, bins)
    distances = np.arange(bins // 2 + 1)
    return np.maximum(lags[distances], lags[(bins - distances) % bins])


def gram_bands(matrix: StrategyMatrix, bins: int, band: int) -> FloatArray:
    """Gram entries of the bins i and i + d (mod b) for d below ``band``, of shape (band, b)."""
    mean = first_bin_mean(matrix, bins)
    size = mean.size
    result = np.empty((band, bins))
    for d in range(band):
        same = np.cumsum(mean[d:] * mean[: size - d])
        # Bins i and i + d < b: the sum stops i rounds before the end.
        direct = np.arange(bins - d)
        result[d, direct] = same[size - d - 1 - direct]
        if d:
            other = bins - d
            wrapped = np.cumsum(mean[other:] * mean[: size - other]) if other < size else np.zeros(1)
            end = size - other - 1 - np.arange(d)
            result[d, bins - d :] = np.where(end >= 0, wrapped[np.maximum(end, 0)], 0.0)
    return result


def _autocorrelation(mean: FloatArray, lags: int) -> FloatArray:
    if np.count_nonzero(mean) <= 64 or mean.size <= _FFT_FROM:
        used = np.flatnonzero(mean)
        if used.size <= 64:
            values = np.zeros(lags)
            for u in used:
                gaps = u - used[used <= u]
                keep = gaps < lags
                np.add.at(values, gaps[keep], mean[u] * mean[used[used <= u]][keep])
        else:
            values = np.array([mean[d:] @ mean[: mean.size - d] for d in range(lags)])
    else:
        size = 1 << (2 * mean.size - 1).bit_length()
        values = np.fft.irfft(np.abs(np.fft.rfft(mean, size)) ** 2, size)[:lags]
        values = values + 1e-15 * math.log2(size) * float(mean @ mean)
    return values * (1 + 1e-12)
