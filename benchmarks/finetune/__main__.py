"""Fine-tune a language model by forward passes under each kind of privacy: ``python -m benchmarks.finetune``."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.finetune import report, silos
from benchmarks.finetune.data import Sentences, class_balance, linear_probe, load, zero_shot
from benchmarks.finetune.methods import MANY_SHARE, METHODS, Method, Trained, run, with_rates
from benchmarks.output import Stopwatch, quiet, write_results

RESULTS = Path(__file__).parent / "results"
TRAIN, VALIDATION, TOTAL = 1000, 248, 2048
BLOCK_TRAIN, BLOCK_VALIDATION, BLOCK_TOTAL = 128, 64, 384
CLIP = 0.1
#: Seeds of the runs over silos, which take a minute each.
SILO_SEEDS = 3
#: Rows of the last block: forward passes of a whole block make them dear.
BLOCK_SEEDS = 3
BLOCK_METHODS = ("MeZO, no privacy (64 a step)", "PACZero-ZPL")


class Cache:
    """Finished runs, so that an interrupted benchmark goes on where it was."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def get(self, key: str, make: Any) -> Any:
        """The stored value, or a new one."""
        if key not in self.known:
            self.known[key] = make()
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text(json.dumps(self.known))
        return self.known[key]


def measure(
    method: Method, data: Sentences, seeds: Sequence[int], rounds: int, subsets: int, cache: Cache
) -> dict[str, Any]:
    """Choose the learning rate on the validation split with one seed of its own, then run all seeds."""

    def trained(rate: float, seed: int) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            found: Trained = run(method, data, rate, rounds, subsets, seed, CLIP)
            return found.__dict__

        return cache.get(f"{data.part}|{method.name}|{rate:g}|{seed}|{rounds}", make)

    search = {rate: trained(rate, 1000)["validation"] for rate in method.rates}
    rate = max(search, key=lambda r: search[r])
    began = time.perf_counter()
    runs = [trained(rate, seed) for seed in seeds]
    return {
        "name": method.name,
        "kind": method.kind,
        "budget": method.budget,
        "directions": method.directions,
        "rate": rate,
        "search": search,
        "runs": runs,
        "seconds": time.perf_counter() - began,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables and write them, their figures as JSON and a picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetune", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=1000, help="steps of the head's rows")
    parser.add_argument(
        "--block-rounds", type=int, default=120, help="steps of the last block's rows; 0: none"
    )
    parser.add_argument("--silo-rounds", type=int, default=500, help="rounds over eight silos; 0: none")
    parser.add_argument("--subsets", type=int, default=126)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few sentences, few steps")
    parser.add_argument("--cache", type=Path, help="file that keeps finished runs")
    parser.add_argument(
        "--output", type=Path, help="folder of the results; a smoke run writes none without it"
    )
    chosen = parser.parse_args(arguments)
    quiet()
    watch, cache = Stopwatch(), Cache(chosen.cache)
    sizes, block_sizes = (TRAIN, VALIDATION, TOTAL), (BLOCK_TRAIN, BLOCK_VALIDATION, BLOCK_TOTAL)
    if chosen.quick:
        sizes = block_sizes = (64, 32, 160)
        chosen.rounds = chosen.block_rounds = chosen.silo_rounds = 5
        chosen.seeds = [0]
    data = load("head", *sizes)
    print(f"{len(data.train)} training sentences, {len(data.test)} test", flush=True)
    rows = []
    for method in METHODS:
        rounds = chosen.rounds if method.directions == 1 else max(1, chosen.rounds // MANY_SHARE)
        rows.append(measure(method, data, chosen.seeds, rounds, chosen.subsets, cache))
        print(report.line(rows[-1]), flush=True)
    references = {
        "zero-shot": zero_shot(data),
        "linear probe": linear_probe(data),
        "majority class": class_balance(data.test),
    }
    blocks = []
    if chosen.block_rounds:
        block = load("last-block", *block_sizes)
        for method in METHODS:
            if method.name in BLOCK_METHODS:
                seeds = chosen.seeds[:BLOCK_SEEDS]
                # coordinates of the adapters count less: thirty times the head's rates, every other of them
                method = with_rates(method, tuple(30 * rate for rate in method.rates[::2]))
                blocks.append(measure(method, block, seeds, chosen.block_rounds, chosen.subsets, cache))
                print(report.line(blocks[-1]), flush=True)
    federated = []
    if chosen.silo_rounds:
        rate = next(row["rate"] for row in rows if row["kind"] == "zpl")
        for federation in silos.federations(chosen.silo_rounds, rate, sizes[2]):
            key = f"silos|{federation.name}|{rate:g}|{chosen.silo_rounds}"
            runs = [
                cache.get(f"{key}|{seed}", lambda f=federation, s=seed: silos.play(f, s))
                for seed in chosen.seeds[:SILO_SEEDS]
            ]
            federated.append({"name": federation.name, "runs": runs})
            print(report.silo_line(federated[-1]), flush=True)
    text = report.to_markdown(rows, references, blocks, federated, vars(chosen), sizes, block_sizes, watch)
    print(text)
    output = chosen.output or (None if chosen.quick else RESULTS)
    if output:
        everything = {"rows": rows, "references": references, "last-block": blocks, "silos": federated}
        write_results(output, "finetune", text, everything)
        report.draw(rows, references, output / "finetune.png")


if __name__ == "__main__":
    main()
