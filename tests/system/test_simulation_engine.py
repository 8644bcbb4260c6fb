"""The app on Flower's simulation engine (Ray), as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv.cli.processes import LocalSuperLink
from fedpriv.ledger import read_ledger
from fedpriv.reporting import read_report

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


def _marked_processes() -> set[str]:
    """Command lines of processes that a SuperLink of ours started and that still run."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"FEDPRIV_PROCESS_MARK=" in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.add((entry.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_fedpriv_run_from_another_folder_ends_with_a_report_and_no_process(tmp_path: Path) -> None:
    before = _marked_processes()
    config = f"num-clients=8 train.rounds=2 tune.proxy-rounds=2 run-dir='{tmp_path}' name='engine'"
    done = subprocess.run(
        [sys.executable, "-m", "fedpriv.cli", "run", str(ROOT), "-c", config],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "[train 2/2]" in done.stdout
    report = read_report(tmp_path / "engine")
    assert report.views["server"].epsilon <= 8.0
    assert [record.survivors for record in report.stages[1].rounds] == [8, 8]
    assert len(read_ledger(tmp_path / "engine" / "ledger.jsonl").entries) == 3
    assert _marked_processes() <= before


def test_the_default_two_nodes_fail_at_once_with_the_command_to_type(tmp_path: Path) -> None:
    with LocalSuperLink() as superlink:
        command = superlink.flwr("run", str(ROOT), "local", "--stream", "-c", f"run-dir='{tmp_path}'")
        done = subprocess.run(
            command,
            env=superlink.environment,
            cwd=superlink.home,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert superlink.last_run()["status"] == "finished:failed"
    assert "num-clients = 50, but the federation has 2 clients" in done.stdout
    assert "num-supernodes=50" in done.stdout
