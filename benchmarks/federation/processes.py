"""The compose file's federation as processes on the loopback, driven by the Makefile's own targets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SILOS = (1, 2, 3)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ProcessFederation:
    """A copy of the deployment in a folder of its own.

    Parameters
    ----------
    folder : Path
        Empty; gets the compose files, ``deploy/`` and the Makefile.
    silo_options : str
        More node config of all silos.
    """

    def __init__(self, folder: Path, silo_options: str = "") -> None:
        self.folder = folder
        self.sizes: list[int] = []
        for name in ("docker-compose.yml", "docker-compose.silo.yml", "Makefile"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "deploy").mkdir()
        for path in (ROOT / "deploy").glob("*.*"):
            if path.is_file():
                shutil.copy(path, folder / "deploy" / path.name)
        self.environment = os.environ | {
            "FEDERATION_PORT": str(_free_port()),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "NO_COLOR": "1",
            "LOOPBACK_OWNER": str(os.getpid()),  # nothing is left when the tests are killed
            "SILO_OPTIONS": f'data-path="/app/data/records.csv" {silo_options}',
        }

    def write_tables(self) -> list[int]:
        """Give each silo its own part of the breast-cancer table, all of different sizes; their numbers of rows."""
        import numpy as np
        from sklearn.datasets import load_breast_cancer

        table = load_breast_cancer(as_frame=True).frame
        shuffled = table.iloc[np.random.default_rng(0).permutation(len(table))]
        parts = [shuffled[:250], shuffled[250:430], shuffled[430:]]
        for silo, part in zip(SILOS, parts, strict=True):
            folder = self.folder / "deploy" / "data" / f"silo-{silo}"
            folder.mkdir(parents=True, exist_ok=True)
            part.to_csv(folder / "records.csv", index=False)
        return [len(part) for part in parts]

    def account(self, silo: int) -> Path:
        """A silo's own account."""
        return self.folder / "deploy" / "silos" / f"silo-{silo}" / "account.jsonl"

    @property
    def runs(self) -> Path:
        """Run folders."""
        return self.folder / "deploy" / "runs"

    @property
    def loopback(self) -> list[str]:
        """Command line that takes the place of docker compose."""
        return [sys.executable, str(self.folder / "deploy" / "loopback.py")]

    def make(self, target: str, timeout: float = 900.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """``make target`` with the environment that runs the tests; whatever it started ends with its time."""
        installed = Path(sys.prefix) / "installed"
        values = {"VENV": sys.prefix, "APP": str(ROOT), "COMPOSE": " ".join(self.loopback)} | variables
        command = ["make", "--old-file", str(installed), target, *(f"{k}={v}" for k, v in values.items())]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, said)

    def kill(self, service: str, *options: str) -> bool:
        """``kill -9`` of a service's process, or with ``--app`` of the app that its executor runs."""
        command = [*self.loopback, "kill", *options, service]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, timeout=60, check=False
        )
        return done.returncode == 0

    def services(self) -> dict[str, dict[str, Any]]:
        """State of every service."""
        done = subprocess.run(
            [*self.loopback, "ps"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return {row["service"]: row for row in json.loads(done.stdout)}

    def log(self, service: str) -> str:
        """What a service and the apps that it ran have written."""
        path = self.folder / "deploy" / "state" / "loopback" / "docker-compose" / f"{service}.log"
        return path.read_text(errors="replace")

    def rounds(self, run: str) -> list[dict[str, Any]]:
        """Finished rounds of a run."""
        path = self.runs / run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_rounds(self, run: str, number: int, seconds: float) -> None:
        """Wait until a run has finished so many rounds."""
        deadline = time.monotonic() + seconds
        while len(self.rounds(run)) < number:
            assert time.monotonic() < deadline, f"{run}: {len(self.rounds(run))} rounds after {seconds} s"
            time.sleep(0.5)

    def marked_processes(self) -> list[int]:
        """Processes that were started for this federation and still run."""
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("loopback_of_a_federation", self.loopback[1])
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        marks = (self.folder / "deploy" / "state" / "loopback").glob("*/mark")
        return [pid for mark in marks for pid in module._marked(mark.read_text())]

    def join(self, silo_file: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """What the operators of one more silo and of the SuperLink type; see docs/deployment.md."""
        port = self.environment["FEDERATION_PORT"]
        self.environment |= {"SUPERLINK": f"127.0.0.1:{port}", "SILO_FILE": silo_file} | variables
        # without data-path: this silo's table is named by SILO_FILE, and Flower refuses a key given twice
        self.environment["SILO_OPTIONS"] = "max-epsilon=20.0 delta=1e-5"
        self.silo("run", "--rm", "certs")
        key = self.folder / "deploy" / "secrets" / "supernode.pub"
        registered = self.flwr("supernode", "register", str(key), "federation", "--name", "silo-4")
        if registered.returncode != 0:
            return registered
        return self.silo("up", "-d")

    def silo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """docker-compose.silo.yml, as processes."""
        return self._run([*self.loopback, "-f", str(self.folder / "docker-compose.silo.yml"), *arguments])

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Flower's command, with the connection to this federation."""
        return self._run([str(Path(sys.executable).with_name("flwr")), *arguments])

    def plan(self, config: str) -> subprocess.CompletedProcess[str]:
        """``fedpriv plan`` against this federation."""
        command = [sys.executable, "-m", "fedpriv.cli", "plan", str(ROOT), "-c", config]
        return self._run([*command, "--federation", "federation"])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | {"FLWR_HOME": str(self.folder / "deploy" / "flwr")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
        )
