"""The training stage with correlated noise: epochs of balls in bins."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord

from fedpriv.accounting.matrices import make_matrix
from fedpriv.mechanisms import ArrayLayout, Ball, RandomAllocationSchedule
from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.plans import MatrixPlan
from fedpriv.reporting import Hypothesis, StageReport
from fedpriv.settings import Settings
from fedpriv.settings.matrix import MatrixSettings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.federation import is_simulation
from fedpriv.stages.planning import Planner, resolve_min_survivors
from fedpriv.stages.rounds import RoundsStage, Table, realised_rows
from fedpriv.strategies import MatrixFtrl, MatrixOutcome, MatrixSecrets, ServerSgd

#: Where the noise key and the dealt bins are, in the run folder.
SECRETS = "matrix-secrets.json"
#: Where simulated clients keep their bins, in the run folder.
SIMULATED = "simulated-silos"


def _schedule(settings: Settings) -> RandomAllocationSchedule:
    own, drawn_by = settings.of(MatrixSettings), settings.run.sampling
    assert drawn_by != "full"
    return RandomAllocationSchedule(own.bins, own.epochs, own.redraw, drawn_by)


class MatrixStage(RoundsStage):
    """Train until the epochs are over; the budget covers all of them or none."""

    name = "matrix"
    kind = "correlated noise under random allocation (DP-FTRL)"
    noun = "training"

    @classmethod
    def planner(cls, settings: Settings, length: int) -> Planner:
        run, own = settings.run, settings.of(MatrixSettings)
        schedule = _schedule(settings)
        asked = run.num_clients if run.sampling == "self" else max(1, round(run.num_clients / own.bins))
        matrix = make_matrix(
            own.matrix, own.bins, 1 if own.redraw else own.epochs, band=own.band, buffers=own.buffers
        )

        def build(noise_multiplier: float) -> MatrixPlan:
            return MatrixPlan.build(
                schedule=schedule,
                matrix=matrix,
                clipping_norm=own.clip_norm,
                noise_multiplier=noise_multiplier,
                num_clients=run.num_clients,
                min_survivors=resolve_min_survivors(run.min_survivors, asked),
                length=length,
                adjacency=run.adjacency,
                seeded=run.seeded_noise,
                idle_clients_train=own.idle_work == "train",
            )

        return Planner(build, own.noise_multiplier, "matrix.noise-multiplier")

    def prepare(self, run: Run, state: RunState) -> MatrixRounds:
        """Make the strategy for the vote's candidate; key and bins are read, or drawn and stored."""
        settings = run.settings.with_candidate(state.candidate)
        own, planned = settings.of(MatrixSettings), run.plans.stages[self.name]
        assert isinstance(planned, MatrixPlan)
        return MatrixRounds(run, own, planned.with_clipping_norm(own.clip_norm), state.optimizer)


class MatrixRounds:
    """Rounds of one run."""

    def __init__(self, run: Run, settings: MatrixSettings, plan: MatrixPlan, saved: dict[str, Any]) -> None:
        self.plan, self.sums = plan, run.sums()
        self._run, self._settings = run, settings
        ball = None
        if settings.radius > 0:
            center = None
            if settings.center == "initial":
                arrays = {name: array.numpy() for name, array in run.initial_arrays.items()}
                center = ArrayLayout.of(arrays).flatten(arrays)
            ball = Ball(settings.radius, center)
        simulated = plan.schedule.drawn_by == "self" and is_simulation(run.grid)
        self._strategy = MatrixFtrl(
            plan,
            self.sums,
            MatrixSecrets.open(run.folder.path / SECRETS, plan.schedule),
            optimizer=ServerSgd(settings.server_learning_rate, settings.server_momentum),
            ball=ball,
            schedule=lambda server_round: schedule_factor(settings.schedule, server_round, plan.num_rounds),
            seed=run.noise_seed,
            stage=MatrixStage.name,
            simulation_folder=str(run.folder.path / SIMULATED) if simulated else "",
        )
        self._strategy.load_state(saved)

    def play(self, server_round: int, arrays: ArrayRecord) -> MatrixOutcome:
        """One round."""
        own = self._settings
        config = ConfigRecord(
            {
                "learning-rate": own.learning_rate,
                "momentum": own.momentum,
                "local-steps": own.local_steps,
                "batch-size": own.batch_size,
            }
        )
        return self._strategy.train_round(self._run.grid, server_round, arrays, config, self._run.clients)

    def state(self) -> dict[str, Any]:
        """Arrays of the optimizer and of the noise."""
        return self._strategy.state()

    def hypotheses(self) -> list[Hypothesis]:
        """None beyond the plan's."""
        return []

    def table(self, report: StageReport) -> Table:
        """Plan, realised rounds, local training, server step."""
        own = self._settings
        return {
            **self._strategy.plan.describe(),
            **realised_rows(report),
            "local training": f"{own.local_steps} steps, learning rate {own.learning_rate:g}, momentum "
            f"{own.momentum:g}, batch {own.batch_size or 'all'}",
            "server optimizer": f"sgd, learning rate {own.server_learning_rate:g}, {own.schedule}, momentum "
            f"{own.server_momentum:g}",
            "projection": f"ball of radius {own.radius:g} around the {own.center} (gains no privacy)"
            if own.radius
            else "none",
        }
