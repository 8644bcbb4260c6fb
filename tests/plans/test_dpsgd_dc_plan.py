"""Events per view for every combination of sampling, noise and adjacency; what runs is what is charged."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting import Accountant, FixedSizeGaussian, Gaussian, NonPrivate, PoissonGaussian
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import FixedSizeCohort, FullParticipation, PoissonCohort, SelfSampling
from fedpriv.plans import DpsgdDcPlan

N, T = 100, 20
FULL, SELF = FullParticipation(), SelfSampling(0.05)
POISSON, FIXED = PoissonCohort(0.05), FixedSizeCohort(30)


def plan(**changes: object) -> DpsgdDcPlan:
    values: dict = {
        "sampler": FULL,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": N,
        "min_survivors": 20,
        "rounds": T,
        "length": 50,
    }
    return DpsgdDcPlan.build(**(values | changes))


def epsilon(plan: DpsgdDcPlan, view: str, delta: float, rounds: int = 1, *, use_pld: bool = True) -> float:
    accountant = Accountant(plan.adjacency)
    accountant.compose(plan.events()[view], rounds)  # type: ignore[index]
    return accountant.epsilon(delta, use_pld=use_pld).epsilon


PLAIN, SERVER = Gaussian(1.0), "non-private"
Q = PoissonGaussian(0.05, 1.0)
HALF, M = Gaussian(0.5), FixedSizeGaussian(N, 30, 0.5)

#: sampler, noise, adjacency -> events of server, participants, release
TABLE = [
    (FULL, "distributed", "add_or_remove", PLAIN, PLAIN, PLAIN),
    (FULL, "distributed", "replace_one", HALF, HALF, HALF),
    (FULL, "central", "add_or_remove", SERVER, PLAIN, PLAIN),
    (FULL, "central", "replace_one", SERVER, HALF, HALF),
    (SELF, "distributed", "add_or_remove", Q, Q, Q),
    (SELF, "central", "add_or_remove", SERVER, Q, Q),
    (POISSON, "distributed", "add_or_remove", PLAIN, PLAIN, PLAIN),
    (POISSON, "central", "add_or_remove", SERVER, PLAIN, Q),
    (FIXED, "distributed", "replace_one", HALF, HALF, M),
    (FIXED, "central", "replace_one", SERVER, HALF, M),
]


@pytest.mark.parametrize(("sampler", "kind", "adjacency", "server", "participants", "release"), TABLE)
def test_events_per_view(sampler, kind, adjacency, server, participants, release) -> None:  # type: ignore[no-untyped-def]
    built = plan(sampler=sampler, kind=kind, adjacency=adjacency)
    events = built.events()
    assert set(events) == {"server", "participants", "release"}
    if server == SERVER:
        assert isinstance(events["server"], NonPrivate)
        assert built.infinite_views() == ("server",)
    else:
        assert_event(events["server"], server)
        assert built.infinite_views() == ()
    assert_event(events["participants"], participants)
    assert_event(events["release"], release)


def assert_event(found: object, expected: object) -> None:
    assert type(found) is type(expected)
    for name, value in vars(expected).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("sampler", "adjacency"), [(SELF, "replace_one"), (POISSON, "replace_one"), (FIXED, "add_or_remove")]
)
@pytest.mark.parametrize("kind", ["distributed", "central"])
def test_pairs_of_sampling_and_adjacency_without_a_bound_are_refused(
    sampler: object, adjacency: str, kind: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"adjacency.*{adjacency}"):
        plan(sampler=sampler, adjacency=adjacency, kind=kind)


def test_idle_clients_that_skip_training_show_their_coin_to_who_watches() -> None:
    built = plan(sampler=SELF, idle_clients_train=False)
    assert_event(built.events()["server"], PLAIN)
    assert_event(built.events()["participants"], PLAIN)
    assert_event(built.events()["release"], Q)
    assert "fails" in {h.status for h in built.hypotheses() if "learns whether it took part" in h.name}
    assert "holds" in {
        h.status for h in plan(sampler=SELF).hypotheses() if "learns whether it took part" in h.name
    }


@settings(max_examples=60, deadline=None)
@given(
    multiplier=st.floats(0.05, 50),
    clip=st.floats(1e-3, 1e3),
    survivors=st.integers(5, N),
    colluders=st.integers(0, 3),
    length=st.integers(1, 10**6),
)
def test_charged_noise_is_what_the_counted_shares_carry(
    multiplier: float, clip: float, survivors: int, colluders: int, length: int
) -> None:
    built = plan(
        noise_multiplier=multiplier,
        clipping_norm=clip,
        min_survivors=survivors,
        colluders=colluders,
        length=length,
    )
    share = built.noise.share_std_units * built.codec.step  # what the client half adds, in real units
    counted = survivors - 1 - colluders
    assert math.sqrt(counted) * share / clip == pytest.approx(multiplier, rel=1e-9)
    event = built.events()["server"]
    assert isinstance(event, Gaussian)
    assert event.noise_multiplier == pytest.approx(math.sqrt(counted) * share / clip, rel=1e-9)
    assert built.noise.share_std_units >= 16


def test_replace_one_charges_twice_the_clip() -> None:
    built = plan(adjacency="replace_one", noise_multiplier=1.0)
    assert built.sensitivity_units == 2 * built.codec.clip_units
    assert epsilon(built, "server", 1e-5) == pytest.approx(9.997, abs=5e-4)


def test_server_knows_a_poisson_cohort_that_it_draws() -> None:
    """q = .05, z = 1, one round, delta 1e-6: 4.9 for the server, 1.47 for who cannot see the cohort."""
    drawn = plan(sampler=POISSON)
    assert epsilon(drawn, "server", 1e-6) == pytest.approx(4.9, abs=0.05)
    assert epsilon(drawn, "participants", 1e-6) == pytest.approx(4.9, abs=0.05)
    # the number of noise shares would tell the cohort's size, so the final model is not amplified either
    assert epsilon(drawn, "release", 1e-6) == pytest.approx(4.9, abs=0.05)
    assert epsilon(plan(sampler=POISSON, kind="central"), "release", 1e-6) == pytest.approx(1.47, abs=0.01)
    for view in ("server", "participants", "release"):
        assert epsilon(plan(sampler=SELF), view, 1e-6) == pytest.approx(1.47, abs=0.01)


def test_the_sampler_that_runs_decides() -> None:
    """N = 1000, m = 100, 100 rounds, z = 1."""
    common = {"num_clients": 1000, "min_survivors": 80, "rounds": 100}
    hidden = plan(sampler=SelfSampling(0.1), **common)
    known = plan(sampler=PoissonCohort(0.1), **common)
    assert epsilon(hidden, "server", 1e-5, 100, use_pld=False) == pytest.approx(7.90, abs=0.005)
    assert epsilon(known, "server", 1e-5, 100, use_pld=False) == pytest.approx(96.1, abs=0.6)


def test_a_fixed_size_cohort_is_amplified_for_the_final_model_only() -> None:
    common = {"num_clients": 1000, "min_survivors": 80, "adjacency": "replace_one", "noise_multiplier": 2.0}
    built = plan(sampler=FixedSizeCohort(100), **common)
    assert epsilon(built, "release", 1e-5, use_pld=False) < epsilon(built, "server", 1e-5, use_pld=False) / 2
    event = built.events()["release"]
    assert isinstance(event, FixedSizeGaussian)
    assert event.noise_multiplier == pytest.approx(2.0 / 2)  # std / (2 C)


@pytest.mark.parametrize(
    ("sampler", "adjacency", "divisor"),
    [
        (FULL, "add_or_remove", 100.0),
        (SELF, "add_or_remove", 5.0),
        (POISSON, "add_or_remove", 5.0),
        (FIXED, "replace_one", 30.0),
    ],
)
def test_the_divisor_is_public_and_fixed(sampler: object, adjacency: str, divisor: float) -> None:
    assert plan(sampler=sampler, adjacency=adjacency).divisor == pytest.approx(divisor)


def test_another_clip_scales_everything_and_changes_no_event() -> None:
    built = plan(clipping_norm=1.0)
    other = built.with_clipping_norm(7.0)
    assert other.events() == built.events()
    assert other.codec.step == pytest.approx(7 * built.codec.step)
    assert other.codec.decode(np.array([built.codec.clip_units])) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rounds": -1}, "rounds"),
        ({"length": 0}, "length"),
        ({"min_survivors": 101}, "min_survivors"),
        ({"min_survivors": 1}, "min_survivors"),
        ({"noise_multiplier": -1.0}, "total_std"),
        ({"noise_multiplier": math.nan}, "total_std"),
        ({"noise_multiplier": 1e-12}, "grid steps"),
        ({"noise_multiplier": 1e-12, "kind": "central"}, "grid steps"),
        ({"noise_multiplier": 1e20}, "grid steps|num_clients"),
        ({"noise_multiplier": 1e20, "kind": "central"}, "grid steps"),
        ({"clipping_norm": 0.0}, "clipping_norm"),
        ({"adjacency": "zero"}, "adjacency"),
        ({"sampler": FixedSizeCohort(101), "adjacency": "replace_one"}, "size"),
        ({"sampler": FixedSizeCohort(19), "adjacency": "replace_one"}, "min_survivors"),
    ],
)
def test_plans_that_cannot_run_are_refused(changes: dict, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        plan(**changes)


def test_no_noise_is_charged_as_no_privacy_and_not_declared_as_agreed() -> None:
    built = plan(noise_multiplier=0.0)
    assert all(isinstance(event, NonPrivate) for event in built.events().values())
    assert built.infinite_views() == ()
    assert plan(noise_multiplier=0.0, kind="central").infinite_views() == ("server",)


def test_forecast_compares_noise_with_the_largest_signal() -> None:
    built = plan(noise_multiplier=2.0, min_survivors=81, length=400, rounds=25)
    share = 2.0 / math.sqrt(80)
    norm = share * math.sqrt(100) * math.sqrt(400)
    lines = built.forecast().lines
    assert lines["noise norm per round (clips)"] == pytest.approx(norm)
    assert lines["noise norm over signal, per round"] == pytest.approx(norm / 100)
    assert lines["noise norm over signal, whole run"] == pytest.approx(norm / 100 / 5)
    assert not built.forecast().warnings
    drowned = plan(num_clients=3, min_survivors=3, noise_multiplier=20.0, length=400)
    assert "3 clients at client level" in drowned.forecast().warnings[0]


def test_description_holds_what_a_reviewer_needs_and_is_plain_data() -> None:
    for sampler, kind, adjacency, *_ in TABLE:
        table = plan(sampler=sampler, kind=kind, adjacency=adjacency).describe()
        assert json.loads(json.dumps(table)) == table
        assert table["sampling"] == sampler.name  # type: ignore[union-attr]
        assert table["sensitivity (clips)"] == (1 if adjacency == "add_or_remove" else 2)
    table = plan(min_survivors=20, colluders=3).describe()
    assert table["noise shares guaranteed"] == 16
    assert table["noise multiplier (on the clip)"] == pytest.approx(1.0)


def test_hypotheses_say_what_the_amplification_rests_on() -> None:
    def names(**changes: object) -> dict[str, str]:
        return {h.name: h.status for h in plan(**changes).hypotheses()}

    drop_outs = "which clients drop out, and whether a round ends early, does not depend on the draw"
    assert names(sampler=POISSON, kind="central")[drop_outs] == "assumed"
    assert names(sampler=FIXED, adjacency="replace_one")[drop_outs] == "assumed"
    assert names(sampler=SELF, idle_clients_train=False)[drop_outs] == "assumed"
    for changes in ({}, {"sampler": SELF}, {"sampler": POISSON}):
        assert drop_outs not in names(**changes)
    assert names()["the sum is divided by a fixed public number"] == "holds"
