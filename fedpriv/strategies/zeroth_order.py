"""Server half of zeroth-order fine-tuning (arXiv 2506.00158): K noised numbers a round, a step, a projection."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument, check_positive
from fedpriv.mechanisms import ArrayLayout, Ball, SecureSource, SeededSource, SelfSampling, gaussian
from fedpriv.mechanisms.directions import SEED_BYTES, Directions
from fedpriv.mechanisms.parameter_grid import check_resolution
from fedpriv.mechanisms.zeroth_order import PublicStep, replay
from fedpriv.plans.zeroth_order import ZerothOrderPlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies.base import TrainingStrategy
from fedpriv.strategies.cohorts import draw_cohort
from fedpriv.strategies.downlink import Downlink, direction_fields
from fedpriv.strategies.dpsgd_dc import RoundOutcome
from fedpriv.strategies.noised_sum import NoisedSum

logger = logging.getLogger(__name__)

Schedule = Callable[[int], float]
"""From the round (1, 2, ...) to a factor on the learning rate."""


class ZerothOrder(TrainingStrategy):
    """Fine-tunes a model from K two-point quotients a round; no gradient and no update leaves a client.

    The client half is :func:`fedpriv.clients.zeroth_order_mod`. With ``g_k`` the noised sum of clipped
    quotients over the fixed expected cohort, the step is

        w <- Proj[ w - (eta/K) sum_k g_k u_k + eta sqrt((1 - beta)/d) sigma N(0, I_d) ],

    where the noise of ``g_k`` has variance ``K beta sigma^2``. With beta = 1 and no ball the clients rebuild the
    model from the seeds and the released numbers, and no model is sent after the first.

    Parameters
    ----------
    plan : ZerothOrderPlan
        Sampling, clip, smoothing, noise, directions.
    sums : NoisedSum
        Ledger and secure-sum settings.
    learning_rate : float
        eta > 0.
    schedule : callable, optional
        Factor on the learning rate by round; 1 by default.
    ball : Ball, optional
        Projection of the model after the step.
    batch_size : int
        Records that a client uses in a round; 0 for all of them.
    initial_known : bytes, optional
        `fedpriv.mechanisms.model_identity.model_identity` of the initial arrays, when the clients' mods build
        them by ``initial``.
    seed : int or None
        Seed of noise and directions; only for simulations that are declared not private.
    stage : str
        Name under which the ledger charges the rounds.

    Attributes
    ----------
    stopped : str or None
        Why fine-tuning stopped before its last round, if it did.
    """

    def __init__(
        self,
        plan: ZerothOrderPlan,
        sums: NoisedSum,
        *,
        learning_rate: float,
        schedule: Schedule | None = None,
        ball: Ball | None = None,
        batch_size: int = 0,
        initial_known: bytes = b"",
        seed: int | None = None,
        stage: str = "zeroth-order",
    ) -> None:
        super().__init__(plan)
        check_positive(learning_rate=learning_rate)
        if (seed is not None) != plan.noise.seeded:
            raise InvalidArgument(
                f"seed: {seed} does not go with a plan whose noise.seeded = {plan.noise.seeded}"
            )
        self.plan, self.sums, self.ball, self.seed, self.stage = plan, sums, ball, seed, stage
        self.learning_rate, self.batch_size = learning_rate, batch_size
        self.schedule: Schedule = schedule or (lambda server_round: 1.0)
        steps_only = not plan.has_isotropic_noise and ball is None
        self.downlink = Downlink(steps_only, plan.kind, initial_known)

    def train_round(
        self,
        grid: Grid,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord | None = None,
        clients: Sequence[int] | None = None,
    ) -> RoundOutcome:
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
            Not used: clients are told all they need by the plan.
        clients : sequence of int, optional
            The federation; all nodes that are online by default.

        Returns
        -------
        RoundOutcome
            With ``arrays`` None when too few clients survived before anything was released.

        Raises
        ------
        BudgetExceeded
            Before anything is sent.
        InvalidArgument
            When the arrays, the clients or the round are not those that the plan was made for.
        """
        plan, sums = self.plan, self.plan.sums
        if not 1 <= server_round <= plan.rounds:
            raise InvalidArgument(
                f"server_round: {server_round} is outside 1 .. {plan.rounds}, the rounds that the noise was "
                "made for"
            )
        given = {name: array.numpy() for name, array in arrays.items()}
        layout = ArrayLayout.of(given)
        if layout.size != plan.dimension:
            raise InvalidArgument(
                f"arrays: {layout.size} coordinates, the plan was made for {plan.dimension}"
            )
        check_resolution(given, plan.smoothing)
        clients = list(grid.get_node_ids()) if clients is None else list(clients)
        cohort = draw_cohort(sums, clients, self.stage, server_round)
        if cohort is None:
            return RoundOutcome(None, 0, 0, released=False)
        directions = Directions(
            self._direction_seed(server_round), plan.dimension, plan.directions, plan.kind
        )
        self.downlink.start_round(given)
        try:
            result = self.sums.release(
                grid,
                cohort.asked,
                lambda node: self._payload(node, directions, server_round, idle=node in cohort.outside),
                plan,
                plan.noise,
                stage=self.stage,
                server_round=server_round,
                length=plan.directions,
                modulus_bits=sums.modulus_bits(),
                purpose=wire.PURPOSE_ZEROTH_ORDER,
                magnitude=sums.magnitude(),
                repeats=sums.sampler.asks_all and server_round < plan.rounds,
            )
        except SecureSumAborted as aborted:
            self.downlink.finish_round(cohort.asked, (), aborted.errors)
            logger.warning("%s round %d released nothing: %s", self.stage, server_round, aborted)
            return RoundOutcome(None, 0, len(cohort.asked), released=aborted.released)
        self.downlink.finish_round(cohort.asked, result.survivors, result.sum.errors)
        averaged = sums.codec.decode(result.total) / sums.divisor
        released = self._step(given, layout, directions, averaged, server_round)
        return RoundOutcome(
            ArrayRecord({name: Array(value) for name, value in released.items()}),
            len(result.survivors),
            len(cohort.asked),
            True,
            sum(result.sum.seconds.values()),
        )

    def _step(
        self,
        current: dict[str, np.ndarray],
        layout: ArrayLayout,
        directions: Directions,
        averaged: np.ndarray,
        server_round: int,
    ) -> dict[str, np.ndarray]:
        plan = self.plan
        rate = self.learning_rate * self.schedule(server_round)
        coefficients = tuple(float(c) for c in rate / plan.directions * averaged)
        step = PublicStep(directions.seed, plan.kind, coefficients, directions.norms)
        if self.downlink.steps_only:
            found = replay(current, [step])
            self.downlink.stepped(step, found)
            return found
        model = layout.flatten(current) - directions.combine(coefficients)
        if plan.has_isotropic_noise:
            source = (
                SecureSource() if self.seed is None else SeededSource(str(self.seed), "around", server_round)
            )
            model = model + gaussian(plan.isotropic_std(rate), model.size, source)
        if self.ball is not None:
            model = self.ball.project(model)
        return layout.unflatten(model)

    def _direction_seed(self, server_round: int) -> bytes:
        if self.seed is None:
            return secrets.token_bytes(SEED_BYTES)
        return hashlib.sha256(f"{self.seed}:directions:{server_round}".encode()).digest()[:SEED_BYTES]

    def _payload(self, node: int, directions: Directions, server_round: int, *, idle: bool) -> RecordDict:
        plan, sampler = self.plan, self.plan.sampler
        content = self.downlink.payload(node)
        rate = sampler.rate if isinstance(sampler, SelfSampling) else 1.0
        content[wire.RECORD_ZEROTH_ORDER] = ConfigRecord(
            {
                **direction_fields(directions),
                wire.ZEROTH_ORDER_DIRECTIONS: plan.directions,
                wire.ZEROTH_ORDER_SMOOTHING: plan.smoothing,
                wire.ZEROTH_ORDER_CLIP: plan.clip,
                wire.ZEROTH_ORDER_BATCH: self.batch_size,
                wire.UPDATE_CLIP_UNITS: plan.sums.codec.clip_units,
                wire.UPDATE_SAMPLING_RATE: 0.0 if idle else rate,
                wire.UPDATE_IDLE_TRAINS: plan.sums.idle_clients_train and not idle,
                wire.UPDATE_ROUND: server_round,
                wire.NOISE_SHARE_STD: plan.noise.share_std_units,
                wire.NOISE_SEED: "" if self.seed is None else str(self.seed),
            }
        )
        return content
