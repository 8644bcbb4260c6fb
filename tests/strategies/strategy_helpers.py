"""Small apps, plans and grids for tests of the strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy import stats

from fedpriv.clients import client_level_dp_mod
from fedpriv.ledger import Budget, Ledger
from fedpriv.mechanisms import FullParticipation
from fedpriv.plans import DpsgdDcPlan
from fedpriv.strategies import DpsgdDc, NoisedSum

FLAKE = 1e-9  # chance that a statistical test fails although the code is right

Update = Callable[[int, np.ndarray], np.ndarray]


def partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def record(vector: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.asarray(vector, dtype=np.float64))})


def vector_of(arrays: ArrayRecord) -> np.ndarray:
    return arrays["w"].numpy()


class Clients:
    """A ClientApp whose clients move the model by a given update, and the calls of their train function."""

    def __init__(self, update: Update | None = None, mods: list[Any] | None = None) -> None:
        self.update = update or (lambda client, model: np.zeros_like(model))
        self.calls: list[int] = []
        self.app = ClientApp()
        self.app.train(mods=[client_level_dp_mod] if mods is None else mods)(self.train)

    def train(self, msg: Message, context: Context) -> Message:
        """An ordinary FedAvg train function: it knows nothing of fedpriv."""
        self.calls.append(partition(context))
        model = next(iter(msg.content.array_records.values()))["w"].numpy()
        trained = model - self.update(partition(context), model)
        metrics = MetricRecord({"num-examples": 10 ** (1 + partition(context) % 4), "loss": 0.123456789})
        return Message(RecordDict({"arrays": record(trained), "metrics": metrics}), reply_to=msg)


def make_plan(**changes: object) -> DpsgdDcPlan:
    values: dict[str, Any] = {
        "sampler": FullParticipation(),
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": 8,
        "min_survivors": 6,
        "rounds": 5,
        "length": 4,
    }
    return DpsgdDcPlan.build(**(values | changes))


def make_strategy(plan: DpsgdDcPlan, ledger: Ledger | None = None, **options: Any) -> DpsgdDc:
    mode = options.pop("mode", "protocol")
    sums = NoisedSum(ledger, mode=mode, seed=options.get("seed"))
    return DpsgdDc(plan, sums, **options)


def open_ledger(path: Any, plan: Any, max_epsilon: float | None = None, **options: Any) -> Ledger:
    budgets = () if max_epsilon is None else Budget(max_epsilon, 1e-5, options.get("view", "server"))
    return Ledger.open(path, unit="client", adjacency=plan.adjacency, run="test", delta=1e-5, budgets=budgets)


def assert_normal(values: np.ndarray, std: float) -> None:
    """The values are draws of N(0, std^2): their variance by chi-square, their law by Kolmogorov-Smirnov."""
    count = len(values)
    square = float(np.sum((values / std) ** 2))
    low, high = stats.chi2.ppf(FLAKE / 2, count), stats.chi2.isf(FLAKE / 2, count)
    assert low < square < high, f"variance is {square / count:.4f} of what was claimed"
    assert stats.kstest(values / std, "norm").pvalue > FLAKE
