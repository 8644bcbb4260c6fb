"""Resuming: one process at a time, with the right ledger, by one file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord

from client_app.app import app as client
from fedpriv.ledger import Ledger, LedgerLocked, read_ledger
from fedpriv.reporting import read_report
from fedpriv.settings import SettingsError
from fedpriv.stages.folder import RunFolder
from fedpriv.testing import run_local
from server_app.app import app as server

CONFIG: dict[str, Any] = {
    "task": "breast-cancer",
    "num-clients": 3,
    "partition": "iid",
    "stages": "train",
    "train.rounds": 3,
    "train.noise-multiplier": 5.0,
    "secure-sum": "simulated",
    "max-epsilon": 20.0,
    "name": "run",
}


class _Crash(RuntimeError):
    pass


def _run(folder: Path, **changes: Any) -> Path:
    run_local(server, client, 3, CONFIG | {"run-dir": str(folder)} | changes)
    return folder / "run"


@pytest.fixture
def crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that stopped after its second round."""
    whole = RunFolder.append_metrics

    def crash(self: RunFolder, values: Any) -> None:
        whole(self, values)
        if values["round"] == 2:
            raise _Crash

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append_metrics", crash)
        with pytest.raises(_Crash):
            _run(tmp_path)
    return tmp_path / "run"


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_two_processes_never_resume_one_run(crashed: Path) -> None:
    with Ledger.open(crashed / "ledger.jsonl", unit="client", adjacency="add_or_remove", run="run"):
        before = _contents(crashed)
        with pytest.raises(LedgerLocked, match="is being written by another run"):
            _run(crashed.parent, resume="run", name="")
        assert _contents(crashed) == before
    _run(crashed.parent, resume="run", name="")
    assert [record.round for record in read_report(crashed).stages[0].rounds] == [1, 2, 3]


