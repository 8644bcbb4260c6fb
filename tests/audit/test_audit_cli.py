"""``fedpriv audit`` of a configuration and of a finished run: table, files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedpriv.clients.noise_share as noise_share
from client_app.app import app as client
from fedpriv.cli import app
from fedpriv.testing import run_local
from server_app.app import app as server

ROOT = str(Path(__file__).resolve().parents[2])
SURE = ["--confidence", "0.99999999"]
SMALL: dict[str, Any] = {
    "stages": "train",
    "task": "breast-cancer",
    "partition": "iid",
    "num-clients": 4,
    "train.rounds": 2,
    "secure-sum": "simulated",
    "max-epsilon": 100.0,
    "name": "small",
}
CONFIG = " ".join(f"{key}={json.dumps(value)}" for key, value in SMALL.items() if key != "name")
runner = CliRunner()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_local(server, client, 4, SMALL | {"run-dir": str(folder)})
    return folder / "small"


def audited(folder: str | Path, output: Path, *more: str) -> tuple[int, dict[str, Any]]:
    arguments = ["audit", str(folder), "--output", str(output), *SURE, *more]
    done = runner.invoke(app, arguments)
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, json.loads((output / "audit.json").read_text())


def test_a_configuration(tmp_path: Path) -> None:
    options = ["-c", CONFIG, "--runs", "16", "--canaries", "0", "--shadow-runs", "16", "--view", "release"]
    done = runner.invoke(app, ["audit", ROOT, "--output", str(tmp_path), *SURE, *options, "--delta", "1e-3"])
    assert done.exit_code == 0, done.output
    for words in (
        "claimed at most",
        "shadow models",
        "code that ran for train",
        "ok      train: sensitivity",
    ):
        assert words in done.output
    found = json.loads((tmp_path / "audit.json").read_text())
    assert {(row["view"], row["method"]) for row in found["rows"]} == {
        ("release", "many runs"),
        ("release", "many runs, Gaussian DP"),
        ("release", "shadow models"),
    }
    assert found["delta"] == 1e-3 and not found["refuted"]
    assert all(row["lower"] <= row["claim"]["value"] for row in found["rows"])
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_run(finished: Path, tmp_path: Path) -> None:
    code, found = audited(finished, tmp_path, "--runs", "16", "--canaries", "40")
    assert code == 0
    (ledger,) = [f for f in found["findings"] if f["check"].startswith("ledger of the run")]
    assert ledger["good"] and ledger["detail"] == "2 releases, 2 entries"
    claimed = {row["view"]: row["claim"]["value"] for row in found["rows"]}
    report = json.loads((finished / "report.json").read_text())
    assert set(claimed) == {"server", "release"}
    spent = report["stages"][0]["epsilon"]
    for view, value in claimed.items():
        assert value == pytest.approx(spent[view], rel=1e-6)


def test_a_ledger_that_lacks_a_round_fails(finished: Path, tmp_path: Path) -> None:
    ledger = finished / "ledger.jsonl"
    kept = ledger.read_text()
    lines = kept.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if json.loads(line)["type"] == "reserve")
    try:
        ledger.write_text("".join(lines[:last]))  # the chain is whole, but it ends before the last round
        code, found = audited(finished, tmp_path, "--runs", "0", "--canaries", "0")
    finally:
        ledger.write_text(kept)
    assert code == 1
    assert [f["detail"] for f in found["findings"] if not f["good"]] == [
        "round 2 was released and is not charged"
    ]


def test_a_fault_gives_exit_code_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = noise_share.rounded_gaussian
    monkeypatch.setattr(noise_share, "rounded_gaussian", lambda scale, *rest: drawn(scale / 2, *rest))
    code, found = audited(ROOT, tmp_path, "-c", CONFIG, "--runs", "0", "--canaries", "0")
    assert code == 1 and found["refuted"] and found["rows"] == []


def test_a_bound_above_its_claim_gives_exit_code_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_share, "rounded_gaussian", lambda scale, size, source: [0] * size)
    config = CONFIG + " train.noise-multiplier=4.0"
    code, found = audited(
        ROOT,
        tmp_path,
        "-c",
        config,
        "--runs",
        "80",
        "--canaries",
        "0",
        "--no-checks",
        "--delta",
        "0.01",
        "--confidence",
        "0.99",
    )
    assert code == 1 and found["findings"] == []
    assert all(row["exceeds"] for row in found["rows"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere"], "should hold a run's config.toml or an app's pyproject.toml"),
        ([ROOT, "--runs", "3"], "at least 16"),
        ([ROOT, "-c", "train.rounds=-1"], "train.rounds = -1"),
        ([ROOT, "--view", "final", "--runs", "0"], "view must be one of"),
        ([ROOT, "--confidence", "2"], "confidence: 2.0 is outside"),
    ],
)
def test_bad_arguments_give_exit_code_two(arguments: list[str], words: str) -> None:
    done = runner.invoke(app, ["audit", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_a_finished_run_keeps_its_configuration(finished: Path) -> None:
    done = runner.invoke(app, ["audit", str(finished), "-c", "train.rounds=9"])
    assert done.exit_code == 2 and "as it was configured" in done.output
