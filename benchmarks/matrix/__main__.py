"""Run the benchmark: python -m benchmarks.matrix [--quick] [--output FOLDER] [--cache FOLDER]"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.matrix import accuracy, privacy, speed
from benchmarks.matrix.accuracy import METHODS, Federation
from benchmarks.matrix.report import draw, report
from benchmarks.output import Stopwatch, quiet, write_results

RESULTS = Path(__file__).parent / "results"
#: Server learning rates among which each method chooses, on a split that is not reported.
RATES = (0.1, 0.2, 0.4)
TUNING_SEED = 100


class Cache:
    """Finished pieces in one JSON-lines file, so that an interrupted run goes on."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / "matrix.jsonl"
        self.pieces: dict[str, Any] = {}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self.pieces = dict(json.loads(line) for line in self.path.read_text().splitlines())

    def keep(self, name: str, value: Any) -> Any:
        """Remember a piece."""
        self.pieces[name] = value
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([name, value]) + "\n")
        return value


def measure_privacy(watch: Stopwatch, cache: Cache, quick: bool) -> list[dict[str, Any]]:
    """Noise and error of every matrix."""

    def done(row: dict[str, Any]) -> None:
        cache.keep(f"privacy {row['bins']} {row['epochs']} {row['target']} {row['matrix']}", row)
        watch.say(
            f"b {row['bins']}, k {row['epochs']}, epsilon {row['target']:g}: {row['matrix']} {row['size']} noise "
            f"{row['noise']:.4g}, RMSE {row['rmse']:.4g} ({row['bound']})"
        )

    known = [row for name, row in cache.pieces.items() if name.startswith("privacy ")]
    schedules, targets = (((2, 1),), (4.0,)) if quick else (privacy.SCHEDULES, privacy.TARGETS)
    return privacy.measure(schedules, targets, privacy.DELTA, known, done)


def measure_accuracy(
    watch: Stopwatch, cache: Cache, federation: Federation, targets: Sequence[float], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Hold-out accuracy of every method at equal epsilon."""
    length, rows = accuracy.model_length(federation), []
    for target in targets:
        for method in METHODS:
            name = f"accuracy {federation} {target} {method} {list(seeds)}"
            if name not in cache.pieces:
                plan = accuracy.make_plan(method, federation, target, length)
                tuning = federation.settings(TUNING_SEED)
                tried = {rate: accuracy.train(plan, federation, tuning, rate) for rate in RATES}
                rate = max(tried, key=lambda r: tried[r])
                found = [accuracy.train(plan, federation, federation.settings(seed), rate) for seed in seeds]
                row = {
                    "target": target,
                    "method": method,
                    "noise": plan.noise_multiplier,
                    "rate": rate,
                    "tried": {str(r): a for r, a in tried.items()},
                    "accuracies": found,
                }
                cache.keep(name, row)
                watch.say(f"epsilon {target:g}, {method}: rate {rate:g}, accuracies {found}")
            rows.append(cache.pieces[name])
    return rows


def measure_speed(watch: Stopwatch, cache: Cache, rounds: int, length: int) -> dict[str, Any]:
    """CPU time and memory of the rows of a long run."""
    name = f"speed {rounds} {length}"
    if name not in cache.pieces:
        found: dict[str, Any] = {"rounds": rounds, "length": length, "plain": speed.plain_seconds(length)}
        found["matrices"] = {}
        for label, matrix in speed.matrices(rounds):
            found["matrices"][label] = speed.stream(matrix, rounds, length)
            watch.say(f"{label}: {1e3 * found['matrices'][label]['seconds']:.1f} ms per round")
        cache.keep(name, found)
    result: dict[str, Any] = cache.pieces[name]
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print the tables and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run in seconds on digits")
    parser.add_argument("--output", type=Path, help="where tables, picture and figures go")
    parser.add_argument("--cache", type=Path, help="folder that keeps finished pieces of an interrupted run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    quiet()
    watch, cache = Stopwatch(), Cache(options.cache)
    if options.quick:
        federation = Federation("digits", clients=20, bins=2, epochs=1)
        targets, seeds, size = [8.0], options.seeds[:1], (10, 1000)
    else:
        federation, targets, seeds = Federation(), [2.0, 8.0], options.seeds
        size = (speed.ROUNDS, speed.LENGTH)
    data = {
        "privacy": measure_privacy(watch, cache, options.quick),
        "accuracy": measure_accuracy(watch, cache, federation, targets, seeds),
        "speed": measure_speed(watch, cache, *size),
        "federation": vars(federation),
        "seeds": list(seeds),
    }
    faults = privacy.violations(data["privacy"])  # type: ignore[arg-type]
    text = report(data, faults)
    print(text)
    output = options.output or (None if options.quick else RESULTS)
    if output is not None:
        write_results(output, "matrix", text, data)
        draw(data, output / "matrix.png")
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
