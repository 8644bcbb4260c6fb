"""The plan of correlated noise under random allocation: what is charged, against independent computations."""

import math
from typing import Any

import numpy as np
import pytest

from fedpriv.accounting import Accountant, InvalidArgument, gaussian_epsilon
from fedpriv.accounting.allocation import RandomAllocation
from fedpriv.accounting.events import Gaussian, NonPrivate, NoRelease
from fedpriv.accounting.matrices import bandmf, bisr, blt, bsr, identity
from fedpriv.mechanisms import RandomAllocationSchedule
from fedpriv.plans import MatrixPlan, NoiseModel


def make_plan(bins: int = 4, epochs: int = 2, **changes: Any) -> MatrixPlan:
    redrawn, drawn_by = changes.pop("redrawn", False), changes.pop("drawn_by", "self")
    values: dict[str, Any] = {
        "schedule": RandomAllocationSchedule(bins, epochs, redrawn, drawn_by),
        "matrix": bsr(bins if redrawn else bins * epochs, 2),
        "clipping_norm": 0.5,
        "noise_multiplier": 2.0,
        "num_clients": 40,
        "min_survivors": 30,
        "length": 10,
    }
    return MatrixPlan.build(**(values | changes))


def test_the_event_is_made_of_schedule_matrix_and_noise() -> None:
    plan = make_plan()
    event = plan.events()["release"]
    assert isinstance(event, RandomAllocation)
    assert (event.bins, event.epochs, event.redraw, event.matrix) == (4, 2, False, plan.matrix)
    assert event.noise_multiplier == pytest.approx(2.0)
    # the noise that is drawn is the one in the event
    noise = plan.make_noise(bytes(32))
    assert noise.std / plan.codec.clip_units == event.noise_multiplier
    assert (noise.matrix, noise.rows) == (plan.matrix, 8)
    # more noise, more bins or another clip change event and draws together
    assert make_plan(noise_multiplier=3.0).events()["release"] != event
    assert plan.with_clipping_norm(7.0).events() == plan.events()
    assert plan.with_clipping_norm(7.0).codec.step == pytest.approx(14 * plan.codec.step)


def test_independent_noise_goes_without_a_matrix() -> None:
    event = make_plan(matrix=identity(8)).events()["release"]
    assert isinstance(event, RandomAllocation) and event.matrix is None


@pytest.mark.parametrize(
    ("changes", "participants", "release"),
    [
        ({}, RandomAllocation, RandomAllocation),
        ({"idle_clients_train": False}, Gaussian, RandomAllocation),
        ({"drawn_by": "server"}, Gaussian, RandomAllocation),
    ],
)
def test_amplification_goes_to_views_that_cannot_see_the_bins(
    changes: dict[str, Any], participants: type, release: type
) -> None:
    plan = make_plan(**changes)
    events = plan.events()
    assert isinstance(events["server"], NonPrivate)
    assert plan.infinite_views() == ("server",)
    assert type(events["participants"]) is participants
    assert type(events["release"]) is release
    said = plan.visibility("participants")
    assert ("without amplification" in said) == (participants is Gaussian)
    assert "charged with amplification" in plan.visibility("release")


