"""What an operator is told of a live federation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.cli.federation import FederationState, FederationUnreachable, federation_state
from fedpriv.settings import SettingsError
from fedpriv.stages.federation import wait_for_clients

ROOT = Path(__file__).resolve().parents[2]


def node(status: str, number: int) -> dict[str, Any]:
    """One entry of ``flwr supernode ls --format json`` (flwr 1.42)."""
    return {"node-id": str(number), "owner-name": "none", "status": status, "created-at": "2026-12-01 03:45:04Z",
            "online-at": "N/A", "online-elapsed": 0.0, "offline-at": "N/A", "deleted-at": "N/A"}  # fmt: skip


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``answered(nodes)`` lets the flwr command answer with these nodes."""

    def answer(nodes: list[dict[str, Any]]) -> None:
        text = json.dumps({"success": True, "nodes": nodes})
        monkeypatch.setattr(
            subprocess, "run", lambda command, **rest: subprocess.CompletedProcess(command, 0, text, "")
        )

    return answer


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (FederationState(()), "waiting for 3 of 3 silos: 0 online"),
        (FederationState(("1", "2")), "waiting for 1 of 3 silos: 2 online"),
        (
            FederationState(("1",), ("2",), ("3",)),
            "waiting for 2 of 3 silos: 1 online (1 offline, 1 never connected)",
        ),
        (FederationState(("1", "2", "3")), "ready: 3 of 3 silos are online"),
        (
            FederationState(("1", "2", "3", "4")),
            "4 silos are online, but num-clients = 3: a run would refuse",
        ),
    ],
)
def test_the_state_is_one_clear_line(state: FederationState, words: str) -> None:
    assert state.words(3).startswith(words)
    assert state.to_json(3)["ready"] == (len(state.online) == 3)


def test_nodes_are_sorted_by_what_the_superlink_says(answered: Any) -> None:
    answered(
        [
            node("online", 1),
            node("registered", 2),
            node("offline", 3),
            node("unregistered", 4),
            node("online", 5),
        ]
    )
    assert federation_state("hospitals") == FederationState(("1", "5"), ("3",), ("2",))


def test_plan_shows_forecast_and_federation(answered: Any) -> None:
    answered([node("online", 1), node("online", 2), node("registered", 3)])
    command = ["plan", str(ROOT), "-c", "num-clients=3 stages='train'", "--federation", "hospitals"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "3 clients at client level" in done.output  # three silos cannot be both private and useful
    last = done.output.rstrip().splitlines()[-1]
    assert last == "federation hospitals: waiting for 1 of 3 silos: 2 online (1 never connected)"
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert found["federation"]["expected"] == 3 and not found["federation"]["ready"]


def test_a_superlink_that_does_not_answer_is_said_and_the_forecast_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command, against a port where nothing listens, and a connection that does not exist."""
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "gone"\n[superlink.gone]\naddress = "127.0.0.1:9"\ninsecure = true\n'
    )
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    done = CliRunner().invoke(
        app, ["plan", str(ROOT), "-c", "num-clients=3 stages='train'", "--federation", "gone"]
    )
    assert done.exit_code == 1
    assert "Planned for unit" in done.output
    assert "SuperLink 'gone' did not answer: Connection to the SuperLink is unavailable" in done.output
    with pytest.raises(FederationUnreachable, match="'nowhere' not found in the Flower configuration file"):
        federation_state("nowhere")


def test_a_run_says_how_many_silos_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.stages.federation._POLL_SECONDS", 0.001)

    class Grid:
        def __init__(self) -> None:
            self.answers = [[1], [1], [1, 2], [2, 3, 1]]

        def get_node_ids(self) -> list[int]:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    said: list[str] = []
    assert wait_for_clients(Grid(), 3, 30.0, said.append) == [1, 2, 3]  # type: ignore[arg-type]
    assert said == ["waiting for 2 of 3 silos: 1 online", "waiting for 1 of 3 silos: 2 online"]
    with pytest.raises(SettingsError, match="start the missing SuperNodes"):
        wait_for_clients(Grid(), 4, 0.01, said.append)  # type: ignore[arg-type]
