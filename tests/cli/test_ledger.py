"""``fedpriv ledger show`` and ``fedpriv ledger verify``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.accounting import VIEWS, Gaussian
from fedpriv.cli.ledger import app
from fedpriv.ledger import Ledger, read_ledger


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder: a vote, three rounds of which one was voided, one PAC release, a second run."""
    path = tmp_path / "ledger.jsonl"
    arguments = {"unit": "client", "adjacency": "add_or_remove"}
    with Ledger.open(path, **arguments, run="monday", delta=1e-4) as ledger:
        ledger.reserve("tune", 1, dict.fromkeys(VIEWS, Gaussian(4.0))).commit()
        for number in (1, 2):
            ledger.reserve("train", number, dict.fromkeys(VIEWS, Gaussian(2.0))).commit()
        ledger.reserve("train", 3, dict.fromkeys(VIEWS, Gaussian(2.0))).void("no quorum")
        ledger.reserve_pac("paczero", 1, "ward-7", 0.25).commit()
    with Ledger.open(path, **arguments, run="tuesday") as ledger:
        events = dict.fromkeys(VIEWS, Gaussian(2.0)) | {"server": Gaussian(0.0)}
        ledger.reserve("train", 1, events, allow_infinite=["server"])
    return tmp_path


def test_show_states_epsilon_per_view_and_stage(folder):
    ledger = read_ledger(folder / "ledger.jsonl")
    code, text, _ = run("show", folder)
    assert code == 0
    release = ledger.epsilon("release", 1e-4)
    assert f"release: epsilon {release.epsilon:.4f} at delta 0.0001 (bound: analytic" in text
    assert "server: epsilon infinity" in text
    assert "runs: monday, tuesday" in text
    assert "stage train: 2 committed, 1 reserved, 1 void" in text
    assert "PAC (not differential privacy): stage paczero, silo ward-7: 0.25 nats" in text
    assert f"last hash: {ledger.head}" in text


def test_show_as_json_gives_the_same_numbers(folder):
    ledger = read_ledger(folder / "ledger.jsonl")
    code, text, _ = run("show", folder / "ledger.jsonl", "--json", "--delta", "1e-6")
    found = json.loads(text)
    assert code == 0
    assert found["delta"] == 1e-6
    assert found["views"]["participants"]["epsilon"] == ledger.epsilon("participants", 1e-6).epsilon
    assert found["views"]["server"]["epsilon"] == "infinity"
    assert found["pac_nats"] == [{"stage": "paczero", "silo": "ward-7", "nats": 0.25}]
    assert (
        found["stages"]["tune"]["epsilon"]["release"]
        == ledger.epsilon_by_stage("release", 1e-6)["tune"].epsilon
    )
    monday = json.loads(run("show", folder, "--json", "--run", "monday")[1])
    assert monday["views"]["server"]["epsilon"] == ledger.epsilon("server", 1e-4, run="monday").epsilon


def test_show_without_any_delta_says_what_to_pass(tmp_path):
    Ledger.open(tmp_path / "ledger.jsonl", unit="record", adjacency="replace_one", run="one").close()
    code, text, _ = run("show", tmp_path)
    assert code == 0 and "pass --delta" in text
    assert json.loads(run("show", tmp_path, "--json")[1])["views"] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--run", "friday"], "friday"), (["--delta", "1.5"], "delta must be in [0, 1)")],
)
def test_show_refuses_bad_arguments(folder, arguments, words):
    code, text, error = run("show", folder, *arguments)
    assert (code, text) == (1, "")
    assert words in error


def test_verify_accepts_a_good_chain_and_an_earlier_head(folder):
    ledger = read_ledger(folder / "ledger.jsonl")
    code, text, _ = run("verify", folder)
    assert code == 0 and f"{ledger.num_lines} lines, chain holds, last hash {ledger.head}" in text
    assert run("verify", folder, "--head", ledger.hashes[4])[0] == 0
    found = json.loads(run("verify", folder, "--json")[1])
    assert found == {"valid": True, "lines": ledger.num_lines, "head": ledger.head, "notes": []}


def test_verify_notices_lines_cut_off_the_end(folder):
    path = folder / "ledger.jsonl"
    head = read_ledger(path).head
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert run("verify", folder)[0] == 0  # nothing in the file itself can tell
    code, _, error = run("verify", folder, "--head", head)
    assert code == 1 and "cut off" in error


def test_verify_names_the_changed_line(folder):
    path = folder / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[4] = lines[4].replace("2.0", "4.0")
    path.write_text("".join(lines))
    code, _, error = run("verify", folder)
    assert code == 1 and "line 5" in error
    code, text, _ = run("verify", folder, "--json")
    assert code == 1
    assert json.loads(text)["valid"] is False and json.loads(text)["line"] == 5


def test_verify_tolerates_a_torn_last_line_and_says_so(folder):
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"seq":')
    code, text, _ = run("verify", folder)
    assert code == 0 and "torn (7 bytes)" in text


def test_a_missing_file_is_an_error(tmp_path):
    code, _, error = run("verify", tmp_path)
    assert code == 1 and "ledger.jsonl" in error
