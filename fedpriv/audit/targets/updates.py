"""Clients whose updates an auditor dictates, and worst-case updates for strategies that clip a client's update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedpriv.audit.grid import Mod, colluding_mod, make_app, partition_of
from fedpriv.clients import client_level_dp_mod
from fedpriv.mechanisms import GridCodec
from fedpriv.plans import NoiseModel

Arrays = dict[str, np.ndarray]
Update = Callable[[int, Arrays], Arrays]
"""From partition and model to what the client subtracts from it."""

#: Grid steps per clip, and of the noise, when a mechanism is probed with hardly any noise.
QUIET_CLIP_UNITS, QUIET_NOISE_UNITS = 2**24, 64.0

#: An example count that would drown all others if it weighed anything.
MANY_EXAMPLES = 1_000_000


def model_of(length: int) -> ArrayRecord:
    """A model of zeros with a 0-d array, two matrices' worth of others and ``length`` coordinates in all."""
    left = max(length - 1, 0) // 2
    arrays = {"first": np.zeros(left), "second": np.zeros(length - 1 - left), "scale": np.zeros(())}
    return ArrayRecord({name: Array(value) for name, value in arrays.items() if value.size})


def quiet(codec: GridCodec, noise: NoiseModel) -> tuple[GridCodec, NoiseModel]:
    """The finest grid and hardly any noise on it."""
    fine = replace(codec, clip_units=QUIET_CLIP_UNITS)
    return fine, replace(noise, total_std_units=QUIET_NOISE_UNITS * noise_shares(noise) ** 0.5)


def noise_shares(noise: NoiseModel) -> int:
    """Shares that the guarantee counts; 1 for central noise."""
    return noise.shares.counted_shares if noise.kind == "distributed" else 1


class DictatedClients:
    """A ClientApp whose clients move the model by updates that the auditor chooses.

    Parameters
    ----------
    update : callable
        From partition and model to the update; changed between runs.
    honest : int
        Clients from this partition on help the adversary: they add no noise.
    mods : list of Mod, optional
        The client half; client-level privacy by default.
    """

    def __init__(self, update: Update, honest: int, mods: list[Mod] | None = None) -> None:
        self.update = update
        self.calls: list[int] = []
        chain = [client_level_dp_mod] if mods is None else mods
        self.app = make_app([colluding_mod(honest), *chain], self._train)

    def _train(self, msg: Message, context: Context) -> Message:
        client = partition_of(context)
        self.calls.append(client)
        record = next(iter(msg.content.array_records.values()))
        model = {name: array.numpy() for name, array in record.items()}
        moved = self.update(client, model)
        trained = ArrayRecord({name: Array(np.asarray(model[name] - moved[name])) for name in model})
        examples = MANY_EXAMPLES if client == 0 else 10
        metrics = MetricRecord({"num-examples": examples, "num_examples": examples})
        return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=msg)


def zeros_like(model: Arrays) -> Arrays:
    """An update that changes nothing."""
    return {name: np.zeros_like(value) for name, value in model.items()}


def push(model: Arrays, size: float) -> Arrays:
    """An update of the last coordinate (the 0-d array) alone."""
    moved = zeros_like(model)
    name = list(model)[-1]
    moved[name] = np.asarray(moved[name] + 0.0)
    moved[name].reshape(-1)[-1] = size
    return moved


def _every(model: Arrays, size: float) -> Arrays:
    return {name: np.full_like(value, size) for name, value in model.items()}


def _each_array(model: Arrays, size: float) -> Arrays:
    """Every array has this norm by itself."""
    return {name: np.full_like(value, size / value.size**0.5) for name, value in model.items()}


def _with_bad_value(model: Arrays, size: float, bad: float) -> Arrays:
    moved = _every(model, size)
    first = next(iter(moved))
    moved[first] = moved[first].copy()
    moved[first].reshape(-1)[0] = bad
    return moved


#: Worst-case updates of a client, from the model and the clipping norm.
WORST_UPDATES: dict[str, Callable[[Arrays, float], Arrays]] = {
    "the clip, in one 0-d array": push,
    "two clips, in one 0-d array": lambda model, clip: push(model, 2.0 * clip),
    "a thousand clips, in one 0-d array": lambda model, clip: push(model, 1e3 * clip),
    "a thousand clips, spread over all coordinates": lambda model, clip: _every(model, 1e3 * clip),
    "the clip, in every array": _each_array,
    "largest numbers": lambda model, clip: _every(model, 1e300),
    "a NaN": lambda model, clip: _with_bad_value(model, 1e9 * clip, float("nan")),
    "an infinity": lambda model, clip: _with_bad_value(model, 1e9 * clip, float("inf")),
}


def negated(update: Arrays) -> Arrays:
    """The opposite update, for replace_one."""
    return {name: -value for name, value in update.items()}


def unflattened(flat: np.ndarray, model: Arrays) -> Arrays:
    """A flat vector cut into arrays of a model's shapes."""
    found, start = {}, 0
    for name, value in model.items():
        found[name] = flat[start : start + value.size].reshape(value.shape)
        start += value.size
    return found


def plain(value: Any) -> np.ndarray:
    """A flat float64 copy of a model."""
    return np.concatenate([array.numpy().astype(np.float64).reshape(-1) for array in value.values()])
