"""PACZero: plateau and cliff on the language model, from the fine-tuning benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.reproduction.claim import Check, Claim, Finding

FILE = Path(__file__).parents[1] / "finetune" / "results" / "finetune.json"


def plateau(quick: bool) -> Finding:
    """Accuracies of every row, and the three shapes that the paper describes."""
    data = json.loads(FILE.read_text())
    rows = data["rows"]

    def accuracy(row: dict) -> np.ndarray:  # type: ignore[type-arg]
        return 100 * np.array([run["test"] for run in row["runs"]])

    def only(kind: str, directions: int = 1) -> list[dict]:  # type: ignore[type-arg]
        return [row for row in rows if row["kind"] == kind and row["directions"] == directions]

    (open_row,), (zpl,) = only("mezo"), only("zpl")
    mi, dp = only("mi"), only("dp")
    free, zero = accuracy(open_row).mean(), accuracy(zpl).mean()
    budgets = [accuracy(row).mean() for row in mi]
    private = {row["budget"]: accuracy(row).mean() for row in dp}
    low, high = min(private), max(private)
    majority = 100 * data["references"]["majority class"]
    checks = [
        Check(
            "zero leakage is within three points of no privacy",
            free - zero <= 3,
            f"{zero:.1f} against {free:.1f} %",
        ),
        Check(
            "a plateau over four decades of budget",
            max(budgets) - min(budgets) <= 3,
            ", ".join(
                f"{row['budget']:g} nats {value:.1f} %" for row, value in zip(mi, budgets, strict=True)
            ),
        ),
        Check(
            "differential privacy falls off a cliff below epsilon 1 while zero leakage does not",
            private[high] - private[low] > 5 and zero > private[low] + 5,
            ", ".join(f"epsilon {e:g}: {value:.1f} %" for e, value in sorted(private.items()))
            + f"; ZPL {zero:.1f} %",
        ),
        Check(
            "below epsilon 1 it is no better than the majority class",
            private[low] <= majority + 5,
            f"{private[low]:.1f} % at epsilon {low:g}, majority class {majority:.1f} %",
        ),
    ]
    table = [[row["name"], f"{accuracy(row).mean():.1f} ± {accuracy(row).std(ddof=1):.1f}"] for row in rows]
    remark = (
        "SmolLM2-135M with a head on its last token, 1,000 sentences, one silo; PAC privacy is no differential "
        "privacy, and the two are compared by the attack that they bound, not by their numbers."
    )
    return Finding(checks, ["method", "test accuracy %"], table, source="benchmarks/finetune", remark=remark)


CLAIMS = [
    Claim(
        "pac-zero-plateau",
        "pac-zero",
        "One bit a round reaches useful accuracy at zero mutual information, hardly more with a budget, and where "
        "differential privacy collapses.",
        plateau,
    )
]
