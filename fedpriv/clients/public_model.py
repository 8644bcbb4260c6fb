"""The model of a round as a client gets it: sent whole, or rebuilt by public steps from one that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from fedpriv import wire
from fedpriv.clients.noise_share import integer, log_failure, record_of
from fedpriv.mechanisms.directions import KINDS, SEED_BYTES
from fedpriv.mechanisms.model_identity import ID_BYTES, model_identity
from fedpriv.mechanisms.zeroth_order import PublicStep, replay
from fedpriv.secure_sum import Refusal
from fedpriv.wire import ErrorCode

#: Most steps that a request may ask a client to replay.
MAX_STEPS = 1_000_000

MakeInitial = Callable[[Context], Mapping[str, np.ndarray]]
"""From the client's context to the arrays that the federation starts from."""


def received_model(
    request: Message, context: Context, initial: MakeInitial | None = None
) -> dict[str, np.ndarray]:
    """The round's model, and keep it for later steps where the request says so.

    Parameters
    ----------
    request : Message
        With an ArrayRecord ``arrays``, or a ``fedpriv.model`` record of steps from the model that the client
        keeps in ``context.state``.
    context : Context
        The client's context.
    initial : callable, optional
        Builds the model at position 0 of the history.

    Returns
    -------
    dict of str to np.ndarray

    Raises
    ------
    Refusal
        When the client does not have the model that the steps start from, or what it rebuilds is not the
        server's model; the server then sends the model whole.
    """
    record = record_of(request, wire.RECORD_MODEL)
    identity, history = (
        _bytes(record, key, size)
        for key, size in ((wire.MODEL_ID, ID_BYTES), (wire.MODEL_HISTORY, wire.HISTORY_BYTES))
    )
    base = integer(record, wire.MODEL_POSITION, 0, MAX_STEPS)
    steps = _steps(record)
    arrays = _sent(request)
    if arrays is None:
        arrays = _rebuilt(context, history, base, steps, initial)
    if model_identity(arrays) != identity:
        _forget(context)
        raise Refusal(ErrorCode.MODEL_UNKNOWN)
    if record.get(wire.MODEL_KEEP) is True:
        _keep(context, arrays, history, base + len(steps))
    return arrays


def _sent(request: Message) -> dict[str, np.ndarray] | None:
    record = request.content.get("arrays")
    if not isinstance(record, ArrayRecord):
        return None
    return {name: array.numpy() for name, array in record.items()}


def _rebuilt(
    context: Context, history: bytes, base: int, steps: list[PublicStep], initial: MakeInitial | None
) -> dict[str, np.ndarray]:
    kept, place = context.state.get(wire.STATE_MODEL), context.state.get(wire.STATE_MODEL_PLACE)
    if isinstance(kept, ArrayRecord) and isinstance(place, ConfigRecord):
        position = integer(place, wire.MODEL_POSITION, 0, MAX_STEPS)
        # a reply that got lost leaves the client ahead of what the server knows
        if place.get(wire.MODEL_HISTORY) == history and base <= position <= base + len(steps):
            arrays = {name: array.numpy() for name, array in kept.items()}
            return replay(arrays, steps[position - base :])
    if base > 0 or initial is None:
        raise Refusal(ErrorCode.MODEL_UNKNOWN)
    try:
        start = dict(initial(context))
    except Exception as error:
        log_failure("the initial model could not be built", error)
        raise Refusal(ErrorCode.MODEL_UNKNOWN) from error
    return replay(start, steps)


def _steps(record: ConfigRecord) -> list[PublicStep]:
    seeds, kind = record.get(wire.MODEL_SEEDS), record.get(wire.ZEROTH_ORDER_KIND)
    if not isinstance(seeds, bytes) or len(seeds) % SEED_BYTES or kind not in KINDS:
        raise Refusal(ErrorCode.BAD_REQUEST)
    count = len(seeds) // SEED_BYTES
    if count > MAX_STEPS:
        raise Refusal(ErrorCode.BAD_REQUEST)
    coefficients = _numbers(record, wire.MODEL_COEFFICIENTS, count, empty=count == 0)
    norms = _numbers(record, wire.MODEL_NORMS, count, empty=True)
    return [
        PublicStep(
            seeds[SEED_BYTES * i : SEED_BYTES * (i + 1)],
            kind,  # type: ignore[arg-type]
            tuple(coefficients[i]),
            tuple(norms[i]) if norms[i] else None,
        )
        for i in range(count)
    ]


def _numbers(record: ConfigRecord, key: str, count: int, *, empty: bool) -> list[list[float]]:
    """A field of finite numbers, as many per step; none per step only where that is allowed."""
    values = record.get(key)
    if not isinstance(values, list) or not all(isinstance(v, float) and np.isfinite(v) for v in values):
        raise Refusal(ErrorCode.BAD_REQUEST)
    if (not values and not empty) or (values and (count == 0 or len(values) % count)):
        raise Refusal(ErrorCode.BAD_REQUEST)
    width = len(values) // count if count else 0
    return [[float(v) for v in values[width * i : width * (i + 1)]] for i in range(count)]  # type: ignore[arg-type]


def _bytes(record: ConfigRecord, key: str, size: int) -> bytes:
    value = record.get(key)
    if not isinstance(value, bytes) or len(value) != size:
        raise Refusal(ErrorCode.BAD_REQUEST)
    return value


def _keep(context: Context, arrays: Mapping[str, np.ndarray], history: bytes, position: int) -> None:
    context.state[wire.STATE_MODEL] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    context.state[wire.STATE_MODEL_PLACE] = ConfigRecord(
        {wire.MODEL_HISTORY: history, wire.MODEL_POSITION: position}
    )


def _forget(context: Context) -> None:
    for name in (wire.STATE_MODEL, wire.STATE_MODEL_PLACE):
        context.state.pop(name, None)
