"""Plans of the vote and of private evaluation."""

import itertools
import json
import math

import numpy as np
import pytest

from fedpriv.accounting import Gaussian, NonPrivate
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.clients.private_evaluation import capped_counts
from fedpriv.mechanisms import Ballot
from fedpriv.plans import EvaluationPlan, VotePlan


def vote(**changes: object) -> VotePlan:
    values: dict = {
        "ballot": Ballot(12, 3),
        "adjacency": "add_or_remove",
        "num_clients": 50,
        "noise_multiplier": 2.0,
        "kind": "distributed",
        "min_survivors": 41,
    }
    return VotePlan.build(**(values | changes))


def evaluation(**changes: object) -> EvaluationPlan:
    values: dict = {
        "cap": 50,
        "noise_multiplier": 10.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": 50,
        "min_survivors": 41,
        "evaluations": 4,
    }
    return EvaluationPlan.build(**(values | changes))


@pytest.mark.parametrize("adjacency", ["add_or_remove", "replace_one"])
@pytest.mark.parametrize("multiplier", [0.01, 1.0, 333.0])
def test_vote_noise_is_the_multiplier_times_the_sensitivity(adjacency: str, multiplier: float) -> None:
    plan = vote(adjacency=adjacency, noise_multiplier=multiplier, colluders=4)
    sensitivity = plan.ballot.sensitivity(adjacency)  # type: ignore[arg-type]
    share = plan.noise.share_std_units / plan.units_per_vote
    assert share * math.sqrt(41 - 1 - 4) == pytest.approx(multiplier * sensitivity, rel=1e-12)
    assert plan.noise_std_votes == pytest.approx(multiplier * sensitivity, rel=1e-12)
    assert plan.noise.share_std_units >= 16
    for event in plan.events().values():
        assert isinstance(event, Gaussian)
        assert event.noise_multiplier == pytest.approx(multiplier, rel=1e-12)
    assert plan.releases == 1


def test_central_vote_has_no_guarantee_against_the_server() -> None:
    plan = vote(kind="central")
    assert isinstance(plan.events()["server"], NonPrivate)
    assert plan.events()["release"] == plan.events()["participants"]
    assert isinstance(plan.events()["release"], Gaussian)
    assert plan.infinite_views() == ("server",)
    assert plan.noise.total_std_units >= 16


def test_vote_without_noise_is_charged_as_no_privacy() -> None:
    plan = vote(noise_multiplier=0.0)
    assert all(isinstance(event, NonPrivate) for event in plan.events().values())
    assert plan.infinite_views() == ()
    assert plan.units_per_vote == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"min_survivors": 51}, "min_survivors"),
        ({"noise_multiplier": 1e-9}, "clip_units"),
        ({"noise_multiplier": 1e20}, "grid steps|num_clients"),
        ({"adjacency": "both"}, "adjacency"),
        ({"noise_multiplier": -1.0}, "total_std"),
    ],
)
def test_votes_that_cannot_run_are_refused(changes: dict, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        vote(**changes)


def test_vote_forecast_warns_when_the_winner_is_noise() -> None:
    assert not vote(noise_multiplier=1.0).forecast().warnings
    noisy = vote(noise_multiplier=20.0).forecast()
    assert "close to random" in noisy.warnings[0]
    realised = 20.0 * math.sqrt(3) / math.sqrt(40) * math.sqrt(50)
    assert noisy.lines["noise of a tally (votes)"] == pytest.approx(realised)


def test_vote_description_is_plain_data() -> None:
    table = vote(colluders=1).describe()
    assert json.loads(json.dumps(table)) == table
    assert table["noise multiplier (on the sensitivity)"] == pytest.approx(2.0)
    assert table["noise shares guaranteed"] == 39


@pytest.mark.parametrize("units", [1, 7])
def test_evaluation_sensitivity_is_the_largest_distance_of_two_counts(units: int) -> None:
    cap = 4
    pairs = [
        capped_counts(correct, examples, cap, units)
        for examples, correct in itertools.product(range(3 * cap), range(-1, 3 * cap))
    ]
    largest = max(float(np.linalg.norm(a - b)) for a in pairs for b in pairs)
    assert largest == pytest.approx(cap * units * math.sqrt(2))
    assert all(0 <= correct <= examples <= cap * units for correct, examples in pairs)


def test_capped_counts_keep_the_accuracy() -> None:
    assert capped_counts(3, 5, 50, 2).tolist() == [6, 10]
    assert capped_counts(300, 400, 50, 2).tolist() == [75, 100]
    assert capped_counts(10, 0, 50, 2).tolist() == [0, 0]
    assert capped_counts(-3, 5, 50, 2).tolist() == [0, 10]


@pytest.mark.parametrize("adjacency", ["add_or_remove", "replace_one"])
def test_evaluation_noise_is_the_multiplier_times_the_sensitivity(adjacency: str) -> None:
    plan = evaluation(adjacency=adjacency, colluders=4)
    share = plan.noise.share_std_units / plan.units_per_example
    assert share * math.sqrt(36) == pytest.approx(10.0 * 50 * math.sqrt(2), rel=1e-12)
    event = plan.events()["server"]
    assert isinstance(event, Gaussian)
    assert event.noise_multiplier == pytest.approx(10.0, rel=1e-12)
    assert plan.releases == 4
    assert json.loads(json.dumps(plan.describe())) == plan.describe()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cap": 0}, "cap"),
        ({"evaluations": -1}, "evaluations"),
        ({"min_survivors": 51}, "min_survivors"),
        ({"noise_multiplier": 1e-9}, "clip_units"),
    ],
)
def test_evaluations_that_cannot_run_are_refused(changes: dict, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        evaluation(**changes)
