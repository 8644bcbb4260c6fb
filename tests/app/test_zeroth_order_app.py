"""Runs with the stage zeroth-order, from settings to report."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.ledger import read_ledger
from fedpriv.mechanisms.directions import LARGE
from fedpriv.plans.pac_zero import PacZeroPlan
from fedpriv.reporting import StageReport, read_report
from fedpriv.settings import SettingsError, resolve_settings
from fedpriv.stages.pac_zero import PacZeroStage
from fedpriv.stages.planning import make_plans
from fedpriv.stages.record_zeroth_order import RecordZerothOrderStage
from fedpriv.stages.zeroth_order import ZerothOrderStage
from fedpriv.tasks.zeroth_order import zeroth_order_trial

ZEROTH_ORDER: dict[str, Any] = {
    "stages": "zeroth-order",
    "zeroth-order.rounds": 6,
    "zeroth-order.directions": 2,
    "zeroth-order.learning-rate": 3.0,
    "evaluate-every": 6,
    "secure-sum": "simulated",
}


def stage_of(folder: Path) -> StageReport:
    return next(stage for stage in read_report(folder).stages if stage.name == "zeroth-order")


def weights(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def test_a_vote_and_fine_tuning_end_in_a_report(run_app: Any) -> None:
    """With the real secure sum; two rounds on the wire."""
    grid = '{"learning-rate": [1.0, 5.0], "clip": [0.25], "smoothing": [0.02]}'
    folder = run_app(
        {
            "stages": "tune,zeroth-order",
            "tune.grid": grid,
            "zeroth-order.rounds": 2,
            "zeroth-order.directions": 3,
        }
    )
    report, ledger = read_report(folder), read_ledger(folder / "ledger.jsonl")
    assert [stage.name for stage in report.stages] == ["tune", "zeroth-order"]
    assert len(ledger.entries) == 3
    assert report.views["server"].epsilon == pytest.approx(ledger.epsilon("server", report.delta).epsilon)
    assert 7.9 < report.views["server"].epsilon <= 8.0
    table = stage_of(folder).table
    assert (table["directions K"], table["kind of directions"]) == (3, "orthonormal")
    assert (table["clip of a quotient"], table["smoothing xi"]) == (
        pytest.approx(0.25),
        0.02,
    )  # the candidate's
    assert table["learning rate"] in ("1, constant", "5, constant")
    assert isinstance(up := table["bytes up per client and round, secure sum included"], int) and up > 100
    resolved = tomllib.loads((folder / "config.toml").read_text())
    assert resolved["zeroth-order"]["directions"] == 3
    text = (folder / "report.md").read_text()
    assert "Client-level differential privacy" in text.splitlines()[0]
    assert "directions K" in text and "bytes down per client and round" in text


def test_the_model_learns(run_app: Any) -> None:
    options = {
        "zeroth-order.noise-multiplier": 0.01,
        "zeroth-order.directions": 40,
        "zeroth-order.rounds": 8,
        "zeroth-order.learning-rate": 300.0,
        "zeroth-order.clip": 1.0,
        "evaluate-every": 8,
        "target-epsilon": 1e9,
    }
    assert (read_report(run_app(ZEROTH_ORDER | options)).final_accuracy or 0.0) > 0.5


def test_the_way_of_the_model_changes_bytes_and_nothing_else(run_app: Any) -> None:
    def run(name: str, **changes: Any) -> tuple[np.ndarray, int]:
        options = {f"zeroth-order.{key.replace('_', '-')}": value for key, value in changes.items()}
        folder = run_app(
            ZEROTH_ORDER | {"seeded-noise": True, "name": name, "zeroth-order.rounds": 4} | options
        )
        down = stage_of(folder).table["bytes down per client and round, secure sum included"]
        assert isinstance(down, int)
        return np.concatenate([array.ravel() for array in weights(folder).values()]), down

    sent, bytes_sent = run("sent")
    built, bytes_built = run("built", initial_model="built")
    projected, bytes_projected = run("projected", radius=1e6)
    assert np.array_equal(sent, built)
    assert np.allclose(sent, projected, rtol=0, atol=1e-6)
    assert bytes_projected > sent.nbytes
    assert bytes_projected - bytes_sent == pytest.approx(0.75 * sent.nbytes, rel=0.1)  # one round of four
    assert bytes_built < 0.5 * sent.nbytes


def test_a_run_that_stops_and_goes_on_ends_in_the_same_model(
    run_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.strategies import ZerothOrder

    options = ZEROTH_ORDER | {"seeded-noise": True, "zeroth-order.schedule": "cosine"}
    whole = weights(run_app(options))
    played = ZerothOrder.train_round

    def dies(self: Any, grid: Any, server_round: int, *args: Any, **kwargs: Any) -> Any:
        if server_round == 4:
            raise KeyboardInterrupt
        return played(self, grid, server_round, *args, **kwargs)

    monkeypatch.setattr(ZerothOrder, "train_round", dies)
    with pytest.raises(KeyboardInterrupt):
        run_app(options | {"name": "stopped"})
    monkeypatch.setattr(ZerothOrder, "train_round", played)
    folder = run_app(options | {"resume": "stopped", "name": ""})
    resumed = weights(folder)
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
    assert len(stage_of(folder).rounds) == 6
    assert len({entry.round for entry in read_ledger(folder / "ledger.jsonl").entries}) == 6


def test_the_hidden_state_is_claimed_where_all_holds_and_not_otherwise(run_app: Any) -> None:
    config = ZEROTH_ORDER | {
        "zeroth-order.rounds": 8,
        "zeroth-order.directions": 4,
        "zeroth-order.learning-rate": 0.5,
        "zeroth-order.clip": 6.0,
        "zeroth-order.smoothing": 1e-3,
        "zeroth-order.direction-share": 0.1,
        "zeroth-order.radius": 0.005,
        "evaluate-every": 8,
    }
    folder = run_app(config)
    report = read_report(folder)
    claimed = [h for h in stage_of(folder).hypotheses if h.name.startswith("release view")]
    assert claimed and all(h.status == "holds" for h in claimed)
    assert report.views["release"].epsilon < 0.9 * report.views["server"].epsilon
    other = run_app(config | {"zeroth-order.schedule": "linear", "name": "other"})
    assert read_report(other).views["release"].epsilon == read_report(other).views["server"].epsilon
    failed = [h.name for h in stage_of(other).hypotheses if h.status == "fails"]
    assert failed == ["release view: the learning rate is constant"]


def test_settings_reach_the_plan_and_bad_ones_are_named() -> None:
    settings = resolve_settings(
        {"stages": "zeroth-order", "zeroth-order.directions": 5, "zeroth-order.clip": 0.5}
    )
    plan: Any = make_plans(settings, 650).stages["zeroth-order"]
    assert (plan.directions, plan.clip, plan.rounds) == (5, pytest.approx(0.5), 100)
    for key, value in (
        ("direction-share", 0.0),
        ("directions", 0),
        ("schedule", "exponential"),
        ("smoothing", -1.0),
        ("initial-model", "guessed"),
    ):
        with pytest.raises(SettingsError, match=rf"zeroth-order\.{key}"):
            resolve_settings({"stages": "zeroth-order", f"zeroth-order.{key}": value})
    with pytest.raises(SettingsError, match="momentum"):
        resolve_settings({"stages": "tune,zeroth-order", "tune.grid": '{"momentum": [0.5]}'})


@pytest.mark.parametrize("stage", [ZerothOrderStage, RecordZerothOrderStage, PacZeroStage])
def test_large_models_are_searched_along_signs_unless_that_could_cost_a_bound(stage: Any) -> None:
    settings = resolve_settings({"stages": "zeroth-order", "zeroth-order.directions": 1})
    uniform = resolve_settings({"zeroth-order.directions": 1, "zeroth-order.direction-share": 0.5})

    def kind(settings: Any, length: int) -> str:
        planner = stage.planner(settings, length)
        return (planner if isinstance(planner, PacZeroPlan) else planner.build(1.0)).kind

    assert kind(settings, 1000) == "orthonormal"
    assert kind(settings, LARGE + 1) == "signs"
    if stage is ZerothOrderStage:
        assert kind(uniform, LARGE + 1) == "orthonormal"


def test_a_trial_tells_good_candidates_from_bad_ones() -> None:
    def loss(rate: float) -> float:
        config = {
            "num-clients": 6,
            "partition": "iid",
            "zeroth-order.learning-rate": rate,
            "tune.proxy-rounds": 5,
        }
        return zeroth_order_trial(resolve_settings(config | {"stages": "tune,zeroth-order"}), 0)

    still, good, wild = loss(1e-6), loss(100.0), loss(1e5)
    assert good < still - 0.1
    assert wild > still
