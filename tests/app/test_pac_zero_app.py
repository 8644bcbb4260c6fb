"""The app with a PACZero stage: report, ledger, vote before it, resume."""

import json
from pathlib import Path

import pytest

from fedpriv.ledger import read_ledger
from fedpriv.settings import SettingsError, resolve_settings
from fedpriv.testing import run_local

CONFIG = {
    "num-clients": 4,
    "stages": "paczero",
    "task": "breast-cancer",
    "paczero.rounds": 4,
    "paczero.subsets": 8,
    "evaluate-every": 4,
    "secure-sum": "simulated",
}


def play(folder: Path, **changes: object) -> dict:
    from client_app.app import app as client
    from server_app.app import app as server

    config = CONFIG | {"run-dir": str(folder), "name": "run"} | changes
    run_local(server, client, 4, config)
    return json.loads((folder / "run" / "report.json").read_text())


def test_a_run_claims_nats_and_no_epsilon(tmp_path: Path) -> None:
    report = play(tmp_path, **{"paczero.variant": "mi", "paczero.nats": 0.2})
    (pac,) = report["pac"]
    assert (pac["stage"], pac["silo"], pac["nats"]) == ("paczero", "each", 0.2)
    assert 0.5 < pac["success"] < 0.85
    assert report["private"] is False
    text = (tmp_path / "run" / "report.md").read_text()
    assert text.startswith("PAC privacy of paczero, not differential privacy")
    assert "What was leaked to whom" not in text
    assert (tmp_path / "run" / "figures" / "diagnostics_paczero.png").exists()
    ledger = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert ledger.pac_totals() == {("paczero", "each"): 0.2}
    assert not list(ledger.entries)
    (stage,) = report["stages"]
    assert all(r["nats"] == 0.2 and r["epsilon"] == {} for r in stage["rounds"])
    assert 0 <= stage["table"]["unanimous rounds (simulation only)"] <= 1
    assert stage["table"]["payload up per silo and round (bits)"] == 1


def test_a_vote_before_it_is_claimed_alone(tmp_path: Path) -> None:
    grid = '{"learning-rate": [0.02, 0.2]}'
    report = play(
        tmp_path, stages="tune,paczero", **{"tune.grid": grid, "tune.votes": 1, "tune.proxy-rounds": 1}
    )
    text = (tmp_path / "run" / "report.md").read_text()
    assert text.startswith("Client-level differential privacy of tune alone")
    assert "0 nats" in text.splitlines()[0]
    tune, paczero = report["stages"]
    chosen = tune["vote"]["candidates"][tune["vote"]["chosen"]]["learning-rate"]
    assert paczero["table"]["step"].startswith(f"{chosen:g}, constant")


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nats"):
        play(tmp_path, **{"paczero.nats": 0.2})
    with pytest.raises(SettingsError, match=r"paczero\.variant"):
        resolve_settings({"paczero.variant": "none"})


@pytest.mark.parametrize(("law", "kind"), [("signs", "signs"), ("auto", "orthonormal")])
def test_the_direction_is_of_the_kind_that_was_asked_for(tmp_path: Path, law: str, kind: str) -> None:
    report = play(tmp_path, **{"paczero.direction-kind": law, "paczero.rounds": 2, "evaluate-every": 2})
    (stage,) = report["stages"]
    assert stage["table"]["kind of directions"] == kind
    assert stage["table"]["rounds released"] == 2
