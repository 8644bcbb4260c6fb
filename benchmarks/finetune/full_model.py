"""A few rounds over all parameters of the language model: ``python -m benchmarks.finetune.full_model``.

Through the app, by the same code that an accelerator would run, on whatever device the machine has. On a CPU a round
takes a good while, so that the default is a few rounds on few sentences: what it shows is that the path works, its
time and its memory, not an accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

from benchmarks.output import environment, markdown_table, write_results

RESULTS = Path(__file__).parent / "results"
HOLDOUT = 0.2
#: MeZO is record-level zeroth-order training with noise of a hundredth of the clip: no privacy to speak of.
METHODS: dict[str, dict[str, Any]] = {
    "PACZero-ZPL": {"stages": "paczero", "paczero.learning-rate": 0.3},
    "MeZO": {
        "stages": "zeroth-order",
        "unit": "record",
        "record.sampling-rate": 1.0,
        "zeroth-order.directions": 1,
        "zeroth-order.learning-rate": 1.0,
        "zeroth-order.clip": 10.0,
        "zeroth-order.noise-multiplier": 0.01,
        "target-epsilon": 1e6,
    },
}
SILOS = 2


def config(name: str, sentences: int, rounds: int, part: str) -> dict[str, Any]:
    """Run config of a method."""
    stage = METHODS[name]["stages"]
    return METHODS[name] | {
        "task": "sentiment",
        "model": part,
        "max-examples": round(sentences / (1 - HOLDOUT)),
        "holdout-fraction": HOLDOUT,
        "validation-fraction": 0.0,
        "num-clients": SILOS,
        "partition": "iid",
        "min-survivors": SILOS,
        "secure-sum": "simulated",
        "evaluate-every": rounds,
        f"{stage}.rounds": rounds,
        f"{stage}.smoothing": 0.1,
        "name": "run",
    }


def play(name: str, sentences: int, rounds: int, part: str) -> dict[str, Any]:
    """Run a method in this process."""
    from client_app.app import app as client
    from fedpriv.testing import run_local
    from server_app.app import app as server

    with tempfile.TemporaryDirectory() as folder:
        run_local(server, client, SILOS, config(name, sentences, rounds, part) | {"run-dir": folder})
        report = json.loads((Path(folder) / "run" / "report.json").read_text())
    (stage,) = report["stages"]
    return {
        "method": name,
        "accuracy": report["final_accuracy"],
        "released": stage["table"]["rounds released"],
        "parameters": stage["table"]["model coordinates"],
        "kind": stage["table"]["kind of directions"],
        "seconds": [record["seconds"] for record in stage["rounds"]],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def in_a_process(name: str, sentences: int, rounds: int, part: str) -> dict[str, Any]:
    """The peak of a process counts whatever it did before: each method gets its own."""
    given = [name, str(sentences), str(rounds), part]
    command = [sys.executable, "-m", "benchmarks.finetune.full_model", "--worker", *given]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def render(rows: Sequence[dict[str, Any]], sentences: int, device: str) -> str:
    """The table."""
    table = markdown_table(
        (
            "method",
            "parameters",
            "directions",
            "rounds released",
            "seconds a round",
            "peak of all, MiB",
            "hold-out %",
        ),
        (
            (
                row["method"],
                f"{row['parameters'] / 1e6:.1f} M",
                row["kind"],
                row["released"],
                ", ".join(f"{seconds:.0f}" for seconds in row["seconds"]),
                f"{row['peak'] / 2**20:.0f}",
                f"{100 * row['accuracy']:.1f}",
            )
            for row in rows
        ),
    )
    return (
        "# Every parameter of the language model, a few rounds\n\n"
        f"SmolLM2-135M, {sentences} sentences over {SILOS} silos in one process on {device}, through the app's "
        "messages. A round is two forward passes over every sentence and the server's step; the peak holds server, "
        "silos and the messages between them. So few rounds say nothing about accuracy.\n\n"
        f"{table}\n{environment(os.environ['OMP_NUM_THREADS'] + ' threads')}\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetune.full_model", description=__doc__)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--part", default="all", help="trainable part, for a quick try: head")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.worker:
        name, sentences, rounds, part = options.worker
        print(json.dumps(play(name, int(sentences), int(rounds), part)))
        return
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    rows = [in_a_process(name, options.sentences, options.rounds, options.part) for name in METHODS]
    text = render(rows, options.sentences, device)
    print(text)
    write_results(options.output, "full_model", text, {"rows": rows})


if __name__ == "__main__":
    main()
