"""Client half of PACZero: one bit a round from a secret half of the silo's records."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedpriv import wire
from fedpriv.clients.noise_share import (
    integer,
    log_failure,
    number,
    pass_on,
    purpose_of,
    record_of,
    refuse,
)
from fedpriv.clients.public_model import received_model
from fedpriv.clients.silo_state import SiloFile, silo_file
from fedpriv.clients.zeroth_order import MakeObjective, QuotientRequest, quotient_request
from fedpriv.mechanisms import ArrayLayout, SecureSource, SeededSource
from fedpriv.mechanisms.noise import RandomSource
from fedpriv.mechanisms.sign_release import (
    VARIANTS,
    SignRelease,
    balanced_subsets,
    fair_coin,
    subset_signs,
)
from fedpriv.mechanisms.zeroth_order import clipped_quotients
from fedpriv.secure_sum import Refusal, handle, inside_simulation
from fedpriv.wire import ErrorCode

if TYPE_CHECKING:
    from fedpriv.mechanisms.perturbation import Objective

logger = logging.getLogger(__name__)

_SCHEMA = 1


@dataclass
class _Secret:
    """A silo's state in one run.

    Parameters
    ----------
    release : SignRelease
        Secret subset, posterior, budget.
    universe : str
        Hash of what the secret was drawn for: records, subsets, budget, rounds.
    subset_seed : bytes
        Of the subsets.
    last_request : str
        Hash of the last request that was answered.
    last_bit : int
        And the answer: the same request gets the same bit again.
    """

    release: SignRelease
    universe: str
    subset_seed: bytes
    last_request: str = ""
    last_bit: int = 0

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "schema": _SCHEMA,
                "release": self.release.to_json(),
                "universe": self.universe,
                "subset-seed": self.subset_seed.hex(),
                "last-request": self.last_request,
                "last-bit": self.last_bit,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> _Secret:
        data = json.loads(content)
        if data["schema"] != _SCHEMA:
            raise ValueError("unknown schema")
        if data["last-bit"] not in (-1, 0, 1):
            raise ValueError("the last bit is none")
        return cls(
            SignRelease.from_json(data["release"]),
            str(data["universe"]),
            bytes.fromhex(data["subset-seed"]),
            str(data["last-request"]),
            int(data["last-bit"]),
        )


def pac_zero_mod(objective: MakeObjective) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """Flower mod that answers the requests of :class:`fedpriv.strategies.PacZero`.

    Guarantees:

    * one integer leaves per round, +1 or -1. About which subset of the records is the secret one, all bits of a
      run together carry at most the run's nats (0 for ``zpl``), against whoever sees all bits and knows all
      records and all subsets;
    * the secret subset comes from the operating system's entropy; it, the posterior and the budget used are
      written to the silo's own folder (node config ``state-path``) before a bit leaves, and survive a restart; a
      file that cannot be read is a refusal, never a fresh secret;
    * a request that comes twice gets the same bit; a silo whose objective fails answers with a fair coin;
    * other records than those that the secret was drawn for, or another budget, are refused;
    * node config ``max-nats`` is the largest budget that the silo accepts.

    A reply, a refusal and the time of either do not depend on the secret but through earlier measurements, which the
    budget covers: all records are evaluated in every round, the file is written in every round, and no step reads
    the secret but the one that the noise is added to. Not protected: that a silo takes part, and against who can read,
    delete or roll back its folder.

    Parameters
    ----------
    objective : callable
        ``objective(arrays, context)`` returns the losses of all records of the silo, in an order that never changes.
        Where it has an attribute ``fingerprint`` (bytes or str, of the records), other records than those that the
        secret was drawn for are noticed even if there are equally many.

    Returns
    -------
    callable
        ``mod(msg, context, call_next) -> Message``; other purposes are passed on.
    """

    def mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if purpose_of(msg, context) == wire.PURPOSE_PAC_ZERO:
            return handle(msg, context, lambda request, ctx: np.array([_bit(request, ctx, objective)]))
        if purpose_of(msg, context) is None and msg.has_content() and wire.RECORD_PAC_ZERO in msg.content:
            return _answer_alone(msg, context, objective)
        return pass_on(msg, context, call_next)

    return mod


def _answer_alone(msg: Message, context: Context, objective: MakeObjective) -> Message:
    """Answer outside a secure sum, which one or two silos cannot have: the bit is what the guarantee covers."""
    if msg.metadata.message_type != wire.MESSAGE_TYPE:
        return refuse(msg, ErrorCode.WRONG_MESSAGE_TYPE)
    try:
        bit = _bit(msg, context, objective)
    except Refusal as refusal:
        return refuse(msg, ErrorCode(refusal.code))
    except Exception as error:
        log_failure("the request could not be processed", error)
        return refuse(msg, ErrorCode.INTERNAL)
    return Message(RecordDict({wire.RECORD_PAC_ZERO: ConfigRecord({wire.PAC_BIT: bit})}), reply_to=msg)


def _bit(request: Message, context: Context, objective: MakeObjective) -> int:
    record = record_of(request, wire.RECORD_PAC_ZERO)
    run, variant = record.get(wire.PAC_RUN), record.get(wire.PAC_VARIANT)
    if not isinstance(run, str) or not run or variant not in VARIANTS:
        raise Refusal(ErrorCode.BAD_REQUEST)
    nats = number(record, wire.PAC_NATS, 0.0, 1e6)
    limit = context.node_config.get(wire.CONFIG_MAX_NATS, float("inf"))
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
        raise Refusal(ErrorCode.MISCONFIGURED)
    if nats > limit:
        raise Refusal(ErrorCode.BUDGET_TOO_LARGE)
    folder = record.get(wire.SILO_SIMULATION_FOLDER, "")
    if not isinstance(folder, str):
        raise Refusal(ErrorCode.BAD_REQUEST)
    arrays = received_model(request, context)
    asked = quotient_request(record, ArrayLayout.of(arrays).size, 1)
    with silo_file(context, "paczero", run, folder).locked() as file:
        return _released(record, context, objective, arrays, asked, file)


def _released(
    record: ConfigRecord,
    context: Context,
    objective: MakeObjective,
    arrays: dict[str, np.ndarray],
    asked: QuotientRequest,
    file: SiloFile,
) -> int:
    seed = record.get(wire.NOISE_SEED, "")
    if seed != "" and not inside_simulation(context):
        raise Refusal(ErrorCode.SEED_REFUSED)
    secret = _known(file)
    request_hash = _request_hash(record, arrays)
    if secret is not None and secret.last_request == request_hash:
        return secret.last_bit
    losses, universe = _objective(objective, arrays, context, record)
    if losses is None and secret is None:
        return fair_coin(_source(seed, context, "coin", asked.server_round))
    if secret is None:
        secret = _drawn(record, context, universe, seed)
        file.write(secret.to_bytes())
    elif losses is not None and secret.universe != universe:
        raise Refusal(ErrorCode.UNIVERSE_CHANGED)
    if secret.release.budget.round == secret.release.budget.rounds:
        logger.warning("the run's rounds are over: from here on, subsets that differ are answered by a coin")
    signs = None if losses is None else _signs(losses, secret, asked)
    bit = secret.release.release(signs, _source(seed, context, "bit", asked.server_round))
    secret.last_request, secret.last_bit = request_hash, bit
    file.write(secret.to_bytes())
    _tell_simulation(record, context, secret.release.unanimous)
    return bit


def _known(file: SiloFile) -> _Secret | None:
    try:
        content = file.read()
        return None if content is None else _Secret.from_bytes(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log_failure("the silo's state file cannot be read", error)
        raise Refusal(ErrorCode.STATE_UNREADABLE) from error


def _objective(
    objective: MakeObjective, arrays: dict[str, np.ndarray], context: Context, record: ConfigRecord
) -> tuple[Objective | None, str]:
    """The silo's losses and what they are about; None when there are none, and then the silo tosses a coin."""
    try:
        losses = objective(arrays, context)
        if losses.num_records >= 2:
            return losses, _universe(record, losses)
        log_failure("fewer than two records: this silo answers by a fair coin")
    except (Exception, SystemExit) as error:  # an error that depends on the data must not be the answer
        log_failure("the objective failed: this silo answers by a fair coin", error)
    return None, ""


