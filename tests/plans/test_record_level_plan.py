"""What a record-level run is charged with, against an independent computation."""

from __future__ import annotations

from typing import Any

import dp_accounting
import pytest
from dp_accounting import pld, rdp

from fedpriv.accounting import Accountant, InvalidArgument
from fedpriv.accounting.local_steps import LocalSteps
from fedpriv.accounting.vocabulary import VIEWS
from fedpriv.plans import RecordLevelPlan, calibrate_plans
from fedpriv.plans.calibrate import plan_events


def make(**changes: Any) -> RecordLevelPlan:
    values: dict[str, Any] = {
        "sampling_rate": 0.1,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.1,
        "local_steps": 8,
        "adjacency": "add_or_remove",
        "radius": 10.0,
        "weighted": False,
        "num_clients": 3,
        "min_survivors": 2,
        "rounds": 25,
        "length": 98,
    }
    return RecordLevelPlan.build(**(values | changes))


def epsilon(plan: RecordLevelPlan, view: Any = "server", delta: float = 1e-5) -> Any:
    accountant = Accountant(plan.adjacency, plan.unit)
    for event, count in plan_events(plan, view):
        accountant.compose(event, count)
    return accountant.epsilon(delta)


def test_every_view_is_charged_with_the_composition_of_all_steps() -> None:
    plan = make()
    assert plan.unit == "record"
    assert plan.events() == dict.fromkeys(VIEWS, LocalSteps(0.1, plan.steps.noise_multiplier, 8))
    step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.1))
    run = dp_accounting.SelfComposedDpEvent(step, 200)
    by_rdp = rdp.RdpAccountant().compose(run).get_epsilon(1e-5)
    by_pld = pld.PLDAccountant(value_discretization_interval=1e-3).compose(run).get_epsilon(1e-5)
    found = epsilon(plan)
    assert found.rdp_epsilon == pytest.approx(by_rdp, rel=1e-3)
    assert found.epsilon == pytest.approx(by_pld, rel=5e-3)


def test_taking_part_in_fewer_rounds_is_not_amplified() -> None:
    """The number of silos and of survivors has no part in the cost."""
    assert epsilon(make(num_clients=10, min_survivors=5)) == epsilon(make())
    assert epsilon(make(weighted=True)) == epsilon(make())


def test_full_batches_under_both_adjacencies() -> None:
    zeroed = make(sampling_rate=1.0, noise_multiplier=20.0)
    replaced = make(sampling_rate=1.0, noise_multiplier=40.0, adjacency="replace_one")
    assert epsilon(zeroed).epsilon == pytest.approx(epsilon(replaced).epsilon)
    assert epsilon(zeroed).bound == "analytic"
    with pytest.raises(InvalidArgument, match="Poisson batches"):
        make(adjacency="replace_one")


def test_noise_is_solved_for_a_target() -> None:
    plans = calibrate_plans(
        target_epsilon=2.0,
        delta=1e-5,
        adjacency="add_or_remove",
        view="server",
        make_train=lambda noise: make(noise_multiplier=noise),
    )
    assert isinstance(plans.train, RecordLevelPlan)
    assert 1.99 < epsilon(plans.train).epsilon <= 2.0


def test_without_noise_nothing_is_claimed() -> None:
    assert epsilon(make(noise_multiplier=0.0)).epsilon == float("inf")
    assert make().infinite_views() == ()


def test_hypotheses_and_table_name_what_a_reviewer_needs() -> None:
    plan = make()
    statuses = {h.name: h.status for h in plan.hypotheses()}
    assert "fails" not in statuses.values()
    assert statuses["nobody but the silo learns which records it drew"] == "assumed"
    assert {h.status for h in make(seeded=True).hypotheses()} >= {"fails"}
    assert not any("drew" in h.name for h in make(sampling_rate=1.0).hypotheses())
    table = plan.describe()
    assert table["noise multiplier (on the clip)"] == pytest.approx(1.1)
    assert table["local steps per round"] == 8
    assert table["average"] == "uniform"
    assert "composition" in plan.visibility("release")
    # noise equals signal at so many records: exactly one at the number that the forecast names
    needed = plan.forecast().lines["records per silo at which noise equals signal, whole run"]
    assert plan.noise_over_signal(needed) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"min_survivors": 4}, "min_survivors"),
        ({"min_survivors": 1}, "min_survivors"),
        ({"rounds": -1}, "rounds"),
        ({"radius": 0.0}, "radius"),
        ({"local_steps": 0}, "steps"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        make(**changes)
