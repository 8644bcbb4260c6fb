"""The compose file's federation, as processes: TLS, authentication, three silos with their own tables."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from benchmarks.federation.processes import SILOS, ProcessFederation
from fedpriv.ledger import read_ledger
from fedpriv.reporting import read_report

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1800, method="signal")]

RECORD_LEVEL = (
    'name="records" unit="record" stages="train" task="breast-cancer" record.rounds=2 record.local-steps=4 '
    "record.learning-rate=1.0 target-epsilon=6.0"
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFederation]:
    """Brought up by ``make federation-up``; taken down by ``make federation-down``, which leaves no process."""
    found = ProcessFederation(tmp_path_factory.mktemp("federation"), "max-epsilon=20.0 delta=1e-5")
    found.sizes = found.write_tables()
    try:
        up = found.make("federation-up")
        assert up.returncode == 0, up.stdout[-3000:]
        assert "federation: ready: 3 of 3 silos are online" in up.stdout
        yield found
    finally:
        found.silo("down")
        down = found.make("federation-down")
    assert down.returncode == 0
    assert found.marked_processes() == []


def test_three_silos_train_on_their_own_tables(federation: ProcessFederation) -> None:
    """Two rounds of record-level training: report, server's ledger and every silo's own account agree."""
    done = federation.make("federation-run", CONFIG=RECORD_LEVEL)
    assert done.returncode == 0, done.stdout[-5000:]
    folder = federation.runs / "records"
    report, ledger = read_report(folder), read_ledger(folder / "ledger.jsonl")
    (train,) = report.stages
    assert report.unit == ledger.unit == "record"
    assert [(r.round, r.released, r.survivors) for r in train.rounds] == [(1, True, 3), (2, True, 3)]
    assert 5.9 < report.views["server"].epsilon <= 6.0
    assert report.views["server"].epsilon == ledger.epsilon("server", report.delta).epsilon
    assert report.final_accuracy is not None and report.final_accuracy > 0.8
    trained = [size - round(0.25 * size) for size in federation.sizes]  # a quarter is kept for validation
    assert f"records per silo (declared public): {', '.join(map(str, sorted(trained)))}" in done.stdout
    for silo in SILOS:
        account = read_ledger(federation.account(silo))
        assert [(e.run, e.round, e.status) for e in account.entries] == [
            ("records", 1, "committed"),
            ("records", 2, "committed"),
        ]
        assert [e.realised["records"] for e in account.entries] == [trained[silo - 1]] * 2
        assert account.epsilon("server", report.delta).epsilon == pytest.approx(
            report.views["server"].epsilon
        )


def test_what_silos_keep_is_for_their_owners_alone(federation: ProcessFederation) -> None:
    for silo in SILOS:
        folder = federation.account(silo).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        kept = [path for path in folder.rglob("*") if path.is_file()]
        assert kept and all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
    for secret in (federation.folder / "deploy" / "secrets").iterdir():
        public = secret.suffix in (".crt", ".pem", ".pub")
        assert secret.stat().st_mode & 0o777 == (0o644 if public else 0o600), secret


def wait_for_words(federation: ProcessFederation, words: str, seconds: float = 90.0) -> None:
    """Wait until ``make federation-status`` says something."""
    deadline = time.monotonic() + seconds
    while words not in (said := federation.make("federation-status").stdout):
        assert time.monotonic() < deadline, said
        time.sleep(2.0)


def test_a_silo_joins_by_the_second_file_and_leaves(federation: ProcessFederation) -> None:
    joined = federation.join("records.csv")
    assert joined.returncode == 0, joined.stdout
    wait_for_words(federation, "4 silos are online")
    assert federation.silo("down").returncode == 0
    wait_for_words(federation, "ready: 3 of 3 silos are online (1 offline)")
