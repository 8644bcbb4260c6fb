"""Server half of a secure sum: four exchanges, drop-outs at each, an exact sum or a clean abort.

Per session: public keys from everyone; a random neighbour graph over those who answered; sealed Shamir
shares, which the server passes on unread; masked vectors; shares of the self-mask seed for each node whose
vector arrived, of the mask-key seed for each node that was lost in between. Never both for one node.

Sources: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning"; Bell
et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import graph, keys, replies
from fedpriv.secure_sum.exchange import BadReply, Exchanges
from fedpriv.secure_sum.keys import Session
from fedpriv.secure_sum.settings import SecureSumResult, SecureSumSettings
from fedpriv.secure_sum.unmasking import Unmasking

if TYPE_CHECKING:
    from flwr.serverapp import Grid

Payload = RecordDict | Callable[[int], RecordDict]
BeforeUnmask = Callable[[list[int]], None]
Neighbours = dict[int, tuple[int, ...]]


class SecureSum:
    """Secure sums over a Flower grid.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    settings : SecureSumSettings
        Settings of every session.

    Examples
    --------
    ``SecureSum(grid, SecureSumSettings(min_survivors=8)).run(grid.get_node_ids(), payload, length=10,
    purpose="votes")`` returns the sum of the vectors that the clients' ``produce`` functions gave.
    """

    def __init__(self, grid: Grid, settings: SecureSumSettings) -> None:
        self.grid = grid
        self.settings = settings

    def run(
        self,
        node_ids: Iterable[int],
        payload: Payload,
        length: int,
        purpose: str,
        before_unmask: BeforeUnmask | None = None,
        magnitude_limit: int | None = None,
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
        exchanges = Exchanges(self.grid, session.session_id, self.settings.timeout)
        run = _Run(self.settings, session, exchanges, payload, int(magnitude_limit or 0))
        if isinstance(payload, RecordDict):
            _check_names(payload)
        step = run.simulated if self.settings.mode == "simulated" else run.protocol
        total, survivors = step(nodes, before_unmask)
        return SecureSumResult(
            total=keys.centred(total, bits),
            survivors=tuple(survivors),
            dropped=exchanges.dropped,
            errors=tuple(exchanges.errors),
            bytes_up=exchanges.bytes_up,
            bytes_down=exchanges.bytes_down,
            seconds=exchanges.seconds,
            neighbours=run.neighbours,
            share_threshold=run.threshold,
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

    def __init__(
        self,
        settings: SecureSumSettings,
        session: Session,
        exchanges: Exchanges,
        payload: Payload,
        limit: int,
    ) -> None:
        self.settings, self.session, self.exchanges = settings, session, exchanges
        self.payload, self.limit = payload, limit
        self.neighbours = self.threshold = 0

    def simulated(self, nodes: list[int], before_unmask: BeforeUnmask | None) -> tuple[np.ndarray, list[int]]:
        """One exchange of residues in the clear; aborts and calls back where the protocol would."""
        stage = wire.STAGE_SIMULATED
        opening = self._opening()
        requests = {node: self._request(stage, opening, self._payload(node)) for node in nodes}
        vectors = self.exchanges.ask(
            stage, requests, lambda _, reply: replies.read_vector(reply, self.session)
        )
        self._enough(stage, vectors)
        survivors = sorted(vectors)
        if before_unmask is not None:
            before_unmask(list(survivors))
        return self._sum(vectors.values()), survivors

    def protocol(self, nodes: list[int], before_unmask: BeforeUnmask | None) -> tuple[np.ndarray, list[int]]:
        """Four exchanges."""
        public = self._ask_keys(nodes)
        peers = self._draw_graph(public)
        sealed = self._ask_shares(public, peers)
        senders = self._live_senders(sealed, peers)
        masked = self._ask_masked(sealed, senders)
        unmasking = Unmasking(self.session, self.threshold, peers, senders, public, sealed, masked)
        unmasking.check(self.exchanges)
        total = self._sum(answer.vector for answer in masked.values())
        survivors = unmasking.survivors
        if before_unmask is not None:
            before_unmask(list(survivors))
        unmasking.remove_masks(total, self._ask_unmask(unmasking), self.exchanges)
        return keys.reduce_residues(total, self.session), survivors

    # -- exchanges -----------------------------------------------------------------------------------------

    def _ask_keys(self, nodes: list[int]) -> dict[int, replies.Keys]:
        stage = wire.STAGE_KEYS
        opening = self._opening()
        probe = X25519PrivateKey.generate()

        def read(node: int, content: RecordDict) -> replies.Keys:
            answer = replies.read_keys(content)
            for key in (answer.mask_key, answer.share_key):
                try:
                    keys.agree(probe, key)
                except ValueError:
                    raise BadReply("a public key is not a valid X25519 key") from None
            return answer

        public = self.exchanges.ask(stage, {node: self._request(stage, opening) for node in nodes}, read)
        owners: dict[bytes, list[int]] = {}
        for node, answer in public.items():
            for key in (answer.mask_key, answer.share_key):
                owners.setdefault(key, []).append(node)
        for node in {node for users in owners.values() if len(users) > 1 for node in users}:
            del public[node]
            self.exchanges.fault(node, stage, "a public key was used twice")
            self.exchanges.drop(stage, {node})
        self._enough(stage, public)
        return public

    def _draw_graph(self, public: dict[int, replies.Keys]) -> Neighbours:
        wanted = self.settings.neighbours or graph.neighbours_for(len(public))
        peers = graph.neighbour_graph(public, wanted)
        self.neighbours = len(next(iter(peers.values())))
        holders = self.neighbours + 1
        self.threshold = self.settings.share_threshold or graph.default_threshold(holders)
        if not holders < 2 * self.threshold <= 2 * holders:
            raise self.exchanges.abort(
                wire.STAGE_SHARES,
                f"share_threshold = {self.threshold} does not fit {holders} holders per neighbourhood: "
                f"it must be from {holders // 2 + 1} to {holders}",
            )
        return peers

    def _ask_shares(
        self, public: dict[int, replies.Keys], peers: Neighbours
    ) -> dict[int, replies.SealedShares]:
        stage = wire.STAGE_SHARES
        requests = {
            node: self._request(
                stage,
                {
                    wire.FIELD_THRESHOLD: self.threshold,
                    wire.FIELD_NEIGHBOURS: list(peers[node]),
                    wire.FIELD_MASK_KEYS: b"".join(public[peer].mask_key for peer in peers[node]),
                    wire.FIELD_SHARE_KEYS: b"".join(public[peer].share_key for peer in peers[node]),
                },
            )
            for node in public
        }
        sealed = self.exchanges.ask(
            stage, requests, lambda node, reply: replies.read_shares(reply, peers[node])
        )
        self._enough(stage, sealed)
        return sealed

    def _live_senders(self, sealed: dict[int, replies.SealedShares], peers: Neighbours) -> Neighbours:
        """Neighbours with shares of every node that still has enough of them; the others are let go."""
        live = set(sealed)
        while True:
            senders = {node: tuple(peer for peer in peers[node] if peer in live) for node in sorted(live)}
            alone = {node for node, theirs in senders.items() if len(theirs) + 1 < self.threshold}
            if not alone:
                break
            for node in sorted(alone):
                self.exchanges.fault(node, wire.STAGE_SHARES, "too many of its neighbours were lost")
            self.exchanges.drop(wire.STAGE_SHARES, alone)
            live -= alone
        self._enough(wire.STAGE_SHARES, senders)
        return senders

    def _ask_masked(
        self, sealed: dict[int, replies.SealedShares], senders: Neighbours
    ) -> dict[int, replies.MaskedVector]:
        stage = wire.STAGE_MASKED_INPUT
        requests = {
            node: self._request(
                stage,
                {
                    **self._description(),
                    wire.FIELD_NEIGHBOURS: list(theirs),
                    wire.FIELD_SHARES: b"".join(sealed[peer].boxes[node] for peer in theirs),
                },
                self._payload(node),
            )
            for node, theirs in senders.items()
        }
        masked = self.exchanges.ask(
            stage, requests, lambda node, reply: replies.read_masked(reply, self.session, senders[node])
        )
        self._enough(stage, masked)
        return masked

    def _ask_unmask(self, unmasking: Unmasking) -> dict[int, replies.RevealedShares]:
        stage = wire.STAGE_UNMASK
        alive = {node: [node, *unmasking.alive(node)] for node in unmasking.survivors}
        dead = {node: unmasking.dead(node) for node in unmasking.survivors}
        requests = {
            node: self._request(stage, {wire.FIELD_ALIVE: alive[node], wire.FIELD_DEAD: dead[node]})
            for node in unmasking.survivors
        }
        self.exchanges.released = True
        return self.exchanges.ask(
            stage,
            requests,
            lambda node, reply: replies.read_revealed(reply, set(alive[node]), set(dead[node])),
        )

    # -- helpers -------------------------------------------------------------------------------------------

    def _sum(self, vectors: Iterable[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.session.length, self.session.dtype)
        for vector in vectors:
            total += vector
        return keys.reduce_residues(total, self.session)

    def _enough(self, stage: str, answered: Sized) -> None:
        needed = self.settings.min_survivors
        if len(answered) < needed:
            raise self.exchanges.abort(stage, f"{len(answered)} nodes left, min_survivors = {needed}")

    def _description(self) -> dict[str, Any]:
        return {
            wire.FIELD_PURPOSE: self.session.purpose,
            wire.FIELD_LENGTH: self.session.length,
            wire.FIELD_MODULUS_BITS: self.session.modulus_bits,
        }

    def _opening(self) -> dict[str, Any]:
        return {**self._description(), wire.FIELD_MAGNITUDE_LIMIT: self.limit}

    def _payload(self, node: int) -> RecordDict:
        return self.payload if isinstance(self.payload, RecordDict) else self.payload(node)

    def _request(self, stage: str, fields: dict[str, Any], payload: RecordDict | None = None) -> RecordDict:
        content = RecordDict()
        if payload is not None:
            _check_names(payload)
            content.update(payload)
        head: dict[str, Any] = {
            wire.FIELD_SCHEMA: wire.SCHEMA,
            wire.FIELD_STAGE: stage,
            wire.FIELD_SESSION: self.session.session_id,
        }
        content[wire.RECORD_SECURE_SUM] = ConfigRecord({**head, **fields})
        return content
