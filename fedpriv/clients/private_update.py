"""Client half of DPSGD-DC: clip, encode, noise and mask what an ordinary train function returns."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedpriv import wire
from fedpriv.clients.allocation import in_its_bin
from fedpriv.clients.noise_share import (
    draw_share,
    integer,
    log_zero_contribution,
    number,
    purpose_of,
    record_of,
    refuse,
)
from fedpriv.mechanisms import ArrayLayout, GridCodec, SelfSampling, clip_to_norm
from fedpriv.secure_sum import Refusal, handle
from fedpriv.wire import ErrorCode


def client_level_dp_mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower mod that makes a train function private at client level.

    The function underneath receives ``arrays`` (ArrayRecord) and ``config`` (ConfigRecord) as with FedAvg and
    returns a message with one ArrayRecord of the same names and shapes. What leaves the client is the masked
    sum of the clipped difference (received minus returned) and a noise share. Everything else in the reply,
    metrics and numbers of examples included, is dropped.

    Guarantees:

    * the contribution has L2 norm at most the clip, over all arrays at once, 0-d arrays included, checked in
      integers; NaN, infinities, an exception or a reply with other arrays make it zero, still noised;
    * with self-sampling the coin is tossed here, from the operating system's entropy, and is never sent;
    * with random allocation the bin is drawn here, stored before it is used, and never sent
      (`fedpriv.clients.allocation`);
    * a message of any other kind gets an error reply and the function is not called.

    Parameters
    ----------
    msg : Message
        A request of :class:`fedpriv.strategies.DpsgdDc` or :class:`fedpriv.strategies.MatrixFtrl`.
    context : Context
        The client's context; node config keys ``min-neighbours`` and ``min-noise-share`` are its floors.
    call_next : callable
        The train function.

    Returns
    -------
    Message
        A stage of the secure sum, or an error reply.
    """
    purpose = purpose_of(msg, context)
    if purpose and purpose not in TAKES_PART:
        # another algorithm's message (a vote without its mod): answered by an error, never by the function
        return refuse(msg, ErrorCode.UNKNOWN_PURPOSE)

    def produce(request: Message, ctx: Context) -> np.ndarray:
        return _contribution(request, ctx, call_next, TAKES_PART[purpose or wire.PURPOSE_UPDATE])

    return handle(msg, context, produce)


def _coin(request: Message, context: Context) -> bool:
    """The client's own coin; a rate of 1 or 0 leaves nothing to toss."""
    rate = number(record_of(request, wire.RECORD_UPDATE), wire.UPDATE_SAMPLING_RATE, 0.0, 1.0)
    return rate >= 1.0 or (rate > 0.0 and SelfSampling(rate).toss())


#: Purpose -> whether the client takes part in the round that a request belongs to.
TAKES_PART: dict[str, Callable[[Message, Context], bool]] = {
    wire.PURPOSE_UPDATE: _coin,
    wire.PURPOSE_ALLOCATION: in_its_bin,
}


def _contribution(
    request: Message,
    context: Context,
    call_next: ClientAppCallable,
    decide: Callable[[Message, Context], bool],
) -> np.ndarray:
    record = record_of(request, wire.RECORD_UPDATE)
    clipping_norm = number(record, wire.UPDATE_CLIPPING_NORM, 1e-300, 1e300)
    codec = GridCodec(clipping_norm, integer(record, wire.UPDATE_CLIP_UNITS, 1, 2**30))
    server_round = integer(record, wire.UPDATE_ROUND, 0, 2**62)
    start = request.content.get("arrays")
    if not isinstance(start, ArrayRecord):
        raise Refusal(ErrorCode.BAD_REQUEST)
    arrays = {name: array.numpy() for name, array in start.items()}
    layout = ArrayLayout.of(arrays)
    noise = draw_share(record, context, layout.size, codec.clip_units, (wire.PURPOSE_UPDATE, server_round))
    takes_part = decide(request, context)
    if not takes_part and not record.get(wire.UPDATE_IDLE_TRAINS, True):
        return noise
    returned = _trained(request, context, call_next, layout)
    units = _encoded(layout.flatten(arrays), returned, codec)
    return noise + units if takes_part else noise


def _trained(
    request: Message, context: Context, call_next: ClientAppCallable, layout: ArrayLayout
) -> np.ndarray | None:
    """The arrays that the function returned, flat; None when it failed in any way."""
    inner = copy.copy(request)
    inner.content = RecordDict({k: v for k, v in request.content.items() if not k.startswith("fedpriv.")})
    inner.content.setdefault("config", ConfigRecord())
    try:
        reply = call_next(inner, context)
        if reply.has_error():
            log_zero_contribution("the train function answered an error")
            return None
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            log_zero_contribution(f"the train function returned {len(records)} ArrayRecords, one is needed")
            return None
        return layout.flatten({name: array.numpy() for name, array in records[0].items()})
    except (Exception, SystemExit) as error:  # a drop-out that depends on the data would itself be a release
        log_zero_contribution("the train function failed", error)
        return None


def _encoded(start: np.ndarray, returned: np.ndarray | None, codec: GridCodec) -> np.ndarray:
    """The clipped difference in grid steps; zeros where there is none, or it is not finite."""
    if returned is None:
        returned = start
    # The engineer's function may have turned floating-point warnings into exceptions; here they would become
    # a drop-out that depends on the data.
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        clipped = clip_to_norm(start - returned, codec.clipping_norm)
        if not clipped.finite:
            log_zero_contribution("the update is not finite")
        return codec.encode(clipped.vector)
