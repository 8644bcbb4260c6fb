"""A silo's own files: private, replaced as a whole, and never mistaken for new ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from fedpriv import wire
from fedpriv.clients.silo_state import silo_file, silo_folder
from fedpriv.secure_sum import Refusal
from fedpriv.wire import ErrorCode


def context(**node_config: Any) -> Context:
    config = {key.replace("_", "-"): value for key, value in node_config.items()}
    return Context(1, 2, config, RecordDict(), {})


def silo(folder: Path) -> Context:
    return context(state_path=str(folder), fedpriv_simulation=False)


def test_files_are_private_and_survive_a_new_context(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    assert silo_file(silo(folder), "paczero", "run").read() is None
    silo_file(silo(folder), "paczero", "run").write(b"first")
    silo_file(silo(folder), "paczero", "run").write(b"second")
    assert silo_file(silo(folder), "paczero", "run").read() == b"second"
    assert silo_file(silo(folder), "paczero", "other").read() is None
    assert silo_file(silo(folder), "bins", "run").read() is None
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_name_of_a_run_cannot_leave_the_folder(tmp_path: Path) -> None:
    silo_file(silo(tmp_path / "state"), "paczero", "../../outside").write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_what_cannot_be_read_is_no_new_file(tmp_path: Path) -> None:
    file = silo_file(silo(tmp_path), "paczero", "run")
    file.write(b"secret")
    (path,) = tmp_path.glob("*.json")
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        file.read()


def test_a_crash_before_the_replacement_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = silo_file(silo(tmp_path), "paczero", "run")
    file.write(b"old")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        file.write(b"new")
    assert file.read() == b"old"


def test_the_content_is_on_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def watched_replace(self: Path, target: Path) -> Path:
        steps.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    silo_file(silo(tmp_path), "paczero", "run").write(b"x")
    assert steps == ["content", "name", "folder"]


def test_a_silo_needs_a_folder_that_it_can_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in (context(fedpriv_simulation=False), silo(tmp_path / "file")):
        with pytest.raises(Refusal) as refused:
            silo_folder(bad, str(tmp_path / "simulated"))
        assert refused.value.code == ErrorCode.NO_STATE_PATH
    assert not (tmp_path / "simulated").exists()


def test_a_simulation_keeps_its_files_in_the_context_or_in_a_folder_per_partition(tmp_path: Path) -> None:
    simulated = context(fedpriv_simulation=True, partition_id=3)
    assert silo_folder(simulated) is None
    file = silo_file(simulated, "paczero", "run")
    assert file.read() is None
    file.write(b"x")
    assert file.read() == b"x"
    silo_file(simulated, "paczero", "run", str(tmp_path)).write(b"y")
    assert [path.name for path in tmp_path.iterdir()] == ["partition-3"]
    (name,) = [name for name in simulated.state if name.startswith(wire.STATE_SILO_FILE)]
    simulated.state[name] = ConfigRecord({"content": "text"})
    with pytest.raises(ValueError, match="no bytes"):
        file.read()
