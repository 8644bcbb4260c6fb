"""What may be reserved, committed, voided and added up."""

from __future__ import annotations

import math

import pytest

from fedpriv.accounting import (
    VIEWS,
    FixedSizeGaussian,
    Gaussian,
    InvalidArgument,
    NonPrivate,
    NoRelease,
    PoissonGaussian,
)
from fedpriv.ledger import LedgerError, read_ledger

ROUND = dict.fromkeys(VIEWS, Gaussian(2.0))


def test_a_reservation_counts_from_the_start_and_until_it_is_voided(path, open_ledger):
    with open_ledger() as ledger:
        first = ledger.reserve("train", 1, ROUND)
        assert ledger.totals()["release"].events == {Gaussian(2.0): 1}
        second = ledger.reserve("train", 2, ROUND)
        second.void("2 of 5 clients answered")
        first.commit({"survivors": 5})
        assert ledger.totals()["release"].events == {Gaussian(2.0): 1}
        third = ledger.reserve("train", 3, ROUND)
    found = read_ledger(path)
    assert [(e.status, e.charged, e.reason) for e in found.entries] == [
        ("committed", True, ""),
        ("void", False, "2 of 5 clients answered"),
        ("reserved", True, ""),
    ]
    assert found.entries[0].realised == {"survivors": 5}
    assert found.totals()["server"].events == {Gaussian(2.0): 2}
    assert third.seq == found.entries[2].seq


def test_what_was_released_is_never_voided(open_ledger):
    with open_ledger() as ledger:
        released = ledger.reserve("train", 1, ROUND)
        released.mark_released()
        with pytest.raises(LedgerError, match="marked as made"):
            released.void("changed my mind")
        committed = ledger.reserve("train", 2, ROUND)
        committed.commit()
        with pytest.raises(LedgerError):
            committed.void("changed my mind")
        with pytest.raises(LedgerError, match="settled already"):
            committed.commit()
        voided = ledger.reserve("train", 3, ROUND)
        voided.void("nobody came")
        with pytest.raises(LedgerError, match="settled already"):
            voided.commit()
        with pytest.raises(LedgerError, match="settled already"):
            voided.void("twice")
        assert ledger.totals()["server"].events == {Gaussian(2.0): 2}


def test_a_reservation_of_an_earlier_session_stays_counted(path, open_ledger):
    with open_ledger() as ledger:
        old = ledger.reserve("train", 7, ROUND)
    with open_ledger() as ledger:
        old._ledger = ledger  # even with a way to reach the new session
        with pytest.raises(LedgerError, match="settled already"):
            old.void("it was long ago")
        assert [e.status for e in ledger.entries] == ["interrupted"]
        assert ledger.totals()["server"].events == {Gaussian(2.0): 1}
        assert any("round 7" in note and "counted" in note for note in ledger.notes)


def test_each_view_is_stated_exactly_once(path, open_ledger):
    with open_ledger() as ledger:
        before = path.read_bytes()
        for events in ({}, {"server": Gaussian(1.0)}, ROUND | {"coordinator": Gaussian(1.0)}):
            with pytest.raises(InvalidArgument, match="NoRelease"):
                ledger.reserve("train", 1, events)
        assert path.read_bytes() == before
        ledger.reserve("train", 1, ROUND | {"release": NoRelease()})
        assert ledger.epsilon("release", 1e-5).epsilon == 0
        assert ledger.epsilon("server", 1e-5).epsilon > 0


@pytest.mark.parametrize("event", [NonPrivate("sum without noise"), Gaussian(0.0), PoissonGaussian(0.5, 0.0)])
def test_infinite_epsilon_needs_permission_for_its_view(path, open_ledger, event):
    with open_ledger() as ledger:
        before = path.read_bytes()
        for allowed in ((), ("release",)):
            with pytest.raises(InvalidArgument, match="infinite epsilon in the server view"):
                ledger.reserve("train", 1, ROUND | {"server": event}, allow_infinite=allowed)
        with pytest.raises(InvalidArgument, match="allow_infinite"):
            ledger.reserve("train", 1, ROUND, allow_infinite=("everybody",))
        assert path.read_bytes() == before
        ledger.reserve("train", 1, ROUND | {"server": event}, allow_infinite=("server",))
        assert math.isinf(ledger.epsilon("server", 1e-5).epsilon)
        assert ledger.epsilon("participants", 1e-5).epsilon < 5


