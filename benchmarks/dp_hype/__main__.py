"""Measure DP-HYPE's utility against epsilon: ``python -m benchmarks.dp_hype``."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.dp_hype.measure import measure_group
from benchmarks.dp_hype.report import draw, to_markdown
from benchmarks.dp_hype.scenarios import Case, make_scenario
from benchmarks.output import Stopwatch, environment, parse_overrides, quiet, write_results
from fedpriv.tasks import get_task
from fedpriv.tasks.sources.cache import MissingDataset

QUICK: dict[str, Any] = {
    "train.rounds": 2,
    "tune.proxy-rounds": 2,
    "tune.grid": '{"learning-rate": [0.01, 0.1, 1.0], "local-steps": [2]}',
}
#: Smaller federations for the small data set that stands in for adult.
BREAST_CANCER = ("breast-cancer", (10, 20), {"min-partition-size": 2})


#: Numbers of clients and settings of their own, by task; Fashion-MNIST has 540 examples a client.
FEDERATIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "digits": ((50, 100), {}),
    "adult": ((50, 100), {}),
    "fashion-mnist": ((100,), {"train.batch-size": 64}),
}


def federations(
    tasks: Sequence[str], quick: bool
) -> tuple[list[tuple[str, tuple[int, ...], dict[str, Any]]], list[str]]:
    """Tasks with their numbers of clients and settings of their own, and notes for the reader."""
    if quick:
        return [("digits", (8,), {})], []
    plan, notes = [], []
    for task in tasks:
        try:
            _ = get_task(task).examples
            plan.append((task, *FEDERATIONS[task]))
        except MissingDataset:
            if task != "adult":
                raise
            notes.append(
                "**adult is not on this machine** (`fedpriv data fetch adult`): breast-cancer takes its place, with "
                "10 and 20 clients, since 569 examples do not reach for 50 clients with skewed labels."
            )
            plan.append(BREAST_CANCER)
    return plan, notes


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and write it, its figures as JSON and a picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dp_hype", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds of split and data order (default 0 1 2)")
    parser.add_argument("--tasks", nargs="+", choices=FEDERATIONS, default=["digits", "adult"])
    parser.add_argument("--repetitions", type=int, help="votes per seed and epsilon (default 40)")
    parser.add_argument("--quick", action="store_true", help="a smoke run on 8 clients")
    parser.add_argument(
        "--config", "-c", action="append", default=[], metavar="KEY=VALUE", help="run-config key to override"
    )
    parser.add_argument("--cache", type=Path, help="folder that keeps losses and accuracies between runs")
    parser.add_argument(
        "--output", type=Path, help="folder of the results; a smoke run writes none without it"
    )
    options = parser.parse_args(arguments)
    quiet()
    overrides = (QUICK if options.quick else {}) | parse_overrides(options.config)
    seeds = options.seeds or ([0] if options.quick else [0, 1, 2])
    repetitions = options.repetitions or (3 if options.quick else 40)
    epsilons = (1.0, math.inf) if options.quick else (0.25, 1.0, 3.0, math.inf)
    plan, notes = federations(options.tasks, options.quick)
    watch, rows, scenarios = Stopwatch(), [], []
    for task, sizes, own in plan:
        for partition, clients in itertools.product(
            ("iid",) if options.quick else ("iid", "dirichlet"), sizes
        ):
            group = []
            for seed in seeds:
                group.append(
                    make_scenario(Case(task, clients, partition, seed), own | overrides, options.cache)
                )
                watch.say(
                    f"{task}, {clients} clients, {partition}, seed {seed}: candidates have "
                    f"{100 * group[-1].accuracies.min():.1f} to {100 * group[-1].accuracies.max():.1f} %"
                )
            settings = group[0].case.settings(own | overrides)
            rows += measure_group(group, settings, epsilons, repetitions)
            scenarios += group
            watch.say(f"{task}, {clients} clients, {partition}: voted")
    foot = (
        f"Made by `python -m benchmarks.dp_hype{_shown(options)}` in {watch.seconds:.0f} s: {environment()}."
    )
    text = to_markdown(rows, settings, notes, foot, repetitions)
    print("\n" + text)
    output = options.output or (None if options.quick else Path(__file__).parent / "results")
    if output is not None:
        data = {
            "candidates": settings.tune.candidates,
            "votes": settings.tune.resolved_votes,
            "overrides": overrides,
            "repetitions": repetitions,
            "scenarios": [
                {
                    "task": s.case.task,
                    "clients": s.case.clients,
                    "partition": s.case.partition,
                    "seed": s.case.seed,
                    "accuracies": s.accuracies.tolist(),
                }
                for s in scenarios
            ],
            "rows": [row.to_json() for row in rows],
        }
        write_results(output, "dp_hype", text, data)
        draw(rows, output / "dp_hype.png")


def _shown(options: argparse.Namespace) -> str:
    words = ["--quick"] if options.quick else []
    if options.tasks != ["digits", "adult"]:
        words.append("--tasks " + " ".join(options.tasks))
    if options.seeds:
        words.append("--seeds " + " ".join(str(seed) for seed in options.seeds))
    if options.repetitions:
        words.append(f"--repetitions {options.repetitions}")
    words += [f"--config '{pair}'" for pair in options.config]
    return "".join(f" {word}" for word in words)


if __name__ == "__main__":
    main(sys.argv[1:])
