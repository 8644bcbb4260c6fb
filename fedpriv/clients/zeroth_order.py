"""Client half of zeroth-order fine-tuning: K clipped two-point quotients of the client's loss, noised and masked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fedpriv import wire
from fedpriv.clients.noise_share import (
    draw_share,
    integer,
    log_zero_contribution,
    number,
    pass_on,
    purpose_of,
    record_of,
)
from fedpriv.clients.public_model import MakeInitial, received_model
from fedpriv.mechanisms import ArrayLayout, GridCodec, SelfSampling
from fedpriv.mechanisms.directions import SEED_BYTES, Directions
from fedpriv.mechanisms.zeroth_order import clipped_quotients
from fedpriv.secure_sum import Refusal, handle
from fedpriv.wire import ErrorCode

if TYPE_CHECKING:
    from fedpriv.mechanisms.perturbation import Objective

MakeObjective = Callable[[dict[str, np.ndarray], Context], "Objective"]
"""From the round's arrays to the client's per-record losses, see `fedpriv.mechanisms.perturbation.Objective`."""


@dataclass(frozen=True)
class QuotientRequest:
    """What a round asks, checked.

    Parameters
    ----------
    directions : Directions
        u_1 .. u_K.
    smoothing, clip : float
        xi and Delta.
    batch_size : int
        Records that the client may use; 0 for all.
    rate : float
        Of the client's own coin.
    server_round : int
        Round.
    """

    directions: Directions
    smoothing: float
    clip: float
    batch_size: int
    rate: float
    server_round: int


def zeroth_order_mod(
    objective: MakeObjective, initial: MakeInitial | None = None
) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """Flower mod that answers the requests of :class:`fedpriv.strategies.ZerothOrder`.

    Guarantees:

    * what leaves is a masked vector of K integers: the client's mean quotient per direction, clipped to Delta,
      rounded toward zero, plus a noise share; the integer norm of all K is checked;
    * a failing objective, no records, or losses that are not finite contribute zeros, still noised;
    * with self-sampling the coin is tossed here and never sent.

    Parameters
    ----------
    objective : callable
        ``objective(arrays, context)`` returns the client's losses of the model with these arrays. Its
        parameters are perturbed in place and restored.
    initial : callable, optional
        ``initial(context)`` returns the arrays that fine-tuning starts from, bit for bit those of the server,
        for instance from a file of weights that everybody has. Then a strategy with ``initial_known`` never
        sends a model.

    Returns
    -------
    callable
        ``mod(msg, context, call_next) -> Message``; other purposes are passed on.
    """

    def mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if purpose_of(msg, context) != wire.PURPOSE_ZEROTH_ORDER:
            return pass_on(msg, context, call_next)
        return handle(msg, context, lambda request, ctx: _contribution(request, ctx, objective, initial))

    return mod


def _contribution(
    request: Message, context: Context, objective: MakeObjective, initial: MakeInitial | None
) -> np.ndarray:
    record = record_of(request, wire.RECORD_ZEROTH_ORDER)
    count = integer(record, wire.ZEROTH_ORDER_DIRECTIONS, 1, 2**20)
    arrays = received_model(request, context, initial)
    asked = quotient_request(record, ArrayLayout.of(arrays).size, count)
    codec = GridCodec(asked.clip * count**0.5, integer(record, wire.UPDATE_CLIP_UNITS, 1, 2**30))
    place = (wire.PURPOSE_ZEROTH_ORDER, asked.server_round)
    noise = draw_share(record, context, count, codec.clip_units, place)
    takes_part = asked.rate >= 1.0 or (asked.rate > 0.0 and SelfSampling(asked.rate).toss())
    if not takes_part and not record.get(wire.UPDATE_IDLE_TRAINS, True):
        return noise
    units = codec.encode(_mean_quotients(arrays, context, objective, asked))
    return noise + units if takes_part else noise


def quotient_request(record: ConfigRecord, dimension: int, count: int) -> QuotientRequest:
    """Read and check the fields of a request, or refuse."""
    seed, kind = record.get(wire.ZEROTH_ORDER_SEED), record.get(wire.ZEROTH_ORDER_KIND)
    norms = record.get(wire.ZEROTH_ORDER_NORMS)
    if not isinstance(seed, bytes) or len(seed) != SEED_BYTES or not isinstance(kind, str):
        raise Refusal(ErrorCode.BAD_REQUEST)
    if norms is not None and not (isinstance(norms, list) and all(isinstance(n, float) for n in norms)):
        raise Refusal(ErrorCode.BAD_REQUEST)
    try:
        directions = Directions(seed, dimension, count, kind, norms)  # type: ignore[arg-type]
    except ValueError as error:
        raise Refusal(ErrorCode.BAD_REQUEST) from error
    if record.get(wire.ZEROTH_ORDER_FINGERPRINT) != directions.fingerprint():
        raise Refusal(ErrorCode.DIRECTIONS_DIFFER)
    return QuotientRequest(
        directions,
        number(record, wire.ZEROTH_ORDER_SMOOTHING, 1e-12, 1e12),
        number(record, wire.ZEROTH_ORDER_CLIP, 1e-300, 1e300),
        integer(record, wire.ZEROTH_ORDER_BATCH, 0, 2**40),
        number(record, wire.UPDATE_SAMPLING_RATE, 0.0, 1.0),
        integer(record, wire.UPDATE_ROUND, 0, 2**62),
    )


def chosen_records(num_records: int, asked: QuotientRequest, context: Context) -> np.ndarray | None:
    """The records of this round: all (None), or a batch that follows from the round's public seed.

    At client level the batch is no secret: the guarantee covers the client whatever records it uses.
    """
    if asked.batch_size == 0 or asked.batch_size >= num_records:
        return None
    partition = str(context.node_config.get("partition-id", context.node_id))
    key = hashlib.sha256(asked.directions.seed + partition.encode()).digest()
    generator = np.random.default_rng(int.from_bytes(key, "little"))
    return np.sort(generator.choice(num_records, asked.batch_size, replace=False))


def _mean_quotients(
    arrays: dict[str, np.ndarray], context: Context, objective: MakeObjective, asked: QuotientRequest
) -> np.ndarray:
    """One clipped quotient of the client's mean loss per direction, shape (K,); zeros on any failure."""
    from fedpriv.mechanisms.perturbation import two_point_quotients

    zeros = np.zeros(asked.directions.count)
    try:
        losses = objective(arrays, context)
        if losses.num_records == 0:
            log_zero_contribution("there are no records")
            return zeros
        records = chosen_records(losses.num_records, asked, context)
        quotients = two_point_quotients(losses, asked.directions, asked.smoothing, records)
        means = clipped_quotients(quotients.mean(axis=1), asked.clip)
        return means if means.shape == zeros.shape else zeros
    except (Exception, SystemExit) as error:  # a drop-out that depends on the data would itself be a release
        log_zero_contribution("the objective failed", error)
        return zeros
