"""The plan of zeroth-order fine-tuning: what is charged, and when the hidden state may be claimed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, NonPrivate, PoissonGaussian
from fedpriv.accounting.vocabulary import VIEWS, Adjacency
from fedpriv.accounting.zeroth_order import ZerothOrderHiddenState, zeroth_order_event
from fedpriv.mechanisms import FixedSizeCohort, FullParticipation, PoissonCohort, SelfSampling
from fedpriv.mechanisms.directions import DENSE_LIMIT, Directions
from fedpriv.mechanisms.perturbation import two_point_quotients
from fedpriv.plans import ZerothOrderPlan
from fedpriv.plans.zeroth_order_release import ZerothOrderFacts, rounding_drift, zeroth_order_hidden_state
from fedpriv.tasks.base import Split
from fedpriv.tasks.models import ClippedLogisticRegression
from fedpriv.tasks.objective import ModelObjective

DELTA = 1e-3
FACTS = ZerothOrderFacts(
    learning_rate=0.5,
    constant_rate=True,
    radius=0.05,
    center_norm=0.0,
    smoothness=1.0,
    round_metrics=False,
)


def make_plan(**changes: Any) -> ZerothOrderPlan:
    values: dict[str, Any] = {
        "sampler": FullParticipation(),
        "dimension": 20,
        "directions": 10,
        "clip": 2.0,
        "smoothing": 1e-3,
        "direction_share": 0.5,
        "noise_multiplier": 4.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": 50,
        "min_survivors": 45,
        "rounds": 2000,
    }
    return ZerothOrderPlan.build(**(values | changes))


# -- what is charged -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["add_or_remove", "replace_one"])
@pytest.mark.parametrize("directions", [1, 7])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_the_charge_is_that_of_the_formula(adjacency: Adjacency, directions: int, share: float) -> None:
    """alpha s^2 / (2 beta sigma^2) with sigma as the plan states it: two ways from the same mechanism."""
    plan = make_plan(adjacency=adjacency, directions=directions, direction_share=share)
    formula = zeroth_order_event(
        rounds=1,
        dimension=plan.dimension,
        directions=plan.directions,
        learning_rate=1.0,
        noise_std=plan.noise_std,
        direction_share=plan.direction_share,
        clip=plan.clip,
        contributors=50,
        radius=1.0,
        adjacency=adjacency,
    )
    for view in VIEWS:
        event = plan.events()[view]
        assert isinstance(event, Gaussian)
        assert event.noise_multiplier == pytest.approx(formula.server_noise_multiplier, rel=1e-12)
    # isotropic noise helps participants a little, and no credit is taken for it
    assert formula.participants_noise_multiplier >= formula.server_noise_multiplier
    assert plan.events()["server"] == make_plan(adjacency=adjacency).events()["server"]


def test_replacing_a_client_moves_a_sum_twice_as_far() -> None:
    one, two = (make_plan(adjacency=a).events()["server"] for a in ("add_or_remove", "replace_one"))
    assert isinstance(one, Gaussian) and isinstance(two, Gaussian)
    assert one.noise_multiplier == pytest.approx(2 * two.noise_multiplier)


def test_who_sees_what() -> None:
    central = make_plan(kind="central")
    assert isinstance(central.events()["server"], NonPrivate)
    assert isinstance(central.events()["participants"], Gaussian)
    without = make_plan(noise_multiplier=0.0)
    assert all(isinstance(without.events()[view], NonPrivate) for view in VIEWS)
    own = make_plan(sampler=SelfSampling(0.2)).events()
    assert all(isinstance(own[view], PoissonGaussian) for view in VIEWS)
    idle = make_plan(sampler=SelfSampling(0.2), idle_clients_train=False).events()
    assert isinstance(idle["participants"], Gaussian) and isinstance(idle["release"], PoissonGaussian)
    drawn = make_plan(sampler=FixedSizeCohort(20), adjacency="replace_one", min_survivors=18).events()
    assert isinstance(drawn["server"], Gaussian) and isinstance(drawn["release"], FixedSizeGaussian)


def test_noise_energy_does_not_depend_on_beta_or_k_at_the_same_sigma() -> None:
    for directions, share in ((1, 0.25), (8, 0.75)):
        plan = make_plan(directions=directions, direction_share=share)
        per_quotient = plan.noise.total_std_units * plan.sums.codec.step / plan.sums.divisor
        assert per_quotient == pytest.approx(math.sqrt(directions * share) * plan.noise_std)
        rate = 0.3
        along = directions * (rate / directions * per_quotient) ** 2
        around = plan.dimension * plan.isotropic_std(rate) ** 2
        assert along + around == pytest.approx((rate * plan.noise_std) ** 2)
    assert not make_plan(direction_share=1.0).has_isotropic_noise
    assert make_plan(direction_share=1.0).isotropic_std(1.0) == 0.0


def test_another_clip_after_a_vote_keeps_the_price() -> None:
    plan = make_plan()
    other = plan.with_values(clip=0.5, smoothing=0.02)
    assert (other.clip, other.smoothing) == (pytest.approx(0.5), 0.02)
    assert other.events() == plan.events()
    assert other.noise_std == pytest.approx(plan.noise_std / 4)


def test_the_rounding_of_quotients_is_far_below_the_noise() -> None:
    for directions in (1, 16):
        plan = make_plan(directions=directions, noise_multiplier=0.5)
        assert plan.sums.codec.step < 1e-3 * plan.clip
        assert plan.noise.share_std_units >= 16
        assert plan.sums.modulus_bits() <= 62


def test_hypotheses_forecast_and_table_say_what_runs() -> None:
    plan = make_plan(directions=4)
    assert {h.status for h in plan.hypotheses()} <= {"holds", "assumed"}
    assert "each of the 4 sums" in plan.hypotheses()[0].name
    seeded = make_plan(seeded=True)
    assert [h.status for h in seeded.hypotheses() if "directions are public" in h.name] == ["fails"]
    assert (
        not make_plan(noise_multiplier=1.0, rounds=10, num_clients=1000, min_survivors=900)
        .forecast()
        .warnings
    )
    assert "move at random" in make_plan(noise_multiplier=5000.0).forecast().warnings[0]
    table = plan.describe()
    assert (table["directions K"], table["kind of directions"]) == (4, "orthonormal")
    assert table["clip of a quotient"] == pytest.approx(2.0)
    assert plan.releases == plan.rounds == 2000


def test_directions_that_do_not_fit_in_memory_are_independent_and_the_table_says_so() -> None:
    plan = make_plan(dimension=DENSE_LIMIT, directions=2)
    assert plan.kind == "independent"
    assert plan.describe()["kind of directions"] == "independent"
    assert make_plan(dimension=DENSE_LIMIT, directions=1).kind == "orthonormal"


# -- the release view ------------------------------------------------------------------------------------------


def event_of(plan: ZerothOrderPlan) -> ZerothOrderHiddenState:
    event = zeroth_order_hidden_state(plan, FACTS).event
    assert isinstance(event, ZerothOrderHiddenState)
    return event


def epsilon(plan: ZerothOrderPlan) -> float:
    return Accountant(plan.adjacency).compose(event_of(plan)).epsilon(DELTA).epsilon


def test_where_everything_holds_the_bound_is_below_composition() -> None:
    plan = make_plan()
    found = zeroth_order_hidden_state(plan, FACTS)
    assert {h.status for h in found.hypotheses} == {"holds"}
    composed = Accountant("add_or_remove").compose(plan.events()["release"], plan.rounds).epsilon(DELTA)
    assert 0 < epsilon(plan) < 0.5 * composed.epsilon
    # the end of a run hides its beginning
    assert epsilon(make_plan(rounds=20_000)) == pytest.approx(epsilon(plan), rel=0.05)


@pytest.mark.parametrize(
    "change",
    [{"smoothness": None}, {"constant_rate": False}, {"radius": 0.0}, {"round_metrics": True}],
    ids=lambda change: next(iter(change)),
)
def test_one_fact_that_fails_means_composition(change: dict[str, Any]) -> None:
    found = zeroth_order_hidden_state(make_plan(), replace(FACTS, **change))
    assert found.event is None
    assert [h.status for h in found.hypotheses].count("fails") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"direction_share": 1.0},
        {"sampler": SelfSampling(0.5)},
        {"sampler": PoissonCohort(0.5), "kind": "central"},
        {"seeded": True},
        {"noise_multiplier": 0.0},
        {"direction_kind": "signs"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_one_part_of_the_plan_that_fails_means_composition(change: dict[str, Any]) -> None:
    found = zeroth_order_hidden_state(make_plan(**change), FACTS)
    assert found.event is None
    assert [h.status for h in found.hypotheses].count("fails") == 1


def test_independent_directions_mean_composition() -> None:
    found = zeroth_order_hidden_state(make_plan(dimension=DENSE_LIMIT, directions=2), FACTS)
    assert found.event is None
    assert [h.name for h in found.hypotheses if h.status == "fails"] == [
        "release view: directions are orthonormal"
    ]


def test_the_event_is_made_of_what_runs() -> None:
    plan = make_plan(adjacency="replace_one", clip=1.0)
    event = event_of(plan)
    assert event.sensitivity == pytest.approx(2 * plan.clip / 50)
    assert (event.noise_std, event.direction_share) == (plan.noise_std, plan.direction_share)
    assert event.lattice_noise
    assert not event.clip_inactive  # losses are 2-Lipschitz, the clip is 1
    assert event_of(make_plan(clip=2.0)).clip_inactive
    finite_differences = 0.5 * 1.0 * 1e-3 / math.sqrt(10)
    assert event.drift > finite_differences
    assert event.radius >= FACTS.radius
    coarser = make_plan(adjacency="replace_one", clip=1.0, smoothing=1e-2)
    assert event_of(coarser).drift > event.drift


def test_the_stated_error_covers_evaluated_quotients_of_the_real_model() -> None:
    """Against extended precision, at the rim of the ball and with directions before their rounding."""
    classes, features, norm = 3, 5, 2.0
    facts = replace(FACTS, radius=20.0, smoothness=(norm**2 + 1) / 2)
    rng = np.random.default_rng(4)
    x, y = torch.from_numpy(rng.normal(size=(30, features))), torch.from_numpy(rng.integers(0, classes, 30))
    model = ClippedLogisticRegression(
        input_shape=(features,), num_classes=classes, feature_norm=norm
    ).double()
    d = classes * (features + 1)
    plan = make_plan(dimension=d, directions=1)
    stated, _ = rounding_drift(plan, facts)
    worst = 0.0
    for trial in range(20):
        w = rng.normal(size=d)
        w = (w * facts.radius / np.linalg.norm(w)).astype(np.float32).astype(np.float64)
        model.load_state_dict(
            {
                "linear.weight": torch.from_numpy(w[: classes * features].reshape(classes, features)),
                "linear.bias": torch.from_numpy(w[classes * features :]),
            }
        )
        directions = Directions(trial.to_bytes(16, "little"), d, 1)
        raw = directions._normal(0, 0).astype(np.longdouble)
        exact = raw / np.sqrt(np.sum(raw**2))
        found = two_point_quotients(ModelObjective(model, Split(x, y)), directions, plan.smoothing)[0]
        z = model.clip_features(x).numpy().astype(np.longdouble)
        losses = [
            _cross_entropy(
                w.astype(np.longdouble) + sign * np.longdouble(plan.smoothing) * exact, z, y.numpy()
            )
            for sign in (+1, -1)
        ]
        reference = (losses[0] - losses[1]) / (2 * np.longdouble(plan.smoothing))
        worst = max(worst, float(np.abs(found - reference).max()))
    assert 0 < worst <= stated / plan.smoothing
    assert stated / plan.smoothing < 1e-4 * plan.clip


def _cross_entropy(w: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    classes = len(w) // (z.shape[1] + 1)
    logits = z @ w[: classes * z.shape[1]].reshape(classes, -1).T + w[classes * z.shape[1] :]
    top = logits.max(axis=1, keepdims=True)
    log_sum: np.ndarray = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1)) - logits[np.arange(len(y)), y]
    return log_sum
