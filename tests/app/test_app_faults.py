"""Drop-outs, budgets and crashes seen from the whole app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedpriv import wire
from fedpriv.ledger import read_ledger
from fedpriv.reporting import read_report
from fedpriv.settings import SettingsError
from fedpriv.stages.train import TrainStage


def _stage_and_purpose(message: Message) -> tuple[str | None, Any]:
    record = message.content.get(wire.RECORD_SECURE_SUM)
    return wire.stage_of(message), record.get(wire.FIELD_PURPOSE) if record is not None else None


@pytest.mark.parametrize("stage", wire.STAGES[:4])
@pytest.mark.parametrize("how", ["error", "silent-after"])
def test_a_client_lost_at_any_stage_costs_only_its_share(run_app: Any, stage: str, how: str) -> None:
    def drop(partition: int, message: Message) -> str | None:
        return how if partition == 2 and _stage_and_purpose(message)[0] == stage else None

    config = {"min-survivors": 5, "share-threshold": 4, "stages": "train", "train.rounds": 2}
    report = read_report(run_app(config, drop=drop))
    train = report.stages[0]
    expected = 6 if stage == wire.STAGE_UNMASK else 5
    assert [record.survivors for record in train.rounds] == [expected] * 2
    assert report.views["server"].epsilon <= 8.0


def test_too_few_survivors_release_and_cost_nothing(run_app: Any) -> None:
    def drop(partition: int, message: Message) -> str | None:
        lost = partition in (1, 2, 3) and wire.stage_of(message) == wire.STAGE_MASKED_INPUT
        return "silent" if lost else None

    folder = run_app({"min-survivors": 5, "stages": "train", "train.rounds": 2}, drop=drop)
    report = read_report(folder)
    assert [record.released for record in report.stages[0].rounds] == [False, False]
    assert report.views["server"].epsilon == 0.0
    assert [entry.status for entry in read_ledger(folder / "ledger.jsonl").entries] == ["void", "void"]


def test_a_round_lost_while_unmasking_is_charged(run_app: Any) -> None:
    def drop(partition: int, message: Message) -> str | None:
        return "silent" if partition >= 2 and wire.stage_of(message) == wire.STAGE_UNMASK else None

    folder = run_app(
        {"min-survivors": 5, "stages": "train", "train.rounds": 1, "on-abort": "stop"}, drop=drop
    )
    report = read_report(folder)
    assert report.stages[0].rounds[0].released
    assert report.stages[0].rounds[0].survivors == 0
    assert report.views["server"].epsilon > 7.9
    assert "too few clients were left" in report.outcome


def test_the_budget_stops_the_run_before_the_release_and_keeps_the_model(run_app: Any) -> None:
    config = {"stages": "train", "train.noise-multiplier": 3.0, "train.rounds": 40, "max-epsilon": 3.0}
    folder = run_app(config | {"secure-sum": "simulated"})
    report = read_report(folder)
    rounds = report.stages[0].rounds
    assert 1 < len(rounds) < 40
    assert report.views["server"].epsilon <= 3.0
    assert "training stopped before round" in report.outcome
    assert (folder / "model.safetensors").exists()
    one_more = read_ledger(folder / "ledger.jsonl").totals()["server"]
    event = next(iter(one_more.events))
    assert one_more.compose(event).epsilon(1e-3).epsilon > 3.0


def test_an_account_is_shared_by_runs(run_app: Any, tmp_path: Path) -> None:
    account = str(tmp_path / "account.jsonl")
    config = {"stages": "train", "train.rounds": 2, "train.noise-multiplier": 4.0, "account": account}
    first = read_report(run_app(config | {"name": "one"}))
    second = read_report(run_app(config | {"name": "two"}))
    assert second.views["server"].epsilon > first.views["server"].epsilon
    assert read_ledger(account).runs == ("one", "two")


class _Crash(RuntimeError):
    pass


def test_a_crash_after_the_release_resumes_and_charges_the_doubtful_round(
    run_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"train.rounds": 4, "max-epsilon": 20.0}
    whole = TrainStage._checkpoint

    def crash_in_round_three(self: TrainStage, *arguments: Any) -> None:
        if arguments[-1] == 3:
            raise _Crash
        whole(self, *arguments)

    monkeypatch.setattr(TrainStage, "_checkpoint", crash_in_round_three)
    with pytest.raises(_Crash):
        run_app(config)
    monkeypatch.setattr(TrainStage, "_checkpoint", whole)
    folder = run_app(config | {"resume": "small", "name": ""})
    report = read_report(folder)
    entries = read_ledger(folder / "ledger.jsonl").entries
    assert [(entry.stage, entry.round) for entry in entries] == [
        ("tune", 1),
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("train", 3),
        ("train", 4),
    ]
    assert all(entry.charged for entry in entries)
    assert [record.round for record in report.stages[1].rounds] == [1, 2, 3, 4]
    assert report.views["server"].epsilon > 8.0  # the planned epsilon and one round more


def test_a_finished_stage_is_not_repeated_after_a_restart(run_app: Any) -> None:
    folder = run_app()
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    run_app({"resume": "small", "name": ""})
    entries = read_ledger(folder / "ledger.jsonl").entries
    assert len(entries) == 4
    kinds = [
        json.loads(line)["type"] for line in (folder / "ledger.jsonl").read_text().splitlines()[len(lines) :]
    ]
    assert kinds == ["session"]


def test_resuming_with_another_configuration_is_refused(run_app: Any) -> None:
    run_app({"stages": "train", "train.rounds": 1})
    with pytest.raises(SettingsError, match=r"train.rounds = 9 \(was 1\)"):
        run_app({"stages": "train", "train.rounds": 9, "resume": "small"})
    with pytest.raises(SettingsError, match="holds no run to continue"):
        run_app({"resume": "nothing"})
