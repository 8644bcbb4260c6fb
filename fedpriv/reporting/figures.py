"""Figures of a report: epsilon over rounds, accuracy over rounds, tallies of a vote."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.reporting.claim import format_epsilon, is_void
from fedpriv.reporting.model import EpsilonPoint, RunReport, StageReport, VoteRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, told apart under every common colour blindness; line styles differ as well.
VIEW_STYLE: dict[View, dict[str, Any]] = {
    "server": {"color": "#0072B2", "linestyle": "-", "linewidth": 3.2},
    "participants": {"color": "#E69F00", "linestyle": (0, (4, 2)), "linewidth": 2.0},
    "release": {"color": "#009E73", "linestyle": (0, (1, 1.5)), "linewidth": 2.6},
}
RING: dict[View, float] = {"server": 12, "participants": 8, "release": 4.5}
CHOSEN, OTHER, LIMIT, GREY = "#D55E00", "#56B4E9", "#CC79A7", "#5A5A5A"
MAX_BARS = 24
MAX_STRETCHES = 8


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure drawn without pyplot: no global state and no window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _title(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=24 if subtitle else 8)
    if subtitle:
        axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize=9, color=GREY, va="bottom")


def draw_epsilon(report: RunReport) -> Figure | None:
    """Cumulative epsilon over releases, one line per view, with the budget.

    Returns None when no view has a curve with a finite point.
    """
    from matplotlib.ticker import MaxNLocator

    curves = {view: report.epsilon_curves.get(view, []) for view in VIEWS}
    finite = {
        view: [(x, p.epsilon) for x, p in zip(_places(curve), curve, strict=True) if math.isfinite(p.epsilon)]
        for view, curve in curves.items()
    }
    if not any(finite.values()):
        return None
    last = max(max(_places(curve), default=0) for curve in curves.values())
    figure, axes = _figure(8.2, 4.8)
    for view in VIEWS:
        if not finite[view]:
            continue
        x, y = _line(finite[view])
        claimed = report.views[view].epsilon
        label = f"{view}: epsilon {format_epsilon(claimed)}"
        axes.plot(x, y, label=label, solid_capstyle="butt", **VIEW_STYLE[view])
        if math.isfinite(claimed):
            # Views with one epsilon share a place: rings of different size keep all of them visible.
            axes.plot([x[-1]], [claimed], "o", color=VIEW_STYLE[view]["color"], ms=RING[view], clip_on=False)
    if report.budget is not None and math.isfinite(report.budget.max_epsilon):
        limit = report.budget.max_epsilon
        axes.axhline(limit, color=LIMIT, linewidth=1.6, linestyle="-.")
        axes.annotate(
            f"budget of the {report.budget.view} view: {limit:g}",
            (0.995, limit),
            xycoords=("axes fraction", "data"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="right",
            color="#A0527F",
            fontsize=9,
        )
    _mark_stages(axes, report, last)
    axes.set_ylim(bottom=0)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.08)
    axes.set_xlim(0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("release number (all stages, in order)")
    axes.set_ylabel(f"epsilon spent so far (nats), delta = {report.delta:.3g}")
    figure.legend(
        frameon=False, fontsize=9, loc="outside lower center", ncols=3, handlelength=2.4, columnspacing=1.4
    )
    infinite = [view for view in VIEWS if math.isinf(report.views[view].epsilon)]
    subtitle = "lines: after each release; dots: the claim, by the best valid bound"
    if infinite:
        subtitle += f"; no guarantee at all: {', '.join(infinite)}"
    title = "Privacy spent, by who is looking"
    if is_void(report):
        title = "NOT PRIVATE: what would be spent if the noise were secret"
    _title(axes, title, subtitle)
    return figure


def _line(points: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Steps where every release has a point, straight lines between points where releases were left out."""
    if points[-1][0] - points[0][0] >= len(points):
        return [float(x) for x, _ in points], [y for _, y in points]
    return [x + side for x, _ in points for side in (-0.5, 0.5)], [y for _, y in points for _ in range(2)]


def _places(points: Sequence[EpsilonPoint]) -> list[int]:
    """Horizontal positions of a curve's points."""
    return [i if p.release is None else p.release for i, p in enumerate(points, start=1)]


