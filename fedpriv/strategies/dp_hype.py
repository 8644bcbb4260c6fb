"""Server half of DP-HYPE (arXiv 2510.04902): one noised secure sum of all ballots."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.plans import VotePlan
from fedpriv.strategies.base import SumStrategy
from fedpriv.strategies.noised_sum import NoisedSum, NoisedSumResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VoteOutcome:
    """What the vote released.

    Parameters
    ----------
    winner : int
        Index of the chosen candidate.
    candidate : dict
        The chosen candidate.
    tallies : np.ndarray
        Shape (candidates,), noisy tallies in votes.
    result : NoisedSumResult
        Who was summed, bytes, seconds.
    """

    winner: int
    candidate: dict[str, Any]
    tallies: np.ndarray
    result: NoisedSumResult


class DpHype(SumStrategy):
    """Lets clients choose hyperparameters in one private vote.

    Use ``vote(grid)`` from a ServerApp; or ``start`` with ``num_rounds=1``, whose result holds the tallies.
    The client half is :func:`fedpriv.clients.dp_hype_mod`.

    Parameters
    ----------
    candidates : sequence of mapping
        The grid; values must be JSON (numbers, strings, booleans).
    plan : VotePlan
        Votes per client, noise, adjacency.
    sums : NoisedSum
        Ledger and secure-sum settings.
    seed : int or None
        Seed of the clients' noise; only for simulations that are declared not private.
    stage : str
        Name under which the ledger charges the vote.
    """

    def __init__(
        self,
        candidates: Sequence[Mapping[str, Any]],
        plan: VotePlan,
        sums: NoisedSum,
        *,
        seed: int | None = None,
        stage: str = "tune",
    ) -> None:
        super().__init__()
        self.candidates = [dict(candidate) for candidate in candidates]
        if len(self.candidates) != plan.ballot.candidates:
            raise InvalidArgument(
                f"candidates: {len(self.candidates)} given, the plan was made for {plan.ballot.candidates}"
            )
        try:
            self._sent = json.dumps(self.candidates, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"candidates: values must be JSON: {error}") from None
        if (seed is not None) != plan.noise.seeded:
            raise InvalidArgument(
                f"seed: {seed} does not go with a plan whose noise.seeded = {plan.noise.seeded}"
            )
        self.plan, self.sums, self.seed, self.stage = plan, sums, seed, stage
        self.outcome: VoteOutcome | None = None

    def vote(self, grid: Grid, clients: Sequence[int] | None = None) -> VoteOutcome:
        """Hold the vote.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        clients : sequence of int, optional
            Node ids to ask; all that are online by default.

        Raises
        ------
        BudgetExceeded, SecureSumAborted
            See :meth:`NoisedSum.release`.
        """
        plan = self.plan
        vote: dict[str, Any] = {
            wire.VOTE_CANDIDATES: self._sent,
            wire.VOTE_VOTES: plan.ballot.votes,
            wire.VOTE_UNITS: plan.units_per_vote,
            wire.NOISE_SHARE_STD: plan.noise.share_std_units,
            wire.NOISE_SEED: "" if self.seed is None else str(self.seed),
        }
        payload = RecordDict({wire.RECORD_VOTE: ConfigRecord(vote)})
        result = self.sums.release(
            grid,
            list(grid.get_node_ids()) if clients is None else clients,
            payload,
            plan,
            plan.noise,
            stage=self.stage,
            server_round=1,
            length=plan.ballot.candidates,
            modulus_bits=plan.modulus_bits(),
            purpose=wire.PURPOSE_VOTE,
            magnitude=plan.magnitude(),
        )
        tallies = result.total / plan.units_per_vote
        winner = plan.ballot.winner(result.total)
        self.outcome = VoteOutcome(winner, self.candidates[winner], tallies, result)
        return self.outcome

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Hold the vote once; ``aggregate_train`` returns the tallies as an ArrayRecord.

        The clients' evaluation function gets a candidate and its own context, so ``config`` is not sent.
        """
        if self.outcome is None:
            outcome = self.vote(grid)
            self._arrays = ArrayRecord([outcome.tallies])
            self._metrics = MetricRecord(
                {"winner": outcome.winner, "survivors": len(outcome.result.survivors)}
            )
        return []

    def summary(self) -> None:
        """Log the vote's parameters."""
        for name, value in self.plan.describe().items():
            logger.info("\t%s: %s", name, value)
