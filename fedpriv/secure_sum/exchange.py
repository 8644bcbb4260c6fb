"""One exchange of a session: send to many nodes, sort replies into answers, faults and losses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv import wire
from fedpriv.secure_sum.settings import NodeError, SecureSumAborted

if TYPE_CHECKING:
    from flwr.serverapp import Grid

Answer = TypeVar("Answer")


class BadReply(ValueError):
    """A reply that does not fit; the text is our own words."""


class Exchanges:
    """Bookkeeping of one session's exchanges.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    session_id : bytes
        Replies of any other session are faults.
    timeout : float
        Seconds for one exchange.
    """

    def __init__(self, grid: Grid, session_id: bytes, timeout: float) -> None:
        self.grid, self.session_id, self.timeout = grid, session_id, timeout
        self.dropped: dict[str, tuple[int, ...]] = {}
        self.errors: list[NodeError] = []
        self.seconds: dict[str, float] = {}
        self.bytes_up = self.bytes_down = 0
        self.released = False

    def abort(self, stage: str, message: str) -> SecureSumAborted:
        """The exception for a session that ends here; it counts the stage's faults by their words."""
        words = Counter(error.message for error in self.errors if error.stage == stage)
        if words:
            message += "; " + "; ".join(f"{count} x {text}" for text, count in words.most_common(3))
        return SecureSumAborted(stage, message, self.released, self.dropped, tuple(self.errors))

    def fault(self, node: int | None, stage: str, message: str, code: int | None = None) -> None:
        """Note a node's fault."""
        self.errors.append(NodeError(node, stage, code, message))

    def drop(self, stage: str, nodes: set[int]) -> None:
        """Note nodes lost in a stage."""
        if nodes:
            self.dropped[stage] = tuple(sorted({*self.dropped.get(stage, ()), *nodes}))

    def ask(
        self, stage: str, requests: Mapping[int, RecordDict], read: Callable[[int, RecordDict], Answer]
    ) -> dict[int, Answer]:
        """Send one request per node and read the replies.

        Losses are "asked minus answered": an error reply may carry the SuperLink's id instead of the node's.
        Answering twice, for another session or stage, or something that does not fit is a fault, and the node
        counts as lost.

        Parameters
        ----------
        stage : str
            Stage that the requests and their replies carry.
        requests : mapping
            Node id -> content.
        read : callable
            ``read(node_id, content)`` returns what the reply says or raises :class:`BadReply`.

        Returns
        -------
        dict
            Node id -> what was read, in the order of the requests.

        Raises
        ------
        SecureSumAborted
            If the grid itself fails.
        """
        messages = [
            Message(content=content, dst_node_id=node, message_type=wire.MESSAGE_TYPE)
            for node, content in requests.items()
        ]
        self.bytes_down += sum(wire.content_bytes(content) for content in requests.values())
        start = time.perf_counter()
        try:
            replies = list(self.grid.send_and_receive(messages, timeout=self.timeout))
        except Exception as error:
            raise self.abort(stage, f"the grid failed with {type(error).__name__}") from error
        finally:
            self.seconds[stage] = time.perf_counter() - start
        asked = {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in messages
            if message.metadata.message_id
        }
        answers: dict[int, Answer] = {}
        counts: dict[int, int] = {}
        for reply in replies:
            source = reply.metadata.src_node_id
            node = asked.get(reply.metadata.reply_to_message_id)
            if reply.has_error():
                code = int(reply.error.code)
                named = node or (source if source in requests else None)
                self.fault(named, stage, wire.error_words(code), code)
                continue
            self.bytes_up += wire.content_bytes(reply.content)
            misfit = self._misfit(stage, reply.content)
            # A grid may number messages in its own way; then session, stage and source tell what is answered.
            if node is None and not misfit and source in requests:
                node = source
            if node is None or node != source:
                suspect = source if source in requests else None
                self.fault(suspect, stage, "a reply to no request of this exchange was ignored")
                continue
            counts[node] = counts.get(node, 0) + 1
            if misfit:
                self.fault(node, stage, misfit)
                continue
            try:
                answers[node] = read(node, reply.content)
            except BadReply as bad:
                self.fault(node, stage, str(bad))
            except Exception:
                self.fault(node, stage, "the reply cannot be read")
        for node, count in counts.items():
            if count > 1:
                answers.pop(node, None)
                self.fault(node, stage, f"{count} replies to one request")
        self.drop(stage, set(requests) - set(answers))
        return {node: answers[node] for node in requests if node in answers}

    def _misfit(self, stage: str, content: RecordDict) -> str:
        record = content.get(wire.RECORD_SECURE_SUM)
        if not isinstance(record, ConfigRecord):
            return "the reply has no secure-sum record: is the client half registered for 'train'?"
        if record.get(wire.FIELD_SCHEMA) != wire.SCHEMA:
            return "the reply has another schema version"
        if record.get(wire.FIELD_SESSION) != self.session_id or record.get(wire.FIELD_STAGE) != stage:
            return "the reply belongs to another session or stage"
        return ""
