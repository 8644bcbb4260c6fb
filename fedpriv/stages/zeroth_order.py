"""The fine-tuning stage whose clients send K numbers a round."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord

from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.mechanisms.model_identity import model_identity
from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.plans import HiddenState, ZerothOrderPlan
from fedpriv.plans.zeroth_order_release import ZerothOrderFacts, zeroth_order_hidden_state
from fedpriv.reporting import Hypothesis, StageReport
from fedpriv.settings import Settings
from fedpriv.settings.zeroth_order import ZerothOrderSettings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.planning import Planner, make_sampler, min_survivors_of_cohort
from fedpriv.stages.rounds import RoundsStage, Table, realised_rows
from fedpriv.strategies import RoundOutcome, ZerothOrder
from fedpriv.tasks import task_of
from fedpriv.tasks.directions import direction_kind


class ZerothOrderStage(RoundsStage):
    """Fine-tune until the rounds or the budget are used up."""

    name = "zeroth-order"
    kind = "fine-tuning by noised two-point quotients"
    noun = "fine-tuning"

    @classmethod
    def planner(cls, settings: Settings, length: int) -> Planner:
        run, own = settings.run, settings.of(ZerothOrderSettings)

        def build(noise_multiplier: float) -> ZerothOrderPlan:
            return ZerothOrderPlan.build(
                sampler=make_sampler(settings),
                dimension=length,
                directions=own.directions,
                clip=own.clip,
                smoothing=own.smoothing,
                direction_share=own.direction_share,
                noise_multiplier=noise_multiplier,
                kind=run.noise,
                adjacency=run.adjacency,
                num_clients=run.num_clients,
                min_survivors=min_survivors_of_cohort(settings),
                rounds=own.rounds,
                colluders=run.colluders,
                seeded=run.seeded_noise,
                direction_kind=direction_kind(own, length),
            )

        return Planner(build, own.noise_multiplier, "zeroth-order.noise-multiplier")

    @classmethod
    def stage_bound(cls, settings: Settings, plan: Any, initial: ArrayRecord) -> HiddenState:
        return zeroth_order_hidden_state(plan, _facts(settings, initial))

    def prepare(self, run: Run, state: RunState) -> ZerothOrderRounds:
        """Make the strategy for the vote's candidate and register the release view's bound if it holds."""
        settings = run.settings.with_candidate(state.candidate)
        own, planned = settings.of(ZerothOrderSettings), run.plans.stages[self.name]
        assert isinstance(planned, ZerothOrderPlan)
        plan = planned.with_values(clip=own.clip, smoothing=own.smoothing)
        hidden = self.stage_bound(settings, plan, run.initial_arrays)
        if hidden.event is not None:
            run.ledger.register_stage(
                self.name, round_event=plan.events()["release"], events_by_rounds=hidden.event.to_json()
            )
        return ZerothOrderRounds(run, own, plan, hidden)


def _facts(settings: Settings, initial: ArrayRecord) -> ZerothOrderFacts:
    run, own = settings.run, settings.of(ZerothOrderSettings)
    task = task_of(settings)
    return ZerothOrderFacts(
        learning_rate=own.learning_rate,
        constant_rate=own.schedule == "constant",
        radius=own.radius,
        center_norm=float(sum((a.numpy().astype(float) ** 2).sum() for a in initial.values()) ** 0.5)
        if own.center == "initial"
        else 0.0,
        smoothness=task.smoothness(run.model),
        round_metrics=run.evaluate != "none" and run.evaluate_every < own.rounds,
    )


def _identity(arrays: ArrayRecord) -> bytes:
    return model_identity({name: array.numpy() for name, array in arrays.items()})


class ZerothOrderRounds:
    """Zeroth-order rounds of one run."""

    def __init__(
        self, run: Run, settings: ZerothOrderSettings, plan: ZerothOrderPlan, hidden: HiddenState
    ) -> None:
        self.plan, self.sums = plan, run.sums()
        self._run, self._settings, self._hidden = run, settings, hidden
        ball = None
        if settings.radius > 0:
            center = None
            if settings.center == "initial":
                arrays = {name: array.numpy() for name, array in run.initial_arrays.items()}
                center = ArrayLayout.of(arrays).flatten(arrays)
            ball = Ball(settings.radius, center)
        self._strategy = ZerothOrder(
            plan,
            self.sums,
            learning_rate=settings.learning_rate,
            schedule=lambda server_round: schedule_factor(settings.schedule, server_round, plan.rounds),
            ball=ball,
            batch_size=settings.batch_size,
            initial_known=_identity(run.initial_arrays) if settings.initial_model == "built" else b"",
            seed=run.noise_seed,
            stage=ZerothOrderStage.name,
        )

    def play(self, server_round: int, arrays: ArrayRecord) -> RoundOutcome:
        """One round."""
        return self._strategy.train_round(self._run.grid, server_round, arrays, clients=self._run.clients)

    def state(self) -> dict[str, Any]:
        """Nothing beside the model: a resumed run sends the model whole once."""
        return {}

    def hypotheses(self) -> list[Hypothesis]:
        """Those of the release view's bound."""
        return [Hypothesis(name=h.name, status=h.status, detail=h.detail) for h in self._hidden.hypotheses]

    def table(self, report: StageReport) -> Table:
        """Plan, realised shares, step, traffic."""
        own, asked = self._settings, sum(record.asked or 0 for record in report.rounds)
        return {
            **self.plan.describe(),
            **realised_rows(report),
            "learning rate": f"{own.learning_rate:g}, {own.schedule}",
            "records per client and round": own.batch_size or "all",
            "downlink": self._downlink(),
            "bytes up per client and round, secure sum included": round(report.bytes_up / max(asked, 1)),
            "bytes down per client and round, secure sum included": round(report.bytes_down / max(asked, 1)),
            "projection": f"ball of radius {own.radius:g} around the {own.center} model"
            if own.radius
            else "none",
        }

    def _downlink(self) -> str:
        if not self._strategy.downlink.steps_only:
            return "the model in every round"
        if self._settings.initial_model == "built":
            return "seeds and released numbers; clients build the first model"
        return "seeds and released numbers; the model once per client"
