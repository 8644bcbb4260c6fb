"""The training stage: rounds of client-level DPSGD-DC, with checkpoints, evaluation and a budget stop."""

from __future__ import annotations

import time
from dataclasses import replace

from flwr.app import ConfigRecord

from fedpriv.accounting.accountant import Accountant
from fedpriv.ledger import BudgetExceeded
from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.plans import DpsgdDcPlan, HiddenState, hidden_state
from fedpriv.reporting import Hypothesis, RoundRecord, StageReport
from fedpriv.settings import Settings, SettingsError
from fedpriv.stages.base import Run, RunState, Stage, report_hypotheses
from fedpriv.stages.facts import make_optimizer, training_facts
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


class TrainStage(Stage):
    """Train until the rounds or the budget are used up."""

    name = "train"
    kind = "client-level DPSGD-DC"

    def run(self, run: Run, state: RunState) -> StageReport:
        """Run the rounds that are left; every released round ends in a checkpoint."""
        if run.plans.train is None:
            raise SettingsError("run config: stages: no plan was made for 'train'")
        settings = run.settings.with_candidate(state.candidate)
        plan = run.plans.train.with_clipping_norm(settings.train.clip_norm)
        strategy = self._strategy(run, settings, plan, state)
        hidden = hidden_state(
            plan, training_facts(settings, run.initial_arrays), run.settings.run.resolved_delta
        )
        if hidden.event is not None and not hidden.conditional:
            run.ledger.register_stage(
                self.name, round_event=plan.events()["release"], events_by_rounds=hidden.event.to_json()
            )
        report = self._resumed(state) or StageReport(name=self.name, kind=self.kind)
        started = time.monotonic()
        survivors: list[int] = []
        for server_round in range(len(report.rounds) + 1, plan.rounds + 1):
            began = time.monotonic()
            try:
                outcome = strategy.train_round(
                    run.grid, server_round, state.arrays, client_config(settings), run.clients
                )
            except BudgetExceeded as exceeded:
                state.stopped = f"training stopped before round {server_round} of {plan.rounds}: {exceeded}"
                run.progress.warn(state.stopped)
                break
            record = self._finish(run, state, strategy, outcome, server_round, time.monotonic() - began)
            report.rounds.append(record)
            if outcome.arrays is not None:
                survivors.append(outcome.survivors)
            self._checkpoint(run, state, strategy, report, server_round)
            if outcome.arrays is None and run.settings.run.on_abort == "stop":
                state.stopped = f"training stopped after round {server_round}: too few clients were left"
                run.progress.warn(state.stopped)
                break
        report.table = self._table(settings, plan, report)
        report.hypotheses = report_hypotheses(plan) + [
            Hypothesis(name=h.name, status=h.status, detail=h.detail) for h in hidden.hypotheses
        ]
        self._conditional(run, hidden, report)
        report.seconds += time.monotonic() - started
        report.bytes_up += strategy.sums.bytes_up
        report.bytes_down += strategy.sums.bytes_down
        state.reports = [known for known in state.reports if known.name != self.name]
        return report

    def _strategy(self, run: Run, settings: Settings, plan: DpsgdDcPlan, state: RunState) -> DpsgdDc:
        train = settings.train
        optimizer = make_optimizer(settings)
        optimizer.load_state(state.optimizer)
        ball = None
        if train.radius > 0:
            center = None
            if train.center == "initial":
                arrays = {name: array.numpy() for name, array in run.initial_arrays.items()}
                center = ArrayLayout.of(arrays).flatten(arrays)
            ball = Ball(train.radius, center)
        return DpsgdDc(
            plan,
            run.sums(),
            optimizer=optimizer,
            ball=ball,
            release_noise=train.release_noise,
            cosine=train.schedule == "cosine",
            seed=run.noise_seed,
            stage=self.name,
        )

    def _conditional(self, run: Run, hidden: HiddenState, report: StageReport) -> None:
        """Put a bound that rests on a vouched smoothness into the stage's table, never into the claim."""
        if hidden.event is None or not hidden.conditional:
            return
        released = sum(record.released for record in report.rounds)
        accountant = Accountant(run.settings.run.adjacency).compose(replace(hidden.event, rounds=released))
        found = accountant.epsilon(run.settings.run.resolved_delta)
        report.table["release epsilon of this stage IF the assumed smoothness holds"] = found.epsilon

    def _resumed(self, state: RunState) -> StageReport | None:
        return next((report for report in state.reports if report.name == self.name), None)

    def _finish(
        self,
        run: Run,
        state: RunState,
        strategy: DpsgdDc,
        outcome: RoundOutcome,
        server_round: int,
        seconds: float,
    ) -> RoundRecord:
        plan, configured = strategy.plan, run.settings.run
        accuracy = None
        if outcome.arrays is not None:
            state.arrays = outcome.arrays
        if server_round % configured.evaluate_every == 0 or server_round == plan.rounds:
            accuracy = run.evaluator(server_round, state.arrays)
        epsilon = run.epsilon_by_view()
        spent = epsilon[configured.budget_view]
        note = "" if outcome.arrays is not None else "nothing released: too few clients were left"
        run.progress.round(
            self.name,
            server_round,
            plan.rounds,
            accuracy=accuracy,
            epsilon=spent,
            epsilon_left=configured.resolved_max_epsilon - spent,
            view=configured.budget_view,
            survivors=outcome.survivors,
            asked=outcome.asked,
            seconds=seconds,
            note=note,
        )
        distributed = plan.noise.kind == "distributed"
        return RoundRecord(
            round=server_round,
            released=outcome.released,
            accuracy=accuracy,
            asked=outcome.asked,
            survivors=outcome.survivors,
            noise_shares=outcome.survivors if distributed else 0,
            epsilon=epsilon,
            seconds=seconds,
            note=note,
        )

    def _checkpoint(
        self, run: Run, state: RunState, strategy: DpsgdDc, report: StageReport, server_round: int
    ) -> None:
        state.stage, state.round = self.name, server_round
        state.optimizer = strategy.optimizer.state()
        others = [known for known in state.reports if known.name != self.name]
        state.reports = [*others, report]
        run.folder.save_checkpoint(state)
        run.folder.append_metrics(report.rounds[-1].model_dump(mode="json"))

    def _table(
        self, settings: Settings, plan: DpsgdDcPlan, report: StageReport
    ) -> dict[str, str | float | int | bool | None]:
        train = settings.train
        released = [record for record in report.rounds if record.released]
        shares = [record.noise_shares or 0 for record in released]
        optimizer = f"{train.server_optimizer}, learning rate {train.server_learning_rate:g}"
        if train.server_optimizer == "sgd":
            optimizer += f", momentum {train.server_momentum:g}"
        batch = train.batch_size if train.batch_size else "all"
        local = (
            f"{train.local_steps} steps, learning rate {train.learning_rate:g}, momentum {train.momentum:g}, "
        )
        return {
            **plan.describe(),
            "rounds released": len(released),
            "noise shares realised": f"{min(shares)} to {max(shares)}" if shares else "none",
            "local training": local + f"batch {batch}",
            "server optimizer": optimizer,
            "release noise (std per coordinate)": train.release_noise,
            "projection": f"ball of radius {train.radius:g} around the {train.center}"
            if train.radius
            else "none",
        }
