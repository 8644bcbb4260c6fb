"""Balls in bins: who draws, what a round's bin is, and that nobody is moved or drawn twice."""

import numpy as np
import pytest
from scipy import stats

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms.allocation_schedule import RandomAllocationSchedule, ServerAllocation

FLAKE = 1e-9


def test_rounds_epochs_and_bins() -> None:
    schedule = RandomAllocationSchedule(3, 2)
    assert schedule.rounds == 6
    assert [schedule.bin_of(r) for r in range(1, 7)] == [0, 1, 2, 0, 1, 2]
    assert [schedule.epoch_of(r) for r in range(1, 7)] == [0, 0, 0, 1, 1, 1]
    assert [schedule.draw_of(r) for r in range(1, 7)] == [0] * 6
    assert [RandomAllocationSchedule(3, 2, True).draw_of(r) for r in range(1, 7)] == [0, 0, 0, 1, 1, 1]
    assert schedule.expected_cohort(12) == 4.0
    for wrong in (0, 7):
        with pytest.raises(InvalidArgument, match="server_round"):
            schedule.bin_of(wrong)


def test_bad_schedules_name_what_is_wrong() -> None:
    for arguments, name in (((0,), "bins"), ((2, 0), "epochs"), ((2, 1, False, "coin"), "drawn_by")):
        with pytest.raises(InvalidArgument, match=name):
            RandomAllocationSchedule(*arguments)  # type: ignore[arg-type]


def test_bins_are_uniform() -> None:
    schedule = RandomAllocationSchedule(8)
    counts = np.bincount([schedule.draw() for _ in range(16_000)], minlength=8)
    assert stats.chisquare(counts).pvalue > FLAKE


def test_the_server_draws_each_client_once() -> None:
    schedule = RandomAllocationSchedule(5, 3, drawn_by="server")
    allocation = ServerAllocation(schedule)
    clients = list(range(40))
    assert allocation.assign(1, clients)
    assert not allocation.assign(2, clients)
    seen = [c for r in range(1, 6) for c in allocation.cohort(r, clients)]
    assert sorted(seen) == clients  # everybody once in an epoch
    for later in (6, 11):  # kept bins
        assert allocation.cohort(later, clients) == allocation.cohort(1, clients)
    assert not allocation.assign(14, clients)


def test_a_late_joiner_draws_over_all_bins_and_a_past_one_is_silence() -> None:
    """Drawn among the rounds left only, every newcomer would take part in the last round."""
    schedule = RandomAllocationSchedule(4, drawn_by="server")
    allocation = ServerAllocation(schedule)
    assert allocation.assign(4, range(4000))
    present = len(allocation.cohort(4, range(4000)))
    assert stats.binom.ppf(FLAKE, 4000, 0.25) <= present <= stats.binom.isf(FLAKE, 4000, 0.25)


def test_redrawn_bins_change_and_never_come_back() -> None:
    schedule = RandomAllocationSchedule(50, 2, redrawn=True, drawn_by="server")
    allocation = ServerAllocation(schedule)
    clients = list(range(60))
    allocation.assign(1, clients)
    first = dict(allocation.assigned or {})
    assert allocation.assign(51, clients)
    assert allocation.assigned != first
    with pytest.raises(InvalidArgument, match="twice"):
        allocation.assign(50, clients)


def test_a_stranger_after_a_restart_is_silent_until_the_next_draw() -> None:
    schedule = RandomAllocationSchedule(2, 2, redrawn=True, drawn_by="server")
    allocation = ServerAllocation(schedule)
    allocation.assign(1, [1, 2])
    assert allocation.assign(2, [1, 2, 3], newcomers_draw=False)
    assert allocation.assigned is not None and allocation.assigned[3] is None
    assert 3 not in allocation.cohort(1, [1, 2, 3]) + allocation.cohort(2, [1, 2, 3])
    allocation.assign(3, [1, 2, 3], newcomers_draw=False)
    assert 3 in allocation.cohort(3, [3]) + allocation.cohort(4, [3])


def test_an_allocation_comes_back_from_its_json() -> None:
    import json

    schedule = RandomAllocationSchedule(3, drawn_by="server")
    allocation = ServerAllocation(schedule)
    assert ServerAllocation.from_json(schedule, json.loads(json.dumps(allocation.to_json()))) == allocation
    allocation.assign(1, [2**63 + 5, 7])
    allocation.assign(2, [8], newcomers_draw=False)
    again = ServerAllocation.from_json(schedule, json.loads(json.dumps(allocation.to_json())))
    assert again == allocation
    assert not again.assign(3, [2**63 + 5, 7, 8])
