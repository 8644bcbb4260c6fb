"""Bring a federation on this machine up, run the app in it, take it down: what `make federation-*` calls.

    python deploy/federation.py up
    python deploy/federation.py status
    python deploy/federation.py run --config 'stages="train" train.rounds=5 name="first"'
    python deploy/federation.py run --resume first
    python deploy/federation.py down

Runs docker compose (or what --compose names) and `flwr`, and says which state the federation is in. Exit code 0 only
when all silos are online (up), or the run has finished and left its report (run).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedpriv.cli.federation import FederationUnreachable, federation_state
from fedpriv.cli.processes import _script

NAME = "federation"
_UP_SECONDS = 300.0


class Federation:
    """A compose project, and the connection of `flwr` to its SuperLink.

    Parameters
    ----------
    compose : str
        Command line of docker compose.
    folder : Path
        Folder of the compose files.
    app : Path
        Folder of the app.
    """

    def __init__(self, compose: str, folder: Path, app: Path) -> None:
        self.compose, self.folder, self.app = shlex.split(compose), folder, app
        self.deploy = folder / "deploy"
        self.keys = sorted((self.deploy / "secrets").glob("supernode-*.pub"))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of `flwr`: a home of its own, so that nobody's configuration is touched."""
        return dict(os.environ) | {
            "FLWR_HOME": str(self.deploy / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def up(self) -> int:
        """Certificates, images, SuperLink, registration, silos; then wait until all of them are online."""
        _say("certificates, keys and secrets")
        self._compose("run", "--rm", "certs")
        _say("images")
        self._compose("build")
        _say("SuperLink and the ServerApp's executor")
        self._compose("up", "-d", "superlink", "superexec-server")
        self.connect()
        self.keys = sorted((self.deploy / "secrets").glob("supernode-*.pub"))
        self._register()
        _say(f"{len(self.keys)} silos")
        self._compose("up", "-d")
        return self._wait()

    def connect(self) -> None:
        """Write the connection that `flwr` uses."""
        home = self.deploy / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        port = os.environ.get("FEDERATION_PORT") or "8000"
        certificate = (self.deploy / "secrets" / "ca.crt").resolve()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{port}"\n'
            f'root-certificates = "{certificate}"\n'
        )

    def _register(self) -> None:
        """Tell the SuperLink the silos' public keys; one that it knows is left as it is."""
        self._reach()
        for key in self.keys:
            done = self._flwr("supernode", "register", str(key), NAME, "--name", key.stem)
            known = "already" in done.stdout + done.stderr
            if done.returncode != 0 and not known:
                raise RuntimeError(f"{key.name} was not registered: {(done.stdout + done.stderr)[-500:]}")
            _say(f"{key.stem}: {'known' if known else 'registered'}")

    def _reach(self) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            try:
                federation_state(NAME, self.environment)
                return
            except FederationUnreachable as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(str(error)) from None
                time.sleep(2.0)

    def _wait(self) -> int:
        deadline, told = time.monotonic() + _UP_SECONDS, ""
        while True:
            state = federation_state(NAME, self.environment)
            words = state.words(len(self.keys))
            if words != told:
                told = words
                _say(words)
            if len(state.online) >= len(self.keys):
                return 0
            if time.monotonic() > deadline:
                _say("see docker compose logs")
                return 1
            time.sleep(2.0)

    def status(self) -> int:
        """Silos and runs, in words."""
        try:
            state = federation_state(NAME, self.environment)
        except FederationUnreachable as error:
            _say(str(error))
            return 1
        _say(state.words(len(self.keys)))
        for run in self._runs():
            _say(f"run {run['run-id']}: {run['status']} {run.get('status-details', '')}".rstrip())
        return 0

    def run(self, config: str, resume: str) -> int:
        """Submit the app, show its log, and say how it ended."""
        runs = self.deploy / "runs"
        if resume:
            chosen, name = str(runs / resume / "resume.toml"), resume
            if not Path(chosen).exists():
                _say(f"--resume {resume}: {runs / resume} holds no run to continue")
                return 2
        else:
            name = next((w.partition("=")[2] for w in shlex.split(config) if w.startswith("name=")), "")
            if not name:
                name = f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}"
                config += f' name="{name}"'
            if "num-clients=" not in config:
                config += f" num-clients={len(self.keys)}"
            chosen = config
        command = [_script("flwr"), "run", str(self.app), NAME, "--stream", "--run-config", chosen]
        subprocess.run(command, env=self.environment, cwd=self.deploy / "flwr", check=False)
        last = self._follow()
        report = runs / name / "report.md"
        if last["status"] == "finished:completed" and report.exists():
            _say(f"finished; report: {report}")
            return 0
        _say(f"the run ended as {last['status']!r} {last.get('status-details', '')}".rstrip())
        if (runs / name / "resume.toml").exists():
            _say(f"continue it with: make federation-run RESUME={name}")
        return 1

    def _follow(self) -> dict[str, str]:
        """The newest run once it has ended: its log stops when the SuperLink does, the run itself goes on."""
        lost_at = None
        while True:
            try:
                last = self._runs()[0]
            except RuntimeError as error:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() > lost_at + _UP_SECONDS:
                    raise
                _say(f"the SuperLink does not answer ({str(error)[-120:]}); trying again")
                time.sleep(5.0)
                continue
            if last["status"].startswith("finished"):
                return last
            lost_at = None
            _say(f"the log was cut off, run {last['run-id']} goes on")
            command = [_script("flwr"), "log", last["run-id"], NAME]
            subprocess.run(command, env=self.environment, cwd=self.deploy / "flwr", check=False)
            time.sleep(2.0)

    def down(self) -> int:
        """End all services; data, ledgers, reports and secrets stay."""
        self._compose("down")
        return 0

    def _compose(self, *arguments: str) -> None:
        done = subprocess.run([*self.compose, *arguments], cwd=self.folder, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join([*self.compose, *arguments])} ended with code {done.returncode}")

    def _flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_script("flwr"), *arguments],
            env=self.environment,
            cwd=self.deploy / "flwr",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _runs(self) -> list[dict[str, str]]:
        done = self._flwr("ls", NAME, "--format", "json")
        try:
            return list(json.loads(done.stdout)["runs"])
        except (ValueError, KeyError):
            raise RuntimeError(f"flwr ls answered: {(done.stdout + done.stderr)[-500:]}") from None


def _say(text: str) -> None:
    print(f"federation: {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Act on the federation of this project's compose file."""
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description="A federation on this machine: up, status, run, down.")
    parser.add_argument("--compose", default="docker compose", help="command line of docker compose")
    parser.add_argument("--app", type=Path, default=here, help="folder of the app")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up")
    commands.add_parser("status")
    commands.add_parser("down")
    run = commands.add_parser("run")
    run.add_argument("--config", default="", help="run-config values, as for flwr run")
    run.add_argument("--resume", default="", help="name of a run to continue")
    options = parser.parse_args(arguments)
    federation = Federation(options.compose, here, options.app.resolve())
    try:
        if options.command == "run":
            return federation.run(options.config, options.resume)
        return {"up": federation.up, "status": federation.status, "down": federation.down}[options.command]()
    except (RuntimeError, OSError) as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
