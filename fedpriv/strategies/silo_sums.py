"""What the server halves of record-level stages share: the request of a silo, the check before a run, one sum."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.ledger import Budget, BudgetExceeded
from fedpriv.plans import Plan, RecordLevelPlan
from fedpriv.secure_sum import SecureSumAborted, SecureSumResult
from fedpriv.strategies.dpsgd_dc import RoundOutcome
from fedpriv.strategies.noised_sum import NoisedSum

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AverageOutcome(RoundOutcome):
    """One round.

    Parameters
    ----------
    arrays : ArrayRecord or None
        The new model; the old one when nobody trained; None when nothing was released.
    survivors : int
        Silos summed, those that did not train included.
    asked : int
        Silos asked.
    released : bool
        Whether the round was charged.
    seconds : float
        Time of the exchanges.
    out_of_budget, without_data : int
        Silos summed that did not train, and why: how many, not which.
    """

    out_of_budget: int = 0
    without_data: int = 0

    @property
    def trained(self) -> int:
        """Silos whose contribution is in the average."""
        return self.survivors - self.out_of_budget - self.without_data

    @property
    def note(self) -> str:
        """How many silos did not train, and why; empty when all did."""
        if self.trained == self.survivors:
            return ""
        return (
            f"{self.trained} of {self.survivors} silos trained: {self.out_of_budget} have no budget left in their own "
            f"accounts (or cannot write them), {self.without_data} have no usable data"
        )


@dataclass(frozen=True)
class SiloCheck:
    """Answers to a check before the run.

    Parameters
    ----------
    records : dict of int to int
        Node id -> number of records, of the silos that are ready.
    refused : dict of int to int
        Node id -> code of the refusal (``fedpriv.wire.ErrorCode``).
    silent : tuple of int
        Node ids that did not answer.
    """

    records: dict[int, int] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    silent: tuple[int, ...] = ()


class NoSiloTrains(BudgetExceeded):
    """Every silo has used up its own budget, or has no data: another round would train nothing."""

    def __init__(self, outcome: AverageOutcome) -> None:
        # not BudgetExceeded's own words: no epsilon of this server's ledger is at its limit
        Exception.__init__(self, f"no silo trained in the last round ({outcome.note})")


class SiloSums:
    """Secure sums of what silos made private for each of their records.

    Parameters
    ----------
    plan : RecordLevelPlan
        Steps inside a silo, ball, grid.
    sums : NoisedSum
        Ledger (of unit ``record``) and secure-sum settings.
    purpose : str
        Purpose of the sums.
    learning_rate : float
        Of the silos' steps.
    run : str
        Name under which silos write the run into their accounts.
    budget : Budget, optional
        The run's limit, which silos hold too; each silo may have a smaller one of its own.
    simulation_folder : str
        Where simulated silos, which have no disk of their own, keep their accounts.
    seed : int or None
        Seed of batches and noise; only for simulations that are declared not private.
    stage : str
        Name under which ledger and accounts charge the rounds.
    charged : Plan, optional
        The plan that the ledger describes; ``plan`` by default. Its events are those of ``plan``.
    """

    def __init__(
        self,
        plan: RecordLevelPlan,
        sums: NoisedSum,
        *,
        purpose: str,
        stage: str,
        learning_rate: float = 1.0,
        run: str = "run",
        budget: Budget | None = None,
        simulation_folder: str = "",
        seed: int | None = None,
        charged: Plan | None = None,
    ) -> None:
        if (seed is not None) != plan.seeded:
            raise InvalidArgument(f"seed: {seed} does not go with a plan whose seeded = {plan.seeded}")
        self.plan, self.sums, self.purpose, self.stage = plan, sums, purpose, stage
        self.learning_rate, self.run, self.seed = learning_rate, run, seed
        self.budget, self.simulation_folder = budget, simulation_folder
        self.charged = plan if charged is None else charged
        self._last: AverageOutcome | None = None

    def record(self, server_round: int) -> ConfigRecord:
        """The request's record; round 0 for a check."""
        steps, grid = self.plan.steps, self.plan.grid
        limit = None if self.budget is None or math.isinf(self.budget.max_epsilon) else self.budget
        values: dict[str, Any] = {
            wire.UPDATE_CLIPPING_NORM: steps.codec.clipping_norm,
            wire.UPDATE_CLIP_UNITS: steps.codec.clip_units,
            wire.SILO_SAMPLING_RATE: steps.sampling_rate,
            wire.SILO_NOISE_STD: steps.noise_std_units,
            wire.SILO_STEPS: steps.steps,
            wire.SILO_ADJACENCY: steps.adjacency,
            wire.SILO_LEARNING_RATE: self.learning_rate,
            wire.SILO_RADIUS: grid.radius,
            wire.SILO_RADIUS_UNITS: grid.radius_units,
            wire.SILO_MAX_WEIGHT: grid.max_weight,
            wire.SILO_RUN: self.run,
            wire.SILO_STAGE: self.stage,
            wire.SILO_MAX_EPSILON: 0.0 if limit is None else limit.max_epsilon,
            wire.SILO_DELTA: 0.0 if limit is None else limit.delta,
            wire.SILO_SIMULATION_FOLDER: self.simulation_folder,
            wire.UPDATE_ROUND: server_round,
            wire.NOISE_SEED: "" if self.seed is None else str(self.seed),
        }
        return ConfigRecord(values)

    def check(self, grid: Grid, content: RecordDict, clients: Sequence[int]) -> SiloCheck:
        """Ask every silo, in one exchange, whether its data, account and limits allow the run.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        content : RecordDict
            A request as for a round.
        clients : sequence of int
            The federation.
        """
        messages = [Message(content, dst_node_id=node, message_type=wire.MESSAGE_TYPE) for node in clients]
        records: dict[int, int] = {}
        refused: dict[int, int] = {}
        for reply in grid.send_and_receive(messages, timeout=self.sums.timeout):
            node = reply.metadata.src_node_id
            if node not in clients or node in records or node in refused:
                continue  # Flower's word for a node that is gone carries the SuperLink's id
            answer = reply.content.get(wire.RECORD_SILO_CHECK) if reply.has_content() else None
            size = answer.get(wire.SILO_NUM_RECORDS) if isinstance(answer, ConfigRecord) else None
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                records[node] = size
                continue
            code = int(reply.error.code if reply.has_error() else wire.ErrorCode.MALFORMED)
            refused[node] = code
            logger.warning("%s: node %d is not ready: %s", self.stage, node, wire.error_words(code))
        silent = tuple(node for node in clients if node not in records and node not in refused)
        for node in silent:
            logger.warning("%s: node %d did not answer the check", self.stage, node)
        return SiloCheck(records, refused, silent)

    def release(
        self,
        grid: Grid,
        clients: Sequence[int],
        payload: RecordDict | Callable[[int], RecordDict],
        server_round: int,
    ) -> tuple[AverageOutcome, NDArray[np.float64] | None, SecureSumResult | SecureSumAborted]:
        """One sum, charged before it is asked for.

        Returns
        -------
        (AverageOutcome, np.ndarray or None, SecureSumResult or SecureSumAborted)
            The outcome without a model; the weighted mean of what the silos sent, shape (d,), or None where there
            is none; and how the secure sum went.

        Raises
        ------
        BudgetExceeded
            When the ledger's budget does not cover the round, or no silo trained in the last one; nothing was
            sent.
        """
        if self._last is not None and self._last.trained <= 0:
            raise NoSiloTrains(self._last)
        plan = self.plan
        try:
            result = self.sums.release(
                grid,
                clients,
                payload,
                self.charged,
                plan.sum_noise,
                stage=self.stage,
                server_round=server_round,
                length=plan.grid.length(plan.length),
                modulus_bits=plan.modulus_bits(),
                purpose=self.purpose,
                magnitude=plan.grid.magnitude(plan.num_clients),
                repeats=server_round < plan.num_rounds,
            )
        except SecureSumAborted as aborted:
            logger.warning("%s round %d released nothing: %s", self.stage, server_round, aborted)
            return AverageOutcome(None, 0, len(clients), released=aborted.released), None, aborted
        outcome = AverageOutcome(
            None, len(result.survivors), len(clients), True, seconds=sum(result.sum.seconds.values())
        )
        try:
            found = plan.grid.decode(result.total, len(result.survivors))
        except InvalidArgument as fault:
            logger.warning("%s round %d is not used: %s", self.stage, server_round, fault)
            return outcome, None, result.sum
        outcome = dataclasses.replace(
            outcome, out_of_budget=found.out_of_budget, without_data=found.without_data
        )
        self._last = outcome
        return outcome, found.offset, result.sum
