"""What a zeroth-order step costs beside plain forward passes: ``python -m benchmarks.finetune.step_cost``.

Memory is the peak of a fresh process that loads the model and does one thing; time is CPU time of all threads, of steps
and forward passes in turn within one process; bytes are counted on requests and replies of a small federation. Tokens
and labels are random: what they are does not change what a step costs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.finetune.traffic import traffic_rows
from benchmarks.output import environment, markdown_table, write_results

RESULTS = Path(__file__).parent / "results"
TOKENS = 32

#: Model, records per step, directions, direction-kind as in the settings. The language model sees 32 tokens a record.
CASES: tuple[tuple[str, int, int, str], ...] = (
    ("perceptron", 4096, 1, "uniform"),
    ("perceptron", 4096, 4, "uniform"),
    ("smollm2", 64, 1, "auto"),
    ("smollm2", 64, 4, "auto"),
    ("smollm2", 256, 1, "auto"),
    ("smollm2", 64, 1, "uniform"),
)


class Passes:
    """An `Objective` over a model's own tensors: nothing is copied, so that peaks are those of the model."""

    def __init__(self, parameters: list[Any], forward: Callable[[int, int], Any], num_records: int) -> None:
        self.parameters, self._forward, self.num_records = parameters, forward, num_records

    def losses(self, records: Any = None) -> Any:
        """Cross-entropy of made-up labels, in batches of at most 64 records."""
        import numpy as np
        import torch
        from torch.nn import functional

        found = []
        with torch.no_grad():
            for start in range(0, self.num_records, 64):
                end = min(start + 64, self.num_records)
                logits = self._forward(start, end).double()
                labels = torch.arange(start, end) % logits.shape[1]
                found.append(functional.cross_entropy(logits, labels, reduction="none").numpy())
        return np.concatenate(found)


def perceptron(records: int) -> Passes:
    """4.2 million parameters in three layers."""
    import torch

    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 10),
    )
    x = torch.randn(records, 1024, generator=generator)
    # one batch: rows of a perceptron are cheap
    objective = Passes(list(model.parameters()), lambda start, end: model(x[start:end]), records)
    return objective


def smollm2(records: int) -> Passes:
    """SmolLM2-135M, every parameter trained, the two words of the sentiment task as classes."""
    import torch

    from fedpriv.tasks.language import load_backbone

    backbone = load_backbone()
    model, words = backbone.model, backbone.words
    tokens = torch.randint(1000, 40_000, (records, TOKENS), generator=torch.Generator().manual_seed(0))
    output = model.get_output_embeddings().weight

    def forward(start: int, end: int) -> Any:
        hidden = model.base_model(tokens[start:end], use_cache=False).last_hidden_state
        return hidden[:, -1] @ output[words].T

    return Passes(list(model.parameters()), forward, records)


MODELS: dict[str, Callable[[int], Passes]] = {"perceptron": perceptron, "smollm2": smollm2}


def work(name: str, records: int, count: int, kind: str, what: str, repeats: int) -> dict[str, Any]:
    """In a fresh process: load, then pass forward only, or take steps and passes in turn."""
    import torch

    from fedpriv.mechanisms.directions import Directions, kind_of_law
    from fedpriv.mechanisms.perturbation import two_point_quotients

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    objective = MODELS[name](records)
    size = sum(parameter.numel() for parameter in objective.parameters)
    law = kind_of_law(kind, size, count, may_amplify=False)  # type: ignore[arg-type]
    objective.losses()  # the first pass allocates
    forward: list[float] = []
    step: list[float] = []

    def timed(found: list[float], run: Callable[[], Any]) -> None:
        began = time.process_time()
        run()
        found.append(time.process_time() - began)

    for number in range(repeats):
        timed(forward, objective.losses)
        if what == "step":
            made = Directions(number.to_bytes(16, "little"), size, count, law)
            sent = made.norms  # the server has computed them
            directions = Directions(made.seed, size, count, made.kind, sent)
            timed(step, lambda used=directions: two_point_quotients(objective, used, 1e-3 * size**0.5))  # type: ignore[misc]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"parameters": size, "peak": peak, "forward": forward, "step": step, "kind": law}


