"""``fedpriv plan``, ``settings`` and the parts of ``run`` that come before any process is started."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.cli.run import read_overrides
from fedpriv.settings.resolve import default_run_config, known_keys

ROOT = str(Path(__file__).resolve().parents[2])
runner = CliRunner()


def test_plan_states_every_view_and_warns_of_three_clients() -> None:
    done = runner.invoke(app, ["plan", ROOT, "-c", "num-clients=3", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert set(found["views"]) == {"server", "participants", "release"}
    assert 7.9 < found["views"]["server"]["epsilon"] <= 8.0
    assert any("use unit = record" in text for text in found["warnings"])
    assert found["stages"]["train"]["forecast"]["noise norm over signal, whole run"] > 1


def test_plan_of_central_noise_says_that_the_server_view_has_no_guarantee() -> None:
    done = runner.invoke(app, ["plan", ROOT, "-c", "noise='central' budget-view='release'", "--json"])
    assert json.loads(done.output)["views"]["server"]["epsilon"] == "infinity"


def test_plan_knows_the_hidden_state_of_a_run_without_a_vote() -> None:
    config = (
        "stages='train' train.rounds=60 train.learning-rate=0.01 train.local-steps=1 train.clip-norm=0.1 "
    )
    config += "train.radius=0.2 train.release-noise=0.3 evaluate='none'"
    found = json.loads(runner.invoke(app, ["plan", ROOT, "-c", config, "--json"]).output)
    assert found["views"]["release"]["epsilon"] < 0.6 * found["views"]["server"]["epsilon"]
    assert found["views"]["release"]["bound"] == "amplification_by_iteration"


def test_plain_plan_prints_the_same() -> None:
    done = runner.invoke(app, ["plan", ROOT])
    assert done.exit_code == 0
    assert "stage tune" in done.output and "assumed: each of the summed clients" in done.output


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("target-epsilon=-1", "target-epsilon = -1: should be greater than 0"),
        ("train.round=3", "unknown key 'train.round'; did you mean 'train.rounds'?"),
        ("sampling='self' adjacency='replace_one'", "Poisson sampling is accounted under add_or_remove only"),
    ],
)
def test_bad_values_are_told_before_anything_starts(command: str, config: str, words: str) -> None:
    done = runner.invoke(app, [command, ROOT, "-c", config])
    assert done.exit_code == 2
    assert words in done.output


def test_run_needs_an_app(tmp_path: Path) -> None:
    done = runner.invoke(app, ["run", str(tmp_path)])
    assert done.exit_code == 2
    assert "should be a folder with a pyproject.toml" in done.output


def test_overrides_are_read_as_flower_reads_them() -> None:
    grid = '{"learning-rate": [0.1, 0.2]}'
    values = read_overrides(["train.rounds=3 alpha=0.1", f"tune.grid='{grid}'", "name='x y'"])
    assert values == {"train.rounds": 3, "alpha": 0.1, "tune.grid": grid, "name": "x y"}
    with pytest.raises(typer.BadParameter, match="foo"):
        read_overrides(["foo"])


def test_settings_lists_every_key_and_its_toml_is_the_default() -> None:
    table = runner.invoke(app, ["settings"]).output
    assert all(f"`{key}`" in table for key in known_keys())
    parsed = tomllib.loads(runner.invoke(app, ["settings", "--toml"]).output)
    assert parsed["train"]["rounds"] == default_run_config()["train.rounds"]


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output.startswith("fedpriv ")


def test_a_plan_without_differential_privacy_shows_no_epsilon() -> None:
    text = runner.invoke(app, ["plan", ROOT, "-c", "stages='paczero' num-clients=4"]).output
    assert "No stage is covered by differential privacy: there is no epsilon." in text
    assert "paczero: at most 0 nats per silo" in text
    assert not re.search(r"^(server|participants|release) ", text, re.MULTILINE)
    assert "budget" not in text.splitlines()[0]
    found = json.loads(
        runner.invoke(app, ["plan", ROOT, "--json", "-c", "stages='paczero' num-clients=4"]).output
    )
    assert found["views"] == {}
    assert found["nats"] == {"paczero": 0.0}


def test_a_plan_is_written_for_people() -> None:
    text = runner.invoke(
        app, ["plan", ROOT, "-c", "noise='central' budget-view='release' num-clients=20"]
    ).output
    assert re.search(r"^server +infinity +none$", text, re.MULTILINE)
    assert re.search(r"^release +8\.000 +exact Gaussian$", text, re.MULTILINE)
    assert "(DP-HYPE), 1 release\n" in text
    assert "()" not in text
