"""Client half of zeroth-order fine-tuning whose unit is the record: K noised means of clipped quotients of a silo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedpriv import wire
from fedpriv.clients.noise_share import integer, pass_on, purpose_of, record_of
from fedpriv.clients.public_model import MakeInitial, received_model
from fedpriv.clients.record_level import (
    SiloRequest,
    checked,
    is_silo_check,
    log_failed_record,
    paid_contribution,
)
from fedpriv.clients.zeroth_order import MakeObjective, quotient_request
from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.mechanisms.noise import RandomSource
from fedpriv.secure_sum import Refusal, handle
from fedpriv.wire import ErrorCode

if TYPE_CHECKING:
    from fedpriv.mechanisms.perturbation import Objective


def record_zeroth_order_mod(objective: MakeObjective, initial: MakeInitial | None = None) -> Mod:
    """Flower mod that answers the requests of :class:`fedpriv.strategies.RecordZerothOrder`.

    Guarantees, beside those of :func:`fedpriv.clients.record_level_mod` (account, limits, abstention):

    * each of a record's K quotients is clipped to Delta, the K of them are rounded toward zero and their integer
      norm is checked; a record whose loss fails or is not finite counts as zero;
    * they are summed over a Poisson batch that the silo draws itself, the silo adds all of the noise, and the
      divisor is fixed. What leaves is a function of that noised sum.

    Parameters
    ----------
    objective : callable
        ``objective(arrays, context)`` returns the silo's losses of the model with these arrays. A record's loss
        must depend on that record alone. Its parameters are perturbed in place and restored.
    initial : callable, optional
        As for :func:`fedpriv.clients.zeroth_order_mod`.

    Returns
    -------
    Mod
        For ``@app.train(mods=[...])``, before ``client_level_dp_mod``.
    """

    def mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        purpose = purpose_of(msg, context)
        if purpose == wire.PURPOSE_RECORD_ZEROTH_ORDER:
            return handle(msg, context, lambda request, ctx: _contribution(request, ctx, objective, initial))
        if purpose is None and is_silo_check(msg) and wire.RECORD_ZEROTH_ORDER in msg.content:
            return checked(msg, context, objective)
        return pass_on(msg, context, call_next)

    return mod


def _contribution(
    request: Message, context: Context, objective: MakeObjective, initial: MakeInitial | None
) -> np.ndarray:
    silo = SiloRequest.of(record_of(request, wire.RECORD_RECORD_LEVEL))
    record = record_of(request, wire.RECORD_ZEROTH_ORDER)
    count = integer(record, wire.ZEROTH_ORDER_DIRECTIONS, 1, 2**20)
    arrays = received_model(request, context, initial)
    asked = quotient_request(record, ArrayLayout.of(arrays).size, count)
    # what is charged is one noised sum of rows of norm sqrt(K) Delta
    if silo.steps.steps != 1 or not np.isclose(
        silo.steps.codec.clipping_norm, asked.clip * count**0.5, rtol=1e-9
    ):
        raise Refusal(ErrorCode.BAD_REQUEST)

    def quotients(losses: Objective, source: RandomSource) -> np.ndarray:
        from fedpriv.mechanisms.record_quotients import RecordQuotients

        rows = RecordQuotients(losses, asked.directions, asked.smoothing, asked.clip)
        # every call perturbs the model 2 K times, so as few calls as memory allows
        mean = silo.steps.noised_mean(np.zeros(count), rows, source, log_failed_record, most_records=2**20)
        return Ball(silo.grid.radius).project(mean)

    return paid_contribution(request, context, silo, count, lambda: objective(arrays, context), quotients)
