"""Three SuperNodes as processes on loopback: a client-level vote over real messages."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpriv.cli.processes import _free_port, _script
from fedpriv.reporting import read_report

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(500)]


class Federation:
    """SuperLink and SuperNodes with their own homes and ports, ended by process id."""

    def __init__(self, home: Path, silos: int) -> None:
        self.home, self.port = home, _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "lo"\n\n[superlink.lo]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self._start(home, "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port),
                    "--disable-runtime-dependency-installation")  # fmt: skip
        time.sleep(8)
        for silo in range(silos):
            node_home = home / f"silo{silo}"
            node_home.mkdir()
            self._start(node_home, "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}",
                        "--port", str(_free_port()), "--node-config",
                        f"partition-id={silo} num-partitions={silos}")  # fmt: skip

    def environment(self, home: Path) -> dict[str, str]:
        return os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
        }

    def _start(self, home: Path, name: str, *arguments: str) -> None:
        log = (home / f"{name}.log").open("wb")
        self._processes.append(
            subprocess.Popen(
                [_script(name), *arguments],
                env=self.environment(home),
                cwd=home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def run(self, config: str, timeout: float) -> str:
        """Submit the app, wait, and return what was logged."""
        command = [_script("flwr"), "run", str(ROOT), "lo", "--stream", "-c", config]
        done = subprocess.run(
            command,
            env=self.environment(self.home),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self._processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    home = tmp_path / "flwr"
    home.mkdir()
    running = Federation(home, silos=3)
    try:
        yield running
    finally:
        running.stop()


def test_three_processes_vote_in_secret(federation: Federation, tmp_path: Path) -> None:
    config = (
        f"num-clients=3 stages='tune' tune.proxy-rounds=2 run-dir='{tmp_path}' name='silos' partition='iid'"
    )
    log = federation.run(config, timeout=400)
    report = read_report(tmp_path / "silos")
    vote = report.stages[0].vote
    assert vote is not None, log[-3000:]
    assert vote.voters == 3
    assert 0 < report.views["server"].epsilon <= 8.0
