"""Record-level zeroth-order: K noised means of clipped quotients, charged as one noised step per round."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from scipy import stats

from fedpriv import wire
from fedpriv.accounting.local_steps import LocalSteps
from fedpriv.clients import client_level_dp_mod, record_zeroth_order_mod
from fedpriv.ledger import read_ledger
from fedpriv.mechanisms import Ball
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.record_quotients import RecordQuotients
from fedpriv.plans import RecordZerothOrderPlan
from fedpriv.strategies import NoisedSum, RecordZerothOrder
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode

FLAKE = 1e-9
DIMENSION = 32


class Slopes:
    """Losses that are linear in the weights, with one slope per record; a quotient is slope . u, whatever xi."""

    def __init__(self, weights: NDArray, slopes: NDArray) -> None:
        self.weights, self.slopes = torch.from_numpy(weights.copy()), torch.from_numpy(slopes)
        self.parameters, self.num_records = [self.weights], len(slopes)

    def losses(self, records: NDArray | None = None) -> NDArray:
        rows = self.slopes if records is None else self.slopes[torch.from_numpy(records)]
        return (rows @ self.weights).numpy()


def slopes_of(silo: int) -> NDArray:
    return np.full((40 * (silo + 1), DIMENSION), 0.05 * (silo + 1))


class Silos:
    def __init__(
        self, folder: Path, slopes: Any = slopes_of, node_config: Any = None, **options: Any
    ) -> None:
        self.folder, self.touched = folder, [0, 0, 0]
        app = ClientApp()

        def objective(arrays: dict[str, NDArray], context: Context) -> Slopes:
            silo = int(context.node_config["partition-id"])
            self.touched[silo] += 1
            return Slopes(arrays["w"], slopes(silo))

        @app.train(mods=[record_zeroth_order_mod(objective), client_level_dp_mod])
        def train(msg: Message, context: Context) -> Message:
            raise AssertionError("never called")

        def config(silo: int) -> dict[str, Any]:
            return {wire.CONFIG_STATE_PATH: str(self.account(silo).parent)} | (node_config or {}).get(
                silo, {}
            )

        self.grid = LocalGrid(app, 3, node_config=config, **options)

    def account(self, silo: int) -> Path:
        return self.folder / f"home-{silo}" / "account.jsonl"


def make(**changes: Any) -> RecordZerothOrder:
    values: dict[str, Any] = {
        "dimension": DIMENSION,
        "directions": 4,
        "clip": 10.0,
        "smoothing": 0.25,
        "sampling_rate": 1.0,
        "noise_multiplier": 1e-3,
        "adjacency": "add_or_remove",
        "weighted": False,
        "num_clients": 3,
        "min_survivors": 2,
        "rounds": 5,
    }
    options = {key: changes.pop(key) for key in ("ball", "seed", "budget", "mode") if key in changes}
    plan = RecordZerothOrderPlan.build(**(values | changes))
    sums = NoisedSum(None, mode=options.pop("mode", "simulated"))
    return RecordZerothOrder(plan, sums, learning_rate=changes.get("learning_rate", 2.0), **options)


def model(value: float = 1.0) -> ArrayRecord:
    from flwr.app import Array

    return ArrayRecord({"w": Array(np.full(DIMENSION, value))})


def vector(arrays: ArrayRecord | None) -> NDArray:
    assert arrays is not None
    return arrays["w"].numpy()


@pytest.mark.parametrize("mode", ["simulated", "protocol"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_round_steps_along_the_projected_average_slope(tmp_path: Path, mode: str, weighted: bool) -> None:
    strategy = make(seed=None, mode=mode, weighted=weighted)
    seen: list[Directions] = []
    payload = strategy._payload

    def spy(node: int, directions: Directions, server_round: int) -> Any:
        seen.append(directions)
        return payload(node, directions, server_round)

    strategy._payload = spy  # type: ignore[method-assign]
    outcome = strategy.train_round(Silos(tmp_path).grid, 1, model())
    slope = 0.05 * ((1 * 40 + 2 * 80 + 3 * 120) / 240 if weighted else 2.0)
    units = np.stack([seen[0].direction(k) for k in range(4)])
    expected = 1.0 - 2.0 / 4 * units.T @ (units @ np.full(DIMENSION, slope))
    np.testing.assert_allclose(vector(outcome.arrays), expected, atol=5e-3)
    assert outcome.trained == 3


def test_every_record_is_clipped_in_every_direction() -> None:
    slopes = np.random.default_rng(0).normal(size=(6, DIMENSION)) * 100
    slopes[3] = np.nan
    objective, directions = Slopes(np.ones(DIMENSION), slopes), Directions(b"x" * 16, DIMENSION, 3)
    rows = RecordQuotients(objective, directions, 0.25, 0.5).gradients(np.zeros(3), np.array([0, 3, 5]))
    units = np.stack([directions.direction(k) for k in range(3)])
    expected = np.clip(slopes[[0, 3, 5]] @ units.T, -0.5, 0.5)
    np.testing.assert_allclose(rows, np.nan_to_num(expected), atol=1e-3)
    assert np.linalg.norm(rows, axis=1).max() <= 0.5 * math.sqrt(3) + 1e-12


def test_the_noise_on_each_number_is_what_is_charged(tmp_path: Path) -> None:
    """No signal: the K averages are means of three silos' noises z sqrt(K) Delta / (q n)."""
    count, rate, noise = 30, 0.5, 2.0
    silos = Silos(tmp_path, slopes=lambda silo: np.zeros((20, DIMENSION)))
    strategy = make(directions=count, sampling_rate=rate, noise_multiplier=noise, clip=0.5, rounds=50)
    values: list[float] = []
    silos_release = strategy.silos.release

    def spy(*arguments: Any) -> Any:
        found = silos_release(*arguments)
        values.extend(found[1])
        return found

    strategy.silos.release = spy  # type: ignore[method-assign]
    for number in range(1, 11):
        strategy.train_round(silos.grid, number, model())
    std = noise * 0.5 * math.sqrt(count) / (rate * 20) / math.sqrt(3)
    square = float(np.sum((np.array(values) / std) ** 2))
    assert stats.chi2.ppf(FLAKE, len(values)) < square < stats.chi2.isf(FLAKE, len(values))
    ledger = read_ledger(silos.account(0))
    assert ledger.entries[0].events["server"] == LocalSteps(
        rate, strategy.plan.silos.steps.noise_multiplier, 1
    )
    assert len(ledger.entries) == 10


