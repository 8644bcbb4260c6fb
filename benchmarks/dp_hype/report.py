"""Table and picture of the DP-HYPE benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.dp_hype.measure import Row
from benchmarks.output import markdown_table, percent
from fedpriv.settings import Settings

HEADER = (
    "task, n, partition",
    "epsilon",
    "noise, votes",
    "OPT",
    "RANDGUESS",
    "vote",
    "± by noise",
    "loss to OPT",
    "P(OPT)",
    "best tally: bound",
    "seen",
    "within n/10: bound",
    "seen",
)


def _epsilon(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _name(row: Row) -> str:
    return f"{row.task}, {row.clients}, {row.partition}"


def table_rows(rows: Sequence[Row]) -> list[list[object]]:
    """The main table, one line per row."""
    return [
        [
            _name(row),
            _epsilon(row.epsilon),
            f"{row.guaranteed_std:.2f} / {row.realised_std:.2f}",
            percent(row.values("optimum")),
            percent(row.values("random")),
            percent(row.utility),
            f"{100 * row.spread:.1f}",
            f"{100 * float(np.mean(row.values('optimum') - row.utility)):.1f}",
            f"{float(np.mean(row.values('opt_chosen'))):.2f}",
            f"{row.mean_of('bound', '0'):.2f}",
            f"{row.mean_of('observed', '0'):.2f}",
            f"{row.mean_of('bound', 'n/10'):.2f}",
            f"{row.mean_of('observed', 'n/10'):.2f}",
        ]
        for row in rows
    ]


def bound_violations(rows: Sequence[Row]) -> list[str]:
    """Rows in which the observed frequency is below the predicted bound by more than chance explains.

    Chance: three binomial standard errors at the bound, over all votes of the row.
    """
    found = []
    for row in rows:
        votes = sum(len(cell.winners) for cell in row.cells)
        for gamma in row.cells[0].bound:
            bound, observed = row.mean_of("bound", gamma), row.mean_of("observed", gamma)
            if observed < bound - 3 * math.sqrt(bound * (1 - bound) / votes) - 1e-9:
                found.append(
                    f"{_name(row)}, epsilon {_epsilon(row.epsilon)}, gamma {gamma}: {observed:.3f} < {bound:.3f}"
                )
    return found


def verdict(rows: Sequence[Row]) -> list[str]:
    """What the figures say, in sentences."""
    sentences = []
    for epsilon in dict.fromkeys(row.epsilon for row in rows):
        some = [row for row in rows if row.epsilon == epsilon]
        gains = [float(np.mean(row.utility - row.values("random"))) for row in some]
        lost = [float(np.mean(row.values("optimum") - row.utility)) for row in some]
        ahead = sum(gain > 0 for gain in gains)
        sentence = (
            f"epsilon {_epsilon(epsilon)}: ahead of RANDGUESS in {ahead} of {len(some)} federations, by "
            f"{100 * float(np.mean(gains)):.1f} points in the mean ({100 * min(gains):+.1f} to "
            f"{100 * max(gains):+.1f}); "
            f"{100 * float(np.mean(lost)):.1f} points below OPT."
        )
        behind = [_name(row) for row, gain in zip(some, gains, strict=True) if gain <= 0]
        sentences.append(sentence + (f" Not ahead: {'; '.join(behind)}." if behind else ""))
    violations = bound_violations(rows)
    sentences.append(
        "The predicted bound holds in every row, within three standard errors of the observed frequency."
        if not violations
        else "The predicted bound is violated: " + "; ".join(violations)
    )
    return sentences


def to_markdown(
    rows: Sequence[Row], settings: Settings, notes: Sequence[str], foot: str, repetitions: int
) -> str:
    """The whole result file."""
    tune, train = settings.tune, settings.train
    seeds = len(rows[0].cells)
    intro = (
        f"{len(tune.candidates)} candidates, {tune.resolved_votes} votes each, losses by {tune.proxy_rounds} proxy "
        f"rounds on each client's own data; {seeds} seeds, {repetitions} votes per seed. Delta 1/n^1.5, add_or_remove; "
        "Dirichlet alpha 0.5. Utility is the accuracy in percent, on the public hold-out, of federated training "
        f"without noise ({train.rounds} rounds, clip {train.clip_norm:g}) with the candidate that the vote chose. "
        "Without noise the vote still has its own error: a client judges by its own few examples.\n\n"
        "*noise*: standard deviation on a tally, guaranteed (what epsilon counts) / realised (all n shares). *OPT*: "
        "the best candidate in hindsight. *RANDGUESS*: mean over the candidates. *vote*: mean ± standard deviation "
        "over the seeds, epsilon ∞ is voting without noise; *by noise*: standard deviation within a seed. *P(OPT)*: "
        "the winner has OPT's accuracy. *best tally*, *within n/10*: the winner's true tally is the best, or at most "
        "n/10 votes below; the bound is `vote_regret_probability` with the realised noise, *seen* is the part of the "
        "votes."
    )
    parts = [
        "# DP-HYPE against OPT, RANDGUESS and voting without noise",
        intro,
        *notes,
        markdown_table(HEADER, table_rows(rows)),
        "\n".join(f"* {sentence}" for sentence in verdict(rows)),
        foot,
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Utility against epsilon, one panel per task, partition and number of clients."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(row.task for row in rows))
    panels = list(dict.fromkeys((row.partition, row.clients) for row in rows))
    figure = Figure(figsize=(3.1 * len(panels) + 0.6, 2.9 * len(tasks) + 0.7), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(len(tasks), len(panels), squeeze=False, sharey="row")
    for line, task in zip(all_axes, tasks, strict=True):
        for axes, (partition, clients) in zip(line, panels, strict=True):
            some = [r for r in rows if (r.task, r.partition, r.clients) == (task, partition, clients)]
            if not some:
                axes.set_axis_off()
                continue
            noisy = [row for row in some if not math.isinf(row.epsilon)]
            opt, random = (100 * some[0].values(name).mean() for name in ("optimum", "random"))
            axes.axhline(opt, color="#55a868", label="OPT")
            for row in some:
                if math.isinf(row.epsilon):
                    axes.axhline(
                        100 * row.utility.mean(), color="#4c72b0", ls="--", label="vote without noise"
                    )
            axes.axhline(random, color="#8c8c8c", ls=":", label="RANDGUESS")
            axes.errorbar(
                range(len(noisy)),
                [100 * row.utility.mean() for row in noisy],
                yerr=[100 * row.spread for row in noisy],
                color="#c44e52",
                marker="o",
                capsize=3,
                label="DP-HYPE (± by noise)",
            )
            axes.set_xticks(range(len(noisy)), [_epsilon(row.epsilon) for row in noisy])
            axes.set_title(f"{task}, n = {clients}, {partition}", fontsize=9)
            axes.grid(axis="y", alpha=0.3)
        line[0].set_ylabel("accuracy, %")
    for axes in all_axes[-1]:
        axes.set_xlabel("epsilon of the vote")
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
