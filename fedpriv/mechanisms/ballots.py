"""The ballot of DP-HYPE (arXiv 2510.04902): each client approves its k best candidates."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.accounting.validators import InvalidArgument, check_integer
from fedpriv.accounting.vocabulary import Adjacency
from fedpriv.accounting.votes import vote_sensitivity


@dataclass(frozen=True)
class Ballot:
    """A 0/1 vector over the candidates with at most ``votes`` ones.

    Parameters
    ----------
    candidates : int
        Number of candidates p, at least 1.
    votes : int
        Approvals per client, k in 1 .. p.
    """

    candidates: int
    votes: int

    def __post_init__(self) -> None:
        check_integer(0, candidates=self.candidates, votes=self.votes)
        if self.candidates < 1:
            raise InvalidArgument("candidates: the grid is empty, at least one candidate is needed")
        if not 1 <= self.votes <= self.candidates:
            raise InvalidArgument(
                f"votes: {self.votes} is outside 1 .. {self.candidates} (the number of candidates)"
            )

    def sensitivity(self, adjacency: Adjacency) -> float:
        """L2 sensitivity of the summed ballots to one client.

        add_or_remove: sqrt(k), a ballot against zeros. replace_one: two ballots of k ones differ in at
        most 2 min(k, p - k) places, and a ballot against an abstention in k.
        """
        between_ballots = vote_sensitivity(self.votes, self.candidates, adjacency)
        against_abstention = vote_sensitivity(self.votes, self.candidates, "add_or_remove")
        return max(between_ballots, against_abstention)

    def cast(self, losses: Sequence[float]) -> np.ndarray:
        """Vote for the ``votes`` lowest losses.

        Parameters
        ----------
        losses : sequence of float
            One loss per candidate. NaN and infinities count as worst. Ties are broken by a permutation
            drawn from the operating system, so that position carries no advantage. A client whose losses
            are all NaN or infinite abstains.

        Returns
        -------
        np.ndarray
            Shape (candidates,), int64, with ``votes`` ones (or all zeros for an abstention).

        Examples
        --------
        >>> Ballot(candidates=4, votes=2).cast([0.9, 0.1, float("nan"), 0.3]).tolist()
        [0, 1, 0, 1]
        """
        if len(losses) != self.candidates:
            raise InvalidArgument(f"losses: {len(losses)} values for {self.candidates} candidates")
        values = np.asarray(losses, dtype=np.float64)
        values = np.where(np.isfinite(values), values, np.inf)
        if not np.any(np.isfinite(values)):
            return self.abstain()
        order = list(range(self.candidates))
        secrets.SystemRandom().shuffle(order)
        best = sorted(order, key=lambda index: values[index])[: self.votes]
        ballot = self.abstain()
        ballot[best] = 1
        return ballot

    def abstain(self) -> np.ndarray:
        """The zero ballot of a client that cannot evaluate (it still adds its noise share)."""
        return np.zeros(self.candidates, dtype=np.int64)

    @staticmethod
    def winner(tallies: np.ndarray) -> int:
        """Index of the largest noisy tally; exact ties are broken at random (operating system)."""
        best = np.flatnonzero(tallies == np.max(tallies))
        return int(best[secrets.randbelow(len(best))])
