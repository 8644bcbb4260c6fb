"""Requests of a secure sum with any payload, and what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import SecureSum, SecureSumAborted, SecureSumSettings
from fedpriv.testing import LocalGrid

LENGTH = 4


def update_record(**changes: Any) -> dict[str, Any]:
    """A complete update record without noise, changed; None takes a key out."""
    values: dict[str, Any] = {
        wire.UPDATE_CLIPPING_NORM: 1.0,
        wire.UPDATE_CLIP_UNITS: 1000,
        wire.UPDATE_SAMPLING_RATE: 1.0,
        wire.UPDATE_IDLE_TRAINS: True,
        wire.UPDATE_ROUND: 1,
        wire.NOISE_SHARE_STD: 0.0,
        wire.NOISE_SEED: "",
    }
    return _changed(values, changes)


def vote_record(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        wire.VOTE_CANDIDATES: "[{}, {}, {}, {}]",
        wire.VOTE_VOTES: 1,
        wire.VOTE_UNITS: 10,
        wire.NOISE_SHARE_STD: 0.0,
        wire.NOISE_SEED: "",
    }
    return _changed(values, changes)


def evaluate_record(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        wire.EVALUATE_CAP: 10,
        wire.EVALUATE_UNITS: 1,
        wire.UPDATE_ROUND: 1,
        wire.NOISE_SHARE_STD: 0.0,
        wire.NOISE_SEED: "",
    }
    return _changed(values, changes)


def _changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    values = {**values, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return {key: value for key, value in values.items() if value is not None}


def arrays(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values or [0.0] * LENGTH))})


def payload_of(name: str, values: dict[str, Any], model: ArrayRecord | None = None) -> RecordDict:
    found = RecordDict({name: ConfigRecord(values)})
    if model is not None:
        found["arrays"] = model
    return found


def ask(
    grid: LocalGrid, payload: RecordDict, purpose: str, length: int = LENGTH, mode: str = "simulated"
) -> np.ndarray:
    """The sum over all nodes of the grid."""
    settings = SecureSumSettings(min_survivors=len(list(grid.get_node_ids())), mode=mode, modulus_bits=62)  # type: ignore[arg-type]
    return SecureSum(grid, settings).run(grid.get_node_ids(), payload, length, purpose).total


def refusal(grid: LocalGrid, payload: RecordDict, purpose: str, **options: Any) -> int | None:
    """Code of the error reply with which the first node ends the sum."""
    try:
        ask(grid, payload, purpose, **options)
    except SecureSumAborted as aborted:
        assert not aborted.released
        return aborted.errors[0].code
    raise AssertionError("the clients answered")


def partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def plain_message(grid: LocalGrid, message_type: str, content: RecordDict | None = None) -> list[Message]:
    """Replies of all nodes to one plain message."""
    content = RecordDict({"arrays": arrays(), "config": ConfigRecord()}) if content is None else content
    return grid.send_and_receive(
        [Message(content, dst_node_id=node, message_type=message_type) for node in grid.get_node_ids()]
    )
