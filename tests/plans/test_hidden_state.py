"""The release view's bound is offered only when every hypothesis holds for the objects that run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.accounting.accountant import Accountant
from fedpriv.mechanisms import FixedSizeCohort, FullParticipation, PoissonCohort, Sampler, SelfSampling
from fedpriv.plans import DpsgdDcPlan, TrainingFacts, hidden_state
from fedpriv.plans.hidden_state import local_rounding_error

DELTA = 1e-3
FACTS = TrainingFacts(
    smoothness=8.5,
    smoothness_proved=True,
    local_learning_rate=0.01,
    local_steps=1,
    local_momentum=0.0,
    server_learning_rate=1.0,
    plain_server=True,
    constant_rate=True,
    radius=0.2,
    center_norm=0.0,
    release_noise=0.3,
    round_metrics=False,
    linear_features=65,
    most_examples=1500,
)


def _plan(sampler: Sampler | None = None, adjacency: Any = "add_or_remove", **options: Any) -> DpsgdDcPlan:
    values: dict[str, Any] = {
        "sampler": sampler or FullParticipation(),
        "clipping_norm": 0.1,
        "noise_multiplier": 4.0,
        "kind": "distributed",
        "adjacency": adjacency,
        "num_clients": 50,
        "min_survivors": 5,
        "rounds": 300,
        "length": 650,
    }
    return DpsgdDcPlan.build(**(values | options))


def _epsilon(plan: DpsgdDcPlan, facts: TrainingFacts) -> float:
    event = hidden_state(plan, facts, DELTA).event
    assert event is not None
    return Accountant(plan.adjacency).compose(event).epsilon(DELTA).epsilon


@pytest.mark.parametrize("sampler", [FullParticipation(), SelfSampling(0.3)])
def test_where_everything_holds_the_bound_is_below_composition(sampler: Sampler) -> None:
    plan = _plan(sampler)
    found = hidden_state(plan, FACTS, DELTA)
    assert all(h.status == "holds" for h in found.hypotheses)
    composed = Accountant("add_or_remove").compose(plan.events()["release"], plan.rounds).epsilon(DELTA)
    assert 0 < _epsilon(plan, FACTS) < 0.7 * composed.epsilon


@pytest.mark.parametrize(
    "change",
    [
        {"smoothness": None, "smoothness_proved": False},
        {"local_momentum": 0.5},
        {"plain_server": False},
        {"constant_rate": False},
        {"radius": 0.0},
        {"release_noise": 0.0},
        {"round_metrics": True},
        {"linear_features": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_one_hypothesis_that_fails_means_composition(change: dict[str, Any]) -> None:
    found = hidden_state(_plan(), replace(FACTS, **change), DELTA)
    assert found.event is None
    assert any(h.status == "fails" for h in found.hypotheses)


def test_a_cohort_that_the_server_draws_means_composition() -> None:
    for plan in (
        _plan(FixedSizeCohort(10), "replace_one"),
        _plan(PoissonCohort(0.3), kind="central"),
        _plan(seeded=True),
    ):
        assert hidden_state(plan, FACTS, DELTA).event is None


def test_a_vouched_smoothness_gives_a_conditional_bound() -> None:
    facts = replace(FACTS, smoothness=3.0, smoothness_proved=False, linear_features=None)
    found = hidden_state(_plan(), facts, DELTA)
    assert found.conditional and found.event is not None
    assert {h.status for h in found.hypotheses} == {"holds", "assumed"}


def test_the_bound_grows_with_every_error_that_enters_as_drift() -> None:
    plan = _plan()
    worse = replace(FACTS, most_examples=60_000)
    assert local_rounding_error(worse) > local_rounding_error(FACTS)
    assert _epsilon(plan, worse) >= _epsilon(plan, FACTS)
    assert _epsilon(_plan(adjacency="replace_one"), FACTS) > _epsilon(plan, FACTS)


def test_the_rounding_bound_covers_float32_training_of_the_real_model() -> None:
    """Against the same steps in float64, on the task's own model and extreme weights."""
    from fedpriv.tasks import get_task
    from fedpriv.tasks.training import LocalTraining, train

    task = get_task("digits")
    split = task.take(np.arange(200))
    local = LocalTraining(learning_rate=0.1, local_steps=3)
    facts = replace(FACTS, local_learning_rate=0.1, local_steps=3, radius=5.0, most_examples=200)
    smoothness = task.smoothness("logistic")
    assert smoothness == FACTS.smoothness
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for _ in range(5):
        single = task.build_model("logistic", 0)
        start = {k: torch.randn(v.shape, generator=generator) for k, v in single.state_dict().items()}
        norm = float(torch.sqrt(sum((v**2).sum() for v in start.values())))
        start = {k: v * (5.0 / norm) for k, v in start.items()}
        single.load_state_dict(start)
        double = task.build_model("logistic", 0).double()
        double.load_state_dict({k: v.double() for k, v in start.items()})
        train(single, split, local, 0)
        train(double, replace(split, x=split.x.double()), local, 0)
        gap = [
            ((a.double() - b) ** 2).sum()
            for a, b in zip(single.state_dict().values(), double.state_dict().values(), strict=True)
        ]
        worst = max(worst, float(torch.sqrt(sum(gap))))
    assert 0 < worst <= local_rounding_error(facts)


def test_idle_clients_that_skip_training_leave_composition() -> None:
    plan = _plan(SelfSampling(0.3), idle_clients_train=False)
    found = hidden_state(plan, FACTS, DELTA)
    assert found.event is None
    assert any(h.status == "fails" and "secret coin" in h.name for h in found.hypotheses)
    assert hidden_state(_plan(FullParticipation(), idle_clients_train=False), FACTS, DELTA).event is not None
