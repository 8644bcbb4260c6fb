"""The training stage of a run whose unit is the record: DP-SGD inside silos, averaged once a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedpriv import wire
from fedpriv.ledger import Budget, read_ledger
from fedpriv.plans import RecordLevelPlan, RecordZerothOrderPlan
from fedpriv.reporting import Hypothesis, StageReport
from fedpriv.settings import Settings, SettingsError
from fedpriv.settings.record import RecordSettings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.federation import is_simulation
from fedpriv.stages.planning import Planner, large_delta
from fedpriv.stages.rounds import RoundsStage, Table, format_range
from fedpriv.strategies import AverageOutcome, FederatedAverage, RecordZerothOrder


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

    def prepare(self, run: Run, state: RunState) -> SiloRounds:
        """Make the strategy and ask every silo whether it is ready, see :meth:`SiloRounds.check`."""
        plan, record = run.plans.stages[self.name], run.settings.of(RecordSettings)
        assert isinstance(plan, RecordLevelPlan)
        strategy = FederatedAverage(
            plan,
            run.sums(),
            learning_rate=record.learning_rate,
            center=run.initial_arrays if record.center == "initial" else None,
            stage=self.name,
            **silo_options(run),
        )
        rows: Table = {"learning rate": record.learning_rate, "centre of the ball": record.center}
        return SiloRounds(run, self.name, strategy, rows, state)


def silo_options(run: Run) -> dict[str, Any]:
    """What every strategy of a record-level stage tells the silos about the run."""
    configured = run.settings.run
    return {
        "run": configured.name,
        "budget": Budget(configured.resolved_max_epsilon, configured.resolved_delta, configured.budget_view),
        "simulation_folder": "" if (folder := _accounts(run)) is None else str(folder),
        "seed": run.noise_seed,
    }


def _accounts(run: Run) -> Path | None:
    """Where simulated silos, which have no disk of their own, keep their accounts."""
    return run.folder.path / "silos" if is_simulation(run.grid) else None


class SiloRounds:
    """Rounds of one record-level stage of one run, after a check of every silo.

    Parameters
    ----------
    run : Run
        The run.
    stage : str
        Name of the stage.
    strategy : FederatedAverage or RecordZerothOrder
        Plays the rounds.
    rows : dict
        Of the stage's table, beside those of the plan.
    state : RunState
        Model, and silos that trained so far when the run is resumed.
    """

    def __init__(
        self,
        run: Run,
        stage: str,
        strategy: FederatedAverage | RecordZerothOrder,
        rows: Table,
        state: RunState,
    ) -> None:
        self._run, self._strategy, self._rows = run, strategy, rows
        self.plan: RecordLevelPlan | RecordZerothOrderPlan = strategy.plan
        self.sums = strategy.sums
        trained = state.optimizer.get("trained")
        self._trained: list[int] = [] if trained is None else trained.tolist()
        self._told = ""
        self.check(state.arrays)
        # the report's warnings and tables are those of the plan that knows the sizes
        run.plans.stages[stage] = self.plan
        for text in (large_delta(run.settings, run.plans), *self.plan.forecast().warnings):
            if text:
                run.progress.warn(text)

    def check(self, arrays: ArrayRecord) -> None:
        """One exchange before the first round: warn of silos that will not train, and learn the sizes.

        Raises
        ------
        SettingsError
            When no silo is ready; nothing was charged.
        """
        found = self._strategy.check_silos(self._run.grid, arrays, self._run.clients)
        for node, code in found.refused.items():
            self._run.progress.warn(f"node {node} will not train: {wire.error_words(code)} (code {code})")
        for node in found.silent:
            self._run.progress.warn(f"node {node} did not answer the check before the run")
        if not found.records:
            reasons = sorted({wire.error_words(code) for code in found.refused.values()})
            raise SettingsError("no silo is ready to train: " + "; ".join(reasons or ["none answered"]))
        self.plan = self.plan.with_records(tuple(sorted(found.records.values())))
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
        table: Table = {
            **self.plan.describe(),
            "rounds released": sum(record.released for record in report.rounds),
            "silos that trained": format_range(self._trained),
            "whose epsilon": "of a silo that trained in every released round: the largest there is",
            **self._rows,
        }
        if (own := self._largest_account()) is not None:
            table["largest epsilon in a silo's own account (simulated)"] = own
        return table

    def _largest_account(self) -> float | None:
        """Of all runs in the accounts; known in a simulation only."""
        folder, delta = _accounts(self._run), self._run.settings.run.resolved_delta
        if folder is None:
            return None
        ledgers = [read_ledger(path) for path in folder.glob("silo-*/account.jsonl")]
        return max((ledger.epsilon("server", delta).epsilon for ledger in ledgers), default=None)
