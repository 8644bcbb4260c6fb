"""The training stage: rounds of client-level DPSGD-DC."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord

from fedpriv.accounting.accountant import Accountant
from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.plans import DpsgdDcPlan, HiddenState, hidden_state
from fedpriv.reporting import Hypothesis, StageReport
from fedpriv.settings import Settings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.facts import make_optimizer, training_facts
from fedpriv.stages.planning import Planner, make_sampler, min_survivors_of_cohort
from fedpriv.stages.rounds import RoundsStage, Table, realised_rows
from fedpriv.strategies import DpsgdDc, RoundOutcome


def client_config(settings: Settings) -> ConfigRecord:
    """What the clients' train function is told, under the keys of the train settings."""
    train = settings.train
    return ConfigRecord(
        {
            "learning-rate": train.learning_rate,
            "momentum": train.momentum,
            "local-steps": train.local_steps,
            "batch-size": train.batch_size,
        }
    )


class TrainStage(RoundsStage):
    """Train until the rounds or the budget are used up."""

    name = "train"
    kind = "client-level DPSGD-DC"
    noun = "training"

    @classmethod
    def planner(cls, settings: Settings, length: int) -> Planner:
        run, train = settings.run, settings.train

        def build(noise_multiplier: float) -> DpsgdDcPlan:
            return DpsgdDcPlan.build(
                sampler=make_sampler(settings),
                clipping_norm=train.clip_norm,
                noise_multiplier=noise_multiplier,
                kind=run.noise,
                adjacency=run.adjacency,
                num_clients=run.num_clients,
                min_survivors=min_survivors_of_cohort(settings),
                rounds=train.rounds,
                length=length,
                colluders=run.colluders,
                seeded=run.seeded_noise,
                idle_clients_train=train.idle_work == "train",
            )

        return Planner(build, train.noise_multiplier, "train.noise-multiplier")

    @classmethod
    def stage_bound(cls, settings: Settings, plan: Any, initial: ArrayRecord) -> HiddenState:
        return hidden_state(plan, training_facts(settings, initial), settings.run.resolved_delta)

    def prepare(self, run: Run, state: RunState) -> TrainRounds:
        """Make the strategy for the vote's candidate and register the release view's bound if it holds."""
        settings = run.settings.with_candidate(state.candidate)
        planned = run.plans.stages[self.name]
        assert isinstance(planned, DpsgdDcPlan)
        plan = planned.with_clipping_norm(settings.train.clip_norm)
        hidden = self.stage_bound(settings, plan, run.initial_arrays)
        if hidden.event is not None and not hidden.conditional:
            run.ledger.register_stage(
                self.name, round_event=plan.events()["release"], events_by_rounds=hidden.event.to_json()
            )
        return TrainRounds(run, settings, plan, hidden, state.optimizer)


class TrainRounds:
    """Rounds of DPSGD-DC of one run."""

    def __init__(
        self,
        run: Run,
        settings: Settings,
        plan: DpsgdDcPlan,
        hidden: HiddenState,
        optimizer_state: dict[str, Any],
    ) -> None:
        self.plan, self.sums = plan, run.sums()
        self._run, self._settings, self._hidden = run, settings, hidden
        train = settings.train
        optimizer = make_optimizer(settings)
        optimizer.load_state(optimizer_state)
        ball = None
        if train.radius > 0:
            center = None
            if train.center == "initial":
                arrays = {name: array.numpy() for name, array in run.initial_arrays.items()}
                center = ArrayLayout.of(arrays).flatten(arrays)
            ball = Ball(train.radius, center)
        self._strategy = DpsgdDc(
            plan,
            self.sums,
            optimizer=optimizer,
            ball=ball,
            release_noise=train.release_noise,
            cosine=train.schedule == "cosine",
            seed=run.noise_seed,
            stage=TrainStage.name,
        )

    def play(self, server_round: int, arrays: ArrayRecord) -> RoundOutcome:
        """One round."""
        config = client_config(self._settings)
        return self._strategy.train_round(self._run.grid, server_round, arrays, config, self._run.clients)

    def state(self) -> dict[str, Any]:
        """The server optimizer's arrays."""
        return self._strategy.optimizer.state()

    def hypotheses(self) -> list[Hypothesis]:
        """Those of the release view's bound."""
        return [Hypothesis(name=h.name, status=h.status, detail=h.detail) for h in self._hidden.hypotheses]

    def table(self, report: StageReport) -> Table:
        """Plan, realised shares, local training, server step."""
        train = self._settings.train
        optimizer = f"{train.server_optimizer}, learning rate {train.server_learning_rate:g}"
        if train.server_optimizer == "sgd":
            optimizer += f", momentum {train.server_momentum:g}"
        batch = train.batch_size if train.batch_size else "all"
        local = (
            f"{train.local_steps} steps, learning rate {train.learning_rate:g}, momentum {train.momentum:g}, "
        )
        return {
            **self.plan.describe(),
            **realised_rows(report),
            "local training": local + f"batch {batch}",
            "server optimizer": optimizer,
            "release noise (std per coordinate)": train.release_noise,
            "projection": f"ball of radius {train.radius:g} around the {train.center}"
            if train.radius
            else "none",
            **self._conditional(report),
        }

    def _conditional(self, report: StageReport) -> Table:
        """A bound that rests on a vouched smoothness: in the stage's table, never in the claim."""
        hidden, configured = self._hidden, self._run.settings.run
        if hidden.event is None or not hidden.conditional:
            return {}
        released = sum(record.released for record in report.rounds)
        accountant = Accountant(configured.adjacency).compose(replace(hidden.event, rounds=released))
        found = accountant.epsilon(configured.resolved_delta)
        return {"release epsilon of this stage IF the assumed smoothness holds": found.epsilon}
