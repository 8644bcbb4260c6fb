"""From settings to calibrated plans: the same for a run and for ``fedpriv plan``, which sends nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.events import NonPrivate, PrivacyEvent
from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.mechanisms import (
    ArrayLayout,
    Ballot,
    FixedSizeCohort,
    FullParticipation,
    PoissonCohort,
    Sampler,
    SelfSampling,
)
from fedpriv.plans import (
    DpsgdDcPlan,
    EvaluationPlan,
    HiddenState,
    Plan,
    VotePlan,
    calibrate_plans,
    hidden_state,
)
from fedpriv.plans.calibrate import plan_events
from fedpriv.settings import Settings


@dataclass(frozen=True)
class RunPlans:
    """Plans of all releases of a run.

    Parameters
    ----------
    vote : VotePlan or None
        Tuning.
    train : DpsgdDcPlan or None
        Training.
    evaluation : EvaluationPlan or None
        Private evaluation.
    hidden : HiddenState or None
        Release view of the training as a whole, when its hyperparameters are known before the run (no vote).
    """

    vote: VotePlan | None
    train: DpsgdDcPlan | None
    evaluation: EvaluationPlan | None
    hidden: HiddenState | None = None

    def named(self) -> dict[str, Plan]:
        """Stage name -> plan, in the order in which they run."""
        plans = {"tune": self.vote, "train": self.train, "evaluate": self.evaluation}
        return {name: plan for name, plan in plans.items() if plan is not None}

    def epsilon(self, view: View, delta: float, *, use_pld: bool = True) -> Epsilon:
        """Composed epsilon of everything that is planned, in one view."""
        plans = self.named().values()
        adjacency = next(iter(plans)).adjacency
        accountant = Accountant(adjacency)
        for plan in plans:
            for event, count in self._events(plan, view):
                if isinstance(event, NonPrivate):
                    return Epsilon(math.inf, delta, "none", notes=(f"no guarantee: {event.reason}",))
                accountant.compose(event, count)
        return accountant.epsilon(delta, use_pld=use_pld)

    def _events(self, plan: Plan, view: View) -> list[tuple[PrivacyEvent, int]]:
        hidden = self.hidden
        if view == "release" and plan is self.train and hidden is not None and not hidden.conditional:
            return [(hidden.event, 1)] if hidden.event is not None else plan_events(plan, view)
        return plan_events(plan, view)

    def epsilons(self, delta: float) -> dict[View, Epsilon]:
        """Composed epsilon per view."""
        return {view: self.epsilon(view, delta) for view in VIEWS}

    def warnings(self) -> list[str]:
        """What the forecasts of all plans warn of."""
        return [text for plan in self.named().values() for text in plan.forecast().warnings]


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


def resolve_min_survivors(configured: int, asked: int) -> int:
    """Fewest clients in a sum: as configured, or 90 % of those asked, at least 3 where there are 3.

    A Poisson cohort below its mean is filled up with clients that send zeros, so it needs no room of its own.
    """
    return configured if configured > 0 else max(min(3, asked), math.ceil(0.9 * asked))


def plans_of(settings: Settings, initial: ArrayRecord) -> RunPlans:
    """Plans of a run over a model, with the release view's hidden-state bound where it is known beforehand.

    The noise is solved under composition in every view; the hidden state can only lower what is reported.
    """
    from fedpriv.stages.facts import training_facts

    length = ArrayLayout.of({name: array.numpy() for name, array in initial.items()}).size
    plans = make_plans(settings, length)
    if plans.train is None or plans.vote is not None:
        return plans
    facts = training_facts(settings, initial)
    return replace(plans, hidden=hidden_state(plans.train, facts, settings.run.resolved_delta))


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
        When no noise meets the target.
    """
    run, tune, train = settings.run, settings.tune, settings.train
    sampler = make_sampler(settings)
    everyone = resolve_min_survivors(run.min_survivors, run.num_clients)
    cohort = resolve_min_survivors(run.min_survivors, sampler.expected_asked(run.num_clients))

    def make_vote(noise_multiplier: float) -> VotePlan:
        return VotePlan.build(
            Ballot(len(tune.candidates), tune.resolved_votes),
            run.adjacency,
            run.num_clients,
            noise_multiplier,
            run.noise,
            everyone,
            run.colluders,
            run.seeded_noise,
        )

    def make_train(noise_multiplier: float) -> DpsgdDcPlan:
        return DpsgdDcPlan.build(
            sampler=sampler,
            clipping_norm=train.clip_norm,
            noise_multiplier=noise_multiplier,
            kind=run.noise,
            adjacency=run.adjacency,
            num_clients=run.num_clients,
            min_survivors=cohort,
            rounds=train.rounds,
            length=length,
            colluders=run.colluders,
            seeded=run.seeded_noise,
            idle_clients_train=train.idle_work == "train",
        )

    tunes, trains = "tune" in run.stage_names, "train" in run.stage_names
    evaluation = None
    if run.evaluate == "private" and trains:
        evaluation = EvaluationPlan.build(
            cap=run.evaluate_cap,
            noise_multiplier=run.evaluate_noise,
            kind=run.noise,
            adjacency=run.adjacency,
            num_clients=run.num_clients,
            min_survivors=everyone,
            evaluations=math.ceil(train.rounds / run.evaluate_every),
            colluders=run.colluders,
            seeded=run.seeded_noise,
        )
    vote = make_vote(tune.noise_multiplier) if tunes and tune.noise_multiplier > 0 else None
    trained = make_train(train.noise_multiplier) if trains and train.noise_multiplier > 0 else None
    free_vote, free_train = tunes and vote is None, trains and trained is None
    if free_vote or free_train:
        fixed = [plan for plan in (vote, trained, evaluation) if plan is not None]
        solved = calibrate_plans(
            target_epsilon=run.target_epsilon,
            delta=run.resolved_delta,
            adjacency=run.adjacency,
            view=run.budget_view,
            make_vote=make_vote if free_vote else None,
            make_train=make_train if free_train else None,
            tune_share=run.tune_share,
            fixed=fixed,
        )
        vote = solved.vote if free_vote else vote
        if free_train:
            assert isinstance(solved.train, DpsgdDcPlan)
            trained = solved.train
    return RunPlans(vote, trained, evaluation)
