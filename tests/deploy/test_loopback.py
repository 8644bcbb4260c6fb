"""deploy/loopback.py: what an engine does with a compose file, done with processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compose_files import FILES, FOLDER, ROOT, loopback

SCRIPT = FOLDER / "loopback.py"

SMALL = """
services:
  once:
    profiles: [setup]
    restart: "no"
    entrypoint: [python, -c, "import pathlib; pathlib.Path('/made/it').write_text('${WORD:-nothing}')"]
    volumes: ["./made:/made"]
  server:
    restart: unless-stopped
    entrypoint: [python, -m, http.server, "8000", --bind=0.0.0.0, --directory=/made]
    environment: {PLACE: /made}
    volumes: ["./made:/made"]
    healthcheck:
      test: [CMD, python, -c, "import pathlib; pathlib.Path('/made/healthy').read_text()"]
  user:
    restart: unless-stopped
    entrypoint: [python, -c, "import os, time; open('/made/user','a').write(str(os.getpid()) + ' '); time.sleep(600)"]
    volumes: ["./made:/made"]
    depends_on:
      server: {condition: service_healthy}
"""


def call(file: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "-f", str(file), *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)
    return found


def marked(file: Path) -> list[int]:
    """Processes of the project, by the mark that all of them carry."""
    mark = (file.parent / "deploy" / "state" / "loopback" / file.stem / "mark").read_text()
    return list(loopback()._marked(mark))


def test_services_start_in_order_restart_when_killed_and_leave_nothing(tmp_path: Path) -> None:
    file = tmp_path / "small.yml"
    file.write_text(SMALL.replace('"8000"', '"0"'))
    made = tmp_path / "made"
    made.mkdir()
    (made / "healthy").write_text("yes")
    assert call(file, "run", "--rm", "once", WORD="hello").returncode == 0
    assert (made / "it").read_text() == "hello"
    try:
        up = call(file, "up", "-d")
        assert up.returncode == 0, up.stderr
        assert up.stdout.split() == ["started", "server", "started", "user"]  # not the one-shot service
        first = wait_for(lambda: (made / "user").exists() and (made / "user").read_text().split())
        state = {row["service"]: row for row in json.loads(call(file, "ps").stdout)}
        assert state["server"]["state"] == "running" and state["server"]["healthy"]
        assert str(state["user"]["pid"]) in first
        assert call(file, "up", "-d").stdout == ""  # what runs is left alone
        assert call(file, "kill", "user").returncode == 0
        second = wait_for(lambda: len(pids := (made / "user").read_text().split()) > 1 and pids)
        assert second[0] == first[0] and second[1] != first[0]
        processes = marked(file)
        assert len(processes) >= 4  # two services, each with its keeper
    finally:
        assert call(file, "down").returncode == 0
    assert not any(loopback()._alive(pid) for pid in processes)
    left = (tmp_path / "deploy" / "state" / "loopback" / "small").iterdir()
    assert {path.name for path in left} == {"server.log", "user.log"}


def test_services_end_with_the_process_that_owns_them(tmp_path: Path) -> None:
    file = tmp_path / "small.yml"
    file.write_text(SMALL.replace('"8000"', '"0"'))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "healthy").write_text("yes")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        try:
            assert call(file, "up", "-d", LOOPBACK_OWNER=str(owner.pid)).returncode == 0
            processes = wait_for(lambda: len(found := marked(file)) >= 4 and found)
        finally:
            owner.kill()
    try:
        wait_for(lambda: not any(loopback()._alive(pid) for pid in processes))
    finally:
        call(file, "down")


def test_a_dependency_that_is_not_healthy_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "small.yml"
    file.write_text(SMALL.replace('"8000"', '"0"'))
    (tmp_path / "made").mkdir()
    monkeypatch.setattr(loopback(), "_HEALTH_SECONDS", 0.5)
    project = loopback().Project(file)
    try:
        with pytest.raises(RuntimeError, match="server is not healthy"):
            project.up([])
        assert project.pid("user") is None
    finally:
        project.down()


@pytest.mark.parametrize("name", FILES)
def test_no_word_of_a_command_still_needs_a_container(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every path, host name and port of the file is one of this machine after the substitution."""
    for key, value in FILES[name].items():
        monkeypatch.setenv(key, value)
    (tmp_path / name).write_text((ROOT / name).read_text())
    project = loopback().Project(tmp_path / name)
    project.state.mkdir(parents=True)
    ports = []
    for service, described in project.services.items():
        words = [*project.command(service)[1:], *project.environment(service).values()]
        if "healthcheck" in described:
            words += [project.substitute(service, word) for word in described["healthcheck"]["test"][2:]]
        inside = re.compile(
            r"(?<![\w./])(/run/secrets|/app/|/deploy\b)|0\.0\.0\.0|\bsuper(link|node)(-\d)?:\d"
        )
        left = [
            word for word in words if inside.search(word) and not word.startswith("--superlink=fl.example")
        ]
        assert left == [], service
        options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
        ports += [options["--port"]] if "--port" in options else []
        for option, value in options.items():
            if option.endswith(("file", "certificates", "key", "certfile")) and value.startswith("/"):
                assert Path(value).is_relative_to(tmp_path), f"{service} {option}"
    assert len(set(ports)) == len(ports)  # each service has a port of its own


def test_a_supernode_finds_the_files_of_the_executor_that_runs_its_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILO_OPTIONS", 'data-path="/app/data/a.csv"')
    (tmp_path / "docker-compose.yml").write_text((ROOT / "docker-compose.yml").read_text())
    project = loopback().Project(tmp_path / "docker-compose.yml")
    project.state.mkdir(parents=True)
    config = project.command("supernode-2")[-1]
    assert f'data-path="{tmp_path}/deploy/data/silo-2/a.csv"' in config
    assert f'state-path="{tmp_path}/deploy/silos/silo-2"' in config


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    file = tmp_path / "small.yml"
    file.write_text(SMALL)
    for arguments, words in (
        (("up", "-d", "nobody"), "no such service: nobody"),
        (("kill", "server"), "server does not run"),
        (("kill", "--app", "server"), "server does not run an app"),
    ):
        done = call(file, *arguments)
        assert done.returncode == 1 and words in done.stderr
