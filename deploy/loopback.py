"""Run the services of a compose file as processes on the loopback, where no container engine is.

    python deploy/loopback.py run --rm certs
    python deploy/loopback.py up -d
    python deploy/loopback.py ps
    python deploy/loopback.py kill supernode-2        ends its process; the restart policy starts it again
    python deploy/loopback.py down

The commands, secrets, volumes, health checks, dependencies and restart policies are read out of the file itself. What
an engine would do with names, ports and mounts is done by substitution: `superlink:8000` becomes a port of 127.0.0.1,
`/run/secrets/...` and the targets of volumes become the files that would be mounted there. Users, capabilities and
networks are not enforced: this is for tests and for trying things out, not for data.

`deploy/federation.py --compose "python deploy/loopback.py"` drives it like docker compose.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_MARK = "FEDPRIV_LOOPBACK_MARK"
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")
_STOP_SECONDS, _HEALTH_SECONDS = 15.0, 120.0
#: Delay before a service is started again; doubles up to the last one.
_RESTART_SECONDS = (1.0, 10.0)


def interpolate(value: Any, variables: Mapping[str, str]) -> Any:
    """Put environment variables into every string of a compose file, as Compose does after parsing.

    Raises
    ------
    ValueError
        Naming a variable that must be set.
    """

    def put(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        found = variables.get(name, "")
        if found or how is None:
            return found
        if how == ":?":
            raise ValueError(f"{name} must be set: {rest}")
        return str(rest)

    if isinstance(value, dict):
        return {key: interpolate(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolate(inner, variables) for inner in value]
    return _VARIABLE.sub(put, value) if isinstance(value, str) else value


def load(file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """A compose file with its variables put in.

    Raises
    ------
    ValueError
        Naming a variable that must be set.
    """
    found: dict[str, Any] = interpolate(yaml.safe_load(file.read_text(encoding="utf-8")), variables)
    return found


class Project:
    """A compose file and the processes that were started for it.

    Parameters
    ----------
    file : Path
        The compose file; its folder is the project's, that host paths are relative to.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.folder = file.resolve(), file.resolve().parent
        self.compose: dict[str, Any] = load(self.file, os.environ)
        self.services: dict[str, dict[str, Any]] = self.compose["services"]
        self.state = self.folder / "deploy" / "state" / "loopback" / self.file.stem

    # -- what an engine knows ------------------------------------------------------------------------------

    def order(self, chosen: Sequence[str]) -> list[str]:
        """Services with all that they depend on, dependencies first."""
        found: list[str] = []

        def add(name: str) -> None:
            if name not in self.services:
                raise ValueError(f"no such service: {name}")
            for needed in self.services[name].get("depends_on", ()):
                add(needed)
            if name not in found:
                found.append(name)

        for name in chosen or [n for n, service in self.services.items() if not service.get("profiles")]:
            add(name)
        return found

    def _host(self, path: str) -> str:
        return str((self.folder / path).resolve())

    def _mounts(self, name: str) -> dict[str, str]:
        """Path in the container -> path on the host."""
        service, found = self.services[name], {}
        for secret in service.get("secrets", ()):
            target = secret["target"]
            target = target if target.startswith("/") else f"/run/secrets/{target}"
            found[target] = self._host(self.compose["secrets"][secret["source"]]["file"])
        # a supernode's node config names paths of the executor that runs its ClientApp
        users = [other for other, s in self.services.items() if name in s.get("depends_on", ())]
        beside = [other for other in users if name.startswith("supernode")]
        for owner in (name, *beside):
            for volume in self.services[owner].get("volumes", ()):
                source, target = volume.split(":")[:2]
                found[target] = self._host(source)
        return found

    def _networks(self, name: str) -> dict[str, dict[str, Any]]:
        networks = self.services[name].get("networks", {})
        return networks if isinstance(networks, dict) else {network: {} for network in networks}

    def _addresses(self, name: str) -> dict[str, str]:
        """Address in the containers' networks -> address on the loopback."""
        found: dict[str, str] = {}
        mine = set(self._networks(name))
        for other in self.services:
            port = _option(self.command_in_file(other), "--port")
            if port is None:
                continue
            names = [other] if mine & set(self._networks(other)) else []
            for network, options in self._networks(other).items():
                names += (options or {}).get("aliases", []) if network in mine else []
            found |= {f"{alias}:{port}": f"127.0.0.1:{self.port(other)}" for alias in names}
        return found

    def command_in_file(self, name: str) -> list[str]:
        """Entry point and command, as the file has them."""
        service = self.services[name]
        return [*service["entrypoint"], *service.get("command", [])]

    def port(self, name: str, kind: str = "port") -> int:
        """A service's own port on the loopback: the published one, or a free one that is kept."""
        for published in self.services[name].get("ports", ()) if kind == "port" else ():
            return int(str(published).split(":")[-2])
        file = self.state / f"{name}.{kind}"
        if not file.exists():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                file.write_text(str(probe.getsockname()[1]))
        return int(file.read_text())

    # -- substitution --------------------------------------------------------------------------------------

    def substitute(self, name: str, text: str) -> str:
        """A word of a service's command or health check, as it must read outside a container."""
        own = _option(self.command_in_file(name), "--port")
        pairs: dict[str, str] = self._mounts(name) | self._addresses(name)
        if own is not None:
            pairs |= {f"--port={own}": f"--port={self.port(name)}"}
            pairs |= {f"localhost:{own}": f"127.0.0.1:{self.port(name)}"}
        health = _option(self.command_in_file(name), "--health-server-address")
        if health is not None:
            host, port = health.split(":")
            other = self.port(name, "health")
            pairs |= {health: f"{host}:{other}", f"('{host}', {port})": f"('{host}', {other})"}
        pairs["--host=0.0.0.0"] = "--host=127.0.0.1"
        # a path starts where no other path goes on; an address may follow the slashes of a URL
        starts = {inside: r"(?<![\w./])" if inside.startswith("/") else r"(?<![\w.])" for inside in pairs}
        longest_first = sorted(pairs, key=len, reverse=True)
        wanted = "|".join(starts[inside] + re.escape(inside) + r"(?!\w)" for inside in longest_first)
        return re.sub(wanted, lambda match: pairs[match[0]], text)

    def command(self, name: str) -> list[str]:
        """The command that is run instead."""
        first, *rest = self.command_in_file(name)
        return [_program(first), *(self.substitute(name, word) for word in rest)]

    def environment(self, name: str) -> dict[str, str]:
        """The service's own variables over those of this process, and a home of its own."""
        mine = {key: self.substitute(name, str(value)) for key, value in self._variables(name).items()}
        scripts = str(Path(sys.executable).parent)
        return (
            dict(os.environ)
            | mine
            | {"FLWR_HOME": str(self._home(name)), "PATH": scripts + os.pathsep + os.environ.get("PATH", "")}
            | {_MARK: self._mark()}
        )

    def _variables(self, name: str) -> dict[str, Any]:
        return self.services[name].get("environment") or {}

    def _home(self, name: str) -> Path:
        return self.state / name

    def _mark(self) -> str:
        file = self.state / "mark"
        if not file.exists():
            file.write_text(uuid.uuid4().hex)
        return file.read_text()

    # -- what an engine does -------------------------------------------------------------------------------

    def up(self, chosen: Sequence[str]) -> None:
        """Start services that do not run, after those that they depend on."""
        self.state.mkdir(parents=True, exist_ok=True)
        self._mark()
        for name in self.order(chosen):
            for needed, how in _conditions(self.services[name]).items():
                if how == "service_healthy":
                    self._wait_until_healthy(needed)
            if self.pid(name) is not None:
                continue
            self._home(name).mkdir(exist_ok=True)
            command = [sys.executable, __file__, "-f", str(self.file), "_keep", name]
            keeper = subprocess.Popen(
                command,
                env=self.environment(name),
                cwd=self._home(name),
                stdin=subprocess.DEVNULL,
                stdout=self.log(name).open("ab"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            (self.state / f"{name}.keeper").write_text(str(keeper.pid))
            print(f"started {name}", flush=True)

    def keep(self, name: str) -> int:
        """Run a service and start it again when it ends, as its restart policy says; until SIGTERM.

        Where ``LOOPBACK_OWNER`` names a process, the end of that one ends the service too: a test that is killed
        leaves nothing behind.
        """
        stopped: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
        owner = int(os.environ.get("LOOPBACK_OWNER") or 0)

        def ended() -> bool:
            return bool(stopped) or (owner > 0 and not _alive(owner))

        again = self.services[name].get("restart", "no") != "no"
        delay = _RESTART_SECONDS[0]
        while not ended():
            began = time.monotonic()
            process = subprocess.Popen(self.command(name), stdin=subprocess.DEVNULL, start_new_session=True)
            (self.state / f"{name}.pid").write_text(str(process.pid))
            while process.poll() is None and not ended():
                time.sleep(0.2)
            if ended():
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # all that it started goes with it, as in a container
            process.wait()
            print(f"loopback: {name} ended with code {process.returncode}", flush=True)
            if not again:
                return int(process.returncode)
            ran = time.monotonic() - began
            delay = _RESTART_SECONDS[0] if ran > 30 else min(2 * delay, _RESTART_SECONDS[1])
            until = time.monotonic() + delay
            while not ended() and time.monotonic() < until:
                time.sleep(0.2)
        return 0

    def run_once(self, name: str) -> int:
        """Run a one-shot service in the foreground."""
        self.state.mkdir(parents=True, exist_ok=True)
        self._home(name).mkdir(exist_ok=True)
        return subprocess.run(
            self.command(name), env=self.environment(name), cwd=self.folder, check=False
        ).returncode

    def down(self) -> None:
        """End everything that was started for the project, by process id."""
        keepers = [pid for name in self.services if (pid := self._keeper(name)) is not None]
        for pid in keepers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS + 5
        while any(_alive(pid) for pid in keepers) and time.monotonic() < deadline:
            time.sleep(0.1)
        if (self.state / "mark").exists():
            for sign in (signal.SIGTERM, signal.SIGKILL):
                left = list(_marked(self._mark()))
                for pid in left:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, sign)
                if left:
                    time.sleep(0.5)
        for path in self.state.glob("*"):  # logs stay
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix != ".log":
                path.unlink()

    def pid(self, name: str) -> int | None:
        """Process id of a running service; None where it is not kept or just being started again."""
        if self._keeper(name) is None:
            return None
        return _read_pid(self.state / f"{name}.pid")

    def _keeper(self, name: str) -> int | None:
        return _read_pid(self.state / f"{name}.keeper")

    def log(self, name: str) -> Path:
        """Output of a service."""
        return self.state / f"{name}.log"

    def healthy(self, name: str) -> bool:
        """Whether the service's health check passes now."""
        test = self.services[name]["healthcheck"]["test"]
        command = [_program(test[1]), *(self.substitute(name, word) for word in test[2:])]
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        return done.returncode == 0

    def _wait_until_healthy(self, name: str) -> None:
        deadline = time.monotonic() + _HEALTH_SECONDS
        while not self.healthy(name):
            if time.monotonic() > deadline:
                tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-20:])
                raise RuntimeError(f"{name} is not healthy after {_HEALTH_SECONDS:.0f} s:\n{tail}")
            time.sleep(1.0)

    def status(self) -> list[dict[str, Any]]:
        """One entry per service of the file that is started by ``up``."""
        found = []
        for name in self.order([]):
            pid = self.pid(name)
            state = (
                "not started" if self._keeper(name) is None else "restarting" if pid is None else "running"
            )
            health = state == "running" and "healthcheck" in self.services[name] and self.healthy(name)
            found.append({"service": name, "state": state, "healthy": health, "pid": pid})
        return found


