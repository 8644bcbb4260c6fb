"""Opening the next session on the messages of this one: two exchanges a round where the same nodes go on.

The masked-input request of a session also asks for the public keys of the next session, its unmask request
for the next session's shares. The next round then begins with its masked-input request. A node that cannot
follow, because it was away, joins late or was restarted, brings everyone back to the full set-up of four
exchanges, in the round after the one in which it is missed.

Why nothing is weaker than with four exchanges: the two sessions have no secret in common (every key, seed and
share is drawn for one session id, which salts all that is derived), what is exchanged ahead depends on no
client's data, and each client checks it by the rules of an ordinary set-up and answers each stage of a session
once. A session that was opened ahead is used once or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from flwr.app import ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import replies
from fedpriv.secure_sum.exchange import BadReply, Exchanges
from fedpriv.secure_sum.keys import Session
from fedpriv.secure_sum.replies import Keys, SealedShares
from fedpriv.secure_sum.settings import SecureSumSettings
from fedpriv.secure_sum.setup import SetUp

if TYPE_CHECKING:
    from flwr.serverapp import Grid

Answer = TypeVar("Answer")


class Ahead:
    """Keeps the session that was opened ahead, between two rounds of a run.

    There is one, since a client keeps one: a session opened ahead later, for whatever purpose, replaces it.
    """

    def __init__(self) -> None:
        self._setup: SetUp | None = None
        self._grid: Grid | None = None

    def keep(self, setup: SetUp, grid: Grid) -> None:
        """Keep a session over the nodes of a grid until it is taken or replaced."""
        self._setup, self._grid = setup, grid

    def take(
        self, settings: SecureSumSettings, wanted: Session, limit: int, nodes: Iterable[int], grid: Grid
    ) -> SetUp | None:
        """Hand out the kept session if it is for exactly this sum over exactly these nodes.

        A session for the same purpose that does not fit is dropped; one for another purpose is kept.

        Parameters
        ----------
        settings : SecureSumSettings
            Settings of the sum.
        wanted : Session
            Purpose, length and modulus of the sum; the id does not count.
        limit : int
            Its magnitude limit.
        nodes : iterable of int
            Nodes to ask.
        grid : Grid
            Their grid.

        Returns
        -------
        SetUp or None
        """
        kept = self._setup
        if kept is None or kept.session.purpose != wanted.purpose:
            return None
        self._setup = None
        fits = (
            (kept.session.length, kept.session.modulus_bits) == (wanted.length, wanted.modulus_bits)
            and (kept.settings, kept.limit) == (settings, limit)
            and set(kept.sealed) == set(nodes)
            and self._grid is grid
        )
        return kept if fits else None


class NextSession:
    """The next session while the messages of this one carry its set-up.

    Parameters
    ----------
    setup : SetUp
        Fresh: nothing of it has been asked.
    exchanges : Exchanges
        Of this session; notes faults, which cost nobody their place in it.
    """

    def __init__(self, setup: SetUp, exchanges: Exchanges) -> None:
        self.setup, self.exchanges = setup, exchanges

    def ask_keys(self) -> ConfigRecord:
        """Record for every masked-input request."""
        return self.setup.record(wire.STAGE_KEYS, self.setup.opening())

    def read_keys(self, content: RecordDict) -> Keys | str:
        """Keys that came with a masked vector, or what is wrong with them."""
        return self._read(content, wire.STAGE_KEYS, replies.read_keys)

    def take_keys(self, answers: Mapping[int, Keys | str]) -> None:
        """Draw the graph over the nodes of the sum whose keys are there."""
        doubled = self.setup.take_keys(self._good(answers, wire.STAGE_KEYS))
        for node in sorted(doubled):
            self.exchanges.fault(node, wire.STAGE_KEYS, "next session: a public key was used twice")
        if len(self.setup.public) >= self.setup.settings.min_survivors:
            try:
                self.setup.draw_graph()
            except ValueError:
                self.setup.peers = {}  # the round itself will say so, when it begins with fewer nodes

    def ask_shares(self, node: int) -> ConfigRecord | None:
        """Record for a node's unmask request; None for a node that is not in the next session."""
        if node not in self.setup.peers:
            return None
        return self.setup.record(wire.STAGE_SHARES, self.setup.shares_fields(node))

    def read_shares(self, node: int, content: RecordDict) -> SealedShares | str:
        """Sealed shares that came with a reply to the unmask request, or what is wrong with them."""
        if node not in self.setup.peers:
            return ""
        peers = self.setup.peers[node]
        return self._read(content, wire.STAGE_SHARES, lambda record: replies.read_shares(record, peers))

    def take_shares(self, answers: Mapping[int, SealedShares | str]) -> SetUp | None:
        """The session, if every node that gave keys has dealt its shares."""
        self.setup.sealed = self._good(answers, wire.STAGE_SHARES)
        complete = bool(self.setup.peers) and set(self.setup.sealed) == set(self.setup.peers)
        return self.setup if complete else None

    def _read(self, content: RecordDict, stage: str, read: Callable[[ConfigRecord], Answer]) -> Answer | str:
        try:
            return read(replies.ahead_record(content, self.setup.session.session_id, stage))
        except BadReply as bad:
            return str(bad)

    def _good(self, answers: Mapping[int, Answer | str], stage: str) -> dict[int, Answer]:
        good: dict[int, Answer] = {}
        for node, answer in answers.items():
            if not isinstance(answer, str):
                good[node] = answer
            elif answer:
                self.exchanges.fault(node, stage, f"next session: {answer}")
        return good
