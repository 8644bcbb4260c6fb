"""Server half of training with correlated noise under random allocation (DP-FTRL over a matrix mechanism).

Sources: DP-FTRL (Kairouz et al. 2021, arXiv 2103.00039), banded matrices (Choquette-Choo et al. 2023, arXiv
2306.08153), balls in bins (Choquette-Choo et al. 2024, arXiv 2412.16802; Feldman and Shenfeld, arXiv 2601.21636).

**Crashes.** Noise on row t hides the sum of round t once. Run again after a crash, round t would release other sums
under the same row (the difference would show data), or the same sum under a fresh one (the matrix would break off).
So a round that the ledger holds, and has not given back, is never run again: its row is drawn and thrown away, the
model stays as it was, and training goes on with the next round. The ledger is written before anything is sent, so no
crash can come between a release and its line. What is lost is at most one round per crash; nothing is charged twice,
because the run is charged once, with the first round that the ledger keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.events import NoRelease
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.ledger import Entry
from fedpriv.mechanisms import ArrayLayout, Ball, PoissonCohort
from fedpriv.plans.matrix import MatrixPlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies.base import TrainingStrategy
from fedpriv.strategies.dpsgd_dc import RoundOutcome
from fedpriv.strategies.matrix_secrets import MatrixSecrets
from fedpriv.strategies.noised_sum import NoisedSum
from fedpriv.strategies.optimizers import ServerOptimizer, ServerSgd

logger = logging.getLogger(__name__)

Schedule = Callable[[int], float]
"""From a round, counted from 1, to a public factor on the learning rate."""


@dataclass(frozen=True)
class MatrixOutcome(RoundOutcome):
    """One round.

    Parameters
    ----------
    note : str
        What a reader of the report should know of it.
    """

    note: str = ""


class MatrixFtrl(TrainingStrategy):
    """Makes any ``@app.train()`` function private at client level, with noise correlated over rounds.

    The client half is :func:`fedpriv.clients.client_level_dp_mod`, as for `DpsgdDc`. The server adds the noise, so
    nothing is promised against the server.

    Parameters
    ----------
    plan : MatrixPlan
        Schedule, matrix, clip, grid, noise.
    sums : NoisedSum
        Ledger and secure-sum settings.
    secrets : MatrixSecrets
        Noise key and bins of the run; ``MatrixSecrets.open(path, plan.schedule)`` for a run that may be resumed.
    optimizer : ServerOptimizer, optional
        Step on the noisy mean (rate, momentum); plain subtraction by default. Plain steps of a constant rate sum up
        the released rows: the error that the matrices minimise.
    ball : Ball, optional
        Projection after the step; none by default. Post-processing, without any gain in privacy: a hidden-state
        bound does not exist for noise that is correlated over rounds.
    schedule : callable, optional
        From the round to a public factor on the server's learning rate; constant by default.
    seed : int or None
        Seed of the noise; only for simulations that are declared not private.
    stage : str
        Name under which the ledger charges the run.
    simulation_folder : str
        Parent of the simulated clients' own folders, so that a simulation can be resumed; clients outside a
        simulation ignore it.
    """

    def __init__(
        self,
        plan: MatrixPlan,
        sums: NoisedSum,
        secrets: MatrixSecrets,
        *,
        optimizer: ServerOptimizer | None = None,
        ball: Ball | None = None,
        schedule: Schedule | None = None,
        seed: int | None = None,
        stage: str = "matrix",
        simulation_folder: str = "",
    ) -> None:
        super().__init__(plan)
        self.noise = plan.make_noise(secrets.key, None if seed is None else f"{seed}:{stage}")
        self.plan = replace(plan, stream=self.noise.stream, paid=False)
        self.sums, self.secrets, self.ball, self.seed = sums, secrets, ball, seed
        self.schedule: Schedule = schedule or (lambda server_round: 1.0)
        self.optimizer = ServerSgd() if optimizer is None else optimizer
        self.stage, self.simulation_folder = stage, simulation_folder
        # Clients without a disk and strangers to the server's bins are not trusted to be new after a restart.
        self._begins = not self._charged() and not secrets.dealt.assigned

    def train_round(
        self,
        grid: Grid,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord | None = None,
        clients: Sequence[int] | None = None,
    ) -> MatrixOutcome:
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
        MatrixOutcome
            With ``arrays`` None when too few clients survived; with the model as it was when the ledger holds the
            round already.

        Raises
        ------
        BudgetExceeded
            Before anything is sent: the budget does not cover the run.
        InvalidArgument
            When the arrays, the clients, the round or the noise are not those of the plan and the ledger.
        """
        self.plan.schedule.bin_of(server_round)  # refuses a round outside the schedule
        current = {name: array.numpy() for name, array in arrays.items()}
        layout = ArrayLayout.of(current)
        if layout.size != self.plan.length:
            raise InvalidArgument(
                f"arrays: {layout.size} coordinates, the plan was made for {self.plan.length}"
            )
        charged = self._charged()
        if any(entry.round == server_round for entry in charged):
            return self._skipped(server_round, arrays)
        if self.noise.next_row >= server_round:
            raise InvalidArgument(
                f"server_round: the noise of round {server_round} was drawn before; no round is run twice"
            )
        plan = replace(self.plan, paid=bool(charged))
        clients = list(grid.get_node_ids()) if clients is None else list(clients)
        asked, outside = self._asked(server_round, clients)
        payloads = {idle: self._payload(arrays, config, server_round, idle=idle) for idle in (False, True)}
        try:
            result = self.sums.release(
                grid,
                asked,
                lambda node: payloads[node in outside],
                plan,
                plan.noise,
                stage=self.stage,
                server_round=server_round,
                length=plan.length,
                modulus_bits=plan.modulus_bits(),
                purpose=self._purpose,
                magnitude=plan.magnitude(),
                server_noise=lambda: self.noise.row(server_round - 1),
                repeats=plan.schedule.drawn_by == "self" and server_round < plan.num_rounds,
            )
        except SecureSumAborted as aborted:
            logger.warning("%s round %d released nothing: %s", self.stage, server_round, aborted)
            return MatrixOutcome(None, 0, len(asked), released=aborted.released)
        mean = plan.codec.decode(result.total) / plan.divisor
        step = self.optimizer.step(mean, self.schedule(server_round))
        model = layout.flatten(current) - step
        if self.ball is not None:
            model = self.ball.project(model)
        released = {name: Array(value) for name, value in layout.unflatten(model).items()}
        return MatrixOutcome(
            ArrayRecord(released), len(result.survivors), len(asked), True, sum(result.sum.seconds.values())
        )

    def state(self) -> dict[str, np.ndarray]:
        """Arrays of the optimizer and of the noise, for a checkpoint. They are secret."""
        return self.optimizer.state() | self.noise.state()

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a checkpoint; without one the rows are drawn again from the key."""
        if "noise-next" in state:
            self.noise.load_state(state)
        self.optimizer.load_state({k: v for k, v in state.items() if not k.startswith("noise-")})

    @property
    def _purpose(self) -> str:
        own = self.plan.schedule.drawn_by == "self"
        return wire.PURPOSE_ALLOCATION if own else wire.PURPOSE_UPDATE

    def _charged(self) -> list[Entry]:
        """Lines of this run and stage that were not given back, made with this noise and this event."""
        ledger = self.sums.ledger
        if ledger is None:
            return []
        found = [e for e in ledger.entries if e.charged and (e.run, e.stage) == (ledger.run, self.stage)]
        for entry in found:
            if entry.details.get("noise stream") != self.plan.stream:
                raise InvalidArgument(
                    f"secrets: the ledger holds round {entry.round} of stage {self.stage!r} with another noise key; "
                    "the run can only go on with the key that it began with"
                )
        expected = {view: event for view, event in self.plan.events().items() if view != "server"}
        carrying = [e for e in found if any(e.events[view] != NoRelease() for view in expected)]
        if found and [{view: e.events[view] for view in expected} for e in carrying] != [expected]:
            raise InvalidArgument(
                f"plan: the ledger charged stage {self.stage!r} for another schedule, matrix or noise; the run can "
                "only go on with its own"
            )
        return found

    def _skipped(self, server_round: int, arrays: ArrayRecord) -> MatrixOutcome:
        self.noise.pass_over(server_round - 1)
        note = "left out: begun before a restart; its row of noise is never used on a second sum"
        logger.warning("%s round %d is %s", self.stage, server_round, note)
        return MatrixOutcome(arrays, 0, 0, released=True, note=note)

    def _asked(self, server_round: int, clients: Sequence[int]) -> tuple[list[int], frozenset[int]]:
        """Clients to ask, and those of them that are asked for zeros only."""
        plan = self.plan
        if plan.schedule.drawn_by == "self":
            return list(clients), frozenset()
        if self.secrets.dealt.assign(server_round, clients, newcomers_draw=self._begins):
            self.secrets.store()  # before anybody is asked: a crash must not deal again
        assigned = self.secrets.dealt.assigned or {}
        if clients and all(assigned[client] is None for client in clients):
            raise InvalidArgument(
                f"clients: none of the {len(clients)} clients has a bin of this run; they have other node ids than "
                "before the restart, and dealing again could let a client take part twice"
            )
        cohort = self.secrets.dealt.cohort(server_round, clients)
        # As for a Poisson cohort: who was drawn must never end a round.
        fewest = max(plan.noise.min_survivors, round(plan.divisor))
        outside = PoissonCohort(1.0).filled_up(cohort, clients, fewest)
        return [*cohort, *outside], frozenset(outside)

    def _payload(
        self, arrays: ArrayRecord, config: ConfigRecord | None, server_round: int, *, idle: bool
    ) -> RecordDict:
        plan, schedule = self.plan, self.plan.schedule
        update: dict[str, Any] = {
            wire.UPDATE_CLIPPING_NORM: plan.codec.clipping_norm,
            wire.UPDATE_CLIP_UNITS: plan.codec.clip_units,
            wire.UPDATE_SAMPLING_RATE: 0.0 if idle else 1.0,
            wire.UPDATE_IDLE_TRAINS: plan.idle_clients_train and not idle,
            wire.UPDATE_ROUND: server_round,
            wire.NOISE_SHARE_STD: 0.0,
            wire.NOISE_SEED: "",
        }
        content = RecordDict(
            {
                "arrays": arrays,
                "config": ConfigRecord(dict(config or {}) | {"server-round": server_round}),
                wire.RECORD_UPDATE: ConfigRecord(update),
            }
        )
        if schedule.drawn_by == "self":
            allocation: dict[str, Any] = {
                wire.ALLOCATION_NAME: self.secrets.allocation,
                wire.ALLOCATION_BINS: schedule.bins,
                wire.ALLOCATION_EPOCHS: schedule.epochs,
                wire.ALLOCATION_REDRAWN: schedule.redrawn,
                wire.ALLOCATION_BEGINS: self._begins,
                wire.ALLOCATION_SIMULATION_FOLDER: self.simulation_folder,
            }
            content[wire.RECORD_ALLOCATION] = ConfigRecord(allocation)
        return content
