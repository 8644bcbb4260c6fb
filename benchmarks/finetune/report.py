"""Tables and picture of the fine-tuning benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import Stopwatch, environment, markdown_table, percent
from fedpriv.accounting.pac import membership_success, pure_dp_epsilon_with_equal_posterior


def line(row: dict[str, Any]) -> str:
    """A row while the benchmark runs."""
    return f"{row['name']}: rate {row['rate']:g}, {percent(r['test'] for r in row['runs'])} %"


def silo_line(row: dict[str, Any]) -> str:
    """A federation while the benchmark runs."""
    return f"8 silos, {row['name']}: {percent(r['accuracy'] for r in row['runs'])} %"


def _quarters(row: dict[str, Any]) -> str:
    flags = [r["unanimous"] for r in row["runs"] if r["unanimous"]]
    if not flags:
        return "-"
    means = [
        np.mean([np.mean(part) for part in quarter])
        for quarter in zip(*(np.array_split(f, 4) for f in flags), strict=True)
    ]
    return f"{100 * np.mean([np.mean(f) for f in flags]):.0f} ({', '.join(f'{100 * m:.0f}' for m in means)})"


def _promise(row: dict[str, Any]) -> str:
    kind, budget = row["kind"], row["budget"]
    if kind in ("mezo", "sign"):
        return "none"
    if kind == "dp":
        return f"epsilon {budget:g} at delta 1e-5"
    spent = max(r["spent"] for r in row["runs"])
    if kind == "zpl":
        return "0 nats; attack at most 50 %"
    return f"{spent:.3g} nats; attack at most {100 * membership_success(budget):.1f} %"


def _at_the_edge(row: dict[str, Any]) -> bool:
    """Whether a rate outside the grid might have been better."""
    rates = [float(rate) for rate in row["search"]]
    return row["rate"] in (min(rates), max(rates))


def _rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            row["name"],
            f"{row['rate']:g}{'*' if _at_the_edge(row) else ''}",
            percent(r["test"] for r in row["runs"]),
            _quarters(row),
            _promise(row),
        ]
        for row in rows
    ]


HEADER = ["method", "rate", "test accuracy %", "unanimous steps % (by quarter)", "promise"]


def to_markdown(
    rows: list[dict[str, Any]],
    references: dict[str, float],
    blocks: list[dict[str, Any]],
    federated: list[dict[str, Any]],
    chosen: dict[str, Any],
    sizes: tuple[int, int, int],
    block_sizes: tuple[int, int, int],
    watch: Stopwatch,
) -> str:
    """The whole result as text."""
    shown = ", ".join(f"{name} {100 * value:.1f} %" for name, value in references.items())
    parts = [
        "# Fine-tuning by forward passes\n",
        f"SmolLM2-135M, movie-review sentences (SST-2-like), {sizes[0]} for training, {sizes[1]} for learning "
        f"rates, {sizes[2] - sizes[0] - sizes[1]} for the accuracies; one silo, {chosen['rounds']} steps, "
        f"M = {chosen['subsets']}, seeds {chosen['seeds']}. Trained part: a linear head of zeros on the last token. "
        "Every method chose among seven learning rates, half decades that were fixed beforehand (0.03 to 30 for "
        "steps by a sign, 10 to 10,000 for steps by a quotient), by one run of its own seed on the validation "
        "sentences; a star: the choice is the grid's edge. Rates fall linearly. Record-level DP: each sentence is a "
        "unit with clip 0.1 per quotient, noise by the product's plan; K = 16 takes a fifth of the steps.\n",
        f"References on the same test sentences: {shown}.\n",
        markdown_table(HEADER, _rows(rows)),
        findings(rows, references),
    ]
    if blocks:
        parts += [
            f"\n## Adapters in the last block (LoRA, B only), {block_sizes[0]} sentences, {chosen['block_rounds']} "
            "steps\n",
            "Starts at the model's own words. Rates: thirty times every other one of the head's grid. Test on "
            f"{block_sizes[2] - block_sizes[0] - block_sizes[1]} sentences.\n",
            markdown_table(HEADER, _rows(blocks)),
        ]
    if federated:
        table = [
            [
                row["name"],
                percent(r["accuracy"] for r in row["runs"]),
                percent(r["unanimous"] for r in row["runs"]),
                f"{np.mean([r['survivors'] for r in row['runs']]):.2f}",
                f"{np.mean([r['bytes_up'] for r in row['runs']]):.0f}",
                f"{np.mean([r['bytes_down'] for r in row['runs']]):.0f}",
            ]
            for row in federated
        ]
        parts += [
            f"\n## Eight silos, the whole app over Flower messages, {chosen['silo_rounds']} rounds\n",
            "Majority of the bits unless said otherwise; secure sum simulated; accuracy on the public hold-out of "
            "20 %.\n",
            markdown_table(
                ["federation", "accuracy %", "unanimous silos %", "silos in a sum", "bytes up", "bytes down"],
                table,
            ),
        ]
    comparison = ", ".join(
        f"{nats:g} nats: {pure_dp_epsilon_with_equal_posterior(nats):.2f}" for nats in (0.11, 0.33, 0.68)
    )
    parts.append(
        f"\nFor comparison only, the epsilon of pure DP that bounds the same membership attack: {comparison}. PAC "
        f"privacy is no differential privacy.\n\n{watch.seconds:.0f} s (cached runs not counted); {environment()}.\n"
    )
    return "\n".join(parts)


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([r["test"] for row in rows if row["name"] == name for r in row["runs"]]))


def findings(rows: list[dict[str, Any]], references: dict[str, float]) -> str:
    """The papers' claims beside what was measured, computed from the rows."""
    mezo, zpl = _mean(rows, "MeZO, no privacy (64 a step)"), _mean(rows, "PACZero-ZPL")
    signs = _mean(rows, "sign of the full quotient, no privacy")
    mi = [_mean(rows, row["name"]) for row in rows if row["kind"] == "mi"]
    plateau = max([*mi[:1], zpl]) - min([*mi[:1], zpl])
    lines = [
        "What the papers claim (arXiv 2605.06505), and what was seen:\n",
        f"* *Zero leakage within a few points of no privacy.* ZPL is {100 * (zpl - mezo):+.1f} points from MeZO, "
        f"{100 * (zpl - signs):+.1f} from the sign of the full quotient.",
        f"* *A plateau over four decades of budget.* 0 and 1e-4 nats are {100 * plateau:.1f} points apart; from "
        f"1e-4 to 0.68 nats the accuracy moves by {100 * (max(mi) - min(mi)):.1f} points.",
    ]
    for k in (1, 16):
        found = {
            row["budget"]: _mean(rows, row["name"])
            for row in rows
            if row["kind"] == "dp" and row["directions"] == k
        }
        if found:
            text = ", ".join(f"{epsilon:g}: {100 * accuracy:.1f} %" for epsilon, accuracy in found.items())
            lines.append(
                f"* *DP zeroth-order collapses below epsilon 1.* K = {k}: {text} "
                f"(majority class {100 * references['majority class']:.1f} %)."
            )
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], references: dict[str, float], path: Path) -> None:
    """Accuracy against budget, PAC and DP side by side, with the references as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    pac = [row for row in rows if row["kind"] in ("zpl", "mi")]
    places = range(len(pac))
    for row, place in zip(pac, places, strict=True):
        values = [100 * r["test"] for r in row["runs"]]
        left.plot([place] * len(values), values, "o", color="#56B4E9", ms=4)
        left.plot([place], [np.mean(values)], "D", color="#0072B2", ms=7)
    left.set_xticks(list(places), ["0 (ZPL)", *(f"{row['budget']:g}" for row in pac[1:])])
    left.set_xlabel("mutual information per silo (nats)")
    left.set_ylabel("test accuracy (%)")
    left.set_title("PACZero", loc="left", fontweight="bold")
    for k, colour, marker in ((1, "#D55E00", "s"), (16, "#009E73", "^")):
        found = [row for row in rows if row["kind"] == "dp" and row["directions"] == k]
        x = [row["budget"] for row in found]
        right.plot(
            x,
            [100 * np.mean([r["test"] for r in row["runs"]]) for row in found],
            marker=marker,
            color=colour,
            label=f"K = {k}",
        )
    right.set_xscale("log")
    right.minorticks_off()
    right.set_xticks([0.5, 1, 2, 6], ["0.5", "1", "2", "6"])
    right.set_xlabel("epsilon at delta 1e-5 (record level)")
    right.set_title("DP zeroth-order", loc="left", fontweight="bold")
    lines = {"no privacy (MeZO)": 100 * _mean(rows, "MeZO, no privacy (64 a step)")} | {
        name: 100 * value for name, value in references.items()
    }
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        for (name, value), style in zip(lines.items(), ("-", "--", "-.", ":"), strict=True):
            axes.axhline(
                value, color="#777777", linestyle=style, linewidth=1, label=name if axes is right else None
            )
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path)
