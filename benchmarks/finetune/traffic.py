"""Bytes of a zeroth-order round on the wire, counted on the messages of a small federation with a real secure sum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedpriv import wire
from fedpriv.clients import pac_zero_mod, zeroth_order_mod
from fedpriv.mechanisms import FullParticipation
from fedpriv.plans import PacZeroPlan, ZerothOrderPlan
from fedpriv.strategies import NoisedSum, PacZero, ZerothOrder
from fedpriv.testing import LocalGrid

CLIENTS, DIMENSION, ROUND = 8, 100_000, 3


class _Flat:
    """Losses of a few records; their values do not matter here."""

    num_records = 4

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.parameters = [torch.from_numpy(arrays["w"].copy())]

    def losses(self, records: Any = None) -> np.ndarray:
        return np.arange(self.num_records) + float(self.parameters[0][0])


class _Counter:
    """Bytes of the first client in one round, by what they are for."""

    def __init__(self) -> None:
        self.server_round, self.up, self.down, self.checks, self.protocol, self.model = 0, 0, 0, 0, 0, 0

    def __call__(self, partition: int, request: Message, reply: Message) -> Iterable[Message]:
        if partition == 0 and self.server_round == ROUND:
            self._request(request)
            self.protocol += wire.content_bytes(reply.content)
            vector = reply.content.get(wire.RECORD_RESULT)
            if isinstance(vector, ArrayRecord):
                self.up += sum(array.numpy().nbytes for array in vector.values())
        return [reply]

    def _request(self, request: Message) -> None:
        whole = wire.content_bytes(request.content)
        needed, ours = 0, 0
        for name, record in request.content.items():
            if name in (wire.RECORD_MODEL, wire.RECORD_ZEROTH_ORDER, wire.RECORD_PAC_ZERO):
                ours += len(name) + sum(len(key) + _size(value) for key, value in record.items())
                for key in (wire.ZEROTH_ORDER_SEED, wire.MODEL_SEEDS, wire.MODEL_COEFFICIENTS):
                    needed += _size(record[key]) if key in record else 0
            if name == "arrays":
                self.model += whole
        self.down += needed
        self.checks += ours - needed
        self.protocol += whole - ours

    def row(self, algorithm: str, directions: int) -> dict[str, Any]:
        return {
            "algorithm": algorithm,
            "directions": directions,
            "up": self.up,
            "down": self.down,
            "checks": self.checks,
            "protocol": self.protocol - self.up,
            "model": 4 * DIMENSION,
        }


def _size(value: Any) -> int:
    return sum(
        len(v) if isinstance(v, bytes | str) else 8 for v in (value if isinstance(value, list) else [value])
    )


def _play(strategy: Any, mod: Any) -> _Counter:
    app = ClientApp()

    @app.train(mods=[mod(lambda arrays, context: _Flat(arrays))])
    def never(msg: Message, context: Context) -> Message:
        raise AssertionError("reached the train function")

    counter = _Counter()
    grid = LocalGrid(app, CLIENTS, intercept=counter)
    arrays = ArrayRecord({"w": Array(np.zeros(DIMENSION, dtype=np.float32))})
    for counter.server_round in range(1, ROUND + 1):
        arrays = strategy.train_round(grid, counter.server_round, arrays).arrays
    if counter.model:
        raise AssertionError(f"a model was sent in round {ROUND}")
    return counter


def traffic_rows() -> list[dict[str, Any]]:
    """One row per algorithm and number of directions."""
    rows = []
    for directions in (1, 16):
        plan = ZerothOrderPlan.build(
            sampler=FullParticipation(),
            dimension=DIMENSION,
            directions=directions,
            clip=1.0,
            smoothing=1.0,
            direction_share=1.0,
            noise_multiplier=1.0,
            kind="distributed",
            adjacency="add_or_remove",
            num_clients=CLIENTS,
            min_survivors=CLIENTS,
            rounds=ROUND,
        )
        strategy = ZerothOrder(plan, NoisedSum(None), learning_rate=1.0)
        rows.append(_play(strategy, zeroth_order_mod).row("zeroth-order", directions))
    sign = PacZeroPlan("zpl", 0.0, 2, ROUND, CLIENTS, CLIENTS, DIMENSION, 1.0, 1.0)
    signs = PacZero(sign, NoisedSum(None), run="traffic", learning_rate=1.0)
    rows.append(_play(signs, pac_zero_mod).row("PACZero", 1))
    return rows