def _option(command: Sequence[str], name: str) -> str | None:
    return next((word.partition("=")[2] for word in command if word.startswith(name + "=")), None)


def _conditions(service: Mapping[str, Any]) -> dict[str, str]:
    needed = service.get("depends_on", {})
    if isinstance(needed, dict):
        return {name: options["condition"] for name, options in needed.items()}
    return dict.fromkeys(needed, "service_started")


def _program(name: str) -> str:
    if name == "python":
        return sys.executable
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed beside {sys.executable}")
    return found


def _read_pid(file: Path) -> int | None:
    if not file.exists() or not file.read_text():
        return None
    pid = int(file.read_text())
    return pid if _alive(pid) else None


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended is not alive
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _apps(pid: int) -> Iterator[int]:
    """ServerApp and ClientApp processes below a process."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            command = (entry.parent / "cmdline").read_bytes()
            if parent == pid and (b"flwr-serverapp" in command or b"flwr-clientapp" in command):
                yield int(entry.parent.name)


def _marked(mark: str) -> Iterator[int]:
    """Processes that carry a project's mark: executors start theirs in sessions of their own (Linux only)."""
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        pid = int(entry.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted in entry.read_bytes().split(b"\0"):
                yield pid


def main(arguments: Sequence[str] | None = None) -> int:
    """A small part of docker compose's command line."""
    parser = argparse.ArgumentParser(
        prog="loopback.py", description="A compose file as processes on the loopback."
    )
    default = Path(__file__).resolve().parents[1] / "docker-compose.yml"
    parser.add_argument("-f", "--file", type=Path, default=default)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start services")
    up.add_argument("-d", "--detach", action="store_true", help="always so here")
    up.add_argument("services", nargs="*")
    one = commands.add_parser("run", help="run a one-shot service")
    one.add_argument("--rm", action="store_true", help="always so here")
    one.add_argument("service")
    commands.add_parser("build", help="nothing to build here")
    commands.add_parser("down", help="end everything")
    commands.add_parser("ps", help="state of the services, as JSON")
    kill = commands.add_parser("kill", help="kill -9 a service's process")
    kill.add_argument("service")
    kill.add_argument(
        "--app", action="store_true", help="the app that its executor runs, not the service itself"
    )
    logs = commands.add_parser("logs", help="output of a service")
    logs.add_argument("service")
    keep = commands.add_parser("_keep")
    keep.add_argument("service")
    options = parser.parse_args(arguments)
    try:
        project = Project(options.file)
        return _act(project, options)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"loopback.py: {error}", file=sys.stderr)
        return 1


def _act(project: Project, options: argparse.Namespace) -> int:
    if options.command == "up":
        project.up(options.services)
    elif options.command == "run":
        return project.run_once(options.service)
    elif options.command == "_keep":
        return project.keep(options.service)
    elif options.command == "down":
        project.down()
    elif options.command == "ps":
        print(json.dumps(project.status(), indent=1))
    elif options.command == "logs":
        print(project.log(options.service).read_text(errors="replace"))
    elif options.command == "kill":
        pid = project.pid(options.service)
        if pid is not None and options.app:
            pid = next(_apps(pid), None)
        if pid is None:
            raise RuntimeError(f"{options.service} does not run" + (" an app" if options.app else ""))
        os.kill(pid, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