def _mark_stages(axes: Axes, report: RunReport, last: int) -> None:
    """Shade every other stage and write its name above, unless stages alternate all the time."""
    stage_at = {
        place: point.stage
        for points in report.epsilon_curves.values()
        for place, point in zip(_places(points), points, strict=True)
    }
    stretches: list[tuple[str, int]] = []
    for place in sorted(stage_at):
        if not stretches or stretches[-1][0] != stage_at[place]:
            stretches.append((stage_at[place], place))
    if not 1 < len(stretches) <= MAX_STRETCHES:
        return
    ends = [start for _, start in stretches[1:]] + [last + 1]
    for i, ((stage, start), end) in enumerate(zip(stretches, ends, strict=True)):
        left, right = start - 0.5, end - 0.5
        if i % 2 == 0:
            axes.axvspan(left, right, color="#F1F1F1", zorder=0)
        narrow = (right - left) / last < 0.08
        axes.annotate(
            stage,
            (left if narrow else (left + right) / 2, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(3 if narrow else 0, 0),
            textcoords="offset points",
            ha="left" if narrow else "center",
            va="top",
            fontsize=9,
            color=GREY,
        )


def draw_accuracy(report: RunReport) -> Figure | None:
    """Accuracy over the rounds of every stage that was evaluated; None when none was."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    stages = [s for s in report.stages if any(r.accuracy is not None for r in s.rounds)]
    if not stages:
        return None
    figure, axes = _figure(8.2, 4.4)
    crowded = max(r.round for s in stages for r in s.rounds) > 40
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]
    markers = "os^D"
    for i, stage in enumerate(stages):
        rounds = [r for r in stage.rounds if r.accuracy is not None]
        x, y = [r.round for r in rounds], [100 * r.accuracy for r in rounds if r.accuracy is not None]
        colour = colours[i % len(colours)]
        axes.plot(
            x,
            y,
            color=colour,
            linewidth=2,
            marker=None if crowded and len(x) > 1 else markers[i % len(markers)],
            markersize=5,
            label=stage.name,
        )
        axes.annotate(
            f"{y[-1]:.1f} %",
            (x[-1], y[-1]),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=10,
            fontweight="bold",
            annotation_clip=False,
        )
        lost = [r.round for r in stage.rounds if not r.released]
        if lost:
            axes.plot(
                lost,
                [0.02] * len(lost),
                "x",
                color=GREY,
                transform=axes.get_xaxis_transform(),
                label=f"{stage.name}: round without a release",
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter())
    axes.margins(x=0.06, y=0.12)
    axes.set_ylim(max(0, axes.get_ylim()[0]), min(100, axes.get_ylim()[1]))
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy (%)")
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    _title(axes, "Accuracy over rounds", "of the model after each round")
    return figure


def describe_candidate(candidate: dict[str, Any], leave_out: Sequence[str] = ()) -> str:
    """A candidate as short text: ``learning-rate 0.1, clip 1``."""
    parts = [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in candidate.items()
        if key not in leave_out
    ]
    return ", ".join(parts) if parts else "(no parameters)"


def format_votes(count: int) -> str:
    """A number of votes for people.

    >>> format_votes(1), format_votes(3)
    ('1 vote', '3 votes')
    """
    return "1 vote" if count == 1 else f"{count} votes"


def _constant_keys(vote: VoteRecord) -> list[str]:
    first = vote.candidates[0]
    return [k for k, v in first.items() if all(c.get(k) == v for c in vote.candidates)]


def draw_tallies(stage: StageReport) -> Figure | None:
    """Noisy tallies of a stage's vote as bars, largest first, with the winner and the noise marked."""
    vote = stage.vote
    if vote is None:
        return None
    order = sorted(range(len(vote.tallies)), key=lambda i: -vote.tallies[i])
    shown = order[:MAX_BARS]
    if vote.chosen not in shown:
        shown[-1] = vote.chosen
    constant = _constant_keys(vote) if len(vote.candidates) > 1 else []
    labels = [describe_candidate(vote.candidates[i], constant) for i in shown]
    width = 5.4 + min(4.0, 0.075 * max(len(label) for label in labels))
    figure, axes = _figure(width, 1.7 + 0.3 * len(shown))
    axes.grid(visible=False)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.8)
    colours = [CHOSEN if i == vote.chosen else OTHER for i in shown]
    values = [vote.tallies[i] for i in shown]
    whiskers: dict[str, Any] = {
        "xerr": vote.noise_std,
        "ecolor": "#333333",
        "error_kw": {"linewidth": 1, "capsize": 2.5},
    }
    axes.barh(range(len(shown)), values, color=colours, height=0.72, **(whiskers if vote.noise_std else {}))
    axes.set_yticks(range(len(shown)), labels, fontsize=9)
    for tick, i in zip(axes.get_yticklabels(), shown, strict=True):
        if i == vote.chosen:
            tick.set_fontweight("bold")
            tick.set_color("#A84800")
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.axvline(0, color="#333333", linewidth=0.8)
    for y, value in enumerate(values):
        axes.annotate(
            f"{value:.1f}",
            (max(value, 0) + vote.noise_std, y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=GREY,
        )
    axes.margins(x=0.1)
    axes.set_xlabel(f"noisy tally (votes; {vote.voters} clients, {format_votes(vote.votes_per_client)} each)")
    remarks = ["no noise"]
    if vote.noise_std:
        remarks = [f"whiskers: noise, one standard deviation = {vote.noise_std:.2f} votes"]
    if len(order) > len(shown):
        remarks.append(f"{len(order) - len(shown)} other tallies not shown")
    if constant:
        same = {key: vote.candidates[0][key] for key in constant}
        remarks.append(f"same for all: {describe_candidate(same)}")
    _title(axes, f"Private vote ({stage.name}): chosen in orange", "")
    figure.supxlabel(textwrap.fill("; ".join(remarks), int(13 * width)), fontsize=8.5, color=GREY)
    return figure


def draw_diagnostics(stage: StageReport) -> Figure | None:
    """Diagnostics of a stage over its rounds, each with its running mean; None when there are none."""
    from matplotlib.ticker import MaxNLocator

    keys = list(dict.fromkeys(key for record in stage.rounds for key in record.diagnostics))
    if not keys or len(stage.rounds) < 2:
        return None
    figure, axes = _figure(8.2, 4.2)
    for colour, key in zip(["#0072B2", "#D55E00", "#009E73", "#CC79A7"], keys, strict=False):
        points = [(r.round, r.diagnostics[key]) for r in stage.rounds if key in r.diagnostics]
        x, y = [number for number, _ in points], [value for _, value in points]
        window = max(1, len(y) // 20)
        smooth = [sum(y[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(y))]
        axes.plot(x, y, ".", color=colour, alpha=0.45, markersize=5, label=f"{key}, each round")
        axes.plot(x, smooth, color=colour, linewidth=2, label=f"mean of the last {window} rounds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("round")
    axes.set_ylabel(keys[0] if len(keys) == 1 else "value")
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    _title(axes, f"Inside the silos ({stage.name})", "known in a simulation only; never sent in a deployment")
    return figure


def tallies_name(stage: str) -> str:
    """File name (without suffix) of the figure of a second or later vote."""
    return "tallies_" + _file_word(stage)


def diagnostics_name(stage: str) -> str:
    """File name (without suffix) of the figure of a stage's diagnostics."""
    return "diagnostics_" + _file_word(stage)


def _file_word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", text)


def write_figures(folder: Path, report: RunReport) -> dict[str, Path]:
    """Draw every figure that the report has data for.

    Parameters
    ----------
    folder : Path
        Created when missing.
    report : RunReport

    Returns
    -------
    dict from name to Path
        ``epsilon_over_rounds``, ``accuracy_over_rounds``, and ``tallies`` (``tallies_<stage>`` from the
        second vote on), ``diagnostics_<stage>``.
    """
    figures: dict[str, Figure | None] = {
        "epsilon_over_rounds": draw_epsilon(report),
        "accuracy_over_rounds": draw_accuracy(report),
    }
    for stage in (s for s in report.stages if s.vote is not None):
        figures["tallies" if "tallies" not in figures else tallies_name(stage.name)] = draw_tallies(stage)
    figures |= {diagnostics_name(stage.name): draw_diagnostics(stage) for stage in report.stages}
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, figure in figures.items():
        if figure is not None:
            written[name] = folder / f"{name}.png"
            figure.savefig(written[name])
    return written