def test_without_a_ball_silos_rebuild_the_model_and_with_one_it_is_sent(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def watch(silo: int, msg: Message) -> None:
        if wire.RECORD_ZEROTH_ORDER in msg.content and wire.RECORD_SECURE_SUM in msg.content:
            seen.append((msg.content[wire.RECORD_ZEROTH_ORDER][wire.UPDATE_ROUND], "arrays" in msg.content))

    silos, strategy = Silos(tmp_path / "a", drop=watch), make()
    arrays = model()
    for number in (1, 2, 3):
        outcome = strategy.train_round(silos.grid, number, arrays)
        assert outcome.trained == 3 and outcome.arrays is not None
        arrays = outcome.arrays
    assert {sent for number, sent in seen if number == 1} == {True}
    assert {sent for number, sent in seen if number > 1} == {False}
    kept = make(ball=Ball(0.5)).train_round(Silos(tmp_path / "b").grid, 1, model())
    assert np.linalg.norm(vector(kept.arrays)) <= 0.5 + 1e-12


def test_budget_data_and_check(tmp_path: Path) -> None:
    def slopes(silo: int) -> NDArray:
        if silo == 1:
            raise FileNotFoundError
        return slopes_of(silo)

    silos = Silos(tmp_path, slopes=slopes, node_config={0: {"max-epsilon": 1e-3, "delta": 1e-5}})
    strategy = make()
    node = silos.grid.node_of
    found = strategy.check_silos(silos.grid, model())
    assert found.records == {node(0): 40, node(2): 120}
    assert found.refused == {node(1): ErrorCode.SILO_NO_DATA}
    touched = list(silos.touched)
    outcome = strategy.train_round(silos.grid, 1, model())
    assert (outcome.trained, outcome.out_of_budget, outcome.without_data) == (1, 1, 1)
    assert silos.touched[0] == touched[0]
    assert read_ledger(silos.account(1)).epsilon("server", 1e-5).epsilon == 0


@pytest.mark.parametrize(
    "changes", [{wire.UPDATE_CLIPPING_NORM: 19.0}, {wire.SILO_STEPS: 2}], ids=["clip", "steps"]
)
def test_a_request_that_charges_for_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    silos, strategy = Silos(tmp_path), make()
    record = strategy.silos.record

    def other(server_round: int) -> Any:
        found = record(server_round)
        for key, value in changes.items():
            found[key] = value
        return found

    strategy.silos.record = other  # type: ignore[method-assign]
    outcome = strategy.train_round(silos.grid, 1, model())
    assert outcome.arrays is None and silos.touched == [0, 0, 0]


def test_plan() -> None:
    plan = make(sampling_rate=0.1, noise_multiplier=1.5).plan
    assert plan.unit == "record" and plan.releases == 5
    assert plan.events() == dict.fromkeys(
        plan.events(), LocalSteps(0.1, plan.silos.steps.noise_multiplier, 1)
    )
    assert plan.describe()["directions K"] == 4
    assert plan.describe()["noise multiplier (on the clip)"] == pytest.approx(1.5)
    assert "steps per silo" not in plan.forecast().lines
    assert plan.with_records((5, 9)).records == (5, 9)
    assert any("4 quotients" in h.name for h in plan.hypotheses())
