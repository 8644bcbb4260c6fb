"""From settings to calibrated plans: the same for a run and for ``fedpriv plan``, which sends nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.events import NonPrivate, PrivacyEvent
from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.mechanisms import (
    ArrayLayout,
    FixedSizeCohort,
    FullParticipation,
    PoissonCohort,
    Sampler,
    SelfSampling,
)
from fedpriv.plans import (
    AnyPlan,
    EvaluationPlan,
    HiddenState,
    PacPlan,
    Plan,
    calibrate_plans,
)
from fedpriv.plans.calibrate import PlanBuilder, plan_events
from fedpriv.settings import Settings, SettingsError


@dataclass(frozen=True)
class Planner:
    """How the plan of one stage comes about.

    Parameters
    ----------
    build : callable
        From a noise multiplier to the plan.
    noise_multiplier : float
        As configured; 0 to solve it from the target epsilon.
    key : str
        Run-config key of the noise multiplier, for messages.
    """

    build: PlanBuilder
    noise_multiplier: float
    key: str


@dataclass(frozen=True)
class RunPlans:
    """Plans of all releases of a run.

    Parameters
    ----------
    stages : dict of str to AnyPlan
        By the name of the stage, in the order in which they run.
    evaluation : EvaluationPlan or None
        Private evaluation.
    bounds : dict of str to HiddenState
        Bounds on the release view of a stage as a whole, where its hyperparameters are known before the run.
    """

    stages: dict[str, AnyPlan]
    evaluation: EvaluationPlan | None = None
    bounds: dict[str, HiddenState] = field(default_factory=dict)

    def named(self) -> dict[str, AnyPlan]:
        """Stage name -> plan, in the order in which they run."""
        return self.stages | ({} if self.evaluation is None else {"evaluate": self.evaluation})

    def private(self) -> dict[str, Plan]:
        """The plans that differential privacy covers."""
        return {name: plan for name, plan in self.named().items() if isinstance(plan, Plan)}

    def pac(self) -> dict[str, PacPlan]:
        """The plans that PAC privacy covers; they have no epsilon."""
        return {name: plan for name, plan in self.named().items() if isinstance(plan, PacPlan)}

    def epsilon(self, view: View, delta: float, *, use_pld: bool = True) -> Epsilon:
        """Composed epsilon of everything planned that differential privacy covers, in one view."""
        plans = self.private()
        if not plans:
            return Epsilon(0.0, delta, "none")
        accountant = Accountant(next(iter(plans.values())).adjacency, next(iter(plans.values())).unit)
        for name, plan in plans.items():
            for event, count in self._events(name, plan, view):
                if isinstance(event, NonPrivate):
                    return Epsilon(math.inf, delta, "none", notes=(f"no guarantee: {event.reason}",))
                accountant.compose(event, count)
        return accountant.epsilon(delta, use_pld=use_pld)

    def _events(self, name: str, plan: Plan, view: View) -> list[tuple[PrivacyEvent, int]]:
        bound = self.bounds.get(name)
        if view == "release" and bound is not None and bound.event is not None and not bound.conditional:
            return [(bound.event, 1)]
        return plan_events(plan, view)

    def epsilons(self, delta: float) -> dict[View, Epsilon]:
        """Composed epsilon per view."""
        return {view: self.epsilon(view, delta) for view in VIEWS}

    def warnings(self) -> list[str]:
        """What the forecasts of all plans warn of."""
        return [text for plan in self.named().values() for text in plan.forecast().warnings]


def population(settings: Settings, plans: RunPlans) -> int | None:
    """How many units a unit hides among: clients, or the records of the smallest silo where that is known."""
    if settings.run.unit == "client":
        return settings.run.num_clients
    known = [getattr(plan, "records", ()) for plan in plans.private().values()]
    return min((size for sizes in known for size in sizes), default=None)


def large_delta(settings: Settings, plans: RunPlans) -> str:
    """What to say of a delta that is not below 1 over the population; empty where all is well."""
    delta, units = settings.run.resolved_delta, population(settings, plans)
    if not plans.private() or units is None or delta < 1.0 / units:
        return ""
    return (
        f"delta {delta:g} is not below 1/n = {1 / units:.3g}: a mechanism that publishes one "
        f"{settings.run.unit} at random would pass"
    )


def make_sampler(settings: Settings) -> Sampler:
    """The sampler that ``sampling`` and ``adjacency`` select."""
    run = settings.run
    if run.sampling == "full":
        return FullParticipation()
    if run.sampling == "self":
        return SelfSampling(run.sampling_rate)
    if run.adjacency == "add_or_remove":
        return PoissonCohort(run.sampling_rate)
    return FixedSizeCohort(max(1, round(run.sampling_rate * run.num_clients)))


def min_survivors_of_all(settings: Settings) -> int:
    """Fewest clients in a sum over the whole federation."""
    return resolve_min_survivors(settings.run.min_survivors, settings.run.num_clients)


def min_survivors_of_cohort(settings: Settings) -> int:
    """Fewest clients in a sum over a round's cohort."""
    asked = make_sampler(settings).expected_asked(settings.run.num_clients)
    return resolve_min_survivors(settings.run.min_survivors, asked)


