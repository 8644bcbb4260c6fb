"""Taking the masks off: which secrets can be recovered, recovering them, subtracting their masks.

For a node whose vector is in the sum the self-mask seed is recovered; for a node that was lost after the
shares were dealt, the mask-key seed, to take off what its neighbours added for it. Every recovered secret
is checked against what its owner announced (a hash of the self-mask seed, the public mask key), so a wrong
share can never make a wrong sum.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpriv import wire
from fedpriv.secure_sum import keys, shamir
from fedpriv.secure_sum.exchange import Exchanges
from fedpriv.secure_sum.keys import Session
from fedpriv.secure_sum.replies import Keys, MaskedVector, RevealedShares, SealedShares

_RECOVERY_TRIES = 200  # random subsets of the shares that are tried when some holder's share is wrong

Neighbours = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Unmasking:
    """What the server knows once the masked vectors are in.

    Parameters
    ----------
    session : Session
        The session.
    threshold : int
        Shamir threshold.
    peers : mapping
        Node -> its neighbours when the shares were dealt: with the node itself, in sorted order, they hold
        the shares at x = 1, 2, ...
    senders : mapping
        Node -> neighbours whose shares it was given; nodes that were asked for a masked vector.
    public, sealed, masked : mapping
        Replies of the first three exchanges.
    """

    session: Session
    threshold: int
    peers: Neighbours
    senders: Neighbours
    public: Mapping[int, Keys]
    sealed: Mapping[int, SealedShares]
    masked: Mapping[int, MaskedVector]

    @property
    def survivors(self) -> list[int]:
        """Nodes in the sum, sorted."""
        return sorted(self.masked)

    @property
    def lost(self) -> list[int]:
        """Nodes that dealt shares and were asked, but are not in the sum, sorted."""
        return sorted(set(self.senders) - set(self.masked))

    def alive(self, node: int) -> list[int]:
        """Neighbours of a node that are in the sum."""
        return [peer for peer in self.senders[node] if peer in self.masked]

    def dead(self, node: int) -> list[int]:
        """Neighbours of a node that were asked and are not in the sum."""
        return [peer for peer in self.senders[node] if peer not in self.masked]

    def check(self, exchanges: Exchanges) -> None:
        """Abort, while nothing is revealed, if some secret has too few readable shares left."""
        stage = wire.STAGE_MASKED_INPUT
        for node in self.senders:
            blind = [peer for peer, answer in self.masked.items() if node in answer.unreadable]
            if blind:
                words = f"its shares were unreadable for {len(blind)} neighbours"
                exchanges.fault(node, wire.STAGE_SHARES, words)
            alive = self.alive(node)
            summed = node in self.masked
            if not summed and not alive:
                continue
            holders = len(set(alive) - set(blind)) + summed
            if holders < self.threshold:
                raise exchanges.abort(
                    stage,
                    f"{holders} of {len(self.peers[node]) + 1} shares of node {node} are left, "
                    f"{self.threshold} are needed",
                )

    def remove_masks(
        self, total: np.ndarray, shares: Mapping[int, RevealedShares], exchanges: Exchanges
    ) -> None:
        """Subtract all masks from the sum of the masked vectors, in place.

        Parameters
        ----------
        total : numpy.ndarray of unsigned integers, shape (length,)
            Sum of the masked vectors; afterwards the sum of the vectors, in its low b bits.
        shares : mapping
            Holder -> what it revealed.
        exchanges : Exchanges
            Notes faults; makes the exception if a secret cannot be recovered.
        """
        session = self.session
        for node in self.survivors:
            held = {h: s.self_shares[node] for h, s in shares.items() if node in s.self_shares}
            seed = self._recover(exchanges, node, held, self._is_self_seed)
            keys.add_mask(total, keys.self_mask_key(seed, session, node), -1)
        for node in self.lost:
            touched = self.alive(node)
            if not touched:
                continue
            held = {h: s.key_shares[node] for h, s in shares.items() if node in s.key_shares}
            seed = self._recover(exchanges, node, held, self._is_key_seed)
            private = keys.mask_private_key(seed, session, node)
            for peer in touched:
                key = keys.pair_mask_key(private, self.public[peer].mask_key, session, node, peer)
                keys.add_mask(total, key, -keys.pair_sign(peer, node))

    def _is_self_seed(self, node: int, seed: bytes) -> bool:
        return keys.same(keys.commit_seed(seed, self.session, node), self.sealed[node].commitment)

    def _is_key_seed(self, node: int, seed: bytes) -> bool:
        public = keys.public_bytes(keys.mask_private_key(seed, self.session, node))
        return keys.same(public, self.public[node].mask_key)

    def _recover(
        self,
        exchanges: Exchanges,
        node: int,
        held: Mapping[int, bytes],
        is_right: Callable[[int, bytes], bool],
    ) -> bytes:
        stage = wire.STAGE_UNMASK
        point = {holder: x for x, holder in enumerate(sorted([node, *self.peers[node]]), start=1)}
        holders = sorted(holder for holder in held if holder in point)
        if len(holders) < self.threshold:
            raise exchanges.abort(
                stage, f"{len(holders)} shares of node {node} were revealed, {self.threshold} are needed"
            )
        for subset in self._subsets(holders):
            shares = [(point[holder], held[holder]) for holder in subset]
            seed = shamir.recover(shares)
            if not is_right(node, seed):
                continue
            if list(subset) != holders[: self.threshold]:
                for holder in holders:
                    if shamir.recover(shares, at=point[holder]) != held[holder]:
                        words = f"the share of node {node} that it revealed, or was dealt, is wrong"
                        exchanges.fault(holder, stage, words)
            return seed
        raise exchanges.abort(stage, f"the shares of node {node} do not fit what it announced")

    def _subsets(self, holders: list[int]) -> Iterable[list[int]]:
        yield holders[: self.threshold]
        if len(holders) > self.threshold:
            random = secrets.SystemRandom()
            for _ in range(_RECOVERY_TRIES):
                yield sorted(random.sample(holders, self.threshold))
