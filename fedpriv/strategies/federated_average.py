"""Server half of record-level training: average of models that are private before they are summed."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument, check_positive
from fedpriv.ledger import Budget, BudgetExceeded
from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.plans.record_level import RecordLevelPlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies.base import SumStrategy
from fedpriv.strategies.noised_sum import NoisedSum

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AverageOutcome:
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
    out_of_budget, without_data : int
        Silos summed that did not train, and why: how many, not which.
    seconds : float
        Time of the exchanges.
    """

    arrays: ArrayRecord | None
    survivors: int
    asked: int
    released: bool
    out_of_budget: int = 0
    without_data: int = 0
    seconds: float = 0.0

    @property
    def trained(self) -> int:
        """Silos whose model is in the average."""
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
        Exception.__init__(
            self,
            f"no silo trained in the last round ({outcome.note})",
        )


class FederatedAverage(SumStrategy):
    """Federated averaging of models that silos train under record-level privacy.

    The client half is :func:`fedpriv.clients.record_level_mod`. Models travel through the secure sum on a grid;
    no noise is added there, because each is private for every record of its silo already.

    Parameters
    ----------
    plan : RecordLevelPlan
        Steps inside a silo, ball, grid.
    sums : NoisedSum
        Ledger (of unit ``record``) and secure-sum settings.
    learning_rate : float
        Of the silos' steps.
    center : ArrayRecord, optional
        Centre of the ball; the origin by default.
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

    Attributes
    ----------
    stopped : str or None
        Why training stopped before its last round, if it did.
    """

    def __init__(
        self,
        plan: RecordLevelPlan,
        sums: NoisedSum,
        *,
        learning_rate: float,
        center: ArrayRecord | None = None,
        run: str = "run",
        budget: Budget | None = None,
        simulation_folder: str = "",
        seed: int | None = None,
        stage: str = "train",
    ) -> None:
        super().__init__()
        check_positive(learning_rate=learning_rate)
        if (seed is not None) != plan.seeded:
            raise InvalidArgument(f"seed: {seed} does not go with a plan whose seeded = {plan.seeded}")
        self.plan, self.sums, self.learning_rate, self.seed = plan, sums, learning_rate, seed
        self.center, self.run, self.budget, self.stage = center, run, budget, stage
        self.simulation_folder = simulation_folder
        self.stopped: str | None = None
        self._last: AverageOutcome | None = None

    def check_silos(self, grid: Grid, arrays: ArrayRecord, clients: Sequence[int] | None = None) -> SiloCheck:
        """Ask every silo, in one exchange, whether its data, account and limits allow the run.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        arrays : ArrayRecord
            The model, for the silos' function.
        clients : sequence of int, optional
            The federation; all nodes that are online by default.
        """
        nodes = sorted(grid.get_node_ids()) if clients is None else list(clients)
        messages = [
            Message(self._payload(arrays, 0), dst_node_id=node, message_type=wire.MESSAGE_TYPE)
            for node in nodes
        ]
        records: dict[int, int] = {}
        refused: dict[int, int] = {}
        for reply in grid.send_and_receive(messages, timeout=self.sums.timeout):
            node = reply.metadata.src_node_id
            if node not in nodes or node in records or node in refused:
                continue  # Flower's word for a node that is gone carries the SuperLink's id
            answer = reply.content.get(wire.RECORD_SILO_CHECK) if reply.has_content() else None
            size = answer.get(wire.SILO_NUM_RECORDS) if isinstance(answer, ConfigRecord) else None
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                records[node] = size
            else:
                code = reply.error.code if reply.has_error() else wire.ErrorCode.MALFORMED
                refused[node] = int(code)
                logger.warning("%s: node %d is not ready: %s", self.stage, node, wire.error_words(int(code)))
        silent = tuple(node for node in nodes if node not in records and node not in refused)
        for node in silent:
            logger.warning("%s: node %d did not answer the check", self.stage, node)
        return SiloCheck(records, refused, silent)

    def train_round(
        self, grid: Grid, server_round: int, arrays: ArrayRecord, clients: Sequence[int] | None = None
    ) -> AverageOutcome:
        """Run one round and return the new model.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        server_round : int
            Starting from 1.
        arrays : ArrayRecord
            The current model.
        clients : sequence of int, optional
            The federation; all nodes that are online by default.

        Raises
        ------
        BudgetExceeded
            When the ledger's budget does not cover the round, or no silo trained in the last one; nothing was
            sent.
        InvalidArgument
            When the model or the federation does not go with the plan; nothing was sent.
        """
        if self._last is not None and self._last.released and self._last.trained <= 0:
            raise NoSiloTrains(self._last)
        plan, nodes = self.plan, sorted(grid.get_node_ids()) if clients is None else list(clients)
        current = {name: array.numpy() for name, array in arrays.items()}
        layout = ArrayLayout.of(current)
        if layout.size != plan.length:
            raise InvalidArgument(f"arrays: {layout.size} coordinates, the plan was made for {plan.length}")
        try:
            result = self.sums.release(
                grid,
                nodes,
                self._payload(arrays, server_round),
                plan,
                plan.sum_noise,
                stage=self.stage,
                server_round=server_round,
                length=plan.grid.length(plan.length),
                modulus_bits=plan.modulus_bits(),
                purpose=wire.PURPOSE_RECORD_LEVEL,
                magnitude=plan.grid.magnitude(plan.num_clients),
            )
        except SecureSumAborted as aborted:
            logger.warning("%s round %d released nothing: %s", self.stage, server_round, aborted)
            return AverageOutcome(None, 0, len(nodes), released=aborted.released)
        try:
            found = plan.grid.decode(result.total, len(result.survivors))
        except InvalidArgument as fault:
            logger.warning("%s round %d is not used: %s", self.stage, server_round, fault)
            return AverageOutcome(None, len(result.survivors), len(nodes), released=True)
        model = arrays
        if found.offset is not None:
            center = self._center(layout)
            projected = Ball(plan.grid.radius, center).project(found.offset + center)
            model = ArrayRecord({name: Array(value) for name, value in layout.unflatten(projected).items()})
        self._last = AverageOutcome(
            model,
            len(result.survivors),
            len(nodes),
            True,
            found.out_of_budget,
            found.without_data,
            sum(result.sum.seconds.values()),
        )
        return self._last

    def _center(self, layout: ArrayLayout) -> np.ndarray:
        if self.center is None:
            return np.zeros(layout.size)
        return layout.flatten({name: array.numpy() for name, array in self.center.items()})

    def _payload(self, arrays: ArrayRecord, server_round: int) -> RecordDict:
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
        content = RecordDict({"arrays": arrays, wire.RECORD_RECORD_LEVEL: ConfigRecord(values)})
        if self.center is not None:
            content["center"] = self.center
        return content

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run the round's exchanges; after the budget or the planned rounds are used up, keep the model."""
        self._arrays = arrays
        if self.stopped is None and server_round > self.plan.rounds:
            self._stop(server_round, f"the noise was made for {self.plan.rounds} rounds")
        if self.stopped is not None:
            return []
        try:
            outcome = self.train_round(grid, server_round, arrays)
        except BudgetExceeded as exceeded:
            self._stop(server_round, str(exceeded))
            return []
        except InvalidArgument as misfit:
            if server_round == 1:
                raise
            # the federation has changed under the plan; an exception here would lose the model
            self._stop(server_round, str(misfit))
            return []
        if outcome.arrays is not None:
            self._arrays = outcome.arrays
        self._metrics = MetricRecord({"survivors": outcome.survivors, "asked": outcome.asked})
        return []

    def _stop(self, server_round: int, why: str) -> None:
        self.stopped = why
        logger.warning("training stops before round %d: %s", server_round, why)

    def summary(self) -> None:
        """Log the plan."""
        for name, value in self.plan.describe().items():
            logger.info("\t%s: %s", name, value)
