"""Server half of client-level DPSGD-DC (arXiv 2502.17772): noised sum, fixed divisor, step, projection."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument, check_non_negative
from fedpriv.mechanisms import (
    ArrayLayout,
    Ball,
    SecureSource,
    SeededSource,
    SelfSampling,
    gaussian,
)
from fedpriv.plans import DpsgdDcPlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies.base import TrainingStrategy
from fedpriv.strategies.cohorts import draw_cohort
from fedpriv.strategies.noised_sum import NoisedSum
from fedpriv.strategies.optimizers import ServerOptimizer, ServerSgd, cosine_factor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundOutcome:
    """One round.

    Parameters
    ----------
    arrays : ArrayRecord or None
        The new model; None when nothing was released.
    survivors : int
        Clients summed.
    asked : int
        Clients asked.
    released : bool
        Whether the round was charged.
    seconds : float
        Time of the exchanges.
    """

    arrays: ArrayRecord | None
    survivors: int
    asked: int
    released: bool
    seconds: float = 0.0


class DpsgdDc(TrainingStrategy):
    """Makes any ``@app.train()`` function that returns an ArrayRecord private at client level.

    The client half is :func:`fedpriv.clients.client_level_dp_mod`: it clips, encodes, noises and masks the
    difference between the arrays that a client received and those that its function returns. Metrics and
    numbers of examples never leave a client, and every client counts once.

    Parameters
    ----------
    plan : DpsgdDcPlan
        Sampling, clip, grid, noise.
    sums : NoisedSum
        Ledger and secure-sum settings.
    optimizer : ServerOptimizer, optional
        Step on the noisy mean; plain subtraction by default.
    ball : Ball, optional
        Projection of the model after the step.
    release_noise : float
        Standard deviation per coordinate of continuous noise added to the model before the projection, for the
        release view's hidden-state bound.
    cosine : bool
        Decay the server's learning rate over the planned rounds.
    seed : int or None
        Seed of the clients' noise; only for simulations that are declared not private.
    stage : str
        Name under which the ledger charges the rounds.

    Attributes
    ----------
    stopped : str or None
        Why training stopped before its last round (the budget, or the planned rounds), if it did. The model
        that was reached stays.
    """

    def __init__(
        self,
        plan: DpsgdDcPlan,
        sums: NoisedSum,
        *,
        optimizer: ServerOptimizer | None = None,
        ball: Ball | None = None,
        release_noise: float = 0.0,
        cosine: bool = False,
        seed: int | None = None,
        stage: str = "train",
    ) -> None:
        super().__init__(plan)
        if (seed is not None) != plan.noise.seeded:
            raise InvalidArgument(
                f"seed: {seed} does not go with a plan whose noise.seeded = {plan.noise.seeded}"
            )
        self.plan, self.sums, self.ball, self.cosine, self.seed = plan, sums, ball, cosine, seed
        self.optimizer = ServerSgd() if optimizer is None else optimizer
        self.stage = stage
        check_non_negative(release_noise=release_noise)
        self.release_noise = release_noise

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
            The current model.
        config : ConfigRecord, optional
            Sent along for the clients' function, with ``server-round`` put in.
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
        plan = self.plan
        if not 1 <= server_round <= plan.rounds:
            raise InvalidArgument(
                f"server_round: {server_round} is outside 1 .. {plan.rounds}, the rounds that the noise was "
                "made for"
            )
        current = {name: array.numpy() for name, array in arrays.items()}
        layout = ArrayLayout.of(current)
        if layout.size != plan.length:
            raise InvalidArgument(f"arrays: {layout.size} coordinates, the plan was made for {plan.length}")
        clients = list(grid.get_node_ids()) if clients is None else list(clients)
        cohort = draw_cohort(plan, clients, self.stage, server_round)
        if cohort is None:
            return RoundOutcome(None, 0, 0, released=False)
        asked, outside = cohort.asked, cohort.outside
        active, zeros = (self._payload(arrays, config, server_round, idle=idle) for idle in (False, True))
        try:
            result = self.sums.release(
                grid,
                asked,
                lambda node: zeros if node in outside else active,
                plan,
                plan.noise,
                stage=self.stage,
                server_round=server_round,
                length=plan.length,
                modulus_bits=plan.modulus_bits(),
                purpose=wire.PURPOSE_UPDATE,
                magnitude=plan.magnitude(),
                repeats=plan.sampler.asks_all and server_round < plan.rounds,
            )
        except SecureSumAborted as aborted:
            logger.warning("%s round %d released nothing: %s", self.stage, server_round, aborted)
            return RoundOutcome(None, 0, len(asked), released=aborted.released)
        mean = plan.codec.decode(result.total) / plan.divisor
        factor = cosine_factor(server_round, plan.rounds) if self.cosine else 1.0
        model = layout.flatten(current) - self.optimizer.step(mean, factor)
        if self.release_noise > 0:
            secret = self.seed is None
            source = SecureSource() if secret else SeededSource(str(self.seed), "release", server_round)
            model = model + gaussian(self.release_noise, model.size, source)
        if self.ball is not None:
            model = self.ball.project(model)
        released = {name: Array(value) for name, value in layout.unflatten(model).items()}
        return RoundOutcome(
            ArrayRecord(released), len(result.survivors), len(asked), True, sum(result.sum.seconds.values())
        )

    def _payload(
        self, arrays: ArrayRecord, config: ConfigRecord | None, server_round: int, *, idle: bool
    ) -> RecordDict:
        return RecordDict(
            {
                "arrays": arrays,
                "config": ConfigRecord(dict(config or {}) | {"server-round": server_round}),
                wire.RECORD_UPDATE: self._update_record(server_round, idle),
            }
        )

    def _update_record(self, server_round: int, idle: bool) -> ConfigRecord:
        plan, sampler = self.plan, self.plan.sampler
        rate = sampler.rate if isinstance(sampler, SelfSampling) else 1.0
        values: dict[str, Any] = {
            wire.UPDATE_CLIPPING_NORM: plan.codec.clipping_norm,
            wire.UPDATE_CLIP_UNITS: plan.codec.clip_units,
            wire.UPDATE_SAMPLING_RATE: 0.0 if idle else rate,
            wire.UPDATE_IDLE_TRAINS: plan.idle_clients_train and not idle,
            wire.UPDATE_ROUND: server_round,
            wire.NOISE_SHARE_STD: plan.noise.share_std_units,
            wire.NOISE_SEED: "" if self.seed is None else str(self.seed),
        }
        return ConfigRecord(values)
