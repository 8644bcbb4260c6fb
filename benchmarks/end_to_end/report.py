"""Table and picture of the end-to-end benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.end_to_end.measure import SeedResult
from benchmarks.output import describe, markdown_table, percent
from fedpriv.settings import Settings


def paired(differences: Sequence[float]) -> str:
    """Mean of paired differences with its 95 % t interval, in points."""
    points = 100.0 * np.asarray(differences)
    if len(points) < 2:
        return f"{points.mean():+.1f} points (one seed: no interval)"
    from scipy.special import stdtrit

    half = stdtrit(len(points) - 1, 0.975) * points.std(ddof=1) / math.sqrt(len(points))
    return f"{points.mean():+.1f} points (95 % t interval {points.mean() - half:+.1f} to {points.mean() + half:+.1f})"


def _seed_rows(results: Sequence[SeedResult], settings: Settings) -> list[list[object]]:
    rows: list[list[object]] = []
    for result in results:
        alone, clipped = np.array(result.private_alone), np.array(result.clipped)
        rows.append(
            [
                result.seed,
                describe(settings.tune.candidates[result.chosen]),
                f"{100 * result.private:.1f}",
                f"{100 * alone.mean():.1f}",
                f"{100 * alone.max():.1f}",
                f"{100 * alone.min():.1f}",
                f"{100 * clipped[result.chosen]:.1f}",
                f"{100 * clipped.max():.1f}",
                f"{100 * clipped.min():.1f}",
                f"{100 * clipped.mean():.1f}",
                f"{100 * max(result.unclipped):.1f}",
            ]
        )
    return rows


def _summary_rows(results: Sequence[SeedResult]) -> list[tuple[str, str]]:
    def over(name: str, pick: str) -> list[float]:
        values = [np.array(getattr(result, name)) for result in results]
        if pick == "chosen":
            return [float(v[result.chosen]) for v, result in zip(values, results, strict=True)]
        return [float(getattr(v, pick)()) for v in values]

    rows = [("private: vote, then training (the app)", percent(result.private for result in results))]
    for name, words in (
        ("private_alone", "private without a vote, all the budget for training"),
        ("clipped", "no noise, same clip and projection"),
        ("unclipped", "no noise, no clip, no projection"),
    ):
        for pick, what in (
            ("chosen", "the chosen candidate"),
            ("max", "best candidate (OPT)"),
            ("mean", "random candidate (RANDGUESS)"),
            ("min", "worst candidate"),
        ):
            rows.append((f"{words}: {what}", percent(over(name, pick))))
    return rows


def verdict(results: Sequence[SeedResult]) -> list[str]:
    """What the figures say about the vote, in sentences."""
    private = [r.private - float(np.mean(r.private_alone)) for r in results]
    clean = [float(r.clipped[r.chosen] - np.mean(r.clipped)) for r in results]
    lost = [float(r.private - max(r.private_alone)) for r in results]
    won = sum(difference > 0 for difference in private)
    better = "beats" if won == len(results) and min(private) > 0 else "does not always beat"
    return [
        f"The vote {better} a random candidate: the app against the mean candidate that is trained with the whole "
        f"budget and pays for no vote: {paired(private)}, ahead on {won} of {len(results)} seeds.",
        f"The choice alone (both trained without noise): {paired(clean)}, ahead on "
        f"{sum(d > 0 for d in clean)} of {len(results)}.",
        f"Against the best candidate in hindsight, trained with the whole budget: {paired(lost)} (the maximum over "
        f"{len(results[0].private_alone)} noisy runs, so it is flattered by luck).",
    ]


def to_markdown(results: Sequence[SeedResult], settings: Settings, foot: str) -> str:
    """The whole result file."""
    run, first = settings.run, results[0]
    low, high = (pick(r.epsilon for r in results) for pick in (min, max))
    header = [
        "seed",
        "chosen",
        "app",
        "alone: mean",
        "best",
        "worst",
        "no noise: chosen",
        "best",
        "worst",
        "mean",
        "no clip: best",
    ]
    candidate_rows = [
        [
            describe(candidate),
            sum(result.chosen == index for result in results),
            percent(result.tallies[index] / run.num_clients for result in results),
            percent(result.private_alone[index] for result in results),
            percent(result.clipped[index] for result in results),
            percent(result.unclipped[index] for result in results),
        ]
        for index, candidate in enumerate(settings.tune.candidates)
    ]
    parts = [
        "# End to end: a private vote, then private training",
        f"Task {run.task}, {run.num_clients} clients, partition {run.partition}"
        + (f" ({run.alpha:g})" if run.partition == "dirichlet" else "")
        + f", {len(settings.tune.candidates)} candidates, {settings.tune.resolved_votes} votes each, "
        f"{settings.train.rounds} rounds, clip {settings.train.clip_norm:g}. Server view: epsilon {low:.3f} to "
        f"{high:.3f} at delta {run.resolved_delta:.3g} ({run.adjacency}), of which the vote alone "
        f"{first.vote_epsilon:.2f}; noise of a tally {first.vote_noise:.2f} votes. {len(results)} seeds; accuracy in "
        "percent on the public hold-out, mean ± standard deviation over the seeds.",
        markdown_table(["accuracy", "%"], _summary_rows(results)),
        "\n".join(f"* {sentence}" for sentence in verdict(results)),
        "## Seeds\n\n"
        "*app*: vote and training. *alone*: the candidates trained privately with the whole budget and no vote. *no "
        "noise*: the same clip and projection, no noise. *no clip*: neither.",
        markdown_table(header, _seed_rows(results, settings)),
        "## Candidates",
        markdown_table(
            ["candidate", "chosen", "noisy tally, % of clients", "private alone", "no noise", "no clip"],
            candidate_rows,
        ),
        foot,
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def draw(results: Sequence[SeedResult], settings: Settings, path: Path) -> None:
    """One column per seed: every candidate trained privately, and the app."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, result in enumerate(results):
        first = place == 0
        alone, clean = 100 * np.array(result.private_alone), 100 * np.array(result.clipped)
        axes.plot(
            [place - 0.12] * len(clean),
            clean,
            "o",
            color="#b0b0b0",
            ms=5,
            label="a candidate without noise" if first else None,
        )
        axes.plot(
            [place + 0.12] * len(alone),
            alone,
            "o",
            color="#4c72b0",
            ms=5,
            alpha=0.7,
            label="a candidate alone, whole budget" if first else None,
        )
        axes.hlines(
            alone.mean(),
            place + 0.02,
            place + 0.22,
            color="#4c72b0",
            label="their mean (RANDGUESS)" if first else "",
        )
        axes.plot(
            place + 0.3,
            100 * result.private,
            "D",
            color="#c44e52",
            ms=8,
            label="the app: vote, then training" if first else None,
        )
    axes.set_xticks(range(len(results)), [f"seed {result.seed}" for result in results])
    axes.set_ylabel("accuracy on the public hold-out, %")
    axes.set_title(
        f"{settings.run.task}, {settings.run.num_clients} clients, epsilon {settings.run.target_epsilon:g}: every "
        "candidate, and what the vote made of them",
        fontsize=10,
    )
    axes.set_ylim(0, 100)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower center", fontsize=8, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
