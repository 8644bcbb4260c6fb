"""A stage of rounds: resume, budget stop, evaluation, progress, checkpoint. Each algorithm fills in one round."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from flwr.app import ArrayRecord

from fedpriv.ledger import BudgetExceeded
from fedpriv.plans import AnyPlan
from fedpriv.reporting import Hypothesis, RoundRecord, StageReport
from fedpriv.stages.base import Run, RunState, Stage, report_hypotheses
from fedpriv.strategies import NoisedSum

Table = dict[str, str | float | int | bool | None]


class Outcome(Protocol):
    """What the loop needs to know of a finished round; see :class:`fedpriv.strategies.RoundOutcome`.

    A PAC-private round has ``nats`` too, what all of its silo's releases so far may carry at most; one may have
    ``diagnostics``, a dict of named numbers, in a simulation, and a ``note`` for its line.
    """

    @property
    def arrays(self) -> ArrayRecord | None: ...
    @property
    def survivors(self) -> int: ...
    @property
    def asked(self) -> int: ...
    @property
    def released(self) -> bool: ...


class Rounds(Protocol):
    """The rounds of one stage of one run: a strategy, ready to go on after the last checkpoint."""

    @property
    def plan(self) -> AnyPlan: ...
    @property
    def sums(self) -> NoisedSum: ...

    def play(self, server_round: int, arrays: ArrayRecord) -> Outcome:
        """Run one round on a model; ``arrays`` of the outcome is None when nothing was released."""

    def state(self) -> dict[str, Any]:
        """Numpy arrays beside the model that a checkpoint must keep (optimizer, noise state, history)."""

    def table(self, report: StageReport) -> Table:
        """What a reviewer needs to recompute the stage's cost."""

    def hypotheses(self) -> list[Hypothesis]:
        """Hypotheses beyond those of the plan."""


class RoundsStage(Stage):
    """Play rounds until they or the budget are used up; every round ends in a checkpoint."""

    @abstractmethod
    def prepare(self, run: Run, state: RunState) -> Rounds:
        """Make the rounds, from the run's settings, the vote's candidate and the checkpointed state.

        ``state.optimizer`` holds what :meth:`Rounds.state` returned after the last finished round; it is empty
        at the start of a stage.
        """

    def run(self, run: Run, state: RunState) -> StageReport:
        """Play the rounds that are left."""
        rounds = self.prepare(run, state)
        plan = rounds.plan
        report = next((r for r in state.reports if r.name == self.name), None)
        report = report or StageReport(name=self.name, kind=self.kind)
        started = time.monotonic()
        before = report.seconds, report.bytes_up, report.bytes_down
        for server_round in range(len(report.rounds) + 1, plan.num_rounds + 1):
            began = time.monotonic()
            try:
                outcome = rounds.play(server_round, state.arrays)
            except BudgetExceeded as exceeded:
                state.stopped = (
                    f"{self.noun} stopped before round {server_round} of {plan.num_rounds}: {exceeded}"
                )
                run.progress.warn(state.stopped)
                break
            record = self._finish(run, state, plan, outcome, server_round, began)
            if (last := rounds.sums.last) is not None:
                record.exchanges = dict(last.seconds)
                record.bytes_up, record.bytes_down = last.bytes_up, last.bytes_down
            report.rounds.append(record)
            # with every round, so that a run that is killed and resumed reports the whole of it
            report.seconds = before[0] + time.monotonic() - started
            report.bytes_up = before[1] + rounds.sums.bytes_up
            report.bytes_down = before[2] + rounds.sums.bytes_down
            self._checkpoint(run, state, rounds, report, server_round)
            if outcome.arrays is None and run.settings.run.on_abort == "stop":
                state.stopped = f"{self.noun} stopped after round {server_round}: too few clients were left"
                run.progress.warn(state.stopped)
                break
        report.table = rounds.table(report)
        report.hypotheses = report_hypotheses(plan) + rounds.hypotheses()
        state.reports = [known for known in state.reports if known.name != self.name]
        return report

    def _finish(
        self, run: Run, state: RunState, plan: AnyPlan, outcome: Outcome, server_round: int, began: float
    ) -> RoundRecord:
        seconds, configured = time.monotonic() - began, run.settings.run
        nats, accuracy = getattr(outcome, "nats", None), None
        if outcome.arrays is not None:
            state.arrays = outcome.arrays
        if server_round % configured.evaluate_every == 0 or server_round == plan.num_rounds:
            accuracy = run.evaluator(server_round, state.arrays)
        epsilon = run.epsilon_by_view()
        spent = epsilon[configured.budget_view]
        note = getattr(outcome, "note", "")
        if outcome.arrays is None:
            note = "nothing released: too few clients were left"
        run.progress.round(
            self.name,
            server_round,
            plan.num_rounds,
            accuracy=accuracy,
            epsilon=spent if nats is None else None,
            epsilon_left=configured.resolved_max_epsilon - spent if nats is None else None,
            nats=nats,
            view=configured.budget_view,
            survivors=outcome.survivors,
            asked=outcome.asked,
            seconds=seconds,
            note=note,
        )
        noise = getattr(plan, "noise", None)
        return RoundRecord(
            round=server_round,
            released=outcome.released,
            accuracy=accuracy,
            asked=outcome.asked,
            survivors=outcome.survivors,
            noise_shares=None if noise is None else outcome.survivors if noise.kind == "distributed" else 0,
            epsilon=epsilon if nats is None else {},
            nats=nats,
            diagnostics=dict(getattr(outcome, "diagnostics", {})),
            seconds=seconds,
            note=note,
        )

    def _checkpoint(
        self, run: Run, state: RunState, rounds: Rounds, report: StageReport, server_round: int
    ) -> None:
        state.stage, state.round = self.name, server_round
        state.optimizer = rounds.state()
        state.reports = [*(known for known in state.reports if known.name != self.name), report]
        run.folder.save_checkpoint(state)
        run.folder.append_metrics(report.rounds[-1].model_dump(mode="json"))


def format_range(counts: Sequence[int]) -> str:
    """Smallest to largest of some counts.

    >>> format_range([48, 50]), format_range([50, 50]), format_range([])
    ('48 to 50', '50', 'none')
    """
    if not counts:
        return "none"
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def realised_rows(report: StageReport) -> Table:
    """Rows of a stage's table about what was really released."""
    released = [record for record in report.rounds if record.released]
    shares = [record.noise_shares or 0 for record in released]
    return {
        "rounds released": len(released),
        "noise shares realised": format_range(shares),
    }
