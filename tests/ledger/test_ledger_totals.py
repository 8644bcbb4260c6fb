"""Numbers: composition over stages, the curve over rounds, and bounds on a stage as a whole."""

from __future__ import annotations

import dataclasses
import json
import math
import time

import pytest

from fedpriv.accounting import (
    VIEWS,
    Accountant,
    Gaussian,
    InvalidArgument,
    NoRelease,
    PoissonGaussian,
    PrivacyEvent,
    register_event,
)
from fedpriv.accounting.amplification_by_iteration import AmplificationByIteration
from fedpriv.accounting.curves import DirectionalCurves, gaussian_curve
from fedpriv.accounting.vocabulary import ADJACENCIES
from fedpriv.ledger import LedgerCorrupted, read_ledger

DELTA = 1e-5


def everywhere(event):
    return dict.fromkeys(VIEWS, event)


@register_event
@dataclasses.dataclass(frozen=True)
class CappedRun(PrivacyEvent):
    """Test only: costs no more than `cap` of its Gaussian rounds, and has no loss distribution."""

    noise_multiplier: float
    cap: int
    rounds: int = 0
    kind = "test_capped_run"
    adjacencies = frozenset(ADJACENCIES)

    def curves(self, orders):
        rounds = min(self.rounds, self.cap)
        return DirectionalCurves.symmetric(gaussian_curve(self.noise_multiplier / math.sqrt(rounds), orders))

    def gaussian_equivalent(self):
        return None


def test_a_vote_and_200_rounds_compose_to_the_known_numbers(path, open_ledger):
    with open_ledger() as ledger:
        ledger.reserve("tune", 1, everywhere(Gaussian(5.0))).commit()
        for number in range(1, 201):
            ledger.reserve("train", number, everywhere(PoissonGaussian(0.1, 1.2))).commit()
        found = ledger.epsilon("server", DELTA)
        assert found.rdp_epsilon == pytest.approx(8.021, abs=1e-3)
        assert found.pld_epsilon == pytest.approx(7.279, abs=1e-3)
        assert (found.epsilon, found.bound) == (found.pld_epsilon, "pld")
        train = ledger.epsilon_by_stage("server", DELTA)["train"]
        assert train.rdp_epsilon == pytest.approx(7.953, abs=1e-3)

        started = time.process_time()
        history = ledger.history(DELTA, "server")
        assert time.process_time() - started < 1.0
        assert len(history) == 201
        assert history[0].epsilon == pytest.approx(
            Accountant("add_or_remove").compose(Gaussian(5.0)).rdp_epsilon(DELTA)
        )
        assert [p.epsilon for p in history] == sorted(p.epsilon for p in history)
        assert history[-1].epsilon == pytest.approx(found.rdp_epsilon)

        curve = ledger.epsilon_curve(DELTA, "server", max_points=5)
        assert curve[-1].epsilon == found.epsilon
        assert curve[-1].release == 201 and len(curve) <= 5
        by_release = {p.release: p.epsilon for p in history}
        assert all(p.epsilon < by_release[p.release] for p in curve)
    # Everything comes back from the file alone.
    again = read_ledger(path)
    assert again.epsilon("server", DELTA) == found
    assert again.history(DELTA, "server") == history


def test_views_are_kept_apart(open_ledger):
    events = {"server": Gaussian(1.0), "participants": Gaussian(2.0), "release": Gaussian(4.0)}
    with open_ledger() as ledger:
        for number in range(9):
            ledger.reserve("train", number, events)
        for view, event in events.items():
            assert ledger.totals()[view].events == {event: 9}
            expected = Accountant("add_or_remove").compose(event, 9).epsilon(DELTA)
            assert ledger.epsilon(view, DELTA) == expected


def test_nothing_released_costs_nothing(open_ledger):
    with open_ledger() as ledger:
        assert [ledger.epsilon(view, DELTA).epsilon for view in VIEWS] == [0, 0, 0]
        assert ledger.history(DELTA, "server") == []
        assert ledger.epsilon_curve(DELTA, "server") == []
        assert ledger.epsilon_by_stage("server", DELTA) == {}


def test_a_stage_bound_replaces_its_rounds_in_the_release_view_only(path, open_ledger):
    event = Gaussian(2.0)
    with open_ledger() as ledger:
        ledger.register_stage("train", round_event=event, events_by_rounds=CappedRun(2.0, 4).to_json())
        for number in range(20):
            ledger.reserve("train", number, everywhere(event)).commit()
            if number == 2:
                # Below the cap nothing is gained, and composition (which has an exact curve) is reported.
                assert ledger.epsilon("release", DELTA) == Accountant("add_or_remove").compose(
                    event, 3
                ).epsilon(DELTA)
        ledger.reserve("train", 20, everywhere(event)).void("not sent")
        found = ledger.epsilon("release", DELTA)
        capped = Accountant("add_or_remove").compose(CappedRun(2.0, 4, 20)).epsilon(DELTA)
        assert found.epsilon == pytest.approx(capped.epsilon)
        assert found.pld_epsilon is None  # one event has no loss distribution, so no number is made up
        assert any("'train'" in note for note in found.notes)
        composed = Accountant("add_or_remove").compose(event, 20).epsilon(DELTA)
        for view in ("server", "participants"):
            assert ledger.epsilon(view, DELTA) == composed
        assert ledger.totals()["release"].events == {event: 20}
        assert ledger.epsilon_by_stage("release", DELTA)["train"].epsilon == found.epsilon
        assert ledger.history(DELTA, "release")[-1].epsilon == pytest.approx(capped.rdp_epsilon)
    again = read_ledger(path)
    assert again.epsilon("release", DELTA) == found
    assert again.stage_bounds[0].event(7) == CappedRun(2.0, 4, 7)


