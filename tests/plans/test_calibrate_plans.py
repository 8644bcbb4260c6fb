"""The noise of a run meets its target from below, as tightly as stated, and splits it as asked."""

import math
from collections.abc import Callable

import pytest

from fedpriv.accounting import Accountant, gaussian_noise_multiplier
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import Ballot, FullParticipation, SelfSampling
from fedpriv.plans import DpsgdDcPlan, EvaluationPlan, Plan, VotePlan, calibrate_plans

N, DELTA = 50, 1e-4


def vote_builder(**changes: object) -> Callable[[float], VotePlan]:
    values: dict = {
        "ballot": Ballot(12, 3),
        "adjacency": "add_or_remove",
        "num_clients": N,
        "kind": "distributed",
        "min_survivors": 45,
    }
    return lambda z: VotePlan.build(noise_multiplier=z, **(values | changes))


def train_builder(**changes: object) -> Callable[[float], DpsgdDcPlan]:
    values: dict = {
        "sampler": FullParticipation(),
        "clipping_norm": 1.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": N,
        "min_survivors": 45,
        "rounds": 15,
        "length": 650,
    }
    return lambda z: DpsgdDcPlan.build(noise_multiplier=z, **(values | changes))


def composed(*plans: Plan | None, view: str = "server", adjacency: str = "add_or_remove") -> float:
    accountant = Accountant(adjacency)  # type: ignore[arg-type]
    for plan in plans:
        if plan is not None:
            accountant.compose(plan.events()[view], plan.releases)  # type: ignore[index]
    return accountant.epsilon(DELTA).epsilon


def assert_met(found: float, target: float) -> None:
    assert target * (1 - 1e-3) <= found <= target


@pytest.mark.parametrize("target", [0.3, 8.0])
def test_target_is_met_from_below(target: float) -> None:
    plans = calibrate_plans(
        target_epsilon=target,
        delta=DELTA,
        adjacency="add_or_remove",
        view="server",
        make_vote=vote_builder(),
        make_train=train_builder(),
    )
    assert_met(composed(plans.vote, plans.train), target)
    assert plans.epsilon.epsilon == composed(plans.vote, plans.train)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_tune_share_is_the_votes_part(share: float) -> None:
    plans = calibrate_plans(
        target_epsilon=4.0,
        delta=DELTA,
        adjacency="add_or_remove",
        view="server",
        make_vote=vote_builder(),
        make_train=train_builder(),
        tune_share=share,
    )
    assert isinstance(plans.vote, VotePlan)
    assert isinstance(plans.train, DpsgdDcPlan)
    whole = gaussian_noise_multiplier(4.0, DELTA) ** -2
    voted = (plans.vote.noise.total_std_units / plans.vote.sensitivity_units) ** -2
    trained = plans.train.rounds * plans.train.noise_multiplier**-2
    assert voted / whole == pytest.approx(share, rel=1e-9)
    assert trained / whole == pytest.approx(1 - share, rel=1e-3)


def test_self_sampling_meets_the_target_with_less_noise() -> None:
    arguments: dict = {
        "target_epsilon": 2.0,
        "delta": DELTA,
        "adjacency": "add_or_remove",
        "view": "server",
    }
    sampled = calibrate_plans(make_train=train_builder(sampler=SelfSampling(0.2)), **arguments)
    full = calibrate_plans(make_train=train_builder(), **arguments)
    assert_met(composed(sampled.train), 2.0)
    assert isinstance(sampled.train, DpsgdDcPlan)
    assert isinstance(full.train, DpsgdDcPlan)
    assert sampled.train.noise_multiplier < 0.5 * full.train.noise_multiplier


def test_only_a_vote_gets_the_whole_target() -> None:
    plans = calibrate_plans(
        target_epsilon=1.0,
        delta=DELTA,
        adjacency="replace_one",
        view="server",
        make_vote=vote_builder(adjacency="replace_one"),
    )
    assert plans.train is None
    assert_met(composed(plans.vote, adjacency="replace_one"), 1.0)


def test_a_free_vote_beside_training_of_given_noise_takes_what_is_left() -> None:
    given = train_builder()(12.0)
    plans = calibrate_plans(
        target_epsilon=3.0,
        delta=DELTA,
        adjacency="add_or_remove",
        view="server",
        make_vote=vote_builder(),
        fixed=[given],
    )
    assert composed(given) > 1.0
    assert_met(composed(plans.vote, given), 3.0)


def test_given_stages_are_paid_first() -> None:
    evaluation = EvaluationPlan.build(
        cap=50,
        noise_multiplier=8.0,
        kind="distributed",
        adjacency="add_or_remove",
        num_clients=N,
        min_survivors=45,
        evaluations=15,
    )
    plans = calibrate_plans(
        target_epsilon=8.0,
        delta=DELTA,
        adjacency="add_or_remove",
        view="server",
        make_vote=vote_builder(),
        make_train=train_builder(),
        fixed=[evaluation],
    )
    assert_met(composed(plans.vote, plans.train, evaluation), 8.0)


def test_given_stages_that_exceed_the_target_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="target_epsilon must be above"):
        calibrate_plans(
            target_epsilon=0.5,
            delta=DELTA,
            adjacency="add_or_remove",
            view="server",
            make_vote=vote_builder(),
            fixed=[train_builder()(2.0)],
        )


@pytest.mark.parametrize("stage", ["make_vote", "make_train"])
def test_central_noise_bounds_no_server_view(stage: str) -> None:
    builder = (vote_builder if stage == "make_vote" else train_builder)(kind="central")
    arguments: dict = {"target_epsilon": 2.0, "delta": DELTA, "adjacency": "add_or_remove", stage: builder}
    with pytest.raises(InvalidArgument, match=r"budget-view.*'server'"):
        calibrate_plans(view="server", **arguments)
    plans = calibrate_plans(view="participants", **arguments)
    assert_met(composed(plans.vote, plans.train, view="participants"), 2.0)


def test_given_stage_without_noise_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="without noise"):
        calibrate_plans(
            target_epsilon=2.0,
            delta=DELTA,
            adjacency="add_or_remove",
            view="server",
            make_train=train_builder(),
            fixed=[vote_builder()(0.0)],
        )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target_epsilon": 0.0}, "target_epsilon"),
        ({"target_epsilon": math.nan}, "target_epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"tune_share": 0.0}, "tune-share"),
        ({"tune_share": 1.0}, "tune-share"),
    ],
)
def test_bad_targets_are_refused(changes: dict, named: str) -> None:
    arguments: dict = {
        "target_epsilon": 2.0,
        "delta": DELTA,
        "adjacency": "add_or_remove",
        "view": "server",
        "make_vote": vote_builder(),
        "make_train": train_builder(),
    }
    with pytest.raises(InvalidArgument, match=named):
        calibrate_plans(**(arguments | changes))
