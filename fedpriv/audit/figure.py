"""The picture of an audit: lower bounds beside the upper bound that is claimed."""

from __future__ import annotations

import math
from pathlib import Path

from fedpriv.audit.result import Report, Row


def draw(report: Report, output: Path) -> None:
    """Save a picture with one line per attacked view and method.

    Parameters
    ----------
    report : Report
        What was found.
    output : Path
        PNG; its folder is made.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [
        (label, rows)
        for quantity, label in (
            ("epsilon", f"epsilon at delta = {report.delta:.3g}"),
            ("success", "success of a membership attack"),
        )
        if (rows := [row for row in report.rows if row.claim.quantity == quantity])
    ]
    heights = [len(rows) for _, rows in panels] or [1]
    figure = Figure(figsize=(9, 1.6 + 0.34 * sum(heights) + 0.5 * len(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axis, (label, rows) in zip(axes, panels, strict=False):
        _panel(axis, label, rows)
    if not panels:
        axes[0].text(0.5, 0.5, "nothing was attacked", ha="center")
        axes[0].set_axis_off()
    figure.suptitle(
        f"{report.subject}\nno lower bound is above the truth with {100 * report.confidence:.6g} % confidence",
        fontsize=10,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=130)


def _panel(axis, label: str, rows: list[Row]) -> None:  # type: ignore[no-untyped-def]
    largest = max((row.claim.value for row in rows if math.isfinite(row.claim.value)), default=1.0)
    largest = max(largest, *(row.lower for row in rows if math.isfinite(row.lower)), 1e-3)
    for place, row in enumerate(rows):
        color = "#c0392b" if row.exceeds else "#1f6f8b"
        least = min(row.lower, 1.2 * largest)
        # a bound, not an estimate: everything below it is ruled out, up to the claim everything is open
        axis.barh(place, least, color=color, height=0.55, label="ruled out" if place == 0 else None)
        axis.plot(
            [row.claim.value] * 2,
            [place - 0.38, place + 0.38],
            color="black",
            linewidth=2.5,
            label="claimed upper bound" if place == 0 else None,
        )
        axis.text(least, place, f" {row.lower:.2f}", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [f"{row.stage}, {row.view}\n{row.method}" for row in rows], fontsize=7)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    start = 0.0 if rows[0].claim.quantity == "epsilon" else 0.45
    axis.set_xlim(start, 1.15 * largest if start == 0.0 else 1.02)
    axis.set_xlabel(label)
    axis.grid(visible=True, axis="x", alpha=0.25)
    axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)


__all__ = ["draw"]
