"""Client half of private evaluation: two capped counts, noised and masked."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedpriv import wire
from fedpriv.clients.noise_share import (
    draw_share,
    integer,
    log_zero_contribution,
    pass_on,
    purpose_of,
    record_of,
)
from fedpriv.secure_sum import Refusal, handle
from fedpriv.wire import ErrorCode

Count = Callable[[ArrayRecord, Context], tuple[int, int]]
"""From a model and the client's context to (correct predictions, examples) on its own validation data."""


def private_evaluation_mod(count: Count) -> Mod:
    """Make a Flower mod that answers private evaluations; messages of other purposes go on.

    A client with more examples than the public cap scales both counts down to it, so that its accuracy stays
    and its weight is bounded.

    Parameters
    ----------
    count : callable
        ``count(arrays, context) -> (correct, examples)``.

    Returns
    -------
    Mod
        For ``@app.train(mods=[...])``.
    """

    def mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if purpose_of(msg, context) != wire.PURPOSE_EVALUATE:
            return pass_on(msg, context, call_next)
        return handle(msg, context, lambda request, ctx: _counts(request, ctx, count))

    return mod


def capped_counts(correct: int, examples: int, cap: int, units: int) -> np.ndarray:
    """Two counts in grid steps, at most ``cap`` examples, with 0 <= correct <= examples.

    Returns
    -------
    np.ndarray
        Shape (2,), int64. The largest distance between two results is cap * units * sqrt(2).
    """
    examples = max(0, int(examples))
    correct = min(max(0, int(correct)), examples)
    if examples <= cap:
        return np.array([correct * units, examples * units], dtype=np.int64)
    return np.array([correct * cap * units // examples, cap * units], dtype=np.int64)


def _counts(request: Message, context: Context, count: Count) -> np.ndarray:
    record = record_of(request, wire.RECORD_EVALUATE)
    cap = integer(record, wire.EVALUATE_CAP, 1, 2**20)
    units = integer(record, wire.EVALUATE_UNITS, 1, 2**20)
    server_round = integer(record, wire.UPDATE_ROUND, 0, 2**62)
    arrays = request.content.get("arrays")
    if not isinstance(arrays, ArrayRecord):
        raise Refusal(ErrorCode.BAD_REQUEST)
    sensitivity = cap * units * math.sqrt(2.0)
    noise = draw_share(record, context, 2, sensitivity, (wire.PURPOSE_EVALUATE, server_round))
    try:
        correct, examples = count(arrays, context)
        values = capped_counts(correct, examples, cap, units)
    except (Exception, SystemExit) as error:  # a drop-out that depends on the data would itself be a release
        log_zero_contribution("the model could not be evaluated", error)
        values = np.zeros(2, dtype=np.int64)
    return noise + values
