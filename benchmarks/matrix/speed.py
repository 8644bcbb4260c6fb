"""Time and memory of drawing correlated noise, against independent Gaussian noise of the same kind."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np

from fedpriv.accounting.matrices import StrategyMatrix, bandmf, bisr, blt, bsr, identity
from fedpriv.mechanisms import SecureSource, rounded_gaussian
from fedpriv.mechanisms.correlated_noise import CorrelatedNoise, new_noise_key

ROUNDS, LENGTH, STD = 2000, 100_000, 1e4


def matrices(rounds: int) -> list[tuple[str, StrategyMatrix]]:
    """One of each family, of the size that a long run would use."""
    bins = 100 if rounds % 100 == 0 else 10
    return [
        ("identity", identity(rounds)),
        ("bsr, band 16", bsr(rounds, 16)),
        ("bisr, band 16", bisr(rounds, 16)),
        ("bandmf, band 16", bandmf(rounds, 16)),
        ("blt, 3 buffers", blt(bins, rounds // bins, 3)),
    ]


def plain_seconds(length: int, repeats: int = 20) -> float:
    """CPU seconds per round of independent rounded Gaussian noise (the median)."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        rounded_gaussian(STD, length, SecureSource())
        times.append(time.process_time() - began)
    return float(np.median(times))


def stream(matrix: StrategyMatrix, rounds: int, length: int) -> dict[str, Any]:
    """Draw all rows of a run one by one, as a server would, and keep none of them.

    Returns
    -------
    dict
        Median CPU seconds per row, rows drawn, peak memory of the noise in vectors of length d, and the largest
        deviation of a row's standard deviation from the one of ``C^-1 Z``, in standard errors.
    """
    noise = CorrelatedNoise(matrix, length, STD, new_noise_key())
    squares = np.cumsum(matrix.inverse_column() ** 2)
    times, worst = [], 0.0
    for index in range(rounds):
        began = time.process_time()  # of this process alone: other work on the machine does not count
        row = noise.row(index)
        times.append(time.process_time() - began)
        seen = float(np.mean((row / STD) ** 2))
        worst = max(worst, abs(seen / squares[index] - 1.0) / np.sqrt(2.0 / length))
    tracemalloc.start()
    fresh = CorrelatedNoise(matrix, length, STD, new_noise_key())
    for index in range(min(rounds, 40)):
        fresh.row(index)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "rows": rounds,
        "seconds": float(np.median(times)),
        "peak_vectors": peak / (8 * length),
        "kept_vectors": matrix.memory,
        "worst_deviation": worst,
        "total_variation": noise.total_variation(),
    }
