"""Random allocation: our interval against the truth, at small and at large epsilon."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduction.claim import Check, Claim, Finding, figure
from fedpriv.accounting.allocation_profile import allocation_law
from fedpriv.accounting.allocation_renyi import allocation_curves
from fedpriv.accounting.curves import DEFAULT_ORDERS

DELTA = 1e-4
SETTINGS = ((1000, 1.0), (8, 2.0), (100, 1.0), (1000, 0.7), (100, 0.5), (1000, 0.4), (100, 0.3))


def sampled_delta(
    epsilon: float, bins: int, sigma: float, samples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """delta(epsilon) of the remove direction by Monte Carlo under the member's law, and its standard error.

    With the member in bin 1, the likelihood ratio is the mean of exp(y_i / s - 1/(2 s^2)), where only y_1 has the
    member's pull: E_P[(1 - e^epsilon / ratio)_+].
    """
    chunk, total, square = max(1, 2_000_000 // bins), 0.0, 0.0
    done = 0
    while done < samples:
        count = min(chunk, samples - done)
        z = rng.standard_normal((count, bins)) / sigma - 0.5 / sigma**2
        z[:, 0] += 1 / sigma**2
        ratio = np.exp(z).mean(axis=1)
        value = np.maximum(0.0, 1 - math.exp(epsilon) / ratio)
        total += float(value.sum())
        square += float((value**2).sum())
        done += count
    mean = total / samples
    return mean, math.sqrt(max(0.0, square / samples - mean**2) / samples)


def accuracy(quick: bool) -> Finding:
    """Epsilon from both sides, and delta at that epsilon by sampling."""
    samples, rng = (2000 if quick else 400_000), np.random.default_rng(0)
    rows, checks, points = [], [], []
    for bins, sigma in SETTINGS[:2] if quick else SETTINGS:
        upper = allocation_law(sigma, bins, "upper", DELTA)
        lower = allocation_law(sigma, bins, "lower", DELTA)
        high, low = upper.epsilon(DELTA), lower.epsilon(DELTA)
        found = allocation_curves(sigma, bins, DEFAULT_ORDERS)
        renyi = max(found.remove.to_epsilon(DELTA).epsilon, found.add.to_epsilon(DELTA).epsilon)
        seen, error = sampled_delta(high, bins, sigma, samples, rng)
        name = f"b = {bins}, sigma {sigma:g}"
        checks.append(
            Check(
                f"{name}: both sides meet",
                high - low <= 1e-3 * high + 1e-6,
                f"epsilon in [{low:.6f}, {high:.6f}]",
            )
        )
        checks.append(
            Check(
                f"{name}: sampling agrees",
                abs(seen - DELTA) <= 4 * error,
                f"delta {seen:.2e} ± {error:.1e} by sampling, {DELTA:g} by the profile",
            )
        )
        rows.append([name, f"{low:.5f}", f"{high:.5f}", f"{renyi:.4f}", f"{seen:.2e} ± {error:.0e}"])
        points.append((name, high, renyi))
    points.sort(key=lambda point: point[1])
    small, large = (f"{p[2] / p[1]:.2f} times at epsilon {p[1]:.2f}" for p in (points[0], points[-1]))
    checks.append(
        Check(
            "Rényi accounting is looser, at small and at large epsilon",
            all(renyi > high for _, high, renyi in points),
            f"{small}, {large}",
        )
    )
    header = ["setting", "lower", "upper", "Rényi", "delta at the upper value, sampled"]
    remark = (
        f"One epoch, delta {DELTA:g}, {samples} samples. The larger of the two directions counts for epsilon, which is "
        "the remove direction here; the sampled delta is of that one. Peers and their times: `benchmarks/accounting`."
    )
    data = {
        "names": [p[0] for p in points],
        "profile": [p[1] for p in points],
        "renyi": [p[2] for p in points],
    }
    return Finding(checks, header, rows, remark=remark, data=data)


def draw(data: dict[str, Any], path: Path) -> None:
    """Rényi accounting over the truth."""
    found, (axes,) = figure(6.5, 3.2)
    ratio = [r / p for r, p in zip(data["renyi"], data["profile"], strict=True)]
    axes.bar(range(len(ratio)), ratio, color="#8c8c8c")
    axes.axhline(1.0, color="#c44e52", label="truth (both sides of the profile)")
    names = [f"{n}\nepsilon {e:.2f}" for n, e in zip(data["names"], data["profile"], strict=True)]
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set_ylabel("Rényi epsilon over the true one")
    axes.legend(fontsize=8)
    found.savefig(path)


CLAIMS = [
    Claim(
        "allocation-accuracy",
        "allocation",
        "The cost of balls in bins can be computed without sampling; how close to the truth depends on the method and "
        "on epsilon.",
        accuracy,
        draw,
    )
]
