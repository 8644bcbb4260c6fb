"""Server half of a secure sum: four exchanges, drop-outs at each, an exact sum or a clean abort.

Per session: public keys from everyone; a random neighbour graph over those who answered; sealed Shamir shares,
which the server passes on unread; masked vectors; shares of the self-mask seed for each node whose vector
arrived, of the mask-key seed for each node that was lost in between. Never both for one node.

Sources: Bonawitz et al. 2017; Bell et al. 2020 (neighbour graph).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import graph, keys, replies, shamir
from fedpriv.secure_sum.exchange import BadReply, Exchanges
from fedpriv.secure_sum.keys import Session
from fedpriv.secure_sum.settings import SecureSumResult, SecureSumSettings

if TYPE_CHECKING:
    from flwr.serverapp import Grid

Payload = RecordDict | Callable[[int], RecordDict]

_MAX_RECOVERY_TRIES = 200  # subsets of shares that are tried when some holder's share is wrong


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
        before_unmask: Callable[[list[int]], None] | None = None,
        magnitude_limit: int | None = None,
    ) -> SecureSumResult:
        """Run one session.

        Parameters
        ----------
        node_ids : iterable of int
            Nodes to ask; all different.
        payload : RecordDict or callable
            Records (or a function of the node id) that travel with the masked-input request, for ``produce``.
            Names that begin with "fedpriv.secure-sum" are reserved.
        length : int
            Coordinates of the vectors.
        purpose : str
            What is summed; bound into the keys of the session.
        before_unmask : callable, optional
            ``before_unmask(survivors)`` is called once, after enough masked vectors are in and before any unmask
            request leaves. An exception of its ends the session, with nothing revealed, and is passed on.
        magnitude_limit : int, optional
            Largest absolute value of one client's integers, checked by each client before it masks. It must fit:
            nodes * limit < 2^(b-1). None checks for 2^(b-1) - 1 only, and wrapping is the caller's affair.

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
        self._check(nodes, length, purpose, magnitude_limit)
        bits = self.settings.modulus_bits
        session = Session(keys.new_session_id(), purpose, int(length), bits)
        exchanges = Exchanges(self.grid, session.session_id, self.settings.timeout)
        run = _SessionRun(self.settings, session, exchanges, payload, int(magnitude_limit or 0))
        if self.settings.mode == "simulated":
            total, survivors = run.simulated(nodes, before_unmask)
        else:
            total, survivors = run.protocol(nodes, before_unmask)
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

    def _check(self, nodes: list[int], length: int, purpose: str, limit: int | None) -> None:
        settings = self.settings
        if len(set(nodes)) != len(nodes):
            raise ValueError("node_ids: a node is named twice")
        if len(nodes) < settings.min_survivors:
            raise ValueError(f"node_ids: {len(nodes)} nodes, but min_survivors = {settings.min_survivors}")
        if (
            isinstance(length, bool)
            or not isinstance(length, int | np.integer)
            or not 1 <= length <= wire.MAX_LENGTH
        ):
            raise ValueError(f"length = {length!r}: must be an integer from 1 to {wire.MAX_LENGTH}")
        if not isinstance(purpose, str) or not purpose:
            raise ValueError(f"purpose = {purpose!r}: must be a non-empty string")
        if limit is None:
            return
        room = (1 << (settings.modulus_bits - 1)) - 1
        if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
            raise ValueError(f"magnitude_limit = {limit!r}: must be an integer of at least 1")
        if limit * len(nodes) > room:
            raise ValueError(
                f"magnitude_limit = {limit} of {len(nodes)} nodes could wrap around at modulus_bits = "
                f"{settings.modulus_bits}: at most {room // int(limit)} nodes fit"
            )


