"""Times the secure sum against Flower's shipped SecAgg+ on the same vectors; see README.md."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import flwr
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow

from fedpriv import wire
from fedpriv.secure_sum import SecureSum, SecureSumSettings, graph, secure_sum_mod
from fedpriv.testing import LocalGrid

LIMIT = 1000  # largest absolute value in a vector
RESULTS = Path(__file__).parent / "results" / "secure_sum.md"


class Cost(NamedTuple):
    """Median cost of one session: seconds per client, seconds on the server, bytes in all."""

    client: float
    server: float
    traffic: float


class MeteredGrid(LocalGrid):
    """A grid that knows how much CPU time passed inside it, and how many bytes."""

    inside = 0.0
    traffic = 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        start = time.process_time()
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        self.traffic += sum(wire.content_bytes(m.content) for m in [*messages, *replies] if m.has_content())
        self.inside += time.process_time() - start
        return replies


class Meter:
    """A mod that adds up the CPU time of what it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, msg: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        start = time.process_time()
        reply = call_next(msg, context)
        self.seconds += time.process_time() - start
        return reply


def client_app(mod: Callable[..., Message], meter: Meter, vectors: np.ndarray) -> ClientApp:
    """An app whose train function answers in the layout of Flower's mod (ours never calls it)."""
    app = ClientApp()

    @app.train(mods=[meter, mod])
    def train(msg: Message, context: Context) -> Message:
        content = RecordDict(
            {
                "fitres.parameters": ArrayRecord(
                    [vectors[int(context.node_config["partition-id"])].astype(float)]
                ),
                "fitres.num_examples": MetricRecord({"num_examples": 1}),
                "fitres.metrics": ConfigRecord(),
                "fitres.status": ConfigRecord({"code": 0, "message": ""}),
            }
        )
        return Message(content, reply_to=msg)

    return app


def ours(vectors: np.ndarray, neighbours: int, threshold: int, drop: Any, expected: np.ndarray) -> Cost:
    """One session of fedpriv."""
    meter = Meter()
    mod = secure_sum_mod(lambda msg, context: vectors[int(context.node_config["partition-id"])])
    grid = MeteredGrid(client_app(mod, meter, vectors), len(vectors), drop=drop)
    settings = SecureSumSettings(min_survivors=threshold, share_threshold=threshold, neighbours=neighbours)
    start = time.process_time()
    result = SecureSum(grid, settings).run(grid.get_node_ids(), RecordDict(), vectors.shape[1], "benchmark")
    server = time.process_time() - start - grid.inside
    np.testing.assert_array_equal(result.total, expected)
    return Cost(meter.seconds / len(vectors), server, grid.traffic)


class Proxy:
    """What Flower's workflow needs of a client proxy."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id


class StubStrategy:
    """Legacy strategy that samples every node and keeps the aggregate."""

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = nodes
        self.mean: np.ndarray | None = None

    def configure_fit(
        self, server_round: int, parameters: Any, client_manager: Any
    ) -> list[tuple[Proxy, FitIns]]:
        return [(Proxy(node), FitIns(ndarrays_to_parameters([]), {})) for node in self.nodes]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def shipped(vectors: np.ndarray, neighbours: int, threshold: int, drop: Any, expected: np.ndarray) -> Cost:
    """One session of Flower's SecAgg+."""
    meter = Meter()
    grid = MeteredGrid(client_app(secaggplus_mod, meter, vectors), len(vectors), drop=drop)
    strategy = StubStrategy(list(grid.get_node_ids()))
    context = LegacyContext(Context(1, 1, {}, RecordDict(), {}), strategy=strategy)  # type: ignore[arg-type]
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([])
    workflow = SecAggPlusWorkflow(
        neighbours + 1,
        threshold,
        max_weight=1.0,
        clipping_range=float(LIMIT),
        quantization_range=2 * LIMIT,
        timeout=60.0,
    )
    start = time.process_time()
    workflow(grid, context)
    server = time.process_time() - start - grid.inside
    assert strategy.mean is not None, "Flower's workflow gave no result"
    survivors = len(vectors) - (drop is not None)
    np.testing.assert_array_equal(np.rint(strategy.mean * survivors).astype(np.int64), expected)
    return Cost(meter.seconds / len(vectors), server, grid.traffic)


def lose_first_vector(partition: int, message: Message) -> str | None:
    """Node 0 is lost before its masked vector, whichever protocol runs."""
    flower: Any = message.content.get("secaggplus_configs") or {}
    masked = wire.STAGE_MASKED_INPUT, "collect_masked_vectors"
    stage = wire.stage_of(message) or flower.get("stage")
    return "error" if partition == 0 and stage in masked else None


def measure(nodes: int, length: int, lost: int, sessions: int) -> tuple[Cost, Cost, int, int]:
    """Median costs of fedpriv and Flower."""
    neighbours = graph.neighbours_for(nodes)
    threshold = graph.default_threshold(neighbours + 1)
    vectors = np.random.default_rng(nodes + length).integers(-LIMIT, LIMIT, (nodes, length), endpoint=False)
    expected = vectors[lost:].sum(axis=0)
    drop = lose_first_vector if lost else None
    sides = []
    for side in (ours, shipped):
        runs = [side(vectors, neighbours, threshold, drop, expected) for _ in range(sessions)]
        sides.append(Cost(*(median(values) for values in zip(*runs, strict=True))))
    return sides[0], sides[1], neighbours, threshold


def table(sessions: int) -> str:
    """Markdown table over cohorts, lengths and losses."""
    lines = [
        f"Medians of {sessions} sessions, fedpriv / Flower {flwr.__version__} (ratio); Python "
        f"{platform.python_version()}, {platform.machine()}, one thread.",
        "",
        "| clients | length | lost | neighbours | threshold | client CPU, ms | server CPU, ms | bytes, kB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for nodes in (10, 50):
        for length in (100, 100_000):
            for lost in (0, 1):
                mine, theirs, neighbours, threshold = measure(nodes, length, lost, sessions)
                cells = [
                    f"{scale * a:,.1f} / {scale * b:,.1f} ({a / b:.3f})"
                    for a, b, scale in zip(mine, theirs, (1e3, 1e3, 1e-3), strict=True)
                ]
                row = [nodes, f"{length:,}", lost, neighbours, threshold, *cells]
                lines.append("| " + " | ".join(map(str, row)) + " |")
                print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table and write it to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=3, help="sessions per cell")
    parser.add_argument("--no-write", action="store_true", help="leave the committed table as it is")
    arguments = parser.parse_args()
    for name in ("flwr", "fedpriv"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    text = table(arguments.sessions)
    print("\n" + text)
    if not arguments.no_write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("# Secure sum against Flower's shipped SecAgg+\n\n" + text)


if __name__ == "__main__":
    main()
