"""The model of a round as a client gets it: sent whole, or rebuilt from the public steps since the last one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from fedpriv import wire
from fedpriv.clients.noise_share import number, record_of
from fedpriv.mechanisms.directions import SEED_BYTES
from fedpriv.mechanisms.model_identity import ID_BYTES, model_identity
from fedpriv.mechanisms.zeroth_order import PublicStep, replay
from fedpriv.secure_sum import Refusal
from fedpriv.wire import ErrorCode

#: Most steps that a request may ask a client to replay.
MAX_STEPS = 100_000


def received_model(request: Message, context: Context) -> dict[str, np.ndarray]:
    """The round's model, and keep it for later steps where the request says so.

    Parameters
    ----------
    request : Message
        With an ArrayRecord ``arrays``, or a ``fedpriv.model`` record of steps from the model that the client
        keeps in ``context.state``.
    context : Context
        The client's context.

    Returns
    -------
    dict of str to np.ndarray

    Raises
    ------
    Refusal
        When the client does not keep the model that the steps start from, or what it rebuilds is not the
        server's model; the server then sends the model whole.
    """
    record = record_of(request, wire.RECORD_MODEL)
    identity, base = (_bytes(record, key, ID_BYTES) for key in (wire.MODEL_ID, wire.MODEL_BASE_ID))
    arrays = _sent(request) if base == b"" else _rebuilt(record, context, base)
    if model_identity(arrays) != identity:
        _forget(context)
        raise Refusal(ErrorCode.MODEL_UNKNOWN)
    if record.get(wire.MODEL_KEEP) is True:
        _keep(context, arrays, identity)
    return arrays


def _sent(request: Message) -> dict[str, np.ndarray]:
    record = request.content.get("arrays")
    if not isinstance(record, ArrayRecord):
        raise Refusal(ErrorCode.BAD_REQUEST)
    return {name: array.numpy() for name, array in record.items()}


def _rebuilt(record: ConfigRecord, context: Context, base: bytes) -> dict[str, np.ndarray]:
    kept, known = context.state.get(wire.STATE_MODEL), context.state.get(wire.STATE_MODEL_ID)
    if not isinstance(kept, ArrayRecord) or not isinstance(known, ConfigRecord):
        raise Refusal(ErrorCode.MODEL_UNKNOWN)
    if known.get(wire.MODEL_ID) != base:
        raise Refusal(ErrorCode.MODEL_UNKNOWN)
    arrays = {name: array.numpy() for name, array in kept.items()}
    return replay(arrays, _steps(record), number(record, wire.ZEROTH_ORDER_SMOOTHING, 1e-12, 1e12))


def _steps(record: ConfigRecord) -> list[PublicStep]:
    seeds, coefficients = record.get(wire.MODEL_SEEDS), record.get(wire.MODEL_COEFFICIENTS)
    kind = record.get(wire.ZEROTH_ORDER_KIND)
    if not isinstance(seeds, bytes) or not isinstance(coefficients, list) or len(seeds) % SEED_BYTES:
        raise Refusal(ErrorCode.BAD_REQUEST)
    count = len(seeds) // SEED_BYTES
    finite = all(isinstance(c, float) and np.isfinite(c) for c in coefficients)
    if count > MAX_STEPS or kind not in ("orthonormal", "independent") or not finite:
        raise Refusal(ErrorCode.BAD_REQUEST)
    if (count == 0) != (not coefficients) or (count and len(coefficients) % count):
        raise Refusal(ErrorCode.BAD_REQUEST)
    width = len(coefficients) // count if count else 0
    return [
        PublicStep(
            seeds[SEED_BYTES * i : SEED_BYTES * (i + 1)],
            kind,  # type: ignore[arg-type]
            tuple(float(c) for c in coefficients[width * i : width * (i + 1)]),  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


def _bytes(record: ConfigRecord, key: str, size: int) -> bytes:
    value = record.get(key)
    if not isinstance(value, bytes) or len(value) not in (0, size):
        raise Refusal(ErrorCode.BAD_REQUEST)
    return value


def _keep(context: Context, arrays: Mapping[str, np.ndarray], identity: bytes) -> None:
    context.state[wire.STATE_MODEL] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    context.state[wire.STATE_MODEL_ID] = ConfigRecord({wire.MODEL_ID: identity})


def _forget(context: Context) -> None:
    for name in (wire.STATE_MODEL, wire.STATE_MODEL_ID):
        context.state.pop(name, None)
