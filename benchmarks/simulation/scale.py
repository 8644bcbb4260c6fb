"""What grows how with the number of clients: ``python -m benchmarks.simulation.scale``; writes docs/scale.md's tables.

Measured up to 500 clients over the in-process grid with the real secure sum; beyond that on paper, from the slopes.
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
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.output import environment, markdown_table, write_results
from fedpriv import wire
from fedpriv.secure_sum import Ahead, SecureSum, SecureSumSettings, secure_sum_mod
from fedpriv.secure_sum.graph import default_threshold, neighbours_for
from fedpriv.testing import LocalGrid

RESULTS, PAGE = Path(__file__).parent / "results", Path(__file__).parents[2] / "docs" / "scale.md"
SIZES, PAPER = (20, 50, 100, 200, 500), (1000, 10_000, 100_000, 1_000_000)
LENGTH, WORD = 1000, 4
MARKS = "<!-- scale: begin -->", "<!-- scale: end -->"
#: One model for the columns on paper: coordinates of it.
PAPER_LENGTH = 100_000


class _Grid(LocalGrid):
    """Counts messages and their payload, and the time inside the clients."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.reset()

    def reset(self) -> None:
        """Begin a new round."""
        self.messages = self.down = self.up = 0
        self.inside = 0.0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        """Count, and pass on."""
        messages = list(messages)
        began = time.process_time()
        replies = super().send_and_receive(messages, timeout=timeout)
        self.inside += time.process_time() - began
        self.messages += len(messages)
        self.down += sum(wire.content_bytes(message.content) for message in messages)
        self.up += sum(wire.content_bytes(reply.content) for reply in replies)
        return replies


def measure(nodes: int) -> dict[str, Any]:
    """A round with the full set-up, then one in steady state; per client where it says so."""
    values = np.arange(LENGTH, dtype=np.int64)
    app = ClientApp()

    @app.train(mods=[secure_sum_mod(lambda msg, context: values)])
    def train(msg: Message, context: Context) -> Message:
        raise AssertionError("never called")

    grid, ahead = _Grid(app, nodes), Ahead()
    found: dict[str, Any] = {"nodes": nodes}
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for name in ("full", "steady"):
        grid.reset()
        began = time.process_time()
        settings = SecureSumSettings(min_survivors=nodes // 2 + 1)
        result = SecureSum(grid, settings, ahead).run(
            grid.get_node_ids(), RecordDict(), LENGTH, "scale", repeats=True
        )
        whole = time.process_time() - began
        np.testing.assert_array_equal(result.total, nodes * values)
        found[name] = {
            "messages": grid.messages / nodes,
            "down": grid.down / nodes,
            "up": grid.up / nodes,
            "server": (whole - grid.inside) / nodes,
            "client": grid.inside / nodes,
        }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found | {"neighbours": result.neighbours, "memory": (peak - idle) / nodes}


def fit(
    measured: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float], power: int = 1
) -> tuple[float, float]:
    """Intercept and slope in a power of the number of neighbours, by least squares."""
    design = np.array([[1.0, row["neighbours"] ** power] for row in measured])
    (constant, slope), *_ = np.linalg.lstsq(design, np.array([value(row) for row in measured]), rcond=None)
    return float(constant), float(slope)