class _SessionRun:
    """The stages of one session."""

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

    # -- drivers ------------------------------------------------------------------------------------------------

    def simulated(
        self, nodes: list[int], before_unmask: Callable[[list[int]], None] | None
    ) -> tuple[np.ndarray, list[int]]:
        stage = wire.STAGE_SIMULATED
        described = {**self._description(), wire.FIELD_MAGNITUDE_LIMIT: self.limit}
        requests = {node: self._request(stage, described, self._payload(node)) for node in nodes}
        vectors = self.exchanges.ask(
            stage, requests, lambda _, reply: replies.read_vector(reply, self.session)
        )
        self._enough(stage, vectors)
        survivors = sorted(vectors)
        if before_unmask is not None:
            before_unmask(list(survivors))
        return self._sum(vectors.values()), survivors

    def protocol(
        self, nodes: list[int], before_unmask: Callable[[list[int]], None] | None
    ) -> tuple[np.ndarray, list[int]]:
        public = self._ask_keys(nodes)
        peers = self._draw_graph(public)
        sealed = self._ask_shares(public, peers)
        senders = self._live_senders(sealed, peers)
        masked = self._ask_masked(sealed, senders)
        survivors = sorted(masked)
        lost = sorted(set(senders) - set(masked))
        self._check_recoverable(senders, masked, survivors, lost)
        total = self._sum(answer.vector for answer in masked.values())
        if before_unmask is not None:
            before_unmask(list(survivors))
        shares = self._ask_unmask(senders, survivors)
        self._remove_self_masks(total, survivors, peers, sealed, shares)
        self._remove_pair_masks(total, survivors, lost, senders, peers, public, shares)
        return keys.reduce_residues(total, self.session), survivors

    # -- exchanges ----------------------------------------------------------------------------------------------

    def _ask_keys(self, nodes: list[int]) -> dict[int, replies.Keys]:
        stage = wire.STAGE_KEYS
        described = {**self._description(), wire.FIELD_MAGNITUDE_LIMIT: self.limit}
        probe = X25519PrivateKey.generate()

        def read(node: int, content: RecordDict) -> replies.Keys:
            answer = replies.read_keys(content)
            for key in (answer.mask_key, answer.share_key):
                try:
                    keys.agree(probe, key)
                except ValueError:
                    raise BadReply("a public key is not a valid X25519 key") from None
            return answer

        public = self.exchanges.ask(stage, {node: self._request(stage, described) for node in nodes}, read)
        owners: dict[bytes, list[int]] = {}
        for node, answer in public.items():
            for key in (answer.mask_key, answer.share_key):
                owners.setdefault(key, []).append(node)
        for node in {node for users in owners.values() if len(users) > 1 for node in users}:
            self._exclude(stage, public, node, "a public key was used twice")
        self._enough(stage, public)
        return public

    def _draw_graph(self, public: dict[int, replies.Keys]) -> dict[int, tuple[int, ...]]:
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
        self, public: dict[int, replies.Keys], peers: dict[int, tuple[int, ...]]
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

    def _live_senders(
        self, sealed: dict[int, replies.SealedShares], peers: dict[int, tuple[int, ...]]
    ) -> dict[int, tuple[int, ...]]:
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
        self, sealed: dict[int, replies.SealedShares], senders: dict[int, tuple[int, ...]]
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

    def _check_recoverable(
        self,
        senders: dict[int, tuple[int, ...]],
        masked: dict[int, replies.MaskedVector],
        survivors: Sequence[int],
        lost: Sequence[int],
    ) -> None:
        """Abort while nothing is revealed if some secret has too few holders left."""
        stage = wire.STAGE_MASKED_INPUT
        complaints: dict[int, int] = {}
        for answer in masked.values():
            for peer in answer.unreadable:
                complaints[peer] = complaints.get(peer, 0) + 1
        for peer, count in sorted(complaints.items()):
            self.exchanges.fault(
                peer, wire.STAGE_SHARES, f"its shares were unreadable for {count} neighbours"
            )
        for node in survivors:
            alive = {peer for peer in senders[node] if peer in masked}
            if len(alive) + 1 < self.threshold:
                raise self.exchanges.abort(stage, f"too many neighbours of node {node} were lost")
            readable = sum(1 for peer in alive if node not in masked[peer].unreadable)
            if readable + 1 < self.threshold:
                raise self.exchanges.abort(stage, f"too few shares of node {node} are readable")
        for node in lost:
            alive = {peer for peer in senders[node] if peer in masked}
            readable = sum(1 for peer in alive if node not in masked[peer].unreadable)
            if alive and readable < self.threshold:
                raise self.exchanges.abort(stage, f"too few shares of the lost node {node} are left")

    def _ask_unmask(
        self, senders: dict[int, tuple[int, ...]], survivors: list[int]
    ) -> dict[int, replies.RevealedShares]:
        stage = wire.STAGE_UNMASK
        summed = set(survivors)
        alive = {node: [node, *(peer for peer in senders[node] if peer in summed)] for node in survivors}
        dead = {node: [peer for peer in senders[node] if peer not in summed] for node in survivors}
        requests = {
            node: self._request(stage, {wire.FIELD_ALIVE: alive[node], wire.FIELD_DEAD: dead[node]})
            for node in survivors
        }
        self.exchanges.released = True
        return self.exchanges.ask(
            stage,
            requests,
            lambda node, reply: replies.read_revealed(reply, set(alive[node]), set(dead[node])),
        )

    # -- unmasking ----------------------------------------------------------------------------------------------

    def _remove_self_masks(
        self,
        total: np.ndarray,
        survivors: Iterable[int],
        peers: dict[int, tuple[int, ...]],
        sealed: dict[int, replies.SealedShares],
        shares: dict[int, replies.RevealedShares],
    ) -> None:
        for node in survivors:
            commitment = sealed[node].commitment
            seed = self._recover(
                node,
                peers[node],
                {
                    holder: answer.self_shares[node]
                    for holder, answer in shares.items()
                    if node in answer.self_shares
                },
                lambda seed, node=node, commitment=commitment: keys.same(  # type: ignore[misc]
                    keys.commit_seed(seed, self.session, node), commitment
                ),
            )
            keys.add_mask(total, keys.self_mask_key(seed, self.session, node), -1)

    def _remove_pair_masks(
        self,
        total: np.ndarray,
        survivors: Iterable[int],
        lost: Iterable[int],
        senders: dict[int, tuple[int, ...]],
        peers: dict[int, tuple[int, ...]],
        public: dict[int, replies.Keys],
        shares: dict[int, replies.RevealedShares],
    ) -> None:
        summed = set(survivors)
        for node in lost:
            touched = [peer for peer in senders[node] if peer in summed]
            if not touched:
                continue
            announced = public[node].mask_key
            seed = self._recover(
                node,
                peers[node],
                {
                    holder: answer.key_shares[node]
                    for holder, answer in shares.items()
                    if node in answer.key_shares
                },
                lambda seed, node=node, announced=announced: keys.same(  # type: ignore[misc]
                    keys.public_bytes(keys.mask_private_key(seed, self.session, node)), announced
                ),
            )
            private = keys.mask_private_key(seed, self.session, node)
            for peer in touched:
                key = keys.pair_mask_key(private, public[peer].mask_key, self.session, node, peer)
                keys.add_mask(total, key, -keys.pair_sign(peer, node))

    def _recover(
        self, node: int, peers: tuple[int, ...], held: dict[int, bytes], right: Callable[[bytes], bool]
    ) -> bytes:
        """Secret of a node from the shares of its holders, checked; wrong shares are searched out and named."""
        points = {holder: x for x, holder in enumerate(sorted([node, *peers]), start=1)}
        holders = [holder for holder in sorted(held) if holder in points]
        if len(holders) < self.threshold:
            raise self.exchanges.abort(wire.STAGE_UNMASK, f"too few shares of node {node} were revealed")
        subsets = itertools.islice(itertools.combinations(holders, self.threshold), _MAX_RECOVERY_TRIES)
        for subset in subsets:
            seed = shamir.recover([(points[holder], held[holder]) for holder in subset])
            if right(seed):
                if list(subset) != holders[: self.threshold]:
                    self.exchanges.fault(node, wire.STAGE_UNMASK, "some shares of its secret were wrong")
                return seed
        raise self.exchanges.abort(wire.STAGE_UNMASK, f"the shares of node {node} do not fit its commitment")

    # -- helpers ------------------------------------------------------------------------------------------------

    def _sum(self, vectors: Iterable[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.session.length, self.session.dtype)
        for vector in vectors:
            total += vector
        return keys.reduce_residues(total, self.session)

    def _enough(self, stage: str, answered: Any) -> None:
        needed = self.settings.min_survivors
        if len(answered) < needed:
            raise self.exchanges.abort(stage, f"{len(answered)} nodes left, min_survivors = {needed}")

    def _exclude(self, stage: str, answers: dict[int, Any], node: int, message: str) -> None:
        del answers[node]
        self.exchanges.fault(node, stage, message)
        self.exchanges.drop(stage, {node})

    def _description(self) -> dict[str, Any]:
        return {
            wire.FIELD_PURPOSE: self.session.purpose,
            wire.FIELD_LENGTH: self.session.length,
            wire.FIELD_MODULUS_BITS: self.session.modulus_bits,
        }

    def _payload(self, node: int) -> RecordDict:
        return self.payload(node) if callable(self.payload) else self.payload

    def _request(self, stage: str, fields: dict[str, Any], payload: RecordDict | None = None) -> RecordDict:
        content = RecordDict(dict(payload.items()) if payload is not None else None)
        for name in content:
            if name.startswith(wire.RESERVED_PREFIX):
                raise ValueError(f"payload: record name {name!r} is reserved")
        head = {
            wire.FIELD_SCHEMA: wire.SCHEMA,
            wire.FIELD_STAGE: stage,
            wire.FIELD_SESSION: self.session.session_id,
        }
        content[wire.RECORD_SECURE_SUM] = ConfigRecord({**head, **fields})
        return content
