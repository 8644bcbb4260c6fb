"""Client half of DP-HYPE: judge every candidate on the client's own data, send one noised, masked ballot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context, Message
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
from fedpriv.mechanisms import Ballot
from fedpriv.secure_sum import Refusal, handle
from fedpriv.wire import ErrorCode

Evaluate = Callable[[dict[str, Any], Context], float]
"""From a candidate and the client's context to a loss on its own data; NaN or infinity means worst."""


def dp_hype_mod(evaluate: Evaluate) -> Mod:
    """Make a Flower mod that answers votes.

    Losses, the ballot and the number of examples never leave the client. A client that cannot evaluate any
    candidate (no validation data: let ``evaluate`` return ``math.inf`` or ``nan``) abstains with a zero
    ballot, which the sensitivity covers, and adds its noise share all the same. Messages of other purposes go
    on to the next mod; the reply of a train function never leaves as the answer to a secure sum.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(candidate, context) -> float``, called once per candidate.

    Returns
    -------
    Mod
        For ``@app.train(mods=[...])``.
    """

    def mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if purpose_of(msg, context) != wire.PURPOSE_VOTE:
            return pass_on(msg, context, call_next)
        return handle(msg, context, lambda request, ctx: _ballot(request, ctx, evaluate))

    return mod


def _ballot(request: Message, context: Context, evaluate: Evaluate) -> np.ndarray:
    record = record_of(request, wire.RECORD_VOTE)
    try:
        candidates = json.loads(str(record.get(wire.VOTE_CANDIDATES)))
    except ValueError:
        raise Refusal(ErrorCode.BAD_REQUEST) from None
    if not isinstance(candidates, list) or not candidates or not all(isinstance(c, dict) for c in candidates):
        raise Refusal(ErrorCode.BAD_REQUEST)
    ballot = Ballot(len(candidates), integer(record, wire.VOTE_VOTES, 1, len(candidates)))
    units = integer(record, wire.VOTE_UNITS, 1, 2**40)
    sensitivity = units * ballot.sensitivity("add_or_remove")
    noise = draw_share(record, context, len(candidates), sensitivity, (wire.PURPOSE_VOTE,))
    votes = ballot.cast([_loss(evaluate, candidate, context) for candidate in candidates])
    return votes * units + noise


def _loss(evaluate: Evaluate, candidate: dict[str, Any], context: Context) -> float:
    try:
        return float(evaluate(candidate, context))
    except (Exception, SystemExit) as error:  # a drop-out that depends on the data would itself be a release
        log_zero_contribution("a candidate could not be evaluated and counts as worst", error)
        return math.inf
