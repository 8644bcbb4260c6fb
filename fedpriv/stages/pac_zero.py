"""The fine-tuning stage whose silos send one bit a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.plans.pac_zero import PacZeroPlan
from fedpriv.reporting import Hypothesis, StageReport
from fedpriv.settings import PacZeroSettings, Settings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.federation import is_simulation
from fedpriv.stages.matrix import SIMULATED
from fedpriv.stages.planning import min_survivors_of_all
from fedpriv.stages.rounds import RoundsStage, Table
from fedpriv.strategies.pac_zero import PacZero, PacZeroOutcome
from fedpriv.tasks.directions import direction_kind


class PacZeroStage(RoundsStage):
    """Fine-tune by one bit per silo and round."""

    name = "paczero"
    kind = "fine-tuning by one bit a round, PAC privacy"
    noun = "fine-tuning"

    @classmethod
    def planner(cls, settings: Settings, length: int) -> PacZeroPlan:
        run, own = settings.run, settings.of(PacZeroSettings)
        return PacZeroPlan(
            variant=own.variant,
            budget_nats=own.nats,
            subsets=own.subsets,
            rounds=own.rounds,
            num_silos=run.num_clients,
            min_survivors=min_survivors_of_all(settings),
            dimension=length,
            clip=own.clip,
            smoothing=own.smoothing,
            seeded=run.seeded_noise,
            kind=direction_kind(own, length),
        )

    def prepare(self, run: Run, state: RunState) -> PacZeroRounds:
        """Make the strategy for the vote's candidate."""
        settings = run.settings.with_candidate(state.candidate)
        own, planned = settings.of(PacZeroSettings), run.plans.stages[self.name]
        assert isinstance(planned, PacZeroPlan)
        return PacZeroRounds(run, own, planned.with_values(clip=own.clip, smoothing=own.smoothing))


@dataclass(frozen=True)
class ObservedOutcome:
    """A round with what only a simulation can know."""

    arrays: ArrayRecord | None
    survivors: int
    asked: int
    released: bool
    nats: float
    diagnostics: dict[str, float] = field(default_factory=dict)


class PacZeroRounds:
    """PACZero rounds of one run."""

    def __init__(self, run: Run, settings: PacZeroSettings, plan: PacZeroPlan) -> None:
        self.plan, self.sums = plan, run.sums()
        self._run, self._settings = run, settings
        self._folder: Path | None = None
        silos = ""
        if is_simulation(run.grid):
            silos = str(run.folder.path / SIMULATED)
            self._folder = run.folder.path / "simulation"
            self._folder.mkdir(exist_ok=True)
        self._strategy = PacZero(
            plan,
            self.sums,
            run=run.settings.run.name,
            learning_rate=settings.learning_rate,
            schedule=lambda server_round: schedule_factor(settings.schedule, server_round, plan.rounds),
            aggregate=settings.aggregate,
            seed=run.noise_seed,
            diagnostics="" if self._folder is None else str(self._folder),
            simulation_folder=silos,
            stage=PacZeroStage.name,
        )

    def play(self, server_round: int, arrays: ArrayRecord) -> ObservedOutcome:
        """One round, with the part of unanimous silos where the run is a simulation."""
        found: PacZeroOutcome = self._strategy.train_round(
            self._run.grid, server_round, arrays, clients=self._run.clients
        )
        return ObservedOutcome(
            found.arrays,
            found.survivors,
            found.asked,
            found.released,
            found.nats,
            self._unanimous(server_round),
        )

    def _unanimous(self, server_round: int) -> dict[str, float]:
        if self._folder is None:
            return {}
        flags = []
        for path in self._folder.glob("unanimous-*.txt"):
            last = _last_line(path).split()
            if len(last) == 2 and last[0] == str(server_round):
                flags.append(int(last[1]))
        return {"unanimous silos": sum(flags) / len(flags)} if flags else {}

    def state(self) -> dict[str, Any]:
        """Nothing beside the model: a resumed run sends the model whole once, the silos keep their secrets."""
        return {}

    def hypotheses(self) -> list[Hypothesis]:
        """None beyond the plan's."""
        return []

    def table(self, report: StageReport) -> Table:
        """Plan, step, unanimity, traffic."""
        own, asked = self._settings, sum(record.asked or 0 for record in report.rounds)
        unanimous = [r.diagnostics["unanimous silos"] for r in report.rounds if r.diagnostics]
        bytes_up, bytes_down = report.bytes_up + self.sums.bytes_up, report.bytes_down + self.sums.bytes_down
        table: Table = {
            **self.plan.describe(),
            "rounds released": sum(record.released for record in report.rounds),
            "step": f"{own.learning_rate:g}, {own.schedule}, {own.aggregate} of the bits",
            "downlink": "seeds and steps; the model once per silo",
            "payload up per silo and round (bits)": 1,
            "bytes up per silo and round, secure sum included": round(bytes_up / max(asked, 1)),
            "bytes down per silo and round, secure sum included": round(bytes_down / max(asked, 1)),
        }
        if unanimous:
            table["unanimous rounds (simulation only)"] = sum(unanimous) / len(unanimous)
        return table


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 64))
        lines = file.read().decode().splitlines()
    return lines[-1] if lines else ""
