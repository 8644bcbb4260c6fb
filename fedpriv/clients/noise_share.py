"""The client's own noise share, and what it accepts from the server about it."""

from __future__ import annotations

import logging
import math

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from fedpriv import wire
from fedpriv.mechanisms import SecureSource, SeededSource, rounded_gaussian
from fedpriv.mechanisms.noise import MIN_SHARE_UNITS, RandomSource
from fedpriv.secure_sum import Refusal, inside_simulation
from fedpriv.wire import ErrorCode

logger = logging.getLogger(__name__)


def purpose_of(msg: Message, context: Context) -> str | None:
    """Purpose of the secure sum that a message belongs to; None for any other message.

    Stages that do not repeat the purpose belong to the session that the client has open.
    """
    record = msg.content.get(wire.RECORD_SECURE_SUM) if msg.has_content() else None
    if not isinstance(record, ConfigRecord):
        return None
    purpose = record.get(wire.FIELD_PURPOSE)
    if not isinstance(purpose, str):
        state = context.state.get(wire.STATE_SESSION)
        purpose = state.get(wire.FIELD_PURPOSE) if isinstance(state, ConfigRecord) else ""
    return purpose if isinstance(purpose, str) else ""


def refuse(msg: Message, code: ErrorCode) -> Message:
    """Error reply with fixed words."""
    return Message(Error(code=int(code), reason=wire.error_words(int(code))), reply_to=msg)


def pass_on(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let the next mod answer; a secure sum's request never gets a train function's reply in the clear.

    A chain of mods that lacks the one for a purpose would hand the request to the engineer's function. What
    it returns, or the text of its exception, must not leave then.
    """
    if purpose_of(msg, context) is None:
        return call_next(msg, context)
    try:
        reply = call_next(msg, context)
    except Exception as error:
        log_failure("a function that is not a half of this secure sum failed", error)
        return refuse(msg, ErrorCode.UNKNOWN_PURPOSE)
    if reply.has_error() or wire.RECORD_SECURE_SUM in reply.content:
        return reply
    return refuse(msg, ErrorCode.UNKNOWN_PURPOSE)


def record_of(msg: Message, name: str) -> ConfigRecord:
    """Return a parameter record of the request, or refuse."""
    record = msg.content.get(name)
    if not isinstance(record, ConfigRecord):
        raise Refusal(ErrorCode.BAD_REQUEST)
    return record


def number(record: ConfigRecord, key: str, low: float, high: float) -> float:
    """Read a number in [low, high] of a parameter record, or refuse."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refusal(ErrorCode.BAD_REQUEST)
    return float(value)


def integer(record: ConfigRecord, key: str, low: int, high: int) -> int:
    """Read an integer in low .. high of a parameter record, or refuse."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Refusal(ErrorCode.BAD_REQUEST)
    return value


def draw_share(
    record: ConfigRecord, context: Context, size: int, sensitivity_units: float, place: tuple[int | str, ...]
) -> np.ndarray:
    """Draw this client's noise share.

    Parameters
    ----------
    record : ConfigRecord
        The request's parameters: share standard deviation, seed (simulation only).
    context : Context
        ``node_config`` may hold ``min-noise-share``: the smallest accepted standard deviation of a share over
        the sensitivity, below which the client refuses.
    size : int
        Number of coordinates.
    sensitivity_units : float
        Sensitivity in grid steps, against which the floor is held.
    place : tuple
        What a seeded stream is derived from, beside seed and partition.

    Returns
    -------
    np.ndarray
        Shape (size,), int64.
    """
    scale = number(record, wire.NOISE_SHARE_STD, 0.0, 2.0**52)
    floor = context.node_config.get(wire.CONFIG_MIN_NOISE_SHARE, 0.0)
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor < math.inf:
        raise Refusal(ErrorCode.MISCONFIGURED)
    if scale < float(floor) * sensitivity_units * (1.0 - 1e-9):
        raise Refusal(ErrorCode.NOISE_TOO_SMALL)
    if 0.0 < scale < MIN_SHARE_UNITS:
        raise Refusal(ErrorCode.BAD_REQUEST)
    seed = record.get(wire.NOISE_SEED, "")
    source: RandomSource
    if seed == "":
        source = SecureSource()
    elif not inside_simulation(context):
        raise Refusal(ErrorCode.SEED_REFUSED)
    else:
        source = SeededSource(str(seed), *place, str(context.node_config.get("partition-id", "")))
    return rounded_gaussian(scale, size, source)


def log_zero_contribution(what: str, error: BaseException | None = None) -> None:
    """Say at the silo, without any data value, that this client contributes zeros."""
    log_failure(f"{what}: this client contributes zeros, and its noise share", error)


def log_failure(what: str, error: BaseException | None = None) -> None:
    """Type and place of an error only: its text may hold data values."""
    where = ""
    if error is not None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
        where = f" ({type(error).__name__}{place})"
    logger.warning("%s%s", what, where)