def test_the_checkpoint_is_read_after_the_lock_is_had(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes round 3 while this one waits to open the ledger: its checkpoint counts."""
    whole = Ledger.open

    def finish_first(*arguments: Any, **named: Any) -> Ledger:
        monkeypatch.setattr(Ledger, "open", whole)
        _run(crashed.parent, resume="run", name="")
        return whole(*arguments, **named)

    monkeypatch.setattr(Ledger, "open", finish_first)
    _run(crashed.parent, resume="run", name="")
    assert len(read_ledger(crashed / "ledger.jsonl").entries) == 3  # no round was played again


def test_of_two_runs_that_claim_one_name_one_gets_it(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    assert first.claim("first = 1\n") and not second.claim("second = 2\n")
    assert first.config.read_text() == "first = 1\n"
    assert [path.name for path in first.path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_ledger_that_has_not_paid_for_the_checkpoint_is_refused(crashed: Path, kept: int) -> None:
    """A lost ledger, or one put back from an old backup, would under-count from here on."""
    path = crashed / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    reserved = [i for i, line in enumerate(lines) if json.loads(line)["type"] == "reserve"]
    path.unlink()
    if kept:
        path.write_text("".join(lines[: reserved[1]]))
    with pytest.raises(SettingsError, match=rf"holds round {kept + 1} of stage 'train'.*has not paid"):
        _run(crashed.parent, resume="run", name="")


def test_a_stage_that_pays_for_all_its_rounds_at_once_has_paid_for_each(tmp_path: Path) -> None:
    """PAC-private stages reserve a silo's whole budget before their first round."""
    from fedpriv.reporting import RoundRecord, StageReport
    from fedpriv.settings import resolve_settings
    from fedpriv.stages.base import RunState
    from fedpriv.stages.run import _check_paid

    rounds = [RoundRecord(round=1), RoundRecord(round=2), RoundRecord(round=3, released=False)]
    state = RunState(ArrayRecord(), reports=[StageReport(name="paczero", kind="votes", rounds=rounds)])
    path, settings = tmp_path / "ledger.jsonl", resolve_settings({})
    with Ledger.open(path, unit="client", adjacency="add_or_remove", run="run") as ledger:
        with pytest.raises(SettingsError, match="round 1 of stage 'paczero'"):
            _check_paid(settings, state, ledger.pac_entries, path)
        reservation = ledger.reserve_pac("paczero", 0, "each", 0.5)
        _check_paid(settings, state, ledger.pac_entries, path)
        reservation.void("nothing left")
        with pytest.raises(SettingsError, match="round 1 of stage 'paczero'"):
            _check_paid(settings, state, ledger.pac_entries, path)


def test_one_file_continues_a_run(crashed: Path, tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args

    config = parse_config_args([str(crashed / "resume.toml")])
    assert config["resume"] == "run" and config["train.rounds"] == 3
    run_local(server, client, 3, config)
    assert len(read_report(crashed).stages[0].rounds) == 3


def test_a_forgotten_key_is_named_with_the_file_that_has_them_all(crashed: Path) -> None:
    with pytest.raises(SettingsError, match=r"train.rounds = 15 \(was 3\).*--run-config .*resume.toml"):
        _run(crashed.parent, resume="run", name="", **{"train.rounds": 15})


def test_the_report_of_a_resumed_run_covers_the_whole_run(crashed: Path) -> None:
    half = json.loads((crashed / "metrics.jsonl").read_text().splitlines()[-1])
    _run(crashed.parent, resume="run", name="")
    (train,) = read_report(crashed).stages
    assert [record.round for record in train.rounds] == [1, 2, 3]
    assert train.rounds[1].model_dump(mode="json") == half
    assert train.bytes_up == sum(record.bytes_up or 0 for record in train.rounds) > 0
    assert train.bytes_down == sum(record.bytes_down or 0 for record in train.rounds) > 0
    assert all(set(record.exchanges) == {"simulated"} for record in train.rounds)
    assert train.seconds >= sum(record.seconds or 0.0 for record in train.rounds)


@pytest.mark.parametrize("lost_checkpoint", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [{"train.server-optimizer": "adam", "train.schedule": "cosine"}, {"train.server-momentum": 0.9}],
    ids=["adam", "momentum"],
)
def test_a_resumed_run_ends_with_the_model_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: dict[str, Any], lost_checkpoint: bool
) -> None:
    """Bit by bit, with noise that repeats (a declared simulation): model, optimizer and position are all there."""
    config = {"seeded-noise": True, "train.noise-multiplier": 5.0, **optimizer}
    whole = _run(tmp_path / "whole", **config)
    save = RunFolder.save_checkpoint

    def crash(self: RunFolder, state: Any) -> None:
        if state.round == 2:
            if not lost_checkpoint:
                save(self, state)
            raise _Crash
        save(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", crash)
        with pytest.raises(_Crash):
            _run(tmp_path / "torn", **config)
    torn = _run(tmp_path / "torn", **config, resume="run", name="")
    assert (torn / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert len(read_ledger(torn / "ledger.jsonl").entries) == (4 if lost_checkpoint else 3)


def test_a_torn_line_of_metrics_is_dropped_and_a_missing_one_comes_back(crashed: Path) -> None:
    metrics = crashed / "metrics.jsonl"
    first = metrics.read_text().splitlines(keepends=True)[0]
    metrics.write_text(first + '{"round": 2, "rele')
    _run(crashed.parent, resume="run", name="")
    assert [json.loads(line)["round"] for line in metrics.read_text().splitlines()] == [1, 2, 3]


def test_what_may_hold_secrets_is_for_its_owner_alone(crashed: Path, tmp_path: Path) -> None:
    for name in ("ledger.jsonl", "checkpoint.npz"):
        assert (crashed / name).stat().st_mode & 0o777 == 0o600, name
    copy = tmp_path / "copy"
    shutil.copytree(crashed, copy)
    (copy / "checkpoint.npz.part").write_bytes(b"left behind")
    (copy / "checkpoint.npz.part").chmod(0o644)
    state = RunFolder(copy).load_checkpoint()
    assert state is not None
    RunFolder(copy).save_checkpoint(state)
    assert (copy / "checkpoint.npz").stat().st_mode & 0o777 == 0o600
    assert not (copy / "checkpoint.npz.part").exists()
