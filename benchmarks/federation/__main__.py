"""Rounds of training over three silos as processes, with TLS and authentication: ``python -m benchmarks.federation``.

Seconds are those of a federation of processes on this machine; bytes are the payload of the same rounds over the
in-process grid, where they are the same and can be told apart by exchange.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from flwr.app import Context, Message, RecordDict

from benchmarks.federation.processes import ProcessFederation
from benchmarks.output import Stopwatch, environment, markdown_table
from fedpriv import wire
from fedpriv.testing import LocalGrid
from fedpriv.testing.local_grid import RUN_ID, SERVER_NODE_ID

FILE = Path(__file__).parent / "results" / "federation"
CONFIG: dict[str, Any] = {
    "task": "breast-cancer",
    "num-clients": 3,
    "partition": "iid",
    "stages": "train",
    "train.rounds": 3,
}


class _Bytes(LocalGrid):
    """Payload of every exchange, by its name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.found: list[tuple[str, int, int]] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Count, and pass on."""
        messages = list(messages)
        down = sum(wire.content_bytes(message.content) for message in messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        up = sum(wire.content_bytes(reply.content) for reply in replies if reply.has_content())
        self.found.append((wire.stage_of(messages[0]) or "other", down, up))
        return replies


def bytes_by_exchange(config: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Exchange -> payload bytes down and up per round, over all silos; the first round stands apart."""
    from client_app.app import app as client
    from server_app.app import app as server

    with tempfile.TemporaryDirectory(prefix="fedpriv-bytes-") as folder:
        values = config | {"run-dir": folder, "name": "bytes"}
        grid = _Bytes(client, int(config["num-clients"]), values)
        server(grid, Context(RUN_ID, SERVER_NODE_ID, {}, RecordDict(), values))
        rounds = [
            json.loads(line) for line in (Path(folder) / "bytes" / "metrics.jsonl").read_text().splitlines()
        ]
    later = sum(len(record["exchanges"]) for record in rounds[1:])
    found: dict[str, dict[str, float]] = {}
    for exchange, down, up in grid.found[len(grid.found) - later :]:
        cell = found.setdefault(exchange, {"down": 0.0, "up": 0.0})
        cell["down"] += down / (len(rounds) - 1)
        cell["up"] += up / (len(rounds) - 1)
    return found


def seconds_by_exchange(config: dict[str, Any], watch: Stopwatch) -> dict[str, Any]:
    """Seconds of every exchange and of the whole round, first and later rounds apart, over processes."""
    with tempfile.TemporaryDirectory(prefix="fedpriv-federation-") as folder:
        federation = ProcessFederation(Path(folder))
        try:
            done = federation.make("federation-up")
            if done.returncode != 0:
                raise RuntimeError(done.stdout[-3000:])
            watch.say("three silos are online")
            text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
            done = federation.make("federation-run", timeout=1800, CONFIG=f'{text} name="measured"')
            if done.returncode != 0:
                raise RuntimeError(done.stdout[-3000:])
            rounds = federation.rounds("measured")
        finally:
            federation.make("federation-down")
    watch.say(f"{len(rounds)} rounds")
    found: dict[str, list[float]] = defaultdict(list)
    for record in rounds[1:]:
        for exchange, seconds in record["exchanges"].items():
            found[exchange].append(seconds)
    return {
        "first": rounds[0]["exchanges"],
        "later": {exchange: statistics.median(values) for exchange, values in found.items()},
        "round": statistics.median(record["seconds"] for record in rounds[1:]),
    }


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def to_markdown(measured: dict[str, Any]) -> str:
    """One row per exchange and label."""
    rows = []
    for label, found in measured.items():
        first, later = found["seconds"]["first"], found["seconds"]["later"]
        for exchange in dict.fromkeys([*first, *later]):
            size = found["bytes"].get(exchange)
            rows.append(
                (label, exchange, _seconds(first.get(exchange)), _seconds(later.get(exchange)),
                 *(f"{size[way]:.0f}" if size else "" for way in ("down", "up")))
            )  # fmt: skip
        total = found["bytes"].values()
        rows.append(
            (label, "**round**", f"{sum(found['seconds']['first'].values()):.1f}", f"{found['seconds']['round']:.1f}",
             f"{sum(s['down'] for s in total):.0f}", f"{sum(s['up'] for s in total):.0f}")
        )  # fmt: skip
    header = [
        "secure sum",
        "exchange",
        "seconds, first round",
        "seconds, later rounds",
        "bytes down, later rounds",
        "bytes up, later rounds",
    ]
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure this version under a label, beside those that were measured before."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation", description=__doc__)
    parser.add_argument("--label", required=True, help="what is measured, for instance 'two exchanges'")
    parser.add_argument("--rounds", type=int, default=CONFIG["train.rounds"])
    options = parser.parse_args(arguments)
    watch, config = Stopwatch(), CONFIG | {"train.rounds": options.rounds}
    load = os.getloadavg()[0]
    found = {"bytes": bytes_by_exchange(config), "seconds": seconds_by_exchange(config, watch), "load": load}
    stored = FILE.with_suffix(".json")
    measured = json.loads(stored.read_text()) if stored.exists() else {}
    measured[options.label] = found
    loads = ", ".join(f"{label} {found['load']:.1f}" for label, found in measured.items())
    foot = f"Three silos, {CONFIG['task']}, two shared cores (load at the start: {loads}): {environment()}.\n"
    text = to_markdown(measured) + "\n" + foot
    print("\n" + text)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(measured, indent=1) + "\n")
    FILE.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