def in_a_process(case: tuple[str, int, int, str], what: str, repeats: int) -> dict[str, Any]:
    """The peak of a process counts whatever it did before: each measurement gets its own."""
    arguments = [str(part) for part in (*case, what, repeats)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.finetune.step_cost", "--worker", *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(case: tuple[str, int, int, str], repeats: int) -> dict[str, Any]:
    """Peak memory and time of one case."""
    name, records, count, kind = case
    plain, full = in_a_process(case, "forward", 1), in_a_process(case, "step", repeats)
    passes = median(full["forward"])
    return {
        "model": name,
        "parameters": full["parameters"],
        "records": records,
        "directions": count,
        "kind": kind if kind != "auto" else f"auto: {full['kind']}",
        "plain_peak": plain["peak"],
        "step_peak": full["peak"],
        "forward_seconds": passes,
        "step_seconds": median(full["step"]),
        "memory_ratio": full["peak"] / plain["peak"],
        "time_ratio": median(full["step"]) / (2 * count * passes),
    }


def render(rows: Sequence[dict[str, Any]], traffic: Sequence[dict[str, Any]]) -> str:
    """The tables."""
    costs = markdown_table(
        (
            "model",
            "parameters",
            "records",
            "K",
            "directions",
            "forward pass, peak",
            "step, peak",
            "ratio",
            "forward pass",
            "step",
            "step / 2K passes",
        ),
        (
            (
                row["model"],
                f"{row['parameters'] / 1e6:.1f} M",
                row["records"],
                row["directions"],
                row["kind"],
                f"{row['plain_peak'] / 2**20:.0f} MiB",
                f"{row['step_peak'] / 2**20:.0f} MiB",
                f"{row['memory_ratio']:.2f}",
                f"{row['forward_seconds']:.2f} s",
                f"{row['step_seconds']:.2f} s",
                f"{row['time_ratio']:.2f}",
            )
            for row in rows
        ),
    )
    bytes_ = markdown_table(
        (
            "algorithm",
            "K",
            "up",
            "down",
            "checks and constants, down",
            "secure sum, both ways",
            "model sent whole instead",
        ),
        (
            (
                row["algorithm"],
                row["directions"],
                f"{row['up']} B",
                f"{row['down']} B",
                f"{row['checks']} B",
                f"{row['protocol']} B",
                f"{row['model']} B",
            )
            for row in traffic
        ),
    )
    return (
        "# Cost of a zeroth-order step\n\n"
        "Peak resident memory of a process that loads the model and passes forward once, and of one that takes steps; "
        "CPU time of all threads, median. A step perturbs all parameters in place, passes forward twice per direction "
        "and restores every bit. Directions are made three times per direction and step, which does not depend on the "
        "number of records.\n\n"
        f"{costs}\n"
        "Payload per client and round, after the first, in a federation of eight: *up* is the masked vector; *down* "
        "what a client needs to rebuild the model and the directions: the round's seed, and seed and coefficients of "
        "the last step. Checks are hashes, fingerprints, norms and positions, constants the plan's numbers "
        "that are sent every "
        "time, with the names of all fields. The secure sum's keys, shares and headers come on top, as does "
        "Flower's envelope.\n\n"
        f"{bytes_}\n"
        f"{environment()}\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetune.step_cost", description=__doc__)
    parser.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument(
        "--quick", action="store_true", help="one small case; writes nothing unless told where"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    if options.worker:
        name, records, count, kind, what, repeats = options.worker
        print(json.dumps(work(name, int(records), int(count), kind, what, int(repeats))))
        return
    cases = (("perceptron", 64, 1, "signs"),) if options.quick else CASES
    rows = [measure(case, 1 if options.quick else options.repeats) for case in cases]
    traffic = traffic_rows()
    text = render(rows, traffic)
    print(text)
    folder = options.output or (None if options.quick else RESULTS)
    if folder is not None:
        write_results(folder, "step_cost", text, {"costs": rows, "traffic": traffic})


if __name__ == "__main__":
    main()
