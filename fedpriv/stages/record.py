"""The training stage of a run whose unit is the record: DP-SGD inside silos, averaged once a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedpriv import wire
from fedpriv.ledger import Budget, read_ledger
from fedpriv.plans import RecordLevelPlan
from fedpriv.reporting import Hypothesis, StageReport
from fedpriv.settings import Settings, SettingsError
from fedpriv.settings.record import RecordSettings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.federation import is_simulation
from fedpriv.stages.planning import Planner, large_delta
from fedpriv.stages.rounds import RoundsStage, Table
from fedpriv.strategies import AverageOutcome, FederatedAverage


def fewest_silos(settings: Settings) -> int:
    """Fewest silos in a sum: as configured, or more than half; no noise is sized for it."""
    run = settings.run
    return run.min_survivors if run.min_survivors > 0 else max(2, run.num_clients // 2 + 1)


class RecordTrainStage(RoundsStage):
    """Train inside silos until the rounds or the budgets are used up."""

    name = "train"
    kind = "record-level DPSGD-DC"
    noun = "training"

    @classmethod
    def planner(cls, settings: Settings, length: int) -> Planner:
        run, record = settings.run, settings.of(RecordSettings)

        def build(noise_multiplier: float) -> RecordLevelPlan:
            return RecordLevelPlan.build(
                sampling_rate=record.sampling_rate,
                clipping_norm=record.clip_norm,
                noise_multiplier=noise_multiplier,
                local_steps=record.local_steps,
                adjacency=run.adjacency,
                radius=record.radius,
                weighted=record.weighting == "records",
                num_clients=run.num_clients,
                min_survivors=fewest_silos(settings),
                rounds=record.rounds,
                length=length,
                seeded=run.seeded_noise,
            )

        return Planner(build, record.noise_multiplier, "record.noise-multiplier")

    def prepare(self, run: Run, state: RunState) -> RecordRounds:
        """Ask every silo whether its data, account and limits allow the run.

        Raises
        ------
        SettingsError
            When none of them does; nothing was charged.
        """
        plan = run.plans.stages[self.name]
        assert isinstance(plan, RecordLevelPlan)
        rounds = RecordRounds(run, plan, state.optimizer.get("trained"))
        rounds.check(state.arrays)
        # the report's warnings and tables are those of the plan that knows the sizes
        run.plans.stages[self.name] = rounds.plan
        for text in (large_delta(run.settings, run.plans), *rounds.plan.forecast().warnings):
            if text:
                run.progress.warn(text)
        return rounds


class RecordRounds:
    """Rounds of record-level training of one run."""

    def __init__(self, run: Run, plan: RecordLevelPlan, trained: np.ndarray | None = None) -> None:
        self.plan, self.sums = plan, run.sums()
        self._run, configured = run, run.settings.run
        self._accounts = run.folder.path / "silos" if is_simulation(run.grid) else None
        record = run.settings.of(RecordSettings)
        self._strategy = FederatedAverage(
            plan,
            self.sums,
            learning_rate=record.learning_rate,
            center=run.initial_arrays if record.center == "initial" else None,
            run=configured.name,
            budget=Budget(configured.resolved_max_epsilon, configured.resolved_delta, configured.budget_view),
            simulation_folder="" if self._accounts is None else str(self._accounts),
            seed=run.noise_seed,
            stage=RecordTrainStage.name,
        )
        self._trained: list[int] = [] if trained is None else trained.tolist()
        self._told = ""

    def check(self, arrays: ArrayRecord) -> None:
        """One exchange before the first round; warns of silos that will not train."""
        found = self._strategy.check_silos(self._run.grid, arrays, self._run.clients)
        for node, code in found.refused.items():
            self._run.progress.warn(f"node {node} will not train: {wire.error_words(code)} (code {code})")
        for node in found.silent:
            self._run.progress.warn(f"node {node} did not answer the check before the run")
        if not found.records:
            reasons = sorted({wire.error_words(code) for code in found.refused.values()})
            raise SettingsError("no silo is ready to train: " + "; ".join(reasons or ["none answered"]))
        self.plan = replace(self.plan, records=tuple(sorted(found.records.values())))
        self._run.progress.message(f"records per silo (declared public): {self.plan.sizes}")

    def play(self, server_round: int, arrays: ArrayRecord) -> AverageOutcome:
        """One round; says when the number of silos that do not train changes."""
        outcome = self._strategy.train_round(self._run.grid, server_round, arrays, clients=self._run.clients)
        if outcome.arrays is not None:
            self._trained.append(outcome.trained)
        if outcome.note not in ("", self._told):
            self._run.progress.warn(f"round {server_round}: {outcome.note}")
            self._told = outcome.note
        return outcome

    def state(self) -> dict[str, Any]:
        """Silos that trained, per released round; they keep their accounts themselves."""
        return {"trained": np.array(self._trained, dtype=np.int64)}

    def hypotheses(self) -> list[Hypothesis]:
        """None beyond the plan's."""
        return []

    def table(self, report: StageReport) -> Table:
        """Plan, sizes, steps, and whose epsilon it is."""
        record = self._run.settings.of(RecordSettings)
        released = [r for r in report.rounds if r.released]
        table: Table = {
            **self.plan.describe(),
            "rounds released": len(released),
            "silos that trained": f"{min(self._trained)} to {max(self._trained)}"
            if self._trained
            else "none",
            "whose epsilon": "of a silo that trained in every released round: the largest there is",
            "learning rate": record.learning_rate,
            "centre of the ball": record.center,
        }
        if (own := self._largest_account()) is not None:
            table["largest epsilon in a silo's own account (simulated)"] = own
        return table

    def _largest_account(self) -> float | None:
        """Of all runs in the accounts; known in a simulation only."""
        if self._accounts is None:
            return None
        delta = self._run.settings.run.resolved_delta
        ledgers = [read_ledger(path) for path in Path(self._accounts).glob("silo-*/account.jsonl")]
        return max((ledger.epsilon("server", delta).epsilon for ledger in ledgers), default=None)
