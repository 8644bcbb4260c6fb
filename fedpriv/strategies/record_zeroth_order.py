"""Server half of zeroth-order fine-tuning whose unit is the record: an average of K private numbers, a step."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument, check_positive
from fedpriv.ledger import Budget
from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.mechanisms.directions import SEED_BYTES, Directions
from fedpriv.mechanisms.parameter_grid import check_resolution
from fedpriv.mechanisms.zeroth_order import PublicStep, replay
from fedpriv.plans.record_zeroth_order import RecordZerothOrderPlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies.base import TrainingStrategy
from fedpriv.strategies.downlink import Downlink, direction_fields
from fedpriv.strategies.noised_sum import NoisedSum
from fedpriv.strategies.silo_sums import AverageOutcome, SiloCheck, SiloSums


class RecordZerothOrder(TrainingStrategy):
    """Fine-tunes a model from K numbers of every silo and round, private for each of its records.

    The client half is :func:`fedpriv.clients.record_zeroth_order_mod`. With ``g_k`` the average over silos of their
    noised mean quotients, the step is ``w <- Proj[w - (eta/K) sum_k g_k u_k]``. Without a ball no model is sent
    after the first.

    Parameters
    ----------
    plan : RecordZerothOrderPlan
        Batches, clip, smoothing, noise, directions.
    sums : NoisedSum
        Ledger (of unit ``record``) and secure-sum settings.
    learning_rate : float
        eta > 0.
    schedule : callable, optional
        Factor on the learning rate by round; 1 by default.
    ball : Ball, optional
        Projection of the model after the step.
    initial_known : bytes, optional
        As for :class:`fedpriv.strategies.ZerothOrder`.
    run, budget, simulation_folder, seed, stage
        As for :class:`fedpriv.strategies.FederatedAverage`.
    """

    def __init__(
        self,
        plan: RecordZerothOrderPlan,
        sums: NoisedSum,
        *,
        learning_rate: float,
        schedule: Callable[[int], float] | None = None,
        ball: Ball | None = None,
        initial_known: bytes = b"",
        run: str = "run",
        budget: Budget | None = None,
        simulation_folder: str = "",
        seed: int | None = None,
        stage: str = "zeroth-order",
    ) -> None:
        super().__init__(plan)
        check_positive(learning_rate=learning_rate)
        self.plan, self.sums, self.learning_rate, self.ball, self.seed = plan, sums, learning_rate, ball, seed
        self.schedule = schedule or (lambda server_round: 1.0)
        self.downlink = Downlink(ball is None, plan.kind, initial_known)
        self.silos = SiloSums(
            plan.silos,
            sums,
            purpose=wire.PURPOSE_RECORD_ZEROTH_ORDER,
            stage=stage,
            run=run,
            budget=budget,
            simulation_folder=simulation_folder,
            seed=seed,
            charged=plan,
        )

    def check_silos(self, grid: Grid, arrays: ArrayRecord, clients: Sequence[int] | None = None) -> SiloCheck:
        """As :meth:`fedpriv.strategies.FederatedAverage.check_silos`."""
        nodes = sorted(grid.get_node_ids()) if clients is None else list(clients)
        content = RecordDict(
            {
                "arrays": arrays,
                wire.RECORD_RECORD_LEVEL: self.silos.record(0),
                wire.RECORD_ZEROTH_ORDER: ConfigRecord({wire.ZEROTH_ORDER_DIRECTIONS: self.plan.directions}),
            }
        )
        return self.silos.check(grid, content, nodes)

    def train_round(
        self,
        grid: Grid,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord | None = None,
        clients: Sequence[int] | None = None,
    ) -> AverageOutcome:
        """Run one round and return the new model.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        server_round : int
            Starting from 1.
        arrays : ArrayRecord
            The current model: its trainable parameters.
        config : ConfigRecord, optional
            Not used.
        clients : sequence of int, optional
            The federation; all nodes that are online by default.

        Raises
        ------
        BudgetExceeded
            When the ledger's budget does not cover the round, or no silo trained in the last one.
        InvalidArgument
            When the arrays or the federation are not those that the plan was made for.
        """
        plan, nodes = self.plan, sorted(grid.get_node_ids()) if clients is None else list(clients)
        given = {name: array.numpy() for name, array in arrays.items()}
        layout = ArrayLayout.of(given)
        if layout.size != plan.dimension:
            raise InvalidArgument(
                f"arrays: {layout.size} coordinates, the plan was made for {plan.dimension}"
            )
        check_resolution(given, plan.smoothing)
        directions = Directions(
            self._direction_seed(server_round), plan.dimension, plan.directions, plan.kind
        )
        self.downlink.start_round(given)
        outcome, mean, went = self.silos.release(
            grid, nodes, lambda node: self._payload(node, directions, server_round), server_round
        )
        survivors = () if isinstance(went, SecureSumAborted) else went.survivors
        self.downlink.finish_round(nodes, survivors, went.errors)
        if mean is None:
            # nobody trained: the model stays; a sum that cannot be read leaves none
            return dataclasses.replace(outcome, arrays=arrays) if outcome.note else outcome
        rate = self.learning_rate * self.schedule(server_round)
        coefficients = tuple(float(c) for c in rate / plan.directions * mean)
        step = PublicStep(directions.seed, plan.kind, coefficients, directions.norms)
        if self.ball is None:
            found = replay(given, [step])
            self.downlink.stepped(step, found)
        else:
            model = layout.flatten(given) - directions.combine(coefficients)
            found = layout.unflatten(self.ball.project(model))
        released = ArrayRecord({name: Array(value) for name, value in found.items()})
        return dataclasses.replace(outcome, arrays=released)

    def _direction_seed(self, server_round: int) -> bytes:
        if self.seed is None:
            return secrets.token_bytes(SEED_BYTES)
        return hashlib.sha256(f"{self.seed}:directions:{server_round}".encode()).digest()[:SEED_BYTES]

    def _payload(self, node: int, directions: Directions, server_round: int) -> RecordDict:
        plan, content = self.plan, self.downlink.payload(node)
        content[wire.RECORD_RECORD_LEVEL] = self.silos.record(server_round)
        content[wire.RECORD_ZEROTH_ORDER] = ConfigRecord(
            {
                **direction_fields(directions),
                wire.ZEROTH_ORDER_DIRECTIONS: plan.directions,
                wire.ZEROTH_ORDER_SMOOTHING: plan.smoothing,
                wire.ZEROTH_ORDER_CLIP: plan.clip,
                wire.ZEROTH_ORDER_BATCH: 0,
                wire.UPDATE_SAMPLING_RATE: 1.0,
                wire.UPDATE_ROUND: server_round,
            }
        )
        return content
