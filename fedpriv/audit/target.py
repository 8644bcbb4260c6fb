"""What an audit needs of a strategy: runs with and without a canary, the claim, and probes of the mechanism."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.events import NonPrivate, PrivacyEvent
from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.audit.bounds import Trials
from fedpriv.audit.ledger_check import Watch
from fedpriv.audit.one_run import OneRun
from fedpriv.audit.result import Claim
from fedpriv.ledger import Ledger
from fedpriv.mechanisms.noise import MIN_SHARE_UNITS
from fedpriv.plans import AnyPlan, HiddenState, NoiseModel, Plan

if TYPE_CHECKING:
    from fedpriv.settings import Settings


#: Score of a run that ended early: an end that depends on the canary tells that it is present.
ABORTED = 1e12


@dataclass(frozen=True, eq=False)
class NoiseSample:
    """Sums to which every client contributes zeros.

    Parameters
    ----------
    draws : np.ndarray
        Shape (rounds, length), grid steps.
    expected_std : np.ndarray
        Shape (rounds,): what the plan says that a sum of so many clients carries.
    guaranteed_std : float
        What the plan guarantees; the sum of ``draws`` holds one counted share when ``counted`` is true.
    counted : bool
        Whether the sums hold exactly the shares that the guarantee counts.
    """

    draws: np.ndarray
    expected_std: np.ndarray
    guaranteed_std: float
    counted: bool


@dataclass(frozen=True)
class Participation:
    """How often clients really contributed.

    Parameters
    ----------
    took_part, chances : int
        Contributions seen, out of how many.
    cohort_is_visible : bool
        The server's requests tell who takes part.
    """

    took_part: int
    chances: int
    cohort_is_visible: bool


class Probes(ABC):
    """Small experiments on a mechanism, for the consistency checks."""

    plan: Plan
    #: The first release of a stage pays for all of them.
    charged_once: ClassVar[bool] = False

    @property
    def sensitivity_units(self) -> float:
        """The plan's sensitivity, in grid steps."""
        return float(self.plan.sensitivity_units)  # type: ignore[attr-defined]

    @abstractmethod
    def noise(self, *, counted: bool) -> NoiseSample:
        """Release sums of zeros under the plan's noise, or with exactly the counted shares in them."""

    @abstractmethod
    def shifts(self) -> dict[str, float]:
        """By how much worst-case canaries move the released sum, over the plan's sensitivity (1: all of it).

        Measured end to end with hardly any noise, so that the figures are good to about 1e-3.
        """

    @abstractmethod
    def play_with(self, ledger: Ledger, watch: Watch) -> None:
        """Play some releases with a ledger and an observer of the requests (see `ledger_check`)."""

    def participation(self) -> Participation | None:
        """How often clients contribute; None where everyone does in every round by construction."""
        return None

    def claimed_noise_multiplier(self, event: PrivacyEvent) -> float:
        """Noise over sensitivity that an event charges for; infinite for no release, 0 for no guarantee."""
        if isinstance(event, NonPrivate):
            return 0.0
        return float(getattr(event, "noise_multiplier", math.inf))


class Shadow(Protocol):
    """A membership attack that fits shadow models on one half of its runs."""

    def trials(self, runs: int) -> Trials:
        """Scores of so many runs."""


@dataclass(frozen=True)
class Setup:
    """A configured stage, from which a target is made.

    Parameters
    ----------
    stage : str
        Name of the stage.
    plan : AnyPlan
        As calibrated for the run.
    settings : Settings or None
        Run configuration; None for the defaults of the strategy.
    bound : HiddenState or None
        Bound on the release view of the stage as a whole, if one is claimed.
    """

    stage: str
    plan: AnyPlan
    settings: Settings | None = None
    bound: HiddenState | None = None


