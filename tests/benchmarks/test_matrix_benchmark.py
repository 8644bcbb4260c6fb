"""The benchmark of correlated noise runs, its checks find faults, and its loop is private by the library's objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.matrix import accuracy, privacy
from benchmarks.matrix.__main__ import main
from benchmarks.matrix.accuracy import Federation, encoded, make_plan, model_length, train
from benchmarks.matrix.privacy import violations
from benchmarks.matrix.speed import stream
from fedpriv.accounting import Accountant
from fedpriv.accounting.matrices import bandmf, bsr, identity
from fedpriv.mechanisms import GridCodec, RandomAllocationSchedule, SelfSampling
from fedpriv.plans import DpsgdDcPlan, MatrixPlan

SMALL = Federation("digits", clients=20, bins=2, epochs=2)


def _given(method: str, federation: Federation, epsilon: float, length: int) -> DpsgdDcPlan | MatrixPlan:
    """A plan of some noise, in the place of one that has to be solved."""
    f = federation
    values: dict[str, Any] = {"clipping_norm": f.clip, "noise_multiplier": 1.0, "num_clients": f.clients}
    values |= {"min_survivors": 2, "length": length}
    if method == "poisson":
        sampler = SelfSampling(1 / f.bins)
        return DpsgdDcPlan.build(
            sampler=sampler, kind="central", adjacency="add_or_remove", rounds=f.bins * f.epochs, **values
        )
    schedule = RandomAllocationSchedule(f.bins, f.epochs)
    return MatrixPlan.build(schedule=schedule, matrix=bsr(schedule.rounds, 2), **values)


def test_a_quick_run_writes_tables_picture_and_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy, "FAMILIES", ("identity", "bandmf"))
    monkeypatch.setattr(accuracy, "make_plan", _given)
    main(["--quick", "--output", str(tmp_path), "--cache", str(tmp_path / "cache")])
    assert "Result: all hold" in capsys.readouterr().out
    data = json.loads((tmp_path / "matrix.json").read_text())
    assert [row["matrix"] for row in data["privacy"]] == ["identity", "bandmf"]
    assert [row["method"] for row in data["accuracy"]] == ["poisson", "identity", "bandmf", "blt"]
    assert (tmp_path / "matrix.png").stat().st_size > 5000
    # what is in the cache is not measured again
    main(["--quick", "--output", str(tmp_path / "again"), "--cache", str(tmp_path / "cache")])
    assert json.loads((tmp_path / "again" / "matrix.json").read_text()) == data


def _row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "bins": 4,
        "epochs": 1,
        "target": 2.0,
        "matrix": "identity",
        "size": "",
        "noise": 1.0,
        "rmse": 2.0,
        "bound": "profile",
        "epsilon": 1.999,
        "lower": 1.99,
        "candidates": {},
        "same_matrix_unamplified_noise": 1.5,
        "unamplified_noise": 1.5,
        "unamplified_rmse": 3.0,
        "poisson_noise": 1.1,
        "poisson_rmse": 2.2,
    }
    return row | changes


def test_the_checks_find_what_cannot_be() -> None:
    better = _row(target=8.0, noise=0.5, rmse=1.0, epsilon=7.99, unamplified_rmse=1.5, poisson_rmse=1.2)
    assert violations([_row(), better]) == []
    for wrong, message in (
        (_row(epsilon=2.01), "epsilon 2.01"),
        (_row(epsilon=1.9), "epsilon 1.9"),
        (_row(lower=2.0), "lower bound"),
        (_row(noise=1.6), "more noise than without amplification"),
        (_row(rmse=0.9), "rmse does not fall"),
        (_row(noise=0.4), "noise does not fall"),
    ):
        assert any(message in text for text in violations([wrong, better])), message
    worse = _row(matrix="bandmf", unamplified_rmse=3.1)
    assert any("worse than independent" in text for text in violations([_row(), worse]))


def test_the_loop_learns_and_its_noise_is_the_plans() -> None:
    """With almost no noise every method learns the task; with the plan's noise the model carries it."""
    length = model_length(SMALL)
    settings = SMALL.settings(0)

    def plan(noise: float) -> MatrixPlan:
        return MatrixPlan.build(
            schedule=RandomAllocationSchedule(2, 2),
            matrix=bsr(4, 2),
            clipping_norm=1.0,
            noise_multiplier=noise,
            num_clients=20,
            min_survivors=18,
            length=length,
        )

    # the bins are secret, so the accuracy varies: 0.51 to 0.8 and 0.05 to 0.2 in sixty runs each
    assert train(plan(1e-3), SMALL, settings, 1.0) > 0.35
    assert train(plan(100.0), SMALL, settings, 1.0) < 0.3


def test_a_plan_spends_its_epsilon() -> None:
    plan = make_plan("poisson", SMALL, 4.0, 100)
    assert isinstance(plan, DpsgdDcPlan)
    found = Accountant("add_or_remove").compose(plan.events()["release"], plan.rounds).epsilon(SMALL.delta)
    assert 3.99 < found.epsilon <= 4.0


def test_updates_are_clipped_to_the_grid() -> None:
    codec = GridCodec(1.0, 1000)
    units = encoded(np.array([3.0, 4.0]), codec)
    assert int(units @ units) <= 1000**2
    assert units.tolist() == [600, 800] or abs(units - [600, 800]).max() == 1


@pytest.mark.parametrize(("matrix", "kept"), [(identity(6), 0), (bandmf(6, 3), 2)])
def test_streaming_is_measured_over_all_rows(matrix: Any, kept: int) -> None:
    found = stream(matrix, 6, 4000)
    assert (found["rows"], found["kept_vectors"]) == (6, kept)
    assert found["worst_deviation"] < 6.5
    assert found["seconds"] > 0 and found["peak_vectors"] > 0
