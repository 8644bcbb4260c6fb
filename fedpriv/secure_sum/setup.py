"""Set-up of one session at the server: public keys, the neighbour graph, sealed shares.

A `SetUp` says what to ask and takes what was answered; which messages carry it is its caller's affair. It
depends on no client's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord

from fedpriv import wire
from fedpriv.secure_sum import graph
from fedpriv.secure_sum.keys import Session
from fedpriv.secure_sum.replies import Keys, SealedShares
from fedpriv.secure_sum.settings import SecureSumSettings

Neighbours = dict[int, tuple[int, ...]]


class SetUp:
    """Keys and shares of one session, as far as they have come.

    Parameters
    ----------
    settings : SecureSumSettings
        Threshold and neighbours.
    session : Session
        What is summed.
    limit : int
        Largest absolute value of a client's integers; 0 for what the modulus allows.

    Attributes
    ----------
    public : dict
        Node -> its public keys.
    peers : dict
        Node -> its neighbours.
    sealed : dict
        Node -> the shares that it dealt.
    threshold : int
        Shares that recover a secret.
    """

    def __init__(self, settings: SecureSumSettings, session: Session, limit: int) -> None:
        self.settings, self.session, self.limit = settings, session, limit
        self.public: Mapping[int, Keys] = {}
        self.peers: Neighbours = {}
        self.sealed: Mapping[int, SealedShares] = {}
        self.threshold = 0

    @property
    def degree(self) -> int:
        """Neighbours of each node; 0 before the graph is drawn."""
        return len(next(iter(self.peers.values()))) if self.peers else 0

    def record(self, stage: str, fields: dict[str, Any]) -> ConfigRecord:
        """A request's record."""
        head: dict[str, Any] = {
            wire.FIELD_SCHEMA: wire.SCHEMA,
            wire.FIELD_STAGE: stage,
            wire.FIELD_SESSION: self.session.session_id,
        }
        return ConfigRecord({**head, **fields})

    def description(self) -> dict[str, Any]:
        """What is summed, as the fields of a request."""
        return {
            wire.FIELD_PURPOSE: self.session.purpose,
            wire.FIELD_LENGTH: self.session.length,
            wire.FIELD_MODULUS_BITS: self.session.modulus_bits,
        }

    def opening(self) -> dict[str, Any]:
        """Fields of the request that opens the session."""
        return {**self.description(), wire.FIELD_MAGNITUDE_LIMIT: self.limit}

    def take_keys(self, public: Mapping[int, Keys]) -> set[int]:
        """Keep the keys of all nodes but those that share a key with another, which are returned."""
        owners: dict[bytes, list[int]] = {}
        for node, answer in public.items():
            for key in (answer.mask_key, answer.share_key):
                owners.setdefault(key, []).append(node)
        doubled = {node for users in owners.values() if len(users) > 1 for node in users}
        self.public = {node: answer for node, answer in public.items() if node not in doubled}
        return doubled

    def draw_graph(self) -> None:
        """Draw every node's neighbours among those whose keys are there.

        Raises
        ------
        ValueError
            If the configured threshold does not fit so many neighbours.
        """
        wanted = self.settings.neighbours or graph.neighbours_for(len(self.public))
        self.peers = graph.neighbour_graph(self.public, wanted)
        holders = self.degree + 1
        self.threshold = self.settings.share_threshold or graph.default_threshold(holders)
        if not holders < 2 * self.threshold <= 2 * holders:
            raise ValueError(
                f"share_threshold = {self.threshold} does not fit {holders} holders per neighbourhood: "
                f"it must be from {holders // 2 + 1} to {holders}"
            )

    def shares_fields(self, node: int) -> dict[str, Any]:
        """Fields of the request for a node's shares."""
        peers = self.peers[node]
        return {
            wire.FIELD_THRESHOLD: self.threshold,
            wire.FIELD_NEIGHBOURS: list(peers),
            wire.FIELD_MASK_KEYS: b"".join(self.public[peer].mask_key for peer in peers),
            wire.FIELD_SHARE_KEYS: b"".join(self.public[peer].share_key for peer in peers),
        }

    def delivery(self, node: int, senders: Iterable[int]) -> dict[str, Any]:
        """Fields of the masked-input request: the shares that these neighbours dealt to the node."""
        senders = list(senders)
        return {
            **self.description(),
            wire.FIELD_NEIGHBOURS: senders,
            wire.FIELD_SHARES: b"".join(self.sealed[peer].boxes[node] for peer in senders),
        }

    def senders(self) -> tuple[Neighbours, set[int]]:
        """Neighbours with shares of every node that still has enough of them, and the nodes that have not."""
        live, lost = set(self.sealed), set[int]()
        while True:
            senders = {
                node: tuple(peer for peer in self.peers[node] if peer in live) for node in sorted(live)
            }
            alone = {node for node, theirs in senders.items() if len(theirs) + 1 < self.threshold}
            if not alone:
                return senders, lost
            live -= alone
            lost |= alone