class Target(ABC):
    """One strategy, ready to be attacked: its real objects in a federation of very few clients.

    Attributes
    ----------
    kind : str
        What it is, for people.
    code : str
        Which code runs.
    stage : str
        Name of the stage.
    """

    kind: ClassVar[str]
    code: ClassVar[str]
    stage: str

    @classmethod
    @abstractmethod
    def of(cls, setup: Setup) -> Target:
        """Make the target of a configured stage."""

    @abstractmethod
    def claim(self, view: View, delta: float) -> Claim:
        """What the plan claims for a view."""

    @abstractmethod
    def play(self, present: bool) -> dict[View, np.ndarray]:
        """One whole run; per view the attack's statistics, the larger the likelier the canary is present."""

    def has_one_run(self, view: View) -> bool:
        """Whether `one_run` attacks a view."""
        return False

    def one_run(self, view: View, canaries: int) -> OneRun:
        """One run with many canaries, each in by its own fair coin."""
        raise NotImplementedError(f"{self.kind} has no attack with one run")

    def shadow(self) -> Shadow | None:
        """A membership attack on real data; None where there is none."""
        return None

    def probes(self) -> Probes | None:
        """Experiments for the consistency checks; None where there are none."""
        return None

    def views(self) -> tuple[View, ...]:
        """Views that are attacked."""
        return VIEWS


class PlanTarget(Target):
    """A target whose claim is that of a differentially private plan.

    Parameters
    ----------
    setup : Setup
        Configured stage.
    """

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.plan, Plan)
        self.stage, self.configured, self.bound = setup.stage, setup.plan, setup.bound
        self._claims: dict[tuple[View, float], Claim] = {}

    def views(self) -> tuple[View, ...]:
        """All views but those that repeat an earlier one: the same event, judged by the same released sums."""
        events = self.configured.events()
        repeated = events["participants"] == events["server"]
        return ("server", "release") if repeated else VIEWS

    def hidden(self, view: View) -> PrivacyEvent | None:
        """The stage's event as a whole, where it is claimed."""
        if view == "release" and self.bound is not None and not self.bound.conditional:
            return self.bound.event
        return None

    def claim(self, view: View, delta: float) -> Claim:
        if (view, delta) not in self._claims:
            self._claims[view, delta] = self._claim(view, delta)
        return self._claims[view, delta]

    def _claim(self, view: View, delta: float) -> Claim:
        plan, event, hidden = self.configured, self.configured.events()[view], self.hidden(view)
        if isinstance(event, NonPrivate):
            return Claim(math.inf, bound="none")
        accountant = Accountant(plan.adjacency, plan.unit)
        if hidden is not None:
            accountant.compose(hidden)
        else:
            accountant.compose(event, plan.releases)
        found = accountant.epsilon(delta)
        equivalent = event.gaussian_equivalent()
        mu = None
        if hidden is None and equivalent is not None:
            mu = math.sqrt(equivalent * plan.releases)
        return Claim(found.epsilon, bound=found.bound, gaussian_mu=mu)


def few_clients(noise: NoiseModel, honest: int, colluders: int) -> NoiseModel:
    """The same guaranteed noise for a federation of ``honest`` clients and ``colluders`` that add none.

    With colluders the sum carries exactly the guaranteed noise (of one honest client: one counted share).
    """
    if noise.kind == "central":
        return replace(noise, min_survivors=min(3, honest), colluders=0)
    survivors = honest + colluders
    return replace(noise, min_survivors=max(2, survivors), colluders=max(0, colluders - 1))


def finer_by(noise: NoiseModel) -> int:
    """By how much a grid must be finer for the shares of many clients to be drawn on it; 1: not at all."""
    share = noise.share_std_units
    return max(1, math.ceil(4 * MIN_SHARE_UNITS / share)) if share > 0 else 1


def signal_ratio(statistic: np.ndarray, shift: float, rate: float) -> float:
    """Log-likelihood ratio of "present" for a sum over rounds of a Poisson-sampled Gaussian.

    Parameters
    ----------
    statistic : np.ndarray
        Shape (rounds,): the sum along the canary, over the standard deviation of the noise.
    shift : float
        Distance of the two means in a round in which the canary takes part.
    rate : float
        Probability of taking part.
    """
    ratio = shift * statistic - shift * shift / 2
    if rate >= 1.0:
        return float(np.sum(ratio))
    return float(np.sum(np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)))