def _drawn(record: ConfigRecord, context: Context, universe: str, seed: Any) -> _Secret:
    subsets = integer(record, wire.PAC_SUBSETS, 2, 2**16)
    nats, rounds = number(record, wire.PAC_NATS, 0.0, 1e6), integer(record, wire.PAC_ROUNDS, 1, 2**31)
    source = _source(seed, context, "secret", 0)
    variant = record.get(wire.PAC_VARIANT)
    try:
        release = SignRelease.start(variant, subsets, nats, rounds, source)  # type: ignore[arg-type]
    except ValueError as error:
        raise Refusal(ErrorCode.BAD_REQUEST) from error
    if subsets % 2:
        raise Refusal(ErrorCode.BAD_REQUEST)
    return _Secret(release, universe, source.words(4).tobytes())


def _universe(record: ConfigRecord, losses: Objective) -> str:
    """What a secret is drawn for: it must not change under it."""
    parts = [losses.num_records, getattr(losses, "fingerprint", "")]
    keys = (wire.PAC_VARIANT, wire.PAC_SUBSETS, wire.PAC_NATS, wire.PAC_ROUNDS)
    parts += [record.get(key) for key in keys]  # type: ignore[list-item]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _signs(losses: Objective, secret: _Secret, asked: QuotientRequest) -> np.ndarray | None:
    from fedpriv.mechanisms.perturbation import two_point_quotients

    try:
        quotients = two_point_quotients(losses, asked.directions, asked.smoothing)[0]
        subsets = secret.release.posterior.log_weights.size
        members = balanced_subsets(losses.num_records, subsets, secret.subset_seed)
        return subset_signs(clipped_quotients(quotients, asked.clip), members)
    except (Exception, SystemExit) as error:
        log_failure("the losses failed: this silo answers by a fair coin", error)
        return None


def _request_hash(record: ConfigRecord, arrays: dict[str, np.ndarray]) -> str:
    from fedpriv.mechanisms.model_identity import model_identity

    fields = sorted((key, repr(value)) for key, value in record.items())
    return hashlib.sha256(repr(fields).encode() + model_identity(arrays)).hexdigest()


def _source(seed: Any, context: Context, what: str, server_round: int) -> RandomSource:
    if seed == "":
        return SecureSource()
    partition = str(context.node_config.get("partition-id", ""))
    return SeededSource(str(seed), "pac-zero", what, server_round, partition)


def _tell_simulation(record: ConfigRecord, context: Context, unanimous: bool | None) -> None:
    """Add a line about unanimity to a file of the simulation; a silo never does."""
    folder = record.get(wire.PAC_DIAGNOSTICS, "")
    if not isinstance(folder, str) or not folder or not inside_simulation(context) or unanimous is None:
        return
    name = f"unanimous-{context.node_config.get('partition-id', context.node_id)}.txt"
    with (Path(folder) / name).open("a") as file:
        file.write(f"{integer(record, wire.UPDATE_ROUND, 0, 2**62)} {int(unanimous)}\n")
