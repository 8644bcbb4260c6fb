"""The benchmarks run, and what they compare with is right."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dp_hype.__main__ import main as dp_hype
from benchmarks.dp_hype.measure import measure_group
from benchmarks.dp_hype.report import bound_violations
from benchmarks.dp_hype.scenarios import Case, Scenario
from benchmarks.dp_hype.votes import accounted_epsilon, hold_votes, vote_plan, voting_app
from benchmarks.end_to_end.__main__ import main as end_to_end
from benchmarks.end_to_end.measure import run_app
from benchmarks.nonprivate import holdout_accuracy, train_candidate
from benchmarks.output import parse_overrides, percent
from fedpriv.settings import resolve_settings
from fedpriv.testing import LocalGrid

SMALL = {
    "num-clients": 6,
    "partition": "iid",
    "train.rounds": 3,
    "tune.grid": '{"learning-rate": [0.01, 1.0, 3.0]}',
    "secure-sum": "simulated",
}


def test_end_to_end_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end_to_end(["--quick", "--output", str(tmp_path)])
    assert "The vote " in capsys.readouterr().out
    (seed,) = json.loads((tmp_path / "end_to_end.json").read_text())["seeds"]
    assert 7.9 < seed["epsilon"] <= 8.0
    assert 0 < seed["vote_epsilon"] < seed["epsilon"]
    for name in ("private_alone", "clipped", "unclipped"):
        assert all(0 <= accuracy <= 1 for accuracy in seed[name]) and len(seed[name]) == 2
    assert min(seed["clipped"]) > 0.5  # ten classes: something was learnt
    assert (tmp_path / "end_to_end.png").stat().st_size > 5000


def test_dp_hype_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dp_hype(["--quick", "--output", str(tmp_path), "--cache", str(tmp_path / "cache")])
    assert "| digits, 8, iid | ∞ |" in capsys.readouterr().out
    rows = json.loads((tmp_path / "dp_hype.json").read_text())["rows"]
    assert [row["epsilon"] for row in rows] == [1.0, "inf"]
    for row in rows:
        (cell,) = row["cells"]
        assert cell["random"] <= cell["optimum"] and max(cell["accuracies"]) <= cell["optimum"]
    assert rows[1]["realised_std"] == 0 and rows[1]["cells"][0]["observed"]["0"] == 1.0
    assert (tmp_path / "dp_hype.png").stat().st_size > 5000


def test_training_without_noise_is_the_apps_training() -> None:
    # the app with noise of a millionth of the clip, against the loop that the tables call "no noise"
    config = SMALL | {
        "stages": "train",
        "train.learning-rate": 1.0,
        "train.noise-multiplier": 1e-6,
        "max-epsilon": 1e15,
    }
    settings = resolve_settings(config)
    expected = holdout_accuracy(settings, train_candidate(settings, {}))
    report = run_app(config)
    assert report.final_accuracy == pytest.approx(expected, abs=1.5 / 359)
    worse = holdout_accuracy(settings, train_candidate(settings, {"learning-rate": 0.01}))
    assert abs(worse - expected) > 0.02


def test_votes_are_those_of_the_looked_up_losses() -> None:
    candidates = resolve_settings(SMALL).tune.candidates
    losses = np.array([[2.0, 1.0, 3.0], [2.0, 1.0, math.nan], [0.5, 1.0, 2.0], [math.inf] * 3])
    grid = LocalGrid(voting_app(losses, candidates), 4, raise_client_errors=True)
    winners, tallies = hold_votes(grid, candidates, vote_plan(4, 3, 1, math.inf, 1e-3), 2)
    assert winners.tolist() == [1, 1]
    assert tallies.tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("epsilon", [0.25, 3.0])
def test_vote_plan_spends_what_it_says(epsilon: float) -> None:
    plan = vote_plan(50, 12, 3, epsilon, 50**-1.5)
    assert accounted_epsilon(plan, 50**-1.5) == pytest.approx(epsilon, rel=1e-3)
    assert plan.noise.realised_std_units(50) / plan.units_per_vote > plan.noise_std_votes


def test_observed_frequency_against_bound() -> None:
    """Two candidates: the bound is exact, so the winner is right as often as it says."""
    settings = resolve_settings(
        {"num-clients": 10, "tune.grid": '{"learning-rate": [0.1, 1.0]}', "tune.votes": 1}
    )
    losses = np.array([[0.0, 1.0]] * 6 + [[1.0, 0.0]] * 4)
    scenario = Scenario(Case("digits", 10, "iid", 0), losses, np.array([0.9, 0.5]))
    (row,) = measure_group([scenario], settings, [1.0], 100)
    (cell,) = row.cells
    bound, seen = cell.bound["0"], cell.observed["0"]
    assert 0.6 < bound < 0.95
    # five standard deviations: one false alarm in a million runs
    assert abs(seen - bound) < 5 * math.sqrt(bound * (1 - bound) / 100)
    assert cell.opt_chosen == seen
    lucky = replace(row, cells=[replace(cell, observed={"0": bound, "n/10": bound})])
    wrong = replace(row, cells=[replace(cell, observed={"0": bound - 0.4, "n/10": bound})])
    assert bound_violations([lucky]) == []
    assert [text.split(":")[0] for text in bound_violations([wrong])] == [
        "digits, 10, iid, epsilon 1, gamma 0"
    ]


def test_helpers() -> None:
    assert percent([0.5]) == "50.0" and percent([0.5, 0.6]) == "55.0 ± 7.1"
    assert parse_overrides(["tune.votes=2", "task=adult"]) == {"tune.votes": 2, "task": "adult"}
    with pytest.raises(ValueError, match="key=value"):
        parse_overrides(["task"])
