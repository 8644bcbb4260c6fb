"""Zeroth-order hidden state: epsilon of the last model in the rounds T and in the directions K."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from benchmarks.accounting.figures_hidden_state import zeroth_order_run
from benchmarks.reproduction.claim import Check, Claim, Finding, figure
from fedpriv.accounting.curves import DEFAULT_ORDERS

DELTA = 1e-6
ROUNDS, DIRECTIONS = (10, 100, 300, 1000, 3000, 10_000, 20_000), (50, 100, 200, 400)


def curves(quick: bool) -> Finding:
    """All bounds on a grid."""
    rounds, directions = (ROUNDS[:2], DIRECTIONS[:2]) if quick else (ROUNDS, DIRECTIONS)
    composed: dict[int, list[float]] = {}
    hidden: dict[int, list[float]] = {}
    quantile: dict[int, list[float]] = {}
    for k in directions:
        for t in rounds:
            found = {
                name: bound.to_epsilon(DELTA).epsilon
                for name, bound in zeroth_order_run(t, k).bounds(DEFAULT_ORDERS, DELTA).items()
            }
            first, second, _ = found.values()  # composition, quantile, mean square
            composed.setdefault(k, []).append(first)
            quantile.setdefault(k, []).append(min(first, second))
            hidden.setdefault(k, []).append(min(found.values()))
    last = len(rounds) - 1
    checks = [
        Check(
            f"K = {k}: the bound levels off in T",
            hidden[k][last] <= 1.01 * hidden[k][last - 1] and hidden[k][last] < composed[k][last],
            f"epsilon {hidden[k][last - 1]:.2f} at {rounds[last - 1]}, {hidden[k][last]:.2f} at {rounds[last]}; "
            f"composition {composed[k][last]:.2f}",
        )
        for k in directions
    ]
    final = [hidden[k][last] for k in directions]
    checks.append(
        Check(
            "more directions give a smaller epsilon of the last model, at equal noise energy",
            all(b <= a for a, b in itertools.pairwise(final)) and final[-1] < final[0],
            ", ".join(f"K = {k}: {value:.2f}" for k, value in zip(directions, final, strict=True)),
        )
    )
    rows = []
    for i, t in enumerate(rounds):
        cells = [f"{hidden[k][i]:.2f} ({quantile[k][i]:.2f})" for k in directions]
        rows.append([str(t), f"{composed[directions[0]][i]:.2f}", *cells])
    header = ["T", "composition", *(f"K = {k}" for k in directions)]
    remark = (
        "d = 10,000, smooth and strongly convex losses with constants 1 and 1/2, clip 1, n = 1000, half of the noise "
        f"along the directions, radius 1, delta {DELTA:g}; smallest of our bounds, in brackets the paper's scheme with "
        "exact quantiles."
    )
    data = {
        "rounds": list(rounds),
        "composition": composed[directions[0]],
        "hidden": {str(k): hidden[k] for k in directions},
    }
    return Finding(checks, header, rows, remark=remark, data=data)


def draw(data: dict[str, Any], path: Path) -> None:
    """Epsilon against T, one line per K."""
    found, (axes,) = figure(6.5, 3.8)
    axes.plot(data["rounds"], data["composition"], color="black", ls="--", label="composition")
    for k, values in data["hidden"].items():
        axes.plot(data["rounds"], values, marker="o", ms=3, label=f"hidden state, K = {k}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rounds T")
    axes.set_ylabel(f"epsilon of the last model at delta {DELTA:g}")
    axes.legend(fontsize=8)
    found.savefig(path)


CLAIMS = [
    Claim(
        "zeroth-order-curves",
        "zeroth-order",
        "With noise along and around the directions, epsilon of the last model levels off in the rounds, and more "
        "directions help.",
        curves,
        draw,
    )
]