def resolve_min_survivors(configured: int, asked: int) -> int:
    """Fewest clients in a sum: as configured, or 90 % of those asked, at least 3 where there are 3.

    A Poisson cohort below its mean is filled up with clients that send zeros, so it needs no room of its own.
    """
    return configured if configured > 0 else max(min(3, asked), math.ceil(0.9 * asked))


def num_coordinates(initial: ArrayRecord) -> int:
    """Number of model coordinates."""
    return ArrayLayout.of({name: array.numpy() for name, array in initial.items()}).size


def plans_of(settings: Settings, initial: ArrayRecord) -> RunPlans:
    """Plans of a run over a model, with the release view's stage bounds where they are known beforehand.

    The noise is solved under composition in every view; a stage bound can only lower what is reported. After a
    vote the hyperparameters are open, and no bound is forecast for the stage that it tunes.
    """
    from fedpriv.stages.registry import stage_class

    plans = make_plans(settings, num_coordinates(initial))
    open_stage = settings.tuned.stage if "tune" in plans.stages else ""
    bounds = {}
    for name, plan in plans.stages.items():
        bound = (
            None
            if name == open_stage
            else stage_class(name, settings.run.unit).stage_bound(settings, plan, initial)
        )
        if bound is not None:
            bounds[name] = bound
    return RunPlans(plans.stages, plans.evaluation, bounds)


def make_plans(settings: Settings, length: int) -> RunPlans:
    """Build the plans of all stages and solve the free noise multipliers for the target epsilon.

    Parameters
    ----------
    settings : Settings
        The run's configuration.
    length : int
        Number of model coordinates.

    Returns
    -------
    RunPlans

    Raises
    ------
    InvalidArgument, SettingsError
        When no noise meets the target, or more than one stage beside the vote leaves its noise open.
    """
    from fedpriv.stages.registry import stage_class

    run = settings.run
    made = {name: stage_class(name, run.unit).planner(settings, length) for name in run.stage_names}
    fixed: dict[str, AnyPlan] = {}
    free: dict[str, Planner] = {}
    for name, planner in made.items():
        if isinstance(planner, PacPlan):
            fixed[name] = planner
        elif planner.noise_multiplier > 0:
            fixed[name] = planner.build(planner.noise_multiplier)
        else:
            free[name] = planner
    vote = free.pop("tune", None)
    if len(free) > 1:
        keys = " or ".join(planner.key for planner in free.values())
        raise SettingsError(
            f"run config: stages = {run.stages!r}: the noise of one stage beside the vote can be solved from "
            f"target-epsilon; set {keys}"
        )
    evaluation = _evaluation_plan(settings, fixed, free)
    given = [plan for plan in [*fixed.values(), evaluation] if isinstance(plan, Plan)]
    solved: dict[str, AnyPlan] = {}
    if vote is not None or free:
        other = next(iter(free.values()), None)
        found = calibrate_plans(
            target_epsilon=run.target_epsilon,
            delta=run.resolved_delta,
            adjacency=run.adjacency,
            view=run.budget_view,
            make_vote=None if vote is None else vote.build,
            make_train=None if other is None else other.build,
            tune_share=run.tune_share,
            fixed=given,
        )
        if found.vote is not None:
            solved["tune"] = found.vote
        if found.train is not None:
            solved[next(iter(free))] = found.train
    stages = fixed | solved
    return RunPlans({name: stages[name] for name in run.stage_names}, evaluation)


def _evaluation_plan(
    settings: Settings, fixed: dict[str, AnyPlan], free: dict[str, Planner]
) -> EvaluationPlan | None:
    run = settings.run
    rounds = [plan.num_rounds for name, plan in fixed.items() if name != "tune"]
    rounds += [planner.build(1.0).num_rounds for planner in free.values()]
    if run.evaluate != "private" or not rounds:
        return None
    return EvaluationPlan.build(
        cap=run.evaluate_cap,
        noise_multiplier=run.evaluate_noise,
        kind=run.noise,
        adjacency=run.adjacency,
        num_clients=run.num_clients,
        min_survivors=min_survivors_of_all(settings),
        evaluations=sum(math.ceil(number / run.evaluate_every) for number in rounds),
        colluders=run.colluders,
        seeded=run.seeded_noise,
    )
