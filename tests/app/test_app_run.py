"""A run from vote to report: what it leaves behind, and that the report says what the ledger says."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.accounting.vocabulary import VIEWS
from fedpriv.ledger import read_ledger
from fedpriv.reporting import RunReport, read_report
from fedpriv.settings import SettingsError


def test_a_run_leaves_everything_that_the_readme_names(run_app: Any) -> None:
    folder = run_app()
    report = read_report(folder)
    assert [stage.name for stage in report.stages] == ["tune", "train"]
    assert report.outcome == "all stages ran to their end"
    for name in (
        "report.html",
        "report.md",
        "report.json",
        "ledger.jsonl",
        "model.safetensors",
        "config.toml",
        "metrics.jsonl",
    ):
        assert (folder / name).stat().st_size > 0, name
    for figure in ("epsilon_over_rounds", "accuracy_over_rounds", "tallies", "partition"):
        assert (folder / "figures" / f"{figure}.png").read_bytes().startswith(b"\x89PNG"), figure
    assert tomllib.loads((folder / "config.toml").read_text())["train"]["rounds"] == 3
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert (folder / "report.md").read_text().startswith("Client-level differential privacy")


def test_the_report_and_a_recomputation_from_the_ledger_agree(run_app: Any) -> None:
    folder = run_app()
    report = read_report(folder)
    ledger = read_ledger(folder / "ledger.jsonl")
    assert len(ledger.entries) == 4  # one vote, three rounds
    for view in VIEWS:
        assert report.views[view].epsilon == ledger.epsilon(view, report.delta).epsilon
        assert report.views[view].epsilon <= 8.0
        assert report.views[view].epsilon > 7.9  # the noise was solved for the target, not far beyond


def test_the_example_in_the_report_loads_the_model(run_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_app({"stages": "train"})
    monkeypatch.chdir(folder)
    exec(read_report(folder).load_example, {})


def test_the_vote_decides_the_training(run_app: Any) -> None:
    folder = run_app(
        {"tune.noise-multiplier": 0.6, "tune.grid": '[{"learning-rate": 0.123, "local-steps": 3}]'}
    )
    train = read_report(folder).stages[1]
    assert "3 steps, learning rate 0.123" in str(train.table["local training"])


def test_training_learns_and_more_budget_learns_more(run_app: Any) -> None:
    base = {"num-clients": 20, "stages": "train", "train.rounds": 6, "train.learning-rate": 1.0}
    base |= {"train.local-steps": 5, "secure-sum": "simulated"}
    poor = read_report(run_app(base | {"target-epsilon": 0.2, "name": "poor"})).final_accuracy
    rich = read_report(run_app(base | {"target-epsilon": 50.0, "name": "rich"})).final_accuracy
    assert rich is not None and poor is not None
    assert rich > 0.75
    assert poor < rich - 0.2


@pytest.mark.parametrize(
    "config",
    [
        {"sampling": "self", "sampling-rate": 0.5},
        {"sampling": "self", "sampling-rate": 0.5, "train.idle-work": "skip"},
        {"sampling": "server", "sampling-rate": 0.5, "adjacency": "replace_one"},
        {"noise": "central", "budget-view": "participants"},
        {"noise": "central", "budget-view": "release", "sampling": "server", "sampling-rate": 0.5},
        {"adjacency": "replace_one"},
        {"evaluate": "private", "evaluate-every": 2},
        {"evaluate": "none"},
        {"train.server-optimizer": "adam", "train.server-learning-rate": 0.1, "train.schedule": "cosine"},
        {"train.server-momentum": 0.5, "train.radius": 2.0, "train.center": "initial"},
        {"model": "mlp", "stages": "train", "train.rounds": 1},
        {"task": "breast-cancer", "train.batch-size": 8, "train.momentum": 0.5},
        {"colluders": 2, "min-survivors": 5, "share-threshold": 4},
    ],
    ids=lambda config: " ".join(f"{key}={value}" for key, value in config.items()),
)
def test_every_option_runs_to_a_report_within_its_budget(run_app: Any, config: dict[str, Any]) -> None:
    report = read_report(run_app({"secure-sum": "protocol"} | config))
    view = config.get("budget-view", "server")
    assert 0 < report.views[view].epsilon <= 8.0
    if config.get("noise") == "central":
        assert report.views["server"].epsilon == float("inf")
        assert "no guarantee for the server view" in _claim(report)


def _claim(report: RunReport) -> str:
    from fedpriv.reporting import claim

    return claim(report)


def test_simulated_and_protocol_sums_give_the_same_model(run_app: Any) -> None:
    """With the same (seeded, declared not private) noise the two must agree bit by bit."""
    base = {"seeded-noise": True, "stages": "train", "train.rounds": 2}
    simulated = run_app(base | {"secure-sum": "simulated", "name": "a"})
    again = run_app(base | {"secure-sum": "simulated", "name": "b"})
    assert (simulated / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    report = read_report(simulated)
    assert _claim(report).startswith("NO PRIVACY IN THIS RUN (seeded noise")
    with pytest.raises(SettingsError, match="seeded-noise"):
        run_app(base | {"secure-sum": "protocol", "name": "c"})


def test_secure_noise_does_not_repeat(run_app: Any) -> None:
    base = {"stages": "train", "train.rounds": 1, "secure-sum": "simulated"}
    first, second = run_app(base | {"name": "a"}), run_app(base | {"name": "b"})
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()


def test_metrics_in_the_clear_are_named_at_the_top(run_app: Any) -> None:
    folder = run_app({"evaluate": "clear", "stages": "train", "train.rounds": 1})
    text = (folder / "report.md").read_text()
    assert "metrics released without noise: no guarantee covers them" in text.splitlines()[0]
    assert read_report(folder).final_accuracy is not None


def test_clients_refuse_metrics_in_the_clear_unless_the_run_says_so() -> None:
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

    from client_app.app import app as client
    from fedpriv.testing import LocalGrid

    grid = LocalGrid(client, 2, {"num-clients": 2})
    content = RecordDict({"arrays": ArrayRecord([np.zeros(2)]), "config": ConfigRecord()})
    replies = grid.send_and_receive(
        [Message(content, dst_node_id=node, message_type="evaluate") for node in grid.get_node_ids()]
    )
    assert all(reply.has_error() for reply in replies)


def test_no_client_value_reaches_the_log(run_app: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        folder = run_app({"stages": "train", "train.rounds": 1})
    text = caplog.text + (folder / "metrics.jsonl").read_text()
    assert "loss" not in text


def test_another_number_of_clients_says_what_to_type(tmp_path: Path) -> None:
    from client_app.app import app as client
    from fedpriv.testing import run_local
    from server_app.app import app as server

    with pytest.raises(
        SettingsError, match=r'num-clients = 50, but the federation has 2.*"num-supernodes=50'
    ):
        run_local(server, client, 2, {"run-dir": str(tmp_path)})


def test_a_name_that_is_taken_is_refused_before_anything_is_sent(run_app: Any) -> None:
    run_app({"stages": "train", "train.rounds": 1})
    with pytest.raises(SettingsError, match="holds a run"):
        run_app({"stages": "train", "train.rounds": 1})


def test_rounds_in_the_report_match_the_ledger(run_app: Any) -> None:
    folder = run_app()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    epsilons = [line["epsilon"]["server"] for line in lines]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(read_report(folder).views["server"].epsilon)


def test_the_release_view_gets_its_hidden_state_bound_when_everything_holds(run_app: Any) -> None:
    config = {
        "stages": "train",
        "train.rounds": 60,
        "train.learning-rate": 0.01,
        "train.local-steps": 1,
        "train.clip-norm": 0.1,
        "train.radius": 0.2,
        "train.release-noise": 0.3,
        "evaluate-every": 60,
        "secure-sum": "simulated",
    }
    report = read_report(run_app(config))
    assert report.views["release"].epsilon < 0.6 * report.views["server"].epsilon
    published = read_report(run_app(config | {"evaluate-every": 1, "name": "published"}))
    assert published.views["release"].epsilon == published.views["server"].epsilon
    failed = [h.name for h in published.stages[0].hypotheses if h.status == "fails"]
    assert failed == ["release view: nothing computed from an earlier iterate is published"]
