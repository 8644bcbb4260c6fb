"""What a stage gets and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedpriv.accounting.vocabulary import View
from fedpriv.ledger import Ledger
from fedpriv.plans import HiddenState, PacPlan
from fedpriv.reporting import Progress, StageReport
from fedpriv.settings import Settings
from fedpriv.stages.folder import RunFolder
from fedpriv.stages.planning import Planner, RunPlans
from fedpriv.strategies import NoisedSum

#: Kind of the event that stands for all rounds of a stage; its distribution is computed once.
_ONE_RELEASE = "random_allocation"

Evaluator = Callable[[int, ArrayRecord], float | None]
"""From round and model to an accuracy in [0, 1] whose release is accounted for (or public); None for none."""


@dataclass
class Run:
    """What every stage of a run shares.

    Parameters
    ----------
    settings : Settings
        As configured.
    plans : RunPlans
        Calibrated plans of all stages.
    grid : Grid
        Flower's grid.
    clients : list of int
        Node ids of the federation.
    ledger : Ledger
        The run's privacy ledger.
    folder : RunFolder
        Where results go.
    progress : Progress
        Console lines.
    evaluator : callable
        Evaluation of a model.
    initial_arrays : ArrayRecord
        The model before any training.
    """

    settings: Settings
    plans: RunPlans
    grid: Grid
    clients: list[int]
    ledger: Ledger
    folder: RunFolder
    progress: Progress
    evaluator: Evaluator
    initial_arrays: ArrayRecord

    @property
    def noise_seed(self) -> int | None:
        """Seed of the noise, for a simulation that is declared not private; None for secure noise."""
        return self.settings.run.seed if self.settings.run.seeded_noise else None

    def sums(self) -> NoisedSum:
        """Releases under this run's secure-sum settings and ledger."""
        run = self.settings.run
        return NoisedSum(
            self.ledger,
            mode=run.secure_sum,
            timeout=run.timeout,
            share_threshold=run.share_threshold or None,
            neighbours=run.neighbours or None,
            seed=self.noise_seed,
        )

    def epsilon_now(self, view: View) -> float:
        """Epsilon spent so far in a view: by distributions where they cost little beside a round (Gaussians, a run
        that is one release, silos with steps of their own), else by RDP."""
        total = self.ledger.totals()[view]
        cheap = self.settings.run.unit == "record" or all(
            e.gaussian_equivalent() is not None or e.kind == _ONE_RELEASE for e in total.events
        )
        return total.epsilon(self.settings.run.resolved_delta, use_pld=cheap).epsilon

    def epsilon_by_view(self) -> dict[View, float]:
        """`epsilon_now` for each view."""
        return {view: self.epsilon_now(view) for view in ("server", "participants", "release")}


@dataclass
class RunState:
    """What stages hand on, and what a checkpoint keeps.

    Parameters
    ----------
    arrays : ArrayRecord
        The model.
    candidate : dict
        Hyperparameters that the vote chose; empty before it.
    stage : str
        Stage that was last checkpointed.
    round : int
        Its last finished round.
    optimizer : dict
        Arrays of the server's optimizer.
    reports : list of StageReport
        Finished stages.
    stopped : str
        Why the run ended early; empty when it did not.
    """

    arrays: ArrayRecord
    candidate: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    round: int = 0
    optimizer: dict[str, Any] = field(default_factory=dict)
    reports: list[StageReport] = field(default_factory=list)
    stopped: str = ""


class Stage(ABC):
    """One part of a run: needs a grid and a ledger, changes the state, returns its report.

    Attributes
    ----------
    name : str
        Value in the ``stages`` key.
    kind : str
        What it is, for people.
    noun : str
        What it does, as the subject of a sentence ("training stopped").
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    noun: ClassVar[str] = "the stage"

    @classmethod
    @abstractmethod
    def planner(cls, settings: Settings, length: int) -> Planner | PacPlan:
        """How the stage's plan comes about.

        Parameters
        ----------
        settings : Settings
            The run's configuration.
        length : int
            Number of model coordinates.

        Returns
        -------
        Planner or PacPlan
            A PAC plan has no noise multiplier to solve.
        """

    @classmethod
    def stage_bound(cls, settings: Settings, plan: Any, initial: ArrayRecord) -> HiddenState | None:
        """Bound on the release view of the stage as a whole; None for composition of its rounds."""
        return None

    @abstractmethod
    def run(self, run: Run, state: RunState) -> StageReport:
        """Do the stage's work, starting from ``state`` (a checkpoint, when the run was resumed inside it)."""


def report_hypotheses(plan: Any) -> list[Any]:
    """A plan's hypotheses in the report's words."""
    from fedpriv.reporting import Hypothesis

    return [Hypothesis(name=h.name, status=h.status, detail=h.detail) for h in plan.hypotheses()]
