"""The in-process Grid behaves like the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedpriv.testing import LocalGrid, run_local


def counting_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        record = context.state.get("count")
        count = (int(record["n"]) if record is not None else 0) + 1  # type: ignore[arg-type, index]
        context.state["count"] = MetricRecord({"n": count})
        for sent in msg.content.values():
            sent["seen"] = 1
        fields = {"n": count, "partition-id": int(context.node_config["partition-id"])}
        return Message(RecordDict({"m": MetricRecord(fields)}), reply_to=msg)

    return app


def train_messages(grid: Grid, content: RecordDict | None = None) -> list[Message]:
    content = content if content is not None else RecordDict()
    return [Message(content, dst_node_id=node, message_type="train") for node in grid.get_node_ids()]


def test_ids_are_different_large_and_the_same_in_every_run() -> None:
    ids = list(LocalGrid(ClientApp(), 50).get_node_ids())
    assert len(set(ids)) == 50 and all(2**63 <= node < 2**64 for node in ids)
    assert ids == list(LocalGrid(ClientApp(), 50).get_node_ids())


def test_configs_reach_the_nodes() -> None:
    grid = LocalGrid(
        ClientApp(), 3, {"lr": 0.5}, node_config=lambda partition: {"data-path": f"silo{partition}"}
    )
    contexts = list(grid.contexts.values())
    assert [context.node_config["data-path"] for context in contexts] == ["silo0", "silo1", "silo2"]
    assert [context.node_config["num-partitions"] for context in contexts] == [3, 3, 3]
    assert all(context.run_config == {"lr": 0.5} for context in contexts)
    assert all(context.node_config["fedpriv-simulation"] is True for context in contexts)
    assert (
        "fedpriv-simulation"
        not in next(iter(LocalGrid(ClientApp(), 1, simulation=False).contexts.values())).node_config
    )
    with pytest.raises(ValueError, match="num_nodes = 0"):
        LocalGrid(ClientApp(), 0)


def test_no_object_is_shared_and_state_is_kept_per_node() -> None:
    grid = LocalGrid(counting_app(), 3)
    content = RecordDict({"c": ConfigRecord({"a": 1})})
    for expected in (1, 2):
        replies = grid.send_and_receive(train_messages(grid, content))
        assert [int(reply.content["m"]["n"]) for reply in replies] == [expected] * 3
    assert dict(content["c"]) == {"a": 1}
    grid.restart_node(1)
    replies = grid.send_and_receive(train_messages(grid))
    assert [int(reply.content["m"]["n"]) for reply in replies] == [3, 1, 3]


@pytest.mark.parametrize(
    ("loss", "codes", "worked"),
    [
        ("silent", [None, None], 0),
        ("silent-after", [None, None], 1),
        ("error", [None, 5, None], 0),
        ("raise", [None, 2, None], 0),
        ("late", [None, None], 1),
    ],
)
def test_losses(loss: Any, codes: list[int | None], worked: int) -> None:
    grid = LocalGrid(counting_app(), 3, drop=lambda partition, message: loss if partition == 1 else None)
    replies = grid.send_and_receive(train_messages(grid))
    assert [reply.error.code if reply.has_error() else None for reply in replies] == codes
    assert ("count" in grid.contexts[grid.node_of(1)].state) == bool(worked)
    if loss == "error":
        assert replies[1].metadata.src_node_id == 1  # the SuperLink's, as in a real federation
    grid.drop = None
    following = grid.send_and_receive(train_messages(grid))
    assert len(following) == (4 if loss == "late" else 3)


def test_push_and_pull_by_id() -> None:
    grid = LocalGrid(counting_app(), 2)
    first, second = grid.push_messages(train_messages(grid))
    (reply,) = grid.pull_messages([second])
    assert reply.metadata.reply_to_message_id == second
    assert grid.pull_messages([second]) == []
    assert len(grid.pull_messages([first])) == 1


def test_intercept_may_change_drop_or_repeat_replies() -> None:
    def intercept(partition: int, request: Message, reply: Message) -> Iterable[Message]:
        reply.content["m"]["n"] = 10 + partition
        return [reply] * partition

    grid = LocalGrid(counting_app(), 3, intercept=intercept)
    replies = grid.send_and_receive(train_messages(grid))
    assert [int(reply.content["m"]["n"]) for reply in replies] == [11, 12, 12]


def test_an_exception_of_the_client_is_an_error_reply_unless_asked_otherwise() -> None:
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        raise RuntimeError("inside the client")

    grid = LocalGrid(app, 1)
    (reply,) = grid.send_and_receive(train_messages(grid))
    assert reply.error.code == 2
    strict = LocalGrid(app, 1, raise_client_errors=True)
    with pytest.raises(RuntimeError, match="inside the client"):
        strict.send_and_receive(train_messages(strict))


def test_a_node_that_is_not_there() -> None:
    grid = LocalGrid(counting_app(), 1)
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=12345, message_type="train")])
    assert reply.error.code == 5


def test_a_whole_app_with_flowers_own_strategy() -> None:
    client, server = ClientApp(), ServerApp()
    results = []

    @client.train()
    def train(msg: Message, context: Context) -> Message:
        (weights,) = msg.content["arrays"].to_numpy_ndarrays()
        step = float(context.run_config["step"]) * int(context.node_config["partition-id"])
        content = {"arrays": ArrayRecord([weights + step]), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=msg)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0)
        results.append(strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=3, timeout=5))

    grid, context = run_local(server, client, 4, {"step": 2.0})
    np.testing.assert_allclose(results[0].arrays.to_numpy_ndarrays()[0], [9.0, 9.0])
    assert context.run_config == {"step": 2.0} and len(grid.contexts) == 4
