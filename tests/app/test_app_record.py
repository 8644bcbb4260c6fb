"""A run whose unit is the record: three silos from check to report, with their own files and accounts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from fedpriv import wire
from fedpriv.ledger import read_ledger
from fedpriv.reporting import claim, read_report
from fedpriv.settings import SettingsError, resolve_settings
from fedpriv.tasks.silo_schema import BREAST_CANCER_COLUMNS

RECORD: dict[str, Any] = {
    "unit": "record",
    "stages": "train",
    "task": "breast-cancer",
    "num-clients": 3,
    "validation-fraction": 0.0,
    "target-epsilon": 4.0,
    "delta": 1e-4,
    "record.rounds": 3,
    "record.local-steps": 4,
    "record.sampling-rate": 1.0,
}


def write_silos(folder: Path) -> list[Path]:
    """Three clinics: two with good files, CSV and Parquet, and one whose file has a bad cell."""
    frame = load_breast_cancer(as_frame=True).frame
    paths = [folder / "a.csv", folder / "b.parquet", folder / "c.csv"]
    frame.iloc[:200].to_csv(paths[0], index=False)
    frame.iloc[200:400].to_parquet(paths[1])
    broken = frame.iloc[400:].astype(object).reset_index(drop=True)
    broken.loc[6, "mean area"] = "unknown"
    broken.to_csv(paths[2], index=False)
    return paths


def test_three_simulated_silos_to_a_report(run_app: Any) -> None:
    folder = run_app(RECORD | {"record.sampling-rate": 0.3, "record.noise-multiplier": 1.33})
    report = read_report(folder)
    assert report.unit == "record"
    assert claim(report).startswith(
        "Record-level differential privacy, adjacency add_or_remove (one record's contribution present or"
    )
    for view in ("server", "participants", "release"):
        assert 3.9 < report.views[view].epsilon <= 4.0
        assert "composition over all steps" in report.views[view].statement
    (stage,) = report.stages
    assert stage.table["records per silo (public)"] == "151, 152, 152"
    assert stage.table["silos that trained"] == "3"
    # every silo's own account says what the report says, and it is a ledger of records
    for silo in range(3):
        ledger = read_ledger(folder / "silos" / f"silo-{silo}" / "account.jsonl")
        assert ledger.unit == "record"
        assert ledger.epsilon("server", report.delta).epsilon == report.views["server"].epsilon
    assert (
        stage.table["largest epsilon in a silo's own account (simulated)"] == report.views["server"].epsilon
    )
    # what an operator sees while it runs is what the report says at the end
    assert stage.rounds[-1].epsilon["server"] == pytest.approx(report.views["server"].epsilon)
    assert report.title.endswith("3 silos")
    assert report.final_accuracy is not None and report.final_accuracy > 0.7


def test_a_large_budget_learns_and_a_tiny_one_is_warned_of(run_app: Any) -> None:
    base = RECORD | {"record.rounds": 2, "secure-sum": "simulated", "record.weighting": "records"}
    poor = read_report(run_app(base | {"target-epsilon": 0.02, "name": "poor"}))
    rich = read_report(run_app(base | {"target-epsilon": 200.0, "name": "rich", "record.center": "initial"}))
    assert rich.final_accuracy is not None and rich.final_accuracy > 0.88
    assert not any("largest possible signal" in warning.text for warning in rich.warnings)
    assert any("exceeds the largest possible signal" in warning.text for warning in poor.warnings)


def test_silos_with_their_own_files_limits_and_a_broken_one(
    run_app: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    paths = write_silos(tmp_path)

    def node(silo: int) -> dict[str, Any]:
        config = {"data-path": str(paths[silo]), wire.CONFIG_STATE_PATH: str(tmp_path / f"home-{silo}")}
        return config | ({"max-epsilon": 2.5, "delta": 1e-4} if silo == 1 else {})

    folder = run_app(RECORD, node_config=node)
    report, out = read_report(folder), capsys.readouterr().out
    assert "the silo's data cannot be used" in out and "2105" in out
    assert "records per silo (declared public): 200, 200" in out
    assert "1 of 3 silos trained: 1 have no budget left" in out
    # at the silo: file, column and row
    assert "c.csv: column 'mean area', row 7: should be a number" in caplog.text
    notes = [r.note for r in report.stages[0].rounds]
    assert notes[0].startswith("2 of 3 silos trained: 0 have") and notes[-1].startswith(
        "1 of 3 silos trained: 1"
    )
    assert report.stages[0].table["silos that trained"] == "1 to 2"
    spent = [
        read_ledger(tmp_path / f"home-{silo}" / "account.jsonl").epsilon("server", 1e-4).epsilon
        for silo in range(3)
    ]
    assert spent[0] == report.views["server"].epsilon
    assert 0 < spent[1] <= 2.5 < spent[0]
    assert spent[2] == 0
    assert not (folder / "silos").exists()


def test_no_silo_ready_ends_before_anything_is_charged(run_app: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no silo is ready to train: the silo's data cannot be used"):
        run_app(RECORD, node_config=lambda silo: {"data-path": str(tmp_path / "gone.csv")})
    assert not read_ledger(tmp_path / "small" / "ledger.jsonl").entries


def test_all_budgets_used_up_stop_the_run_with_the_model_it_has(run_app: Any) -> None:
    folder = run_app(RECORD, node_config=lambda silo: {"max-epsilon": 2.9, "delta": 1e-4})
    report = read_report(folder)
    assert "no silo trained in the last round (0 of 3 silos trained: 3 have no budget left" in report.outcome
    assert (folder / "model.safetensors").exists()


def test_a_resumed_run_continues_the_silos_accounts(run_app: Any, tmp_path: Path) -> None:
    calls = {"train": 0}

    class Killed(BaseException):  # as if the process died: nothing catches it
        pass

    def drop(silo: int, request: Any) -> None:
        record = request.content.get(wire.RECORD_SECURE_SUM)
        if record is not None and record.get("purpose") == wire.PURPOSE_RECORD_LEVEL:
            calls["train"] += 1
            if calls["train"] == 4:  # the second round, after the first silo was asked
                raise Killed

    config = RECORD | {"secure-sum": "simulated"}
    with pytest.raises(Killed):
        run_app(config, drop=drop)
    folder = run_app(config | {"name": "", "resume": "small"})
    report = read_report(folder)
    # the broken round was charged at the server, which then ran out one round early; silos were not asked in it
    charged = [entry.round for entry in read_ledger(folder / "ledger.jsonl").entries if entry.charged]
    assert charged == [1, 2, 2]
    account = read_ledger(folder / "silos" / "silo-0" / "account.jsonl")
    assert [entry.round for entry in account.entries] == [1, 2]
    assert account.epsilon("server", report.delta).epsilon <= report.views["server"].epsilon <= 4.0


def test_zeroth_order_inside_silos(run_app: Any) -> None:
    config = RECORD | {"stages": "zeroth-order", "zeroth-order.rounds": 12, "zeroth-order.directions": 6}
    config |= {"zeroth-order.learning-rate": 3.0, "secure-sum": "simulated", "target-epsilon": 200.0}
    folder = run_app(config)
    report = read_report(folder)
    assert report.unit == "record" and 199 < report.views["server"].epsilon <= 200
    assert report.final_accuracy is not None and report.final_accuracy > 0.8
    assert report.stages[0].table["records per silo (public)"] == "151, 152, 152"
    account = read_ledger(folder / "silos" / "silo-2" / "account.jsonl")
    assert {entry.stage for entry in account.entries} == {"zeroth-order"}
    assert account.epsilon("server", report.delta).epsilon == report.views["server"].epsilon


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"stages": "zeroth-order", "zeroth-order.batch-size": 8}, r"zeroth-order\.batch-size = 8"),
        ({"stages": "zeroth-order", "zeroth-order.direction-share": 0.5}, r"direction-share = 0\.5"),
        ({"stages": "tune,train"}, "a vote protects clients, not records.*public data"),
        ({"evaluate": "private"}, "evaluate = 'private' with unit = 'record'"),
        ({"sampling": "self", "sampling-rate": 0.5}, "sampling = 'self' with unit = 'record'"),
        ({"noise": "central", "budget-view": "release"}, "noise = 'central' with unit = 'record'"),
        ({"adjacency": "replace_one", "record.sampling-rate": 0.5}, r"record\.sampling-rate = 0\.5"),
        ({"record.radius": 0.0}, r"record\.radius"),
    ],
)
def test_what_does_not_go_with_records_is_refused_before_anything_is_sent(
    changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(SettingsError, match=match):
        resolve_settings(RECORD | changes)


def test_a_stage_that_protects_clients_is_refused(run_app: Any) -> None:
    with pytest.raises(SettingsError, match="with unit = 'record': should be among train"):
        run_app(RECORD | {"stages": "matrix"})


def test_full_batches_under_replace_one(run_app: Any) -> None:
    report = read_report(run_app(RECORD | {"adjacency": "replace_one", "record.rounds": 1}))
    assert 3.99 < report.views["release"].epsilon <= 4.0
    assert "one record's data replaced by any other" in claim(report)


def test_the_plan_of_a_record_level_run() -> None:
    from fedpriv.cli.plan import forecast

    found = forecast(resolve_settings(RECORD))
    assert found["unit"] == "record" and found["warnings"] == []
    lines = found["stages"]["train"]["forecast"]
    assert lines["records per silo at which noise equals signal, whole run"] > 1
    json.dumps(found)


def test_columns_are_those_of_the_data_set() -> None:
    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    assert tuple(frame.columns) == (*BREAST_CANCER_COLUMNS, "target")


def test_client_level_stages_take_the_silos_files_too_and_a_broken_one_abstains(
    run_app: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = write_silos(tmp_path)
    config = {"task": "breast-cancer", "num-clients": 3, "delta": 0.1, "train.rounds": 1, "min-survivors": 3}
    config |= {"secure-sum": "simulated", "target-epsilon": 200.0, "tune.noise-multiplier": 0.2}
    folder = run_app(config, node_config=lambda silo: {"data-path": str(paths[silo])})
    report = read_report(folder)
    assert report.unit == "client" and report.stages[0].vote is not None
    assert report.stages[1].rounds[0].survivors == 3  # the broken one sends zeros and its noise share
    assert "c.csv: column 'mean area', row 7" in caplog.text
    assert "this client contributes zeros" in caplog.text
