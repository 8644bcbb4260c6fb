"""Solve the noise of a run for a target epsilon, split between tuning and training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.calibration import calibrate_noise_multiplier
from fedpriv.accounting.events import NonPrivate, PrivacyEvent
from fedpriv.accounting.gaussian import gaussian_noise_multiplier
from fedpriv.accounting.validators import InvalidArgument, check_delta, check_positive
from fedpriv.accounting.vocabulary import Adjacency, View
from fedpriv.plans.base import Plan

PlanBuilder = Callable[[float], Plan]
"""From a noise multiplier to the plan that uses it."""


@dataclass(frozen=True)
class CalibratedPlans:
    """Plans whose composition meets the target.

    Parameters
    ----------
    vote : Plan or None
        Tuning, if the run tunes.
    train : Plan or None
        Training, if the run trains.
    epsilon : Epsilon
        Composed epsilon of everything in the budget view, as planned.
    """

    vote: Plan | None
    train: Plan | None
    epsilon: Epsilon


def plan_events(plan: Plan, view: View) -> list[tuple[PrivacyEvent, int]]:
    """All releases of a plan as (event, count) pairs for one view."""
    return [(plan.events()[view], plan.releases)] if plan.releases else []


def calibrate_plans(
    *,
    target_epsilon: float,
    delta: float,
    adjacency: Adjacency,
    view: View,
    make_vote: PlanBuilder | None = None,
    make_train: PlanBuilder | None = None,
    tune_share: float = 0.1,
    fixed: Sequence[Plan] = (),
) -> CalibratedPlans:
    """Find the smallest noise for which the whole run meets (target_epsilon, delta) in one view.

    Parameters
    ----------
    target_epsilon : float
        Epsilon of the whole run, > 0.
    delta : float
        Delta in (0, 1).
    adjacency : Adjacency
        Neighbouring relation of all plans.
    view : View
        Whose view the budget bounds.
    make_vote, make_train : callable, optional
        Builders of the stages whose noise is free.
    tune_share : float
        Part of the budget that the vote gets, in (0, 1): with mu the Gaussian-DP parameter whose exact curve
        passes through (target_epsilon, delta), the vote gets mu_vote**2 = tune_share * mu**2 (for Gaussian
        releases the squares add up exactly). Without ``make_train`` the vote gets all that ``fixed`` leaves.
    fixed : sequence of Plan
        Stages whose noise is given; they are paid for first.

    Returns
    -------
    CalibratedPlans

    Raises
    ------
    InvalidArgument
        When the view has no guarantee at any noise (central noise and view ``server``), or the fixed stages
        alone exceed the target.
    """
    check_positive(target_epsilon=target_epsilon)
    check_delta(delta=delta)
    if delta == 0:
        raise InvalidArgument("delta: 0 needs infinite Gaussian noise; use a value in (0, 1)")
    if make_vote is not None and make_train is not None and not 0.0 < tune_share < 1.0:
        raise InvalidArgument(f"tune-share: {tune_share} is outside (0, 1)")
    paid = [pair for plan in fixed for pair in plan_events(plan, view)]
    _check_guarantee(paid, view)

    def solve(builder: PlanBuilder) -> float:
        _check_guarantee(plan_events(builder(1.0), view), view)
        return calibrate_noise_multiplier(
            lambda noise_multiplier: plan_events(builder(noise_multiplier), view),
            target_epsilon,
            delta,
            adjacency,
            fixed_events=tuple(paid),
        ).noise_multiplier

    vote: Plan | None = None
    train: Plan | None = None
    if make_vote is not None and make_train is not None:
        vote = make_vote(gaussian_noise_multiplier(target_epsilon, delta) / math.sqrt(tune_share))
        _check_guarantee(plan_events(vote, view), view)
        paid += plan_events(vote, view)
    elif make_vote is not None:
        vote = make_vote(solve(make_vote))
        paid += plan_events(vote, view)
    if make_train is not None:
        train = make_train(solve(make_train))
        paid += plan_events(train, view)
    accountant = Accountant(adjacency)
    for event, count in paid:
        accountant.compose(event, count)
    return CalibratedPlans(vote, train, accountant.epsilon(delta))


def _check_guarantee(pairs: Sequence[tuple[PrivacyEvent, int]], view: View) -> None:
    for event, _ in pairs:
        if isinstance(event, NonPrivate):
            raise InvalidArgument(
                f"budget-view: no noise level gives the {view!r} view a guarantee ({event.reason}); use "
                "noise = distributed, or budget-view = participants or release"
            )
