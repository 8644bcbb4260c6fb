"""A federation whose clients hand given vectors to the secure sum, and a server that may misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import wire
from fedpriv.secure_sum import SecureSum, SecureSumResult, SecureSumSettings, secure_sum_mod
from fedpriv.testing import LocalGrid


class CuriousGrid(LocalGrid):
    """A grid that keeps every request and reply, and may change or stop requests before they leave."""

    rewrite: Callable[[int, str, ConfigRecord], Any] | None = None
    stop_before: str | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.requests: list[tuple[int, str, Message]] = []
        self.replies: list[tuple[int, str, Message]] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        for message in messages:
            stage = wire.stage_of(message)
            if stage == self.stop_before:
                raise ConnectionError("stopped by the test")
            partition = self.partition_of(message.metadata.dst_node_id)
            if self.rewrite is not None:
                self.rewrite(partition, stage, message.content[wire.RECORD_SECURE_SUM])
            self.requests.append((partition, stage, message))
        replies = super().send_and_receive(messages, timeout=timeout)
        asked = {
            m.metadata.message_id: (self.partition_of(m.metadata.dst_node_id), wire.stage_of(m))
            for m in messages
        }
        for reply in replies:
            if reply.metadata.reply_to_message_id in asked:
                self.replies.append((*asked[reply.metadata.reply_to_message_id], reply))
        return replies

    def reply_of(self, partition: int, stage: str) -> Message:
        """The last reply of a node in a stage."""
        return next(r for p, s, r in reversed(self.replies) if (p, s) == (partition, stage))

    def request_to(self, partition: int, stage: str) -> Message:
        """The last request to a node in a stage."""
        return next(r for p, s, r in reversed(self.requests) if (p, s) == (partition, stage))


class Federation:
    """Nodes with one vector each.

    ``vectors`` is an array of shape (nodes, length) or a function ``(partition, message, context)``;
    ``produced`` lists the partitions whose function was called.
    """

    def __init__(
        self,
        vectors: np.ndarray | Callable[[int, Message, Context], Any],
        num_nodes: int | None = None,
        min_neighbours: int | None = 1,
        **grid_options: Any,
    ) -> None:
        self.vectors = vectors
        self.produced: list[int] = []
        app = ClientApp()

        @app.train(mods=[secure_sum_mod(self.produce)])
        def train(msg: Message, context: Context) -> Message:
            raise AssertionError("the decorated function must never run")

        count = num_nodes if num_nodes is not None else len(vectors)  # type: ignore[arg-type]
        if min_neighbours is not None:
            grid_options.setdefault("node_config", {wire.CONFIG_MIN_NEIGHBOURS: min_neighbours})
        self.grid = CuriousGrid(app, count, **grid_options)

    def produce(self, msg: Message, context: Context) -> Any:
        partition = int(context.node_config["partition-id"])
        self.produced.append(partition)
        return self.vectors(partition, msg, context) if callable(self.vectors) else self.vectors[partition]

    def sum(
        self,
        length: int | None = None,
        payload: Any = None,
        before_unmask: Any = None,
        magnitude_limit: int | None = None,
        **settings: Any,
    ) -> SecureSumResult:
        settings.setdefault("min_survivors", 2)
        secure_sum = SecureSum(self.grid, SecureSumSettings(**settings))
        if length is None:
            length = self.vectors.shape[1]  # type: ignore[union-attr]
        return secure_sum.run(
            self.grid.get_node_ids(),
            RecordDict() if payload is None else payload,
            length,
            "test",
            before_unmask,
            magnitude_limit,
        )

    def partitions(self, node_ids: Iterable[int]) -> set[int]:
        return {self.grid.partition_of(node) for node in node_ids}

    def expected(self, result: SecureSumResult, bits: int = 32) -> np.ndarray:
        """Sum of the survivors' vectors, centred mod 2^bits, in exact integers."""
        total = [0] * result.total.size
        for partition in self.partitions(result.survivors):
            total = [a + int(b) for a, b in zip(total, self.vectors[partition], strict=True)]  # type: ignore[index]
        half = 1 << (bits - 1)
        return np.array([(t + half) % (2 * half) - half for t in total], dtype=np.int64)

    def state(self, partition: int) -> RecordDict:
        return self.grid.contexts[self.grid.node_of(partition)].state

    def ask(self, partition: int, message_type: str = "train", content: RecordDict | None = None) -> Message:
        """Send one message to one node by hand."""
        message = Message(
            content if content is not None else RecordDict(),
            dst_node_id=self.grid.node_of(partition),
            message_type=message_type,
        )
        (reply,) = LocalGrid.send_and_receive(self.grid, [message])
        return reply

    def repeat(self, partition: int, of_stage: str, **changes: Any) -> Message:
        """Send a node's last request of a stage again, with changed fields."""
        old = self.grid.request_to(partition, of_stage).content
        content = RecordDict(dict(old.items()))
        content[wire.RECORD_SECURE_SUM] = ConfigRecord({**old[wire.RECORD_SECURE_SUM], **changes})
        return self.ask(partition, content=content)


def losses(plan: dict[tuple[str, int], str]) -> Callable[[int, Message], str | None]:
    """A ``drop`` function from (stage, partition) -> kind of loss."""
    return lambda partition, message: plan.get((wire.stage_of(message), partition))  # type: ignore[arg-type]


def code_of(reply: Message) -> int:
    """Code of an error reply."""
    assert reply.has_error(), "an error reply was expected"
    return reply.error.code
