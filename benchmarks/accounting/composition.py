"""Composition: an epsilon after each of 1,000 rounds against Flower's accountant, and the cost of importing ours.

Run from the repository's root: python -m benchmarks.accounting.composition
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)

from fedpriv.accounting import Accountant, PoissonGaussian

ROUNDS, FLOWER_ROUNDS = 1000, 5
POPULATION, SAMPLE, NOISE, DELTA = 1000, 10, 1.1, 1e-5
RESULT = Path(__file__).with_name("results") / "composition.md"


def ours() -> tuple[float, float, list[float]]:
    """Seconds of the first round (which computes the curve once), of all others, and the epsilon after each."""
    accountant, event = Accountant("add_or_remove"), PoissonGaussian(SAMPLE / POPULATION, NOISE)
    started = time.process_time()
    found = [accountant.compose(event).rdp_epsilon(DELTA)]
    first = time.process_time() - started
    for _ in range(ROUNDS - 1):
        found.append(accountant.compose(event).rdp_epsilon(DELTA))
    return first, time.process_time() - started - first, found


def flower() -> tuple[float, list[float]]:
    """Seconds per round of Flower's accountant, and its epsilons after the first rounds and after all."""
    config = PrivacyConfig(
        target_delta=DELTA,
        population_size=POPULATION,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.POISSON,
    )
    accountant = RdpAccountant(config)
    event = GaussianPrivacyEvent(noise_multiplier=NOISE, sample_size=SAMPLE, population_size=POPULATION)
    found = []
    started = time.process_time()
    for _ in range(FLOWER_ROUNDS):
        accountant.compose(event)
        found.append(accountant.get_privacy_spent().epsilon)
    seconds = (time.process_time() - started) / FLOWER_ROUNDS
    accountant.compose(event, ROUNDS - FLOWER_ROUNDS)
    return seconds, [*found, accountant.get_privacy_spent().epsilon]


def import_seconds(statement: str) -> float:
    """Median wall seconds of a fresh interpreter that runs a statement."""
    times = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Measure, print and write the table."""
    per_round, theirs = flower()  # first: it also pays for importing dp_accounting
    first, others, mine = ours()
    pairs = [*zip(mine[:FLOWER_ROUNDS], theirs[:FLOWER_ROUNDS], strict=True), (mine[-1], theirs[-1])]
    gap = max(abs(a - b) / b for a, b in pairs)
    base, full = (
        import_seconds(f"import numpy, scipy.special{more}") for more in ("", ", fedpriv.accounting")
    )
    lines = [
        f"Poisson-sampled Gaussian, q = {SAMPLE / POPULATION:g}, noise multiplier {NOISE}, delta {DELTA:g}; CPU time.",
        "",
        "| what | fedpriv | Flower's RdpAccountant | ratio |",
        "|---|---|---|---|",
        f"| each further round, with its epsilon | {others / (ROUNDS - 1) * 1e6:.1f} us | {per_round * 1e6:,.0f} us | "
        f"{per_round / others * (ROUNDS - 1):,.0f} |",
        f"| {ROUNDS} rounds with an epsilon after each, first curve included | {first + others:.3g} s | "
        f"{per_round * ROUNDS:.4g} s ({FLOWER_ROUNDS} rounds measured, times {ROUNDS // FLOWER_ROUNDS}) | "
        f"{per_round * ROUNDS / (first + others):,.0f} |",
        f"| epsilon after {FLOWER_ROUNDS} rounds | {mine[FLOWER_ROUNDS - 1]:.6f} | {theirs[FLOWER_ROUNDS - 1]:.6f} | |",
        f"| epsilon after {ROUNDS} rounds | {mine[-1]:.6f} | {theirs[-1]:.6f} | largest gap {gap:.1e} |",
        "",
        f"`import fedpriv.accounting`: {full:.2f} s; numpy, scipy.special alone: {base:.2f} s ({full - base:+.2f} s).",
    ]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