@pytest.mark.parametrize(
    ("adjacency", "event"),
    [("replace_one", PoissonGaussian(0.1, 1.0)), ("add_or_remove", FixedSizeGaussian(100, 10, 1.0))],
)
def test_an_event_of_the_other_adjacency_is_refused_before_writing(path, open_ledger, adjacency, event):
    with open_ledger(adjacency=adjacency) as ledger:
        before = path.read_bytes()
        with pytest.raises(InvalidArgument, match=f"this ledger is '{adjacency}'"):
            ledger.reserve("train", 1, ROUND | {"release": event})
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("stage", "round"), [("", 1), (3, 1), ("train", -1), ("train", 1.5), ("train", True)]
)
def test_a_bad_place_is_named(open_ledger, stage, round):
    with open_ledger() as ledger, pytest.raises(InvalidArgument, match=r"stage|round"):
        ledger.reserve(stage, round, ROUND)


def test_nats_stay_apart_from_epsilon(path, open_ledger):
    with open_ledger() as ledger:
        ledger.reserve("train", 1, ROUND)
        alone = ledger.epsilon("server", 1e-5)
        ledger.reserve_pac("paczero", 1, "hospital-a", 0.25).commit()
        ledger.reserve_pac("paczero", 2, "hospital-a", 0.5)
        ledger.reserve_pac("paczero", 2, "hospital-b", 1e-7)
        ledger.reserve_pac("paczero", 3, "hospital-b", 4.0).void("nothing was sent")
        assert ledger.epsilon("server", 1e-5) == alone
        assert set(ledger.epsilon_by_stage("server", 1e-5)) == {"train"}
        with pytest.raises(InvalidArgument, match="cannot be added"):
            ledger.reserve("paczero", 3, ROUND)
        with pytest.raises(InvalidArgument, match="cannot be added"):
            ledger.reserve_pac("train", 2, "hospital-a", 0.1)
        with pytest.raises(InvalidArgument, match="reserve_pac"):
            ledger.reserve("paczero", 3, dict.fromkeys(VIEWS, 0.25))
        for nats in (-1.0, math.nan, math.inf, True):
            with pytest.raises(InvalidArgument, match="nats"):
                ledger.reserve_pac("paczero", 4, "hospital-a", nats)
        expected = {("paczero", "hospital-a"): 0.75, ("paczero", "hospital-b"): 1e-7}
        assert ledger.pac_totals() == expected
    found = read_ledger(path)
    assert found.pac_totals() == expected
    assert [e.status for e in found.pac_entries] == ["committed", "reserved", "reserved", "void"]


def test_an_account_adds_up_all_runs(path, open_ledger):
    with open_ledger(run="monday", delta=1e-5) as ledger:
        for number in range(3):
            ledger.reserve("train", number, ROUND).commit()
    with open_ledger(run="tuesday") as ledger:
        ledger.reserve("train", 1, dict.fromkeys(VIEWS, Gaussian(5.0))).commit()
        ledger.reserve("tune", 1, ROUND).commit()
    found = read_ledger(path)
    assert found.runs == ("monday", "tuesday")
    assert found.totals()["server"].events == {Gaussian(2.0): 4, Gaussian(5.0): 1}
    assert found.totals(run="monday")["server"].events == {Gaussian(2.0): 3}
    assert found.epsilon("server", 1e-5, run="monday").epsilon < found.epsilon("server", 1e-5).epsilon
    by_stage = found.epsilon_by_stage("server", 1e-5)
    assert list(by_stage) == ["train", "tune"]
    assert max(e.epsilon for e in by_stage.values()) < found.epsilon("server", 1e-5).epsilon
    assert list(found.epsilon_by_stage("server", 1e-5, run="monday")) == ["train"]
    history = found.history(1e-5, "server")
    assert [(p.stage, p.round, p.release) for p in history] == [
        ("train", 0, 1),
        ("train", 1, 2),
        ("train", 2, 3),
        ("train", 1, 4),
        ("tune", 1, 5),
    ]
    # A run's own points start from what it found.
    assert found.history(1e-5, "server", run="tuesday") == history[3:]
    for call in (found.totals, found.pac_totals):
        with pytest.raises(InvalidArgument, match=r"'friday'.*monday"):
            call(run="friday")
    with pytest.raises(InvalidArgument, match="view"):
        found.epsilon("clients", 1e-5)
    assert [s.delta for s in found.sessions] == [1e-5, None]
    assert "dp-accounting" in found.sessions[0].software