@pytest.mark.parametrize("redrawn", [False, True])
@pytest.mark.parametrize("kind", ["identity", "bsr", "bisr", "blt"])
def test_without_amplification_it_is_the_gaussian_of_the_worst_bin(kind: str, redrawn: bool) -> None:
    rows = 4 if redrawn else 8
    matrix = {
        "identity": lambda: identity(rows),
        "bsr": lambda: bsr(rows, 3),
        "bisr": lambda: bisr(rows, 3),
        "blt": lambda: blt(4, rows // 4, 2),
    }[kind]()
    plan = make_plan(redrawn=redrawn, drawn_by="server", matrix=matrix)
    dense = matrix.dense()
    if redrawn:  # the same bin in both epochs is not the worst: the longest column in each
        worst = 2 * max(float(dense[:, i] @ dense[:, i]) for i in range(4))
    else:
        worst = max(float(np.sum((dense[:, i] + dense[:, i + 4]) ** 2)) for i in range(4))
    found = Accountant("add_or_remove").compose(plan.events()["participants"]).epsilon(1e-5).epsilon
    assert found == pytest.approx(gaussian_epsilon(2.0 / math.sqrt(worst), 1e-5), rel=1e-6)


def test_the_run_is_one_release_and_costs_nothing_more_once_it_is_paid() -> None:
    from dataclasses import replace

    plan = make_plan()
    assert (plan.releases, plan.num_rounds) == (1, 8)
    paid = replace(plan, paid=True).events()
    assert paid["participants"] == paid["release"] == NoRelease()
    assert isinstance(paid["server"], NonPrivate)


def test_a_sum_without_noise_has_no_guarantee_in_any_view() -> None:
    plan = make_plan(noise_multiplier=0.0)
    assert all(isinstance(event, NonPrivate) for event in plan.events().values())
    assert "fails" in {h.status for h in plan.hypotheses() if "rounding" in h.name}


def test_misfits_are_refused_by_name() -> None:
    for changes, message in (
        ({"adjacency": "replace_one"}, "add_or_remove only"),
        ({"matrix": bsr(7, 2)}, "matrix: 7 rows, the schedule needs 8"),
        ({"matrix": bsr(8, 2), "redrawn": True}, "starts afresh each epoch"),
        ({"min_survivors": 41}, "min_survivors"),
        ({"length": 0}, "length"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            make_plan(**changes)
    good = make_plan()
    with pytest.raises(InvalidArgument, match="noise = central"):
        MatrixPlan(
            good.schedule,
            good.matrix,
            good.codec,
            NoiseModel("distributed", 1000.0, 30),
            "add_or_remove",
            40,
            10,
        )
    with pytest.raises(InvalidArgument, match="seeded"):
        good.make_noise(bytes(32), "7")
    with pytest.raises(InvalidArgument, match="seeded"):
        make_plan(seeded=True).make_noise(bytes(32))


def test_every_hypothesis_has_its_status() -> None:
    def statuses(**changes: Any) -> dict[str, str]:
        return {h.name: h.status for h in make_plan(**changes).hypotheses()}

    own, server, skip = statuses(), statuses(drawn_by="server"), statuses(idle_clients_train=False)
    assert own["nobody but the client learns its bin"] == "holds"
    assert skip["nobody but the client learns its bin"] == "fails"
    bins = "bins are uniform over all rounds of an epoch, and a restart keeps them"
    assert (own[bins], server[bins]) == ("holds", "assumed")
    losses = "which clients drop out, and whether a round ends early, does not depend on the draw"
    assert losses not in own and server[losses] == skip[losses] == "assumed"
    assert own["release view: a hidden-state bound"] == "fails"
    assert own["rounding of the noise changes nothing that must be charged"] == "holds"
    assert statuses(seeded=True)["noise comes from the operating system's entropy"] == "fails"


def test_forecast_and_description_say_what_a_reviewer_needs() -> None:
    plan = make_plan(matrix=bandmf(8, 3))
    dense = np.tril(np.ones((8, 8))) @ np.linalg.inv(plan.matrix.dense())
    rmse = 2.0 * math.sqrt(float(np.sum(dense**2)) / 8)
    lines = plan.forecast().lines
    assert lines["RMSE of prefix sums (clips, per coordinate)"] == pytest.approx(rmse)
    last = 2.0 * float(np.linalg.norm(dense[-1])) * math.sqrt(10)
    assert lines["noise norm over signal, whole run"] == pytest.approx(last / (10 * 8))
    assert not plan.forecast().warnings
    assert make_plan(length=10**6).forecast().warnings
    described = plan.describe()
    assert described["matrix"] == "bandmf" and described["band"] == 3
    assert described["charged"] == "once for all rounds, with the first of them"
    assert make_plan(matrix=bisr(8, 3)).describe()["band of the inverse"] == 3
    assert make_plan(matrix=blt(4, 2, 2)).describe()["buffers"] == 2


def test_calibration_solves_the_noise_of_the_whole_run() -> None:
    from fedpriv.plans import calibrate_plans

    found = calibrate_plans(
        target_epsilon=2.0,
        delta=1e-4,
        adjacency="add_or_remove",
        view="participants",
        make_train=lambda z: make_plan(bins=4, epochs=1, noise_multiplier=z, matrix=identity(4)),
    )
    assert 1.99 < found.epsilon.epsilon <= 2.0
    with pytest.raises(InvalidArgument, match="budget-view"):
        calibrate_plans(
            target_epsilon=2.0,
            delta=1e-4,
            adjacency="add_or_remove",
            view="server",
            make_train=lambda z: make_plan(noise_multiplier=z),
        )
