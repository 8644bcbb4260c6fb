"""Server half of a secure sum: four exchanges, or two; drop-outs at each, an exact sum or a clean abort.

Per session: public keys from everyone; a random neighbour graph over those who answered; sealed Shamir
shares, which the server passes on unread; masked vectors; shares of the self-mask seed for each node whose
vector arrived, of the mask-key seed for each node that was lost in between. Never both for one node. Where the
same nodes go on, the first two of these go along with the messages of the session before (``ahead.py``).

Sources: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning"; Bell
et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import keys, replies
from fedpriv.secure_sum.ahead import Ahead, NextSession
from fedpriv.secure_sum.exchange import Exchanges
from fedpriv.secure_sum.keys import Session
from fedpriv.secure_sum.settings import SecureSumResult, SecureSumSettings
from fedpriv.secure_sum.setup import Neighbours, SetUp
from fedpriv.secure_sum.unmasking import Unmasking

if TYPE_CHECKING:
    from flwr.serverapp import Grid

Payload = RecordDict | Callable[[int], RecordDict]
BeforeUnmask = Callable[[list[int]], None]


class SecureSum:
    """Secure sums over a Flower grid.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    settings : SecureSumSettings
        Settings of every session.
    ahead : Ahead, optional
        Where a session that is opened ahead waits for its round; share it among the sums of one run. Without
        it every session is set up by itself.

    Examples
    --------
    ``SecureSum(grid, SecureSumSettings(min_survivors=8)).run(grid.get_node_ids(), payload, length=10,
    purpose="votes")`` returns the sum of the vectors that the clients' ``produce`` functions gave.
    """

    def __init__(self, grid: Grid, settings: SecureSumSettings, ahead: Ahead | None = None) -> None:
        self.grid = grid
        self.settings = settings
        self.ahead = ahead

    def run(
        self,
        node_ids: Iterable[int],
        payload: Payload,
        length: int,
        purpose: str,
        before_unmask: BeforeUnmask | None = None,
        magnitude_limit: int | None = None,
        repeats: bool = False,
    ) -> SecureSumResult:
        """Run one session.

        Parameters
        ----------
        node_ids : iterable of int
            Nodes to ask; all different.
        payload : RecordDict or callable
            Records (or a function of the node id that gives them) that travel with the masked-input request,
            for ``produce``. Names that begin with "fedpriv.secure-sum" are reserved.
        length : int
            Coordinates of the vectors.
        purpose : str
            What is summed; bound into the keys of the session.
        before_unmask : callable, optional
            ``before_unmask(survivors)`` is called once, after enough masked vectors are in and before any
            unmask request leaves. An exception of its ends the session, with nothing revealed, and is
            passed on.
        magnitude_limit : int, optional
            Largest absolute value of one client's integers, checked by each client before it masks. It must
            fit: nodes * limit < 2^(b-1). None checks for 2^(b-1) - 1 only, and wrapping is the caller's
            affair.
        repeats : bool
            Whether the next round will ask the same nodes for the same sum. Then its keys and shares go along
            with this session's messages, and it takes two exchanges. A promise that is not kept costs some
            bytes. No effect without ``ahead``, or when simulated.

        Returns
        -------
        SecureSumResult

        Raises
        ------
        ValueError
            If an argument or its combination with the settings cannot work; nothing was sent.
        SecureSumAborted
            If the session ended without a sum; ``released`` says whether an unmask request had left.
        """
        nodes = [int(node) for node in node_ids]
        _check_arguments(self.settings, nodes, length, purpose, magnitude_limit)
        bits = self.settings.modulus_bits
        session = Session(keys.new_session_id(), purpose, int(length), bits)
        limit = int(magnitude_limit or 0)
        if isinstance(payload, RecordDict):
            _check_names(payload)
        kept = self.ahead.take(self.settings, session, limit, nodes, self.grid) if self.ahead else None
        setup = kept or SetUp(self.settings, session, limit)
        exchanges = Exchanges(self.grid, setup.session.session_id, self.settings.timeout)
        run = _Run(setup, exchanges, payload)
        if self.settings.mode == "simulated":
            total, survivors = run.simulated(nodes, before_unmask)
        else:
            if self.ahead and repeats:
                following = Session(keys.new_session_id(), purpose, int(length), bits)
                run.next = NextSession(SetUp(self.settings, following, limit), exchanges)
            total, survivors = run.protocol(nodes, before_unmask)
            if self.ahead and run.opened:
                self.ahead.keep(run.opened, self.grid)
        return SecureSumResult(
            total=keys.centred(total, bits),
            survivors=tuple(survivors),
            dropped=exchanges.dropped,
            errors=tuple(exchanges.errors),
            bytes_up=exchanges.bytes_up,
            bytes_down=exchanges.bytes_down,
            seconds=exchanges.seconds,
            neighbours=setup.degree,
            share_threshold=setup.threshold,
            mode=self.settings.mode,
        )


def _check_arguments(
    settings: SecureSumSettings, nodes: list[int], length: int, purpose: str, limit: int | None
) -> None:
    if len(set(nodes)) != len(nodes):
        raise ValueError("node_ids: a node is named twice")
    if len(nodes) < settings.min_survivors:
        raise ValueError(f"node_ids: {len(nodes)} nodes, but min_survivors = {settings.min_survivors}")
    if not _is_int(length) or not 1 <= length <= wire.MAX_LENGTH:
        raise ValueError(f"length = {length!r}: must be an integer from 1 to {wire.MAX_LENGTH}")
    if not isinstance(purpose, str) or not purpose:
        raise ValueError(f"purpose = {purpose!r}: must be a non-empty string")
    if limit is None:
        return
    if not _is_int(limit) or limit < 1:
        raise ValueError(f"magnitude_limit = {limit!r}: must be None or an integer of at least 1")
    room = (1 << (settings.modulus_bits - 1)) - 1
    if limit * len(nodes) > room:
        raise ValueError(
            f"magnitude_limit = {limit}: the sum over {len(nodes)} nodes could wrap around at "
            f"modulus_bits = {settings.modulus_bits}; at most {room // int(limit)} nodes fit"
        )


def _check_names(payload: RecordDict) -> None:
    for name in payload:
        if name.startswith(wire.RESERVED_PREFIX):
            raise ValueError(f"payload: record name {name!r} is reserved")


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class _Run:
    """One session."""

    def __init__(self, setup: SetUp, exchanges: Exchanges, payload: Payload) -> None:
        self.setup, self.exchanges, self.payload = setup, exchanges, payload
        self.session = setup.session
        #: The next session, if its set-up goes along, and that session once it is ready.
        self.next: NextSession | None = None
        self.opened: SetUp | None = None

    def simulated(self, nodes: list[int], before_unmask: BeforeUnmask | None) -> tuple[np.ndarray, list[int]]:
        """One exchange of residues in the clear; aborts and calls back where the protocol would."""
        stage = wire.STAGE_SIMULATED
        record = self.setup.record(stage, self.setup.opening())
        requests = {node: self._request(record, self._payload(node)) for node in nodes}
        vectors = self.exchanges.ask(
            stage, requests, lambda _, reply: replies.read_vector(reply, self.session)
        )
        self._enough(stage, vectors)
        survivors = sorted(vectors)
        if before_unmask is not None:
            before_unmask(list(survivors))
        return self._sum(vectors.values()), survivors

    def protocol(self, nodes: list[int], before_unmask: BeforeUnmask | None) -> tuple[np.ndarray, list[int]]:
        """Four exchanges, or the last two of them where the set-up was made ahead."""
        setup = self.setup
        if not setup.sealed:
            self._ask_keys(nodes)
            self._ask_shares()
        senders = self._live_senders()
        masked = self._ask_masked(senders)
        unmasking = Unmasking(
            self.session, setup.threshold, setup.peers, senders, setup.public, setup.sealed, masked
        )
        unmasking.check(self.exchanges)
        total = self._sum(answer.vector for answer in masked.values())
        survivors = unmasking.survivors
        if before_unmask is not None:
            before_unmask(list(survivors))
        unmasking.remove_masks(total, self._ask_unmask(unmasking), self.exchanges)
        return keys.reduce_residues(total, self.session), survivors

    # -- exchanges -----------------------------------------------------------------------------------------

    def _ask_keys(self, nodes: list[int]) -> None:
        stage = wire.STAGE_KEYS
        record = self.setup.record(stage, self.setup.opening())
        answers = self.exchanges.ask(
            stage,
            {node: self._request(record) for node in nodes},
            lambda _, reply: replies.read_keys(replies.main_record(reply)),
        )
        doubled = self.setup.take_keys(answers)
        for node in sorted(doubled):
            self.exchanges.fault(node, stage, "a public key was used twice")
        self.exchanges.drop(stage, doubled)
        self._enough(stage, self.setup.public)

    def _ask_shares(self) -> None:
        stage, setup = wire.STAGE_SHARES, self.setup
        try:
            setup.draw_graph()
        except ValueError as misfit:
            raise self.exchanges.abort(stage, str(misfit)) from None
        requests = {
            node: self._request(setup.record(stage, setup.shares_fields(node))) for node in setup.public
        }
        setup.sealed = self.exchanges.ask(
            stage,
            requests,
            lambda node, reply: replies.read_shares(replies.main_record(reply), setup.peers[node]),
        )
        self._enough(stage, setup.sealed)

    def _live_senders(self) -> Neighbours:
        """Neighbours of each node that goes on; those with too few of them are let go."""
        senders, alone = self.setup.senders()
        for node in sorted(alone):
            self.exchanges.fault(node, wire.STAGE_SHARES, "too many of its neighbours were lost")
        self.exchanges.drop(wire.STAGE_SHARES, alone)
        self._enough(wire.STAGE_SHARES, senders)
        return senders

    def _ask_masked(self, senders: Neighbours) -> dict[int, replies.MaskedVector]:
        stage, following = wire.STAGE_MASKED_INPUT, self.next
        ahead = following.ask_keys() if following else None
        requests = {
            node: self._request(
                self.setup.record(stage, self.setup.delivery(node, theirs)), self._payload(node), ahead
            )
            for node, theirs in senders.items()
        }

        def read(node: int, reply: RecordDict) -> tuple[replies.MaskedVector, replies.Keys | str]:
            vector = replies.read_masked(reply, self.session, senders[node])
            return vector, following.read_keys(reply) if following else ""

        answers = self.exchanges.ask(stage, requests, read)
        self._enough(stage, answers)
        if following:
            following.take_keys({node: keys_ahead for node, (_, keys_ahead) in answers.items()})
        return {node: vector for node, (vector, _) in answers.items()}

    def _ask_unmask(self, unmasking: Unmasking) -> dict[int, replies.RevealedShares]:
        stage, following = wire.STAGE_UNMASK, self.next
        alive = {node: [node, *unmasking.alive(node)] for node in unmasking.survivors}
        dead = {node: unmasking.dead(node) for node in unmasking.survivors}
        requests = {
            node: self._request(
                self.setup.record(stage, {wire.FIELD_ALIVE: alive[node], wire.FIELD_DEAD: dead[node]}),
                ahead=following.ask_shares(node) if following else None,
            )
            for node in unmasking.survivors
        }

        def read(node: int, reply: RecordDict) -> tuple[replies.RevealedShares, replies.SealedShares | str]:
            revealed = replies.read_revealed(reply, set(alive[node]), set(dead[node]))
            return revealed, following.read_shares(node, reply) if following else ""

        self.exchanges.released = True
        answers = self.exchanges.ask(stage, requests, read)
        if following:
            self.opened = following.take_shares({node: shares for node, (_, shares) in answers.items()})
        return {node: revealed for node, (revealed, _) in answers.items()}

    # -- helpers -------------------------------------------------------------------------------------------

    def _sum(self, vectors: Iterable[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.session.length, self.session.dtype)
        for vector in vectors:
            total += vector
        return keys.reduce_residues(total, self.session)

    def _enough(self, stage: str, answered: Sized) -> None:
        needed = self.setup.settings.min_survivors
        if len(answered) < needed:
            raise self.exchanges.abort(stage, f"{len(answered)} nodes left, min_survivors = {needed}")

    def _payload(self, node: int) -> RecordDict:
        return self.payload if isinstance(self.payload, RecordDict) else self.payload(node)

    def _request(
        self, record: ConfigRecord, payload: RecordDict | None = None, ahead: ConfigRecord | None = None
    ) -> RecordDict:
        content = RecordDict()
        if payload is not None:
            _check_names(payload)
            content.update(payload)
        content[wire.RECORD_SECURE_SUM] = record
        if ahead is not None:
            content[wire.RECORD_AHEAD] = ahead
        return content
