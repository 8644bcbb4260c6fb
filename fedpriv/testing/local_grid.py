"""A Flower Grid in one process: no Ray, no SuperLink, no sockets.

Messages are copied through Flower's protobuf both ways, as the wire does, so that no object is shared between
server and clients; every node keeps its own Context; losses of every kind can be injected.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpriv import wire

RUN_ID = 1
SERVER_NODE_ID = 1

Loss = Literal["silent", "error", "silent-after", "raise", "late"]
Config = dict[str, Any]


class LocalGrid(Grid):
    """In-process Grid.

    Parameters
    ----------
    client_app : ClientApp
        The app that every node runs.
    num_nodes : int
        Nodes, with partition ids 0 to num_nodes - 1 and ids as large as real ones.
    run_config : dict, optional
        ``context.run_config`` of every node.
    node_config : dict or callable, optional
        Added to every node's ``node_config``, or a function of the partition id that gives what to add.
    drop : callable, optional
        ``drop(partition_id, request)`` returns None or how this request is lost: "silent" (never delivered),
        "error" (Flower's error reply of a dead node, which carries the SuperLink's id), "raise" (the error
        reply of a ClientApp that raised), "silent-after" (worked on, the reply lost), "late" (worked on, the
        reply arrives with the next exchange).
    intercept : callable, optional
        ``intercept(partition_id, request, reply)`` returns the replies that arrive instead of ``reply``:
        tampered with, none, or several.
    simulation : bool
        Whether nodes say that they are simulated (node config key ``fedpriv-simulation``).
    raise_client_errors : bool
        Whether an exception of the ClientApp ends the test instead of becoming an error reply.

    Attributes
    ----------
    contexts : dict
        Node id -> Context.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        run_config: Config | None = None,
        node_config: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
        drop: Callable[[int, Message], Loss | None] | None = None,
        intercept: Callable[[int, Message, Message], Iterable[Message]] | None = None,
        simulation: bool = True,
        raise_client_errors: bool = False,
    ) -> None:
        if num_nodes < 1:
            raise ValueError(f"num_nodes = {num_nodes}: must be at least 1")
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, SERVER_NODE_ID, 1
        self.client_app, self.drop, self.intercept = client_app, drop, intercept
        self.raise_client_errors = raise_client_errors
        self._run = Run.create_empty(run_id=RUN_ID)
        self._message_ids = itertools.count(1)
        self._replies: dict[str, list[Message]] = {}
        self._late: list[Message] = []
        self.contexts: dict[int, Context] = {}
        draw = random.Random(num_nodes)  # noqa: S311  (ids, not secrets; the same in every run)
        for partition in range(num_nodes):
            node_id = draw.getrandbits(64) | 1 << 63
            config: Config = {"partition-id": partition, "num-partitions": num_nodes}
            if simulation:
                config[wire.CONFIG_SIMULATION] = True
            config.update(node_config(partition) if callable(node_config) else node_config or {})
            self.contexts[node_id] = Context(RUN_ID, node_id, config, RecordDict(), dict(run_config or {}))

    def partition_of(self, node_id: int) -> int:
        """Partition id of a node."""
        return int(self.contexts[node_id].node_config["partition-id"])

    def node_of(self, partition_id: int) -> int:
        """Node id of a partition."""
        return next(node for node in self.contexts if self.partition_of(node) == partition_id)

    def restart_node(self, partition_id: int) -> None:
        """Forget a node's ``Context.state``, as a restart of its SuperNode does."""
        self.contexts[self.node_of(partition_id)].state = RecordDict()

    # -- Grid ----------------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message (kept for Flower's interface; use ``Message``)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes, in the order of their partitions."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages and work on them at once; returns their ids."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._message_ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            ids.append(message_id)
            self._replies[message_id] = [
                _over_the_wire(reply) for reply in self._deliver(_over_the_wire(message))
            ]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies to the given messages, and replies that were late for an earlier exchange."""
        late, self._late = self._late, []
        return late + [reply for message_id in message_ids for reply in self._replies.pop(message_id, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push and pull; nothing is waited for."""
        late, self._late = self._late, []
        return late + [
            reply for message_id in self.push_messages(messages) for reply in self._replies.pop(message_id)
        ]

    def _deliver(self, message: Message) -> list[Message]:
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return [_lost_node(message)]
        partition = int(context.node_config["partition-id"])
        loss = self.drop(partition, message) if self.drop else None
        if loss == "silent":
            return []
        if loss == "error":
            return [_lost_node(message)]
        if loss == "raise":
            return [Message(Error(code=2, reason="ValueError('boom')"), reply_to=message)]
        try:
            with _identity(context.node_id):
                reply = self.client_app(message, context)
        except Exception as error:
            if self.raise_client_errors:
                raise
            reply = Message(Error(code=2, reason=repr(error)), reply_to=message)
        if loss == "silent-after":
            return []
        if loss == "late":
            self._late.append(_over_the_wire(reply))
            return []
        return list(self.intercept(partition, message, reply)) if self.intercept else [reply]


def run_local(
    server_app: ServerApp,
    client_app: ClientApp,
    num_nodes: int,
    run_config: Config | None = None,
    **grid_options: Any,
) -> tuple[LocalGrid, Context]:
    """Run a whole app in this process.

    Parameters
    ----------
    server_app : ServerApp
        Runs to its end; its exceptions are passed on.
    client_app : ClientApp
        Run by every node.
    num_nodes : int
        Nodes.
    run_config : dict, optional
        Run config of server and nodes.
    **grid_options
        Options of :class:`LocalGrid`.

    Returns
    -------
    tuple of LocalGrid and Context
        The grid and the server's context, for inspection.
    """
    grid = LocalGrid(client_app, num_nodes, run_config, **grid_options)
    context = Context(RUN_ID, SERVER_NODE_ID, {}, RecordDict(), dict(run_config or {}))
    server_app(grid, context)
    return grid, context


def _over_the_wire(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))


def _lost_node(message: Message) -> Message:
    reply = Message(Error(code=5, reason="the node did not send a heartbeat"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = SERVER_NODE_ID
    return reply


@contextmanager
def _identity(node_id: int) -> Iterator[None]:
    TaskIdentity.node_id = node_id
    try:
        yield
    finally:
        TaskIdentity.node_id = SERVER_NODE_ID
