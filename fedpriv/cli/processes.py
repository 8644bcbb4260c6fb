"""A private local SuperLink for one run: its own home, port and processes, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_MARK = "FEDPRIV_PROCESS_MARK"
_START_SECONDS = 90.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _script(name: str) -> str:
    """Path of a console script of the running environment (its folder need not be on PATH)."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed beside {sys.executable}; type: pip install -e .")
    return found


class LocalSuperLink:
    """``flower-superlink --simulation`` started from a neutral folder, so that the app that runs is the one that was
    submitted and not whatever lies in the current folder.

    Use as a context manager. On leaving, every process that it started (the engine's workers included) is ended, and
    its temporary home is removed.

    Parameters
    ----------
    variables : dict of str to str, optional
        Further environment variables of its processes.
    """

    def __init__(self, variables: dict[str, str] | None = None) -> None:
        self._variables = variables or {}
        self.home = Path(tempfile.mkdtemp(prefix="fedpriv-flwr-"))
        self.port = _free_port()
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment of everything that belongs to this SuperLink."""
        scripts = str(Path(sys.executable).parent)
        return (
            os.environ
            | self._variables
            | {
                "FLWR_HOME": str(self.home),
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
                "PYTHONWARNINGS": "ignore::FutureWarning",
                "PATH": scripts + os.pathsep + os.environ.get("PATH", ""),
                _MARK: self._mark,
            }
        )

    def __enter__(self) -> Self:
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        log = (self.home / "superlink.log").open("wb")
        command = [_script("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        ]
        try:
            self._process = subprocess.Popen(
                command,
                cwd=self.home,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        finally:
            log.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"flower-superlink ended with code {self._process.returncode}:\n{self.log_tail()}"
                )
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0),
            ):
                return
            time.sleep(0.2)
        raise RuntimeError(
            f"flower-superlink did not answer within {_START_SECONDS:.0f} s:\n{self.log_tail()}"
        )

    def log_tail(self, lines: int = 20) -> str:
        """Last lines of the SuperLink's log."""
        path = self.home / "superlink.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def flwr(self, *arguments: str, cwd: Path | None = None) -> list[str]:
        """Command line of a ``flwr`` call; run it with `environment`."""
        return [_script("flwr"), *arguments]

    def last_run(self) -> dict[str, Any]:
        """Newest run as ``flwr ls`` reports it."""
        done = subprocess.run(
            self.flwr("ls", "local", "--format", "json"),
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        try:
            runs = json.loads(done.stdout)["runs"]
        except (ValueError, KeyError):
            raise RuntimeError(f"flwr ls answered: {done.stdout[-500:]}{done.stderr[-500:]}") from None
        return dict(runs[0]) if runs else {}

    def stop(self) -> None:
        """End every process of this SuperLink and remove its home."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            left = list(self._marked())
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
            if left:
                time.sleep(1.0)
        shutil.rmtree(self.home, ignore_errors=True)

    def _marked(self) -> Iterator[int]:
        """Processes that carry this SuperLink's mark: the engine's workers leave the process group (Linux only)."""
        wanted = f"{_MARK}={self._mark}".encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            pid = int(entry.parent.name)
            if pid == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if wanted in entry.read_bytes().split(b"\0"):
                    yield pid
