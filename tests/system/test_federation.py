"""The compose file's federation, as processes: TLS, authentication, three silos; and a fourth that joins."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from benchmarks.federation.processes import ProcessFederation
from fedpriv.ledger import read_ledger
from fedpriv.reporting import read_report

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFederation]:
    """Brought up by ``make federation-up``; taken down by ``make federation-down``, which leaves no process."""
    found = ProcessFederation(tmp_path_factory.mktemp("federation"))
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
