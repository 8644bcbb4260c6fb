"""Whatever happens, a ledger never counts less than what was released."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting import VIEWS, Accountant, Gaussian, PoissonGaussian
from fedpriv.ledger import Budget, BudgetExceeded, Ledger, read_ledger

EVENTS = [Gaussian(1.0), Gaussian(2.5), Gaussian(7.0)]
STEPS = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["mark", "commit", "void"]), st.integers(0, 9)),
    st.tuples(st.just("reopen"), st.just(0)),
    # The process dies while it appends: any number of the last line's bytes are on the disk.
    st.tuples(st.sampled_from(["die in reserve", "die in commit", "die in void"]), st.integers(0, 9)),
)


def opened(path: Path) -> Ledger:
    return Ledger.open(path, unit="client", adjacency="add_or_remove", run="one")


@settings(max_examples=70, deadline=None)
@given(steps=st.lists(STEPS, max_size=25), data=st.data())
def test_no_sequence_of_crashes_under_counts(tmp_path_factory, steps, data):
    path = tmp_path_factory.mktemp("crash") / "ledger.jsonl"
    with patch("fedpriv.ledger.journal.sync_file"):  # the test's own disk need not survive
        ledger = opened(path)
        counted: Counter[Gaussian] = Counter()  # reserved and not known to be voided
        in_doubt: Counter[Gaussian] = Counter()  # may be counted as well: the write was cut short
        alive: list[tuple[object, Gaussian]] = []
        for step, choice in steps:
            size = path.stat().st_size
            kind = step.removeprefix("die in ")
            if kind in ("mark", "commit", "void"):
                if not alive:
                    continue
                reservation, event = alive[choice % len(alive)]
                if kind == "void" and reservation.released:
                    continue
            if kind == "reserve":
                event = EVENTS[choice % 3]
                reservation = ledger.reserve("train", 1, dict.fromkeys(VIEWS, event))
            elif kind == "mark":
                reservation.mark_released()
            elif kind == "commit":
                reservation.commit()
            elif kind == "void":
                reservation.void("nothing was sent")
            if step.startswith("die"):
                ledger.close()
                cut = data.draw(st.integers(size, path.stat().st_size), label="bytes that reached the disk")
                with path.open("r+b") as file:
                    file.truncate(cut)
                in_doubt[event] += kind == "reserve"
                if kind == "void":
                    counted[event] -= 1
                    in_doubt[event] += 1
                alive.clear()
                ledger = opened(path)
            elif step == "reopen":
                ledger.close()
                alive.clear()
                ledger = opened(path)
            elif kind == "reserve":
                counted[event] += 1
                alive.append((reservation, event))
            elif kind in ("commit", "void"):
                alive.remove((reservation, event))
                counted[event] -= kind == "void"
            found = Counter(ledger.totals()["server"].events)
            assert all(counted[e] <= found[e] <= counted[e] + in_doubt[e] for e in EVENTS)
        ledger.close()
    at_least = Accountant("add_or_remove")
    for event, count in counted.items():
        at_least.compose(event, count)
    for view in VIEWS:
        assert read_ledger(path).epsilon(view, 1e-5).epsilon >= at_least.epsilon(1e-5).epsilon


TRAINING = """
import sys, time
from pathlib import Path
from fedpriv.accounting import VIEWS, PoissonGaussian
from fedpriv.ledger import Ledger
folder, last, hang_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
checkpoint = folder / "checkpoint"
ledger = Ledger.open(folder / "ledger.jsonl", unit="client", adjacency="add_or_remove", run="one")
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
for number in range(done + 1, last + 1):
    reservation = ledger.reserve("train", number, dict.fromkeys(VIEWS, PoissonGaussian(0.1, 1.0)))
    reservation.mark_released()
    print(number, flush=True)  # the noised sum leaves here
    if number == hang_at:
        time.sleep(60)
    reservation.commit()
    checkpoint.write_text(str(number))
"""


def killed_at_round_50(folder: Path) -> None:
    """Train in a process of its own and kill it between the release of round 50 and its checkpoint."""
    arguments = [sys.executable, "-c", TRAINING, str(folder), "100", "50"]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        for line in child.stdout:
            if int(line) == 50:
                break
    finally:
        child.kill()
        child.communicate(timeout=30)
    assert child.returncode == -9


def test_kill_9_between_noise_and_checkpoint(tmp_path):
    killed_at_round_50(tmp_path)
    path = tmp_path / "ledger.jsonl"
    assert (tmp_path / "checkpoint").read_text() == "49"
    event = PoissonGaussian(0.1, 1.0)
    limit = Accountant("add_or_remove").compose(event, 100).rdp_epsilon(1e-5)
    assert limit == pytest.approx(7.90, abs=0.01)
    budget = Budget(limit, 1e-5, "server", use_pld=False)
    with Ledger.open(path, unit="client", adjacency="add_or_remove", run="one", budgets=budget) as ledger:
        assert ledger.totals()["server"].events == {event: 50}
        assert [e.status for e in ledger.entries].count("interrupted") == 1
        assert ledger.entries[-1].round == 50
        # Round 50 is made again: both are charged, so the budget of 100 rounds ends at round 99.
        with pytest.raises(BudgetExceeded) as refused:
            for number in range(50, 101):
                reservation = ledger.reserve("train", number, dict.fromkeys(VIEWS, event))
                reservation.mark_released()
                reservation.commit()
        assert refused.value.round == 100
        assert refused.value.spent == pytest.approx(7.90, abs=0.01)
    found = read_ledger(path)
    assert found.totals()["release"].events == {event: 100}
    assert found.history(1e-5, "participants")[-1].epsilon == pytest.approx(7.90, abs=0.01)
