"""The zeroth-order stage of a run whose unit is the record."""

from __future__ import annotations

from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.mechanisms.model_identity import model_identity
from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.plans import RecordZerothOrderPlan
from fedpriv.settings import Settings
from fedpriv.settings.record import RecordSettings
from fedpriv.settings.zeroth_order import ZerothOrderSettings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.planning import Planner
from fedpriv.stages.record import SiloRounds, fewest_silos, silo_options
from fedpriv.stages.rounds import RoundsStage, Table
from fedpriv.strategies import RecordZerothOrder
from fedpriv.tasks.directions import direction_kind


class RecordZerothOrderStage(RoundsStage):
    """Fine-tune from K private numbers of every silo until the rounds or the budgets are used up."""

    name = "zeroth-order"
    kind = "record-level fine-tuning by noised two-point quotients"
    noun = "fine-tuning"

    @classmethod
    def planner(cls, settings: Settings, length: int) -> Planner:
        run, own, record = settings.run, settings.of(ZerothOrderSettings), settings.of(RecordSettings)

        def build(noise_multiplier: float) -> RecordZerothOrderPlan:
            return RecordZerothOrderPlan.build(
                dimension=length,
                directions=own.directions,
                clip=own.clip,
                smoothing=own.smoothing,
                sampling_rate=record.sampling_rate,
                noise_multiplier=noise_multiplier,
                adjacency=run.adjacency,
                weighted=record.weighting == "records",
                num_clients=run.num_clients,
                min_survivors=fewest_silos(settings),
                rounds=own.rounds,
                seeded=run.seeded_noise,
                direction_kind=direction_kind(own, length),
            )

        return Planner(build, own.noise_multiplier, "zeroth-order.noise-multiplier")

    def prepare(self, run: Run, state: RunState) -> SiloRounds:
        """Make the strategy and ask every silo whether it is ready."""
        plan, own = run.plans.stages[self.name], run.settings.of(ZerothOrderSettings)
        assert isinstance(plan, RecordZerothOrderPlan)
        initial = {name: array.numpy() for name, array in run.initial_arrays.items()}
        ball = None
        if own.radius > 0:
            ball = Ball(
                own.radius, ArrayLayout.of(initial).flatten(initial) if own.center == "initial" else None
            )
        strategy = RecordZerothOrder(
            plan,
            run.sums(),
            learning_rate=own.learning_rate,
            schedule=lambda server_round: schedule_factor(own.schedule, server_round, plan.rounds),
            ball=ball,
            initial_known=model_identity(initial) if own.initial_model == "built" else b"",
            stage=self.name,
            **silo_options(run),
        )
        rows: Table = {
            "learning rate": f"{own.learning_rate:g}, {own.schedule}",
            "projection": f"ball of radius {own.radius:g} around the {own.center} model"
            if own.radius
            else "none",
        }
        return SiloRounds(run, self.name, strategy, rows, state)