def tables(measured: Sequence[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The measured rows, the slopes, and what they mean for more clients."""
    rows = []
    for row in measured:
        full, steady = row["full"], row["steady"]
        both = full, steady
        rows.append(
            (
                row["nodes"],
                row["neighbours"],
                " / ".join(f"{x['messages']:.0f}" for x in both),
                " / ".join(f"{x['up'] / 1e3:.1f}" for x in both),
                " / ".join(f"{x['down'] / 1e3:.1f}" for x in both),
                " / ".join(f"{1e3 * x['client']:.0f}" for x in both),
                " / ".join(f"{row['nodes'] * x['server']:.2f}" for x in both),
                f"{row['memory']:.2f}",
            )
        )
    header = [
        "clients",
        "neighbours",
        "messages a client and round, first / later",
        "kB up",
        "kB down",
        "client CPU, ms",
        "server CPU, s",
        "MiB a client, all in one process",
    ]
    steady = {
        name: fit(measured, lambda row, n=name: row["steady"][n], power)  # type: ignore[misc]
        for name, power in (("up", 1), ("down", 1), ("client", 2), ("server", 1))
    }
    words = (
        f"In steady state, per client and round (k neighbours, {LENGTH} coordinates): up {steady['up'][0]:.0f} + "
        f"{steady['up'][1]:.0f} k bytes, down {steady['down'][0]:.0f} + {steady['down'][1]:.0f} k bytes, server CPU "
        f"{1e3 * steady['server'][0]:.2f} + {1e3 * steady['server'][1]:.3f} k ms, client CPU "
        f"{1e3 * steady['client'][0]:.0f} + {1e3 * steady['client'][1]:.3f} k^2 ms (grid included; Shamir's shares, in "
        "plain Python, are most of it).\n"
    )
    extra = WORD * (PAPER_LENGTH - LENGTH)
    paper = []
    for nodes in PAPER:
        neighbours = neighbours_for(nodes)
        up = steady["up"][0] + steady["up"][1] * neighbours + extra
        down = steady["down"][0] + steady["down"][1] * neighbours
        server = nodes * (steady["server"][0] + steady["server"][1] * neighbours)
        paper.append(
            (f"{nodes:,}", neighbours, default_threshold(neighbours + 1), neighbours + 1, f"{up / 1e3:.0f}",
             f"{down / 1e3:.0f}", f"{nodes * up / 1e9:.1f}", f"{server / 60:.1f}")
        )  # fmt: skip
    paper_header = [
        "clients, on paper",
        "neighbours",
        "share threshold",
        "masks a client adds",
        "kB up a client",
        "kB down beside the model",
        "GB into the server a round",
        "server CPU, minutes, without the vectors",
    ]
    text = "\n".join([markdown_table(header, rows), words, markdown_table(paper_header, paper)])
    return text, {"measured": list(measured), "slopes": steady}


def draw(measured: Sequence[dict[str, Any]], path: Path) -> None:
    """Bytes and CPU against the number of clients."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    nodes = [row["nodes"] for row in measured]
    for name, style in (("full", "--"), ("steady", "-")):
        label = "first round" if name == "full" else "later rounds"
        for way, marker, color in (("up", "o", "#4c72b0"), ("down", "s", "#c44e52")):
            size = [row[name][way] / 1e3 for row in measured]
            left.plot(nodes, size, style, marker=marker, color=color, label=f"{way}, {label}")
        right.plot(
            nodes,
            [row[name]["server"] * row["nodes"] for row in measured],
            style,
            marker="o",
            color="#55a868",
            label=label,
        )
    for axes, words in (
        (left, f"kB a client and round ({LENGTH} coordinates)"),
        (right, "server CPU seconds a round"),
    ):
        axes.set_xscale("log")
        axes.set_xticks(nodes, [str(count) for count in nodes])
        axes.minorticks_off()
        axes.set_xlabel("clients in a sum")
        axes.set_ylabel(words)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every size in a process of its own; write results and the page's section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation.scale", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--output", type=Path, help="folder of the results; docs/scale.md is left alone then")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    measured = []
    for size in options.sizes:
        command = [sys.executable, "-m", "benchmarks.simulation.scale", "--one", str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
        measured.append(json.loads(done.stdout.strip().splitlines()[-1]))
        print(f"{size} clients: {measured[-1]['steady']}", flush=True)
    text, data = tables(measured)
    text += f"\nMade by `python -m benchmarks.simulation.scale`: {environment()}.\n"
    print("\n" + text)
    output = options.output or RESULTS
    write_results(output, "scale", text, data)
    draw(measured, output / "scale.png")
    if options.output is None:
        page = PAGE.read_text()
        begin, end = (page.index(mark) for mark in MARKS)
        PAGE.write_text(page[: begin + len(MARKS[0])] + "\n" + text + page[end:])


if __name__ == "__main__":
    main()
