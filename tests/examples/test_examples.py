"""Every app of examples/ runs in one process, learns, and prints the epsilon that the account says."""

from __future__ import annotations

import math
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.accounting import gaussian_epsilon
from fedpriv.ledger import read_ledger

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("accountant-for-flower", "private-fedavg-mod", "vote-in-fedavg")
DELTA = 1e-3

RunExample = Callable[..., str]


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunExample:
    """``run_example(name, **changes)`` runs an app as its run.py does and returns what it printed."""

    def run(name: str, **changes: Any) -> str:
        monkeypatch.syspath_prepend(EXAMPLES / name)  # what `python examples/<name>/run.py` does
        runpy.run_path(str(EXAMPLES / name / "run.py"))["main"](**changes)
        return capsys.readouterr().out

    return run


def number(pattern: str, text: str) -> float:
    """The one number that a pattern finds in what an app printed."""
    (found,) = re.findall(pattern, text)
    return float(found)


def test_the_vote_finds_a_better_learning_rate_and_costs_what_it_prints(
    run_example: RunExample, tmp_path: Path
) -> None:
    before = run_example("vote-in-fedavg", vote=False)
    assert number(r"learning rate 0.01: accuracy (\S+)", before) < 0.5
    file = tmp_path / "vote.jsonl"
    after = run_example("vote-in-fedavg", ledger=str(file))
    # 31 or more of 40 clients prefer 1, 8 or fewer 10; the difference of two tallies has noise 2.8.
    assert number(r"the vote chose learning rate (\S+)", after) == 1.0
    assert number(r"learning rate 1: accuracy (\S+)", after) > 0.9
    spent = read_ledger(file).epsilon("server", DELTA).epsilon
    assert number(r"cost epsilon (\S+)", after) == pytest.approx(spent, abs=5e-4)
    assert spent == pytest.approx(gaussian_epsilon(2.0, DELTA), rel=1e-3)  # one vote of one client, noise 2


def test_one_mod_makes_fedavg_private_and_the_ledger_agrees(run_example: RunExample, tmp_path: Path) -> None:
    file = tmp_path / "training.jsonl"
    printed = run_example(
        "private-fedavg-mod", **{"num-rounds": 6, "target-epsilon": 8.0, "ledger": str(file)}
    )
    assert number(r"^accuracy (\S+)", printed.splitlines()[-2]) > 0.6
    noise = number(r"noise multiplier (\S+) for", printed)
    ledger = read_ledger(file)
    assert len(ledger.entries) == 6
    for view in ("server", "participants", "release"):
        spent = ledger.epsilon(view, DELTA).epsilon
        assert number(rf"{view}: epsilon (\S+)", printed) == pytest.approx(spent, abs=5e-4)
        assert 7.9 < spent <= 8.0
        assert spent == pytest.approx(gaussian_epsilon(noise / math.sqrt(6), DELTA), rel=2e-3)


def test_our_accountant_allows_more_rounds_of_flowers_strategy(run_example: RunExample) -> None:
    flower = run_example("accountant-for-flower", accountant="flower")
    ours = run_example("accountant-for-flower", accountant="fedpriv")
    rounds = int(number(r"fedpriv: (\d+) rounds", ours))
    assert rounds > number(r"flower: (\d+) rounds", flower)
    assert number(r"epsilon (\S+) at", ours) == pytest.approx(
        gaussian_epsilon(2.0 / math.sqrt(rounds), DELTA), abs=5e-5
    )
    assert gaussian_epsilon(2.0 / math.sqrt(rounds), DELTA) <= 6.0
    assert gaussian_epsilon(2.0 / math.sqrt(rounds + 1), DELTA) > 6.0
    for printed in (flower, ours):
        assert number(r"accuracy (\S+),", printed) > 0.7


def test_a_limit_that_allows_no_round_is_refused(run_example: RunExample) -> None:
    with pytest.raises(ValueError, match=r"max-epsilon = 0\.1"):
        run_example("accountant-for-flower", **{"max-epsilon": 0.1})


def test_every_folder_is_an_app_of_its_own_with_a_tested_command() -> None:
    folders = sorted(path.name for path in EXAMPLES.iterdir() if (path / "pyproject.toml").exists())
    assert folders == list(NAMES)
    overview = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        folder = EXAMPLES / name
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        command = f"python examples/{name}/run.py"
        assert command in (folder / "README.md").read_text(encoding="utf-8")
        assert command in overview
        for component in project["tool"]["flwr"]["app"]["components"].values():
            module, attribute = component.split(":")
            source = (folder / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
            assert re.search(rf"^{attribute} = ", source, re.MULTILINE)


def test_the_task_knows_nothing_of_privacy_and_is_one_file() -> None:
    tasks = {
        (EXAMPLES / name / name.replace("-", "_") / "task.py").read_text(encoding="utf-8") for name in NAMES
    }
    assert len(tasks) == 1
    assert not re.search(r"^(import|from) fedpriv", tasks.pop(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_flower_bundles_the_folder(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flwr.cli.app", "build", "--app", str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*.fab"))
