"""The stage with correlated noise in the whole app: budget, report, vote, refusals, and resume after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpriv.accounting.allocation import RandomAllocation
from fedpriv.accounting.events import NoRelease
from fedpriv.ledger import read_ledger
from fedpriv.reporting import claim, read_report
from fedpriv.settings import SettingsError, resolve_settings
from fedpriv.stages.matrix import SECRETS, SIMULATED, MatrixRounds, MatrixStage

MATRIX: dict[str, Any] = {
    "stages": "matrix",
    "noise": "central",
    "budget-view": "participants",
    "sampling": "self",
    "secure-sum": "simulated",
    "matrix.bins": 3,
    "matrix.epochs": 2,
    "matrix.band": 2,
}
#: Noise given, so that nothing has to be solved.
GIVEN = MATRIX | {"matrix.noise-multiplier": 1.0, "max-epsilon": 100.0}


def test_a_vote_and_a_training_share_one_budget(run_app: Any) -> None:
    grid = {
        "stages": "tune,matrix",
        "tune.grid": '{"learning-rate": [0.01, 1.0]}',
        "matrix.matrix": "identity",
    }
    folder = run_app(MATRIX | grid)
    report = read_report(folder)
    assert [stage.name for stage in report.stages] == ["tune", "matrix"]
    assert 7.9 < report.views["participants"].epsilon <= 8.0
    assert report.views["release"].epsilon == report.views["participants"].epsilon
    assert "no guarantee for the server view" in claim(report)
    matrix = report.stages[1]
    assert len(matrix.rounds) == matrix.table["rounds planned"] == 6
    # the run is paid at once: the budget never moves after the first round, and is never exceeded
    spent = [record.epsilon["participants"] for record in matrix.rounds]
    assert len(set(spent)) == 1 and spent[0] <= 8.0
    failed = [h.name for h in matrix.hypotheses if h.status == "fails"]
    assert failed == ["release view: a hidden-state bound"]
    charged = [
        e.events["release"] for e in read_ledger(folder / "ledger.jsonl").entries if e.stage == "matrix"
    ]
    assert isinstance(charged[0], RandomAllocation) and charged[0].matrix is None
    assert charged[1:] == [NoRelease()] * 5


@pytest.mark.parametrize(
    "config",
    [
        {"sampling": "server", "budget-view": "release", "min-survivors": 1},
        {"matrix.redraw": True, "matrix.matrix": "bsr", "evaluate": "private", "evaluate-every": 3},
        {
            "matrix.idle-work": "skip",
            "matrix.matrix": "blt",
            "matrix.buffers": 1,
            "matrix.server-momentum": 0.5,
            "matrix.schedule": "linear",
            "matrix.radius": 3.0,
        },
        {"matrix.radius": 2.0, "matrix.center": "initial", "matrix.matrix": "bisr", "secure-sum": "protocol"},
    ],
    ids=lambda config: " ".join(f"{key}={value}" for key, value in config.items()),
)
def test_every_option_runs_to_a_report(run_app: Any, config: dict[str, Any]) -> None:
    report = read_report(run_app(GIVEN | config))
    stage = report.stages[0]
    assert len(stage.rounds) == 6 and all(record.released for record in stage.rounds)
    amplified = {view: report.views[view].epsilon for view in ("participants", "release")}
    hidden = config.get("sampling") != "server" and config.get("matrix.idle-work") != "skip"
    assert (amplified["participants"] == amplified["release"]) == hidden
    assert 0 < amplified["release"] <= amplified["participants"] < float("inf")
    assert report.views["server"].epsilon == float("inf")
    projected = "ball" in str(stage.table["projection"])
    assert projected == ("matrix.radius" in config)


def test_training_learns(run_app: Any) -> None:
    more = {"num-clients": 12, "matrix.learning-rate": 1.0, "matrix.noise-multiplier": 0.4}
    accuracy = read_report(run_app(GIVEN | more | {"evaluate-every": 6})).final_accuracy
    assert accuracy is not None and accuracy > 0.6


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"noise": "distributed"}, "noise = 'distributed' with stage 'matrix'"),
        ({"sampling": "full"}, "sampling = 'full' with stage 'matrix'"),
        ({"sampling": "server", "adjacency": "replace_one"}, "adjacency = 'replace_one' with stage 'matrix'"),
        ({"sampling-rate": 0.5}, "sampling-rate = 0.5 with stage 'matrix'"),
        ({"matrix.band": 7}, "matrix.band = 7: should be at most 6"),
        ({"matrix.redraw": True, "matrix.band": 4}, "matrix.band = 4: should be at most 3"),
        ({"matrix.bins": 0}, "matrix.bins = 0"),
        ({"matrix.matrix": "toeplitz"}, "matrix.matrix = 'toeplitz'"),
    ],
)
def test_values_that_do_not_go_together_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        MatrixStage.planner(resolve_settings(GIVEN | config), 10)


def test_a_budget_below_the_run_sends_nothing_and_leaves_the_model(run_app: Any) -> None:
    report = read_report(run_app(GIVEN | {"max-epsilon": 0.5}))
    assert "stopped before round 1 of 6" in report.outcome
    assert report.views["participants"].epsilon == 0
    assert report.stages[0].rounds == []


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("drawn_by", ["self", "server"])
def test_a_killed_run_goes_on_with_its_matrix_and_its_bins(
    run_app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn_by: str
) -> None:
    """Killed after round 3 was released and before it was checkpointed; the clients' contexts die with it."""
    config = GIVEN | {"sampling": drawn_by, "min-survivors": 1, "evaluate": "none"}
    bins: dict[str, Any] = {}
    kept = MatrixRounds.play

    def dies(self: MatrixRounds, server_round: int, arrays: Any) -> Any:
        outcome = kept(self, server_round, arrays)
        if server_round == 3:
            raise Killed
        return outcome

    monkeypatch.setattr(MatrixRounds, "play", dies)
    with pytest.raises(Killed):
        run_app(config)
    folder = tmp_path / "small"
    monkeypatch.setattr(MatrixRounds, "play", kept)
    secrets, bins = (folder / SECRETS).read_text(), _own_bins(folder)
    run_app(config | {"name": "", "resume": "small"})
    assert (folder / SECRETS).read_text() == secrets
    after = _own_bins(folder)
    assert {name: content["bin"] for name, content in after.items()} == {
        name: content["bin"] for name, content in bins.items()
    }
    assert len(after) == (6 if drawn_by == "self" else 0)
    report = read_report(folder)
    rounds = report.stages[0].rounds
    assert [record.round for record in rounds] == [1, 2, 3, 4, 5, 6]
    assert [record.asked == 0 for record in rounds] == [False, False, True, False, False, False]
    assert "never used on a second sum" in rounds[2].note
    entries = read_ledger(folder / "ledger.jsonl").entries
    assert [entry.round for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert sum(entry.events["release"] != NoRelease() for entry in entries) == 1


def _own_bins(folder: Path) -> dict[str, Any]:
    files = sorted((folder / SIMULATED).glob("*/allocation-*.json"))
    return {file.parent.name: json.loads(file.read_text()) for file in files}


def test_a_run_whose_secrets_are_gone_does_not_go_on(
    run_app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MatrixRounds.play

    def dies(self: MatrixRounds, server_round: int, arrays: Any) -> Any:
        if server_round == 2:
            raise Killed
        return kept(self, server_round, arrays)

    monkeypatch.setattr(MatrixRounds, "play", dies)
    with pytest.raises(Killed):
        run_app(GIVEN)
    monkeypatch.setattr(MatrixRounds, "play", kept)
    (tmp_path / "small" / SECRETS).unlink()
    with pytest.raises(ValueError, match="another noise key"):
        run_app(GIVEN | {"name": "", "resume": "small"})
