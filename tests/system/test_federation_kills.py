"""A federation of processes in which parts are killed with SIGKILL; minutes long: ``pytest -m federation``."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from benchmarks.federation.processes import SILOS, ProcessFederation
from fedpriv.ledger import read_ledger
from fedpriv.reporting import read_report

pytestmark = [pytest.mark.federation, pytest.mark.system, pytest.mark.timeout(3600, method="signal")]

TABLES = 'unit="record" stages="train" task="breast-cancer" record.local-steps=4 record.learning-rate=1.0'


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFederation]:
    """Three silos with tables of their own."""
    found = ProcessFederation(tmp_path_factory.mktemp("federation"), "max-epsilon=30.0 delta=1e-5")
    found.sizes = found.write_tables()
    try:
        up = found.make("federation-up")
        assert up.returncode == 0, up.stdout[-3000:]
        yield found
    finally:
        down = found.make("federation-down")
    assert down.returncode == 0
    assert found.marked_processes() == []


class Background:
    """``make`` while the test kills something."""

    def __init__(self, federation: ProcessFederation, config: str) -> None:
        self.done: subprocess.CompletedProcess[str] | None = None

        def work() -> None:
            self.done = federation.make("federation-run", CONFIG=config)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def result(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        self._thread.join()
        assert self.done is not None
        return self.done


def wait_until(what: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(1.0)


def test_a_killed_node_and_a_killed_server_cost_rounds_and_no_account(federation: ProcessFederation) -> None:
    config = f'name="killed" {TABLES} record.rounds=5 record.noise-multiplier=4.0 max-epsilon=20.0'
    running = Background(federation, config)
    federation.wait_for_rounds("killed", 1, 900)
    assert federation.services()["supernode-2"]["healthy"]
    assert federation.kill("supernode-2")
    federation.wait_for_rounds("killed", 2, 900)
    # its restart policy starts it again
    wait_until(lambda: federation.services()["supernode-2"]["state"] == "running", 120)
    wait_until(lambda: len(federation.rounds("killed")) >= 3, 900)
    assert federation.kill("superexec-server", "--app")
    ended = running.result()
    assert ended.returncode != 0
    assert "the run ended as 'finished:failed'" in ended.stdout
    assert "continue it with: make federation-run RESUME=killed" in ended.stdout
    done = len(federation.rounds("killed"))
    assert 3 <= done < 5

    resumed = federation.make("federation-run", RESUME="killed")
    assert resumed.returncode == 0, resumed.stdout[-5000:]
    assert f"resuming killed after round {done} of stage train" in resumed.stdout
    folder = federation.runs / "killed"
    report, ledger = read_report(folder), read_ledger(folder / "ledger.jsonl")
    rounds = report.stages[0].rounds
    assert [record.round for record in rounds] == [1, 2, 3, 4, 5]
    assert rounds[0].survivors == 3 and rounds[-1].survivors == 3  # everybody is back in the end
    charged = Counter(entry.round for entry in ledger.entries if entry.charged)
    assert all(charged[record.round] >= 1 for record in rounds if record.released)
    assert report.views["server"].epsilon == ledger.epsilon("server", report.delta).epsilon <= 20.0
    nodes = {silo: read_ledger(federation.account(silo)) for silo in SILOS}
    for silo, account in nodes.items():
        paid = Counter(entry.round for entry in account.entries if entry.charged and entry.run == "killed")
        # a silo pays before it trains, so for every released round, and for some that were lost afterwards
        assert all(paid[r.round] >= 1 for r in rounds if r.released and r.survivors == 3), silo
        assert account.epsilon("server", 1e-5).epsilon <= 30.0


def test_a_vote_over_three_silos_is_held_and_its_forecast_warns(federation: ProcessFederation) -> None:
    config = 'stages="tune" task="breast-cancer" tune.proxy-rounds=2 num-clients=3 target-epsilon=1.0'
    planned = federation.plan(config)
    assert planned.returncode == 0, planned.stdout
    assert "the winner will be close to random" in planned.stdout
    assert "federation federation: ready: 3 of 3 silos are online" in planned.stdout
    done = federation.make("federation-run", CONFIG=f'name="vote" {config}')
    assert done.returncode == 0, done.stdout[-5000:]
    assert "the winner will be close to random" in done.stdout
    report = read_report(federation.runs / "vote")
    vote = report.stages[0].vote
    assert report.unit == "client" and vote is not None and vote.voters == 3
    assert 0 < report.views["server"].epsilon <= 8.0


def test_a_vote_in_a_record_level_run_is_refused_with_the_advice(federation: ProcessFederation) -> None:
    done = federation.make("federation-run", CONFIG=f'name="both" {TABLES.replace("train", "tune,train", 1)}')
    assert done.returncode != 0
    assert "a vote protects clients, not records" in done.stdout


def test_a_silo_whose_table_is_broken_abstains_and_its_log_alone_says_where(
    federation: ProcessFederation,
) -> None:
    table = federation.folder / "deploy" / "data" / "silo-3" / "records.csv"
    whole = table.read_text()
    lines = whole.splitlines()
    cells = lines[7].split(",")
    cells[1] = "secret-7731"
    table.write_text("\n".join([*lines[:7], ",".join(cells), *lines[8:]]) + "\n")
    before = len(federation.log("superexec-3"))
    try:
        done = federation.make("federation-run", CONFIG=f'name="broken" {TABLES} record.rounds=1')
    finally:
        table.write_text(whole)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "will not train: the silo's data cannot be used; its own log says why (code 2105)" in done.stdout
    assert "column 'mean texture', row 7: should be a number" in federation.log("superexec-3")[before:]
    everything = done.stdout + "".join(federation.log(service) for service in federation.services())
    assert "secret-7731" not in everything
    (record,) = read_report(federation.runs / "broken").stages[0].rounds
    assert record.survivors == 3  # it stays in the sum, with nothing of its own
    assert not [e for e in read_ledger(federation.account(3)).entries if e.run == "broken" and e.charged]
