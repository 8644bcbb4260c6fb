"""Run the end-to-end benchmark: ``python -m benchmarks.end_to_end``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.end_to_end.measure import measure_seed
from benchmarks.end_to_end.report import draw, to_markdown
from benchmarks.output import Stopwatch, describe, environment, parse_overrides, quiet, write_results
from fedpriv.settings import resolve_settings

QUICK: dict[str, Any] = {
    "num-clients": 8,
    "partition": "iid",
    "train.rounds": 2,
    "tune.proxy-rounds": 2,
    "tune.grid": '{"learning-rate": [0.01, 1.0], "local-steps": [4]}',
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and write it, its figures as JSON and a picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds of split and data order (default 0 to 4)")
    parser.add_argument("--quick", action="store_true", help="a smoke run on 8 clients")
    parser.add_argument(
        "--config", "-c", action="append", default=[], metavar="KEY=VALUE", help="run-config key to override"
    )
    parser.add_argument(
        "--output", type=Path, help="folder of the results; a smoke run writes none without it"
    )
    options = parser.parse_args(arguments)
    quiet()
    overrides = (QUICK if options.quick else {}) | parse_overrides(options.config)
    settings = resolve_settings(overrides)
    seeds = options.seeds or ([0] if options.quick else [0, 1, 2, 3, 4])
    watch, results = Stopwatch(), []
    for seed in seeds:
        result = measure_seed(seed, overrides)
        results.append(result)
        watch.say(
            f"seed {seed}: chose {describe(settings.tune.candidates[result.chosen])}, accuracy "
            f"{100 * result.private:.1f} %"
        )
    foot = f"Made by `python -m benchmarks.end_to_end{_shown(options)}` in {watch.seconds:.0f} s: {environment()}."
    text = to_markdown(results, settings, foot)
    print("\n" + text)
    output = options.output or (None if options.quick else Path(__file__).parent / "results")
    if output is not None:
        data = {
            "config": settings.to_run_config(),
            "candidates": settings.tune.candidates,
            "seeds": [result.to_json() for result in results],
        }
        write_results(output, "end_to_end", text, data)
        draw(results, settings, output / "end_to_end.png")


def _shown(options: argparse.Namespace) -> str:
    words = ["--quick"] if options.quick else []
    if options.seeds:
        words.append("--seeds " + " ".join(str(seed) for seed in options.seeds))
    words += [f"--config '{pair}'" for pair in options.config]
    return "".join(f" {word}" for word in words)


if __name__ == "__main__":
    main(sys.argv[1:])