def test_what_a_bound_does_not_cover_is_composed_on_top(open_ledger):
    event, other = Gaussian(2.0), Gaussian(3.0)
    with open_ledger() as ledger:
        ledger.register_stage("train", round_event=event, events_by_rounds=CappedRun(2.0, 1).to_json())
        ledger.reserve("tune", 1, everywhere(event))
        for number in range(30):
            ledger.reserve("train", number, everywhere(event))
        ledger.reserve("train", 30, everywhere(other))
        expected = Accountant("add_or_remove").compose(event).compose(other).compose(CappedRun(2.0, 1, 30))
        assert ledger.epsilon("release", DELTA).epsilon == pytest.approx(expected.epsilon(DELTA).epsilon)
    # The same stage of another run has no bound of its own.
    with open_ledger(run="two") as ledger:
        for number in range(30):
            ledger.reserve("train", number, everywhere(event))
        expected.compose(event, 30)
        assert ledger.epsilon("release", DELTA).epsilon == pytest.approx(expected.epsilon(DELTA).epsilon)


def test_a_bound_helps_only_where_it_is_smaller(open_ledger):
    event = Gaussian(2.0)
    with open_ledger() as ledger:
        for stage, cap in (("a", 2), ("b", 1000)):
            bound = CappedRun(1.0, cap).to_json()  # costs four times as much per round
            ledger.register_stage(stage, round_event=event, events_by_rounds=bound)
            for number in range(40):
                ledger.reserve(stage, number, everywhere(event))
        expected = (
            Accountant("add_or_remove").compose(event, 40).compose(CappedRun(1.0, 2, 40)).epsilon(DELTA)
        )
        assert ledger.epsilon("release", DELTA).epsilon == pytest.approx(expected.epsilon)
        assert [note for note in ledger.epsilon("release", DELTA).notes if "stage" in note] == [
            "stage 'a': bound on the stage as a whole, smaller than the composition of its rounds"
        ]


def test_amplification_by_iteration_as_a_stage_bound(open_ledger):
    bound = AmplificationByIteration(
        rounds=0, update_lipschitz=1.0, sensitivity=0.1, noise_std=0.2, diameter=0.5
    )
    with open_ledger() as ledger:
        ledger.register_stage("train", round_event=Gaussian(2.0), events_by_rounds=bound.to_json())
        for number in range(60):
            ledger.reserve("train", number, everywhere(Gaussian(2.0)))
        run = dataclasses.replace(bound, rounds=60)
        expected = Accountant("add_or_remove").compose(run).epsilon(DELTA).epsilon
        assert ledger.epsilon("release", DELTA).epsilon == pytest.approx(expected)
        assert expected < 0.75 * ledger.epsilon("participants", DELTA).epsilon


def test_a_bound_is_registered_before_its_rounds_and_once(path, open_ledger):
    event, bound = Gaussian(2.0), CappedRun(2.0, 4).to_json()
    with open_ledger() as ledger:
        ledger.reserve("late", 1, everywhere(event))
        with pytest.raises(InvalidArgument, match="has begun"):
            ledger.register_stage("late", round_event=event, events_by_rounds=bound)
        for bad in ({"kind": "test_no_such_event"}, {"kind": "gaussian", "noise_multiplier": 2.0}):
            with pytest.raises(InvalidArgument):
                ledger.register_stage("train", round_event=event, events_by_rounds=bad)
        ledger.register_stage("train", round_event=event, events_by_rounds=bound)
        with pytest.raises(InvalidArgument, match="bound already"):
            ledger.register_stage("train", round_event=event, events_by_rounds=bound | {"cap": 2})
        ledger.reserve("train", 1, everywhere(event))
    with open_ledger() as ledger:  # the same run, resumed
        before = path.read_bytes()
        ledger.register_stage("train", round_event=event, events_by_rounds=bound)
        assert path.read_bytes() == before
        assert len(ledger.stage_bounds) == 1


def test_an_event_that_nobody_knows_is_an_error_with_its_line(path, open_ledger):
    with open_ledger() as ledger:
        ledger.reserve("train", 1, everywhere(NoRelease()))
    lines = path.read_bytes().splitlines(keepends=True)
    from fedpriv.ledger.records import encode_line

    record = json.loads(lines[2])
    head = json.loads(lines[1])["hash"]
    del record["hash"]
    record["events"]["server"] = {"kind": "from_the_future"}
    path.write_bytes(b"".join(lines[:2]) + encode_line(record, head)[0])
    with pytest.raises(LedgerCorrupted, match="line 3"):
        read_ledger(path)
