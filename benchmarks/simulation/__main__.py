"""Time and memory of a simulated round, interleaved with its peers: ``python -m benchmarks.simulation``."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import Stopwatch, environment, markdown_table, quiet, write_results
from benchmarks.simulation.contenders import CONTENDERS
from benchmarks.simulation.setting import CLIP, COHORT, NOISE_MULTIPLIER, make_settings

RESULTS, ROOT = Path(__file__).parent / "results", Path(__file__).resolve().parents[2]
BASE, PFL = next(iter(CONTENDERS)), "pfl-research, central noise"
PROFILED = [name for name in CONTENDERS if name != BASE]


def export(file: Path) -> None:
    """The clients' training data and the setting, for the peer that runs in an environment of its own."""
    from fedpriv.tasks import federated, get_task

    settings = make_settings()
    task, local = get_task(settings.run.task), federated.local_training(settings)
    arrays: dict[str, Any] = {}
    for user in range(settings.run.num_clients):
        split = federated.client_data(settings, user).train
        arrays[f"x{user}"], arrays[f"y{user}"] = split.x.numpy(), split.y.numpy()
    setting = {
        "users": settings.run.num_clients,
        "cohort": COHORT,
        "clip": CLIP,
        "noise": NOISE_MULTIPLIER,
        "steps": local.local_steps,
        "batch": local.batch_size,
        "rate": local.learning_rate,
        "model": {"input_shape": list(task.example_shape), "num_classes": task.num_classes},
    }
    np.savez(file, settings=json.dumps(setting), **arrays)


def run(command: Sequence[str]) -> dict[str, Any]:
    """One contender in a process of its own."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def to_markdown(measured: dict[str, list[dict[str, Any]]], profiles: dict[str, dict[str, float]]) -> str:
    """Two tables: what a round takes, and where ours goes."""
    middle = {
        name: statistics.median(s for run in runs for s in run["seconds"]) for name, runs in measured.items()
    }
    rows = []
    for name, runs in measured.items():
        ratios = [
            statistics.median(run["seconds"]) / statistics.median(base["seconds"])
            for run, base in zip(runs, measured[BASE], strict=True)
        ]
        peak = statistics.median(run["peak"] for run in runs)
        base_peak = statistics.median(run["peak"] for run in measured[BASE])
        rows.append(
            (name, f"{middle[name]:.2f}", f"{1 / middle[name]:.2f}", f"{statistics.median(ratios):.2f}",
             f"{min(ratios):.2f} to {max(ratios):.2f}", f"{peak:.0f}", f"{peak / base_peak:.2f}")
        )  # fmt: skip
    header = [
        "contender",
        "CPU s a round",
        "rounds per CPU s",
        "ratio to Flower",
        "range of ratios",
        "peak MiB",
        "ratio",
    ]
    where = []
    for name, profile in profiles.items():
        whole = profile["whole"]
        rest = whole - profile["local training"] - profile["clients, beside it"] - profile["messages"]
        parts = (profile["local training"], profile["clients, beside it"], profile["messages"], rest)
        where.append((name, *(f"{100 * part / whole:.1f}" for part in parts)))
    header_where = [
        "% of a round's time",
        "local training",
        "clip, grid, noise, masks at clients",
        "messages to bytes and back",
        "server: decode, step, the rest",
    ]
    return markdown_table(header, rows) + "\n" + markdown_table(header_where, where)


def draw(measured: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """CPU seconds of every round, by contender."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.6 * len(measured) + 1.4), layout="constrained")
    names = list(measured)[::-1]
    axes.boxplot(
        [[s for run in measured[name] for s in run["seconds"]] for name in names], orientation="horizontal"
    )
    axes.set_yticks(range(1, len(names) + 1), names)
    axes.set_xlim(left=0)
    axes.set_xlabel("CPU seconds a round (10 of 100 clients, one local epoch each)")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of one repeat")
    parser.add_argument("--repeats", type=int, default=3, help="repeats, contenders in turn")
    parser.add_argument(
        "--pfl-python", help="Python of a virtual environment with pfl and torch; left out without"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    quiet()
    watch = Stopwatch()
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    module = [sys.executable, "-m", "benchmarks.simulation.contenders"]
    with tempfile.TemporaryDirectory(prefix="fedpriv-simulation-") as folder:
        data = Path(folder) / "data.npz"
        if options.pfl_python:
            measured[PFL] = []
            export(data)
        else:
            print(f"{PFL}: left out, no --pfl-python")
        for repeat in range(options.repeats):
            for name in measured:
                if name == PFL:
                    command = [options.pfl_python, str(Path(__file__).parent / "pfl_peer.py"), str(data)]
                    found = run([*command, str(options.rounds)])
                else:
                    found = run([*module, name, "--rounds", str(options.rounds)])
                measured[name].append(found)
                watch.say(f"repeat {repeat + 1}, {name}: {statistics.median(found['seconds']):.2f} s a round")
        profiles = {
            name: run([*module, name, "--rounds", str(options.rounds), "--profile"]) for name in PROFILED
        }
    peer = f", pfl {measured[PFL][0]['version']}" if PFL in measured else ""
    foot = (
        f"Fashion-MNIST, CNN, 100 clients (Dirichlet 0.5), {COHORT} a round, 15 local steps of 32; in-process grid; "
        f"CPU time, {options.repeats} repeats in turn, medians: {environment()}{peer}, numpy {version('numpy')}.\n"
    )
    text = to_markdown(measured, profiles) + "\n" + foot
    print("\n" + text)
    write_results(options.output, "simulation", text, {"measured": measured, "profiles": profiles})
    draw(measured, options.output / "simulation.png")


if __name__ == "__main__":
    main()
