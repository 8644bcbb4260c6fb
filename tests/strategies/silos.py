"""Silos with made-up records, for tests of record-level training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedpriv import wire
from fedpriv.clients import client_level_dp_mod
from fedpriv.clients.record_level import record_level_mod
from fedpriv.ledger import Budget, Ledger
from fedpriv.plans import RecordLevelPlan
from fedpriv.strategies import FederatedAverage, NoisedSum
from fedpriv.testing import LocalGrid

DIMENSION = 4


class Points:
    """Records are points, the loss of one is half its squared distance to the weights."""

    def __init__(self, points: NDArray) -> None:
        self.points, self.num_records = points, len(points)

    def gradients(self, weights: NDArray, records: NDArray) -> NDArray:
        return weights - self.points[records]


class Silos:
    """Three silos; `records` gives a silo's points, or raises."""

    def __init__(
        self,
        folder: Path,
        records: Callable[[int], NDArray] = lambda silo: np.full((50 * (silo + 1), DIMENSION), silo + 1.0),
        node_config: Callable[[int], Mapping[str, Any]] = lambda silo: {},
        num_silos: int = 3,
        **options: Any,
    ) -> None:
        self.folder, self.touched = folder, [0] * num_silos
        app = ClientApp()

        def make(arrays: dict[str, NDArray], context: Context) -> Points:
            silo = int(context.node_config["partition-id"])
            self.touched[silo] += 1
            return Points(records(silo))

        @app.train(mods=[record_level_mod(make), client_level_dp_mod])
        def train(msg: Message, context: Context) -> Message:
            raise AssertionError("record-level training never calls the train function")

        def config(silo: int) -> Mapping[str, Any]:
            return {wire.CONFIG_STATE_PATH: str(self.account(silo).parent), **node_config(silo)}

        self.grid = LocalGrid(app, num_silos, node_config=config, **options)

    def account(self, silo: int) -> Path:
        return self.folder / f"home-{silo}" / "account.jsonl"


def make_plan(**changes: Any) -> RecordLevelPlan:
    values: dict[str, Any] = {
        "sampling_rate": 0.5,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "local_steps": 2,
        "adjacency": "add_or_remove",
        "radius": 10.0,
        "weighted": False,
        "num_clients": 3,
        "min_survivors": 2,
        "rounds": 5,
        "length": DIMENSION,
    }
    return RecordLevelPlan.build(**(values | changes))


def make_strategy(plan: RecordLevelPlan, ledger: Ledger | None = None, **options: Any) -> FederatedAverage:
    sums = NoisedSum(
        ledger, mode=options.pop("mode", "simulated"), share_threshold=options.pop("threshold", None)
    )
    return FederatedAverage(plan, sums, **({"learning_rate": 0.5} | options))


def open_ledger(path: Path, max_epsilon: float | None = None) -> Ledger:
    budgets = () if max_epsilon is None else Budget(max_epsilon, 1e-5, "server")
    return Ledger.open(
        path, unit="record", adjacency="add_or_remove", run="test", delta=1e-5, budgets=budgets
    )


def model(value: float = 0.0) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.full(DIMENSION, value))})


def vector(arrays: ArrayRecord | None) -> NDArray:
    assert arrays is not None
    return arrays["w"].numpy()
