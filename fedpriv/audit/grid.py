"""The federation that an audit runs: in process, without copies, with clients that help the adversary.

What runs is the strategy, `NoisedSum`, the secure sum in its simulated mode (the same integers, without masks; the
protocol has its own tests) and the client half under the ClientApp, through Flower messages. Left out is only the
copy of every message through protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedpriv import wire
from fedpriv.secure_sum import handle
from fedpriv.strategies.noised_sum import NoisedSum, NoisedSumResult
from fedpriv.testing import LocalGrid

Mod = Callable[[Message, Context, ClientAppCallable], Message]


def partition_of(context: Context) -> int:
    """Partition id of a client."""
    return int(context.node_config["partition-id"])


class AuditGrid(LocalGrid):
    """A LocalGrid that hands messages over as they are, and can watch them.

    Parameters
    ----------
    client_app : ClientApp
        Run by every node.
    num_nodes : int
        Nodes.
    watch : callable, optional
        Called with the requests of an exchange before any is delivered.
    **options
        As for :class:`fedpriv.testing.LocalGrid`.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        *,
        watch: Callable[[list[Message]], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(client_app, num_nodes, **options)
        self._watch = watch

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver without copies."""
        pushed = list(messages)
        if self._watch is not None:
            self._watch(pushed)
        ids = []
        for message in pushed:
            message_id = f"message-{next(self._message_ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            ids.append(message_id)
            self._replies[message_id] = self._deliver(message)
        return ids


def colluding_mod(honest: int) -> Mod:
    """A mod that makes all clients from partition ``honest`` on send zeros without a noise share.

    They know their own shares, so the adversary whom they help sees the sum without them: the same as if they had
    sent none. The accounting discounts their shares.
    """

    def mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if partition_of(context) < honest:
            return call_next(msg, context)
        return handle(msg, context, _zeros)

    return mod


def _zeros(request: Message, context: Context) -> np.ndarray:
    length = request.content[wire.RECORD_SECURE_SUM][wire.FIELD_LENGTH]
    return np.zeros(int(length), dtype=np.int64)  # type: ignore[arg-type]


def make_app(mods: list[Mod], train: ClientAppCallable | None = None) -> ClientApp:
    """A ClientApp with mods around a train function."""
    app = ClientApp()
    app.train(mods=mods)(train or _no_train)
    return app


def _no_train(msg: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=msg)


@dataclass
class RecordedSums(NoisedSum):
    """Keeps what was released: the integers of every sum, and how many clients were in it."""

    totals: list[np.ndarray] = field(default_factory=list, init=False)
    summed: list[int] = field(default_factory=list, init=False)

    def release(self, *args: Any, **options: Any) -> NoisedSumResult:
        """As in the base class."""
        result = super().release(*args, **options)
        self.totals.append(result.total)
        self.summed.append(len(result.survivors))
        return result
