"""Client half of a secure sum: answers the server's stages, reveals a masked vector and nothing else.

The client keeps its secrets of the open session in ``Context.state`` (records only, since every message may be a
fresh process) and drops them at the end, or as soon as it refuses a request. It refuses

* any message type but ``train`` and any message without the secure-sum record: the caller's function is not
  called and nothing leaves in the clear;
* a session id that is not newer than every one it has seen, a stage asked twice or out of order;
* a neighbourhood with fewer other clients than its own node config key ``min-neighbours`` (default 2) asks for, or
  a share threshold that is not above that number and above half of the neighbourhood: its value is only ever
  opened inside a sum with at least ``min-neighbours`` of its neighbours;
* an unmask request that names one peer both alive and dead, leaves a peer out, or has fewer survivors than the
  threshold;
* an unmasked sum outside a simulation.

Guarantee: against a server that follows the protocol and up to ``threshold - 1`` colluding holders per
neighbourhood, replies depend on the values only through the sum over the survivors (Bell et al. 2020). A server
that forges public keys is out of scope unless the nodes' identities are authenticated.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import keys, shamir
from fedpriv.secure_sum.keys import Session
from fedpriv.wire import ErrorCode

Produce = Callable[[Message, Context], np.ndarray]

_logger = logging.getLogger("fedpriv.secure_sum")


class Refusal(Exception):
    """Ends a session at the client with an error reply.

    A ``produce`` function may raise it to answer with a code of its own (2000 and above; put its words into
    ``fedpriv.wire.ERROR_WORDS``).

    Parameters
    ----------
    code : int
        Code of the error reply.
    wipe : bool
        Whether the open session's state goes. Only a request that belongs to an older session, of which nothing
        is left, keeps the state of the newer one.
    """

    def __init__(self, code: int, wipe: bool = True) -> None:
        super().__init__(wire.error_words(code))
        self.code = int(code)
        self.wipe = wipe


class SecureSumClient:
    """The client half around one function.

    Parameters
    ----------
    produce : callable
        ``produce(msg, context) -> numpy.ndarray`` of signed integers, shape (length,): the client's encoded and
        noised contribution. Called once per session, for the masked-input request, whose content carries the
        server's payload records.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> half = SecureSumClient(lambda msg, context: np.array([1, 2, 3]))
    >>> @app.train()
    ... def train(msg, context):
    ...     return half.handle(msg, context)
    """

    def __init__(self, produce: Produce) -> None:
        self.produce = produce

    def handle(self, msg: Message, context: Context) -> Message:
        """Answer one message; see :func:`handle`."""
        return handle(msg, context, self.produce)


def secure_sum_mod(produce: Produce) -> Callable[[Message, Context, Any], Message]:
    """Flower mod that answers every message by the client half: ``@app.train(mods=[secure_sum_mod(produce)])``.

    The decorated function is never called, whatever arrives, so that no reply of its can leave in the clear.

    Parameters
    ----------
    produce : callable
        As for :class:`SecureSumClient`.

    Returns
    -------
    callable
        ``mod(msg, context, call_next) -> Message``.
    """

    def mod(msg: Message, context: Context, call_next: Any) -> Message:
        return handle(msg, context, produce)

    return mod


def handle(msg: Message, context: Context, produce: Produce) -> Message:
    """Answer one message of a secure sum.

    Parameters
    ----------
    msg : Message
        The server's request.
    context : Context
        Its ``state`` keeps the session between requests, its ``node_config`` the client's floor.
    produce : callable
        As for :class:`SecureSumClient`; called for the masked-input request alone.

    Returns
    -------
    Message
        The stage's reply, or an error reply with one of ``wire.ErrorCode`` and fixed words; never an exception's
        text, never a value.
    """
    try:
        return Message(_answer(msg, context, produce), reply_to=msg)
    except Refusal as refusal:
        code, wipe = refusal.code, refusal.wipe
    except Exception as error:
        _log_failure("secure sum", error)
        code, wipe = int(ErrorCode.INTERNAL), True
    if wipe:
        context.state.pop(wire.STATE_SESSION, None)
    _logger.warning("secure sum refused: %s", wire.error_words(code))
    return Message(Error(code=code, reason=wire.error_words(code)), reply_to=msg)


def _answer(msg: Message, context: Context, produce: Produce) -> RecordDict:
    if msg.metadata.message_type != wire.MESSAGE_TYPE:
        raise Refusal(ErrorCode.WRONG_MESSAGE_TYPE)
    record = msg.content.get(wire.RECORD_SECURE_SUM) if msg.has_content() else None
    if not isinstance(record, ConfigRecord):
        raise Refusal(ErrorCode.NO_RECORD)
    if record.get(wire.FIELD_SCHEMA) != wire.SCHEMA:
        raise Refusal(ErrorCode.WRONG_SCHEMA)
    stage = _field(record, wire.FIELD_STAGE, str)
    session_id = _field(record, wire.FIELD_SESSION, bytes, wire.SESSION_BYTES)
    me = msg.metadata.dst_node_id
    if stage == wire.STAGE_KEYS:
        return _keys(record, context, session_id, me)
    if stage == wire.STAGE_SIMULATED:
        return _simulated(record, context, session_id, msg, produce)
    state = _open_state(context, session_id, stage, me)
    if stage == wire.STAGE_SHARES:
        return _shares(record, context, state, me)
    if stage == wire.STAGE_MASKED_INPUT:
        return _masked_input(record, context, state, me, msg, produce)
    if stage == wire.STAGE_UNMASK:
        return _unmask(record, context, state, me)
    raise Refusal(ErrorCode.MALFORMED)


# -- stages ---------------------------------------------------------------------------------------------------


def _keys(record: ConfigRecord, context: Context, session_id: bytes, me: int) -> RecordDict:
    _remember_session(context, session_id)
    session = _session(record, session_id)
    limit = _limit(record, session)
    _floor(context)
    seed = keys.random_seed()
    share_key = X25519PrivateKey.generate()
    context.state[wire.STATE_SESSION] = ConfigRecord(
        {
            wire.FIELD_SESSION: session_id,
            wire.FIELD_STAGE: wire.STAGE_KEYS,
            wire.FIELD_PURPOSE: session.purpose,
            wire.FIELD_LENGTH: session.length,
            wire.FIELD_MODULUS_BITS: session.modulus_bits,
            wire.FIELD_MAGNITUDE_LIMIT: limit,
            "me": me,
            "key-seed": seed,
            "share-private": share_key.private_bytes_raw(),
        }
    )
    return _reply(
        session_id,
        wire.STAGE_KEYS,
        {
            wire.FIELD_MASK_KEY: keys.public_bytes(keys.mask_private_key(seed, session, me)),
            wire.FIELD_SHARE_KEY: keys.public_bytes(share_key),
        },
    )


def _shares(record: ConfigRecord, context: Context, state: ConfigRecord, me: int) -> RecordDict:
    session = _state_session(state)
    floor = _floor(context)
    neighbours = _ids(record, wire.FIELD_NEIGHBOURS)
    count = len(neighbours)
    threshold = _field(record, wire.FIELD_THRESHOLD, int)
    mask_keys = _field(record, wire.FIELD_MASK_KEYS, bytes, wire.KEY_BYTES * count)
    share_keys = _items(_field(record, wire.FIELD_SHARE_KEYS, bytes, wire.KEY_BYTES * count), wire.KEY_BYTES)
    if me in neighbours or neighbours != sorted(neighbours):
        raise Refusal(ErrorCode.MALFORMED)
    if len(set(_items(mask_keys, wire.KEY_BYTES))) != count or len(set(share_keys)) != count:
        raise Refusal(ErrorCode.MALFORMED)
    if count < floor:
        raise Refusal(ErrorCode.TOO_FEW_NEIGHBOURS)
    holders = count + 1
    if not (2 * threshold > holders and threshold > floor):
        raise Refusal(ErrorCode.LOW_THRESHOLD)
    if threshold > holders:
        raise Refusal(ErrorCode.MALFORMED)

    self_seed = keys.random_seed()
    points = sorted([*neighbours, me])
    self_shares = dict(zip(points, shamir.split(self_seed, threshold, holders), strict=True))
    key_shares = dict(zip(points, shamir.split(_bytes(state, "key-seed"), threshold, holders), strict=True))
    private = X25519PrivateKey.from_private_bytes(_bytes(state, "share-private"))
    sealed, incoming = [], []
    for peer, public in zip(neighbours, share_keys, strict=True):
        secret = _agree(private, public)
        key = keys.derive_key(secret, session, keys.USE_SHARE, me, peer)
        sealed.append(
            keys.seal_shares(key, session, me, peer, threshold, (self_shares[peer], key_shares[peer]))
        )
        incoming.append(keys.derive_key(secret, session, keys.USE_SHARE, peer, me))
    del state["share-private"]
    state.update(
        {
            wire.FIELD_STAGE: wire.STAGE_SHARES,
            wire.FIELD_THRESHOLD: threshold,
            wire.FIELD_NEIGHBOURS: neighbours,
            wire.FIELD_MASK_KEYS: mask_keys,
            "incoming-keys": b"".join(incoming),
            "self-seed": self_seed,
            "own-self-share": self_shares[me],
        }
    )
    return _reply(
        session.session_id,
        wire.STAGE_SHARES,
        {
            wire.FIELD_SHARES: b"".join(sealed),
            wire.FIELD_COMMITMENT: keys.commit_seed(self_seed, session, me),
        },
    )


def _masked_input(
    record: ConfigRecord, context: Context, state: ConfigRecord, me: int, msg: Message, produce: Produce
) -> RecordDict:
    session = _state_session(state)
    if _session(record, session.session_id) != session:
        raise Refusal(ErrorCode.MALFORMED)
    senders = _ids(record, wire.FIELD_NEIGHBOURS)
    sealed = _items(
        _field(record, wire.FIELD_SHARES, bytes, wire.SEALED_SHARE_BYTES * len(senders)),
        wire.SEALED_SHARE_BYTES,
    )
    neighbours: list[int] = list(state[wire.FIELD_NEIGHBOURS])  # type: ignore[arg-type]
    threshold = int(state[wire.FIELD_THRESHOLD])  # type: ignore[arg-type]
    if not set(senders) <= set(neighbours):
        raise Refusal(ErrorCode.MALFORMED)
    if len(senders) + 1 < threshold:
        raise Refusal(ErrorCode.TOO_FEW_SURVIVORS)

    position = {peer: i for i, peer in enumerate(neighbours)}
    incoming = _items(_bytes(state, "incoming-keys"), wire.KEY_BYTES)
    mask_keys = _items(_bytes(state, wire.FIELD_MASK_KEYS), wire.KEY_BYTES)
    private = keys.mask_private_key(_bytes(state, "key-seed"), session, me)
    readable, unreadable, self_shares, key_shares, pair_keys = [], [], [], [], []
    for peer, box in zip(senders, sealed, strict=True):
        opened = keys.open_shares(incoming[position[peer]], session, peer, me, threshold, box)
        if opened is None:
            unreadable.append(peer)
        else:
            readable.append(peer)
            self_shares.append(opened[0])
            key_shares.append(opened[1])
        pair_keys.append((peer, _pair_key(private, mask_keys[position[peer]], session, me, peer)))

    # The secrets go before the caller's function runs: whatever happens in it, this stage is answered once.
    self_key = keys.self_mask_key(_bytes(state, "self-seed"), session, me)
    for name in ("key-seed", "self-seed", "incoming-keys", wire.FIELD_MASK_KEYS):
        del state[name]
    state.update(
        {
            wire.FIELD_STAGE: wire.STAGE_MASKED_INPUT,
            wire.FIELD_NEIGHBOURS: senders,
            "readable": readable,
            wire.FIELD_SELF_SHARES: b"".join(self_shares),
            wire.FIELD_KEY_SHARES: b"".join(key_shares),
        }
    )
    limit = int(state[wire.FIELD_MAGNITUDE_LIMIT])  # type: ignore[arg-type]
    vector = keys.to_residues(_produced(msg, context, produce, session, limit), session)
    keys.add_mask(vector, self_key, 1)
    for peer, key in pair_keys:
        keys.add_mask(vector, key, keys.pair_sign(me, peer))
    reply = _reply(session.session_id, wire.STAGE_MASKED_INPUT, {wire.FIELD_UNREADABLE: unreadable})
    reply[wire.RECORD_RESULT] = _vector_record(keys.reduce_residues(vector, session))
    return reply


def _unmask(record: ConfigRecord, context: Context, state: ConfigRecord, me: int) -> RecordDict:
    alive, dead = _ids(record, wire.FIELD_ALIVE), _ids(record, wire.FIELD_DEAD)
    if set(alive) & set(dead) or me in dead:
        raise Refusal(ErrorCode.BOTH_SHARES)
    senders: list[int] = list(state[wire.FIELD_NEIGHBOURS])  # type: ignore[arg-type]
    if me not in alive or {*alive, *dead} != {me, *senders}:
        raise Refusal(ErrorCode.MALFORMED)
    if len(alive) < int(state[wire.FIELD_THRESHOLD]):  # type: ignore[arg-type]
        raise Refusal(ErrorCode.TOO_FEW_SURVIVORS)
    readable: list[int] = list(state["readable"])  # type: ignore[arg-type]
    self_shares = dict(zip(readable, _items(_bytes(state, wire.FIELD_SELF_SHARES)), strict=True))
    key_shares = dict(zip(readable, _items(_bytes(state, wire.FIELD_KEY_SHARES)), strict=True))
    self_shares[me] = _bytes(state, "own-self-share")
    alive = [peer for peer in alive if peer in self_shares]
    dead = [peer for peer in dead if peer in key_shares]
    session_id = _bytes(state, wire.FIELD_SESSION)
    context.state.pop(wire.STATE_SESSION, None)
    return _reply(
        session_id,
        wire.STAGE_UNMASK,
        {
            wire.FIELD_ALIVE: alive,
            wire.FIELD_SELF_SHARES: b"".join(self_shares[peer] for peer in alive),
            wire.FIELD_DEAD: dead,
            wire.FIELD_KEY_SHARES: b"".join(key_shares[peer] for peer in dead),
        },
    )


def _simulated(
    record: ConfigRecord, context: Context, session_id: bytes, msg: Message, produce: Produce
) -> RecordDict:
    if not inside_simulation(context):
        raise Refusal(ErrorCode.NOT_A_SIMULATION)
    _remember_session(context, session_id)
    session = _session(record, session_id)
    limit = _limit(record, session)
    reply = _reply(session_id, wire.STAGE_SIMULATED, {})
    vector = keys.to_residues(_produced(msg, context, produce, session, limit), session)
    reply[wire.RECORD_RESULT] = _vector_record(vector)
    return reply


def inside_simulation(context: Context) -> bool:
    """Whether this client runs in a simulation.

    The node config key ``fedpriv-simulation`` decides where it is set (``fedpriv.testing`` sets it; a silo may set
    it to false). Otherwise only Flower's simulation engine counts: code inside a Ray actor. Neither is under the
    control of a server.

    Parameters
    ----------
    context : Context
        The client's context.

    Returns
    -------
    bool
    """
    declared = context.node_config.get(wire.CONFIG_SIMULATION)
    if declared is not None:
        return declared is True
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


# -- the caller's vector ----------------------------------------------------------------------------------------


def _produced(msg: Message, context: Context, produce: Produce, session: Session, limit: int) -> np.ndarray:
    try:
        values = np.asarray(produce(msg, context))
    except Refusal:
        raise
    except Exception as error:
        _log_failure("produce", error)
        raise Refusal(ErrorCode.PRODUCE_FAILED) from None
    if values.dtype.kind not in "iu" or values.shape != (session.length,):
        raise Refusal(ErrorCode.BAD_VECTOR)
    if int(values.min()) < -limit or int(values.max()) > limit:
        raise Refusal(ErrorCode.OUT_OF_RANGE)
    return values


def _vector_record(vector: np.ndarray) -> ArrayRecord:
    return ArrayRecord({wire.RESULT_ARRAY: Array(vector)})


def _log_failure(what: str, error: Exception) -> None:
    """Type and place only: an exception's text may hold data values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "unknown place"
    _logger.error("%s failed with %s at %s", what, type(error).__name__, place)


# -- state and fields ---------------------------------------------------------------------------------------------


def _remember_session(context: Context, session_id: bytes) -> None:
    sequence = keys.session_sequence(session_id)
    record = context.state.get(wire.STATE_SEEN)
    seen = int(record["last"]) if isinstance(record, ConfigRecord) else -1  # type: ignore[arg-type]
    if sequence <= seen:
        raise Refusal(ErrorCode.SESSION_SEEN, wipe=sequence == seen)
    context.state[wire.STATE_SEEN] = ConfigRecord({"last": sequence})


def _open_state(context: Context, session_id: bytes, stage: str, me: int) -> ConfigRecord:
    state = context.state.get(wire.STATE_SESSION)
    if not isinstance(state, ConfigRecord):
        raise Refusal(ErrorCode.OUT_OF_ORDER)
    current = _bytes(state, wire.FIELD_SESSION)
    if current != session_id:
        stale = keys.session_sequence(session_id) < keys.session_sequence(current)
        raise Refusal(ErrorCode.OUT_OF_ORDER, wipe=not stale)
    order = (wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK)
    expected = order[order.index(str(state[wire.FIELD_STAGE])) + 1]
    if stage != expected or state["me"] != me:
        raise Refusal(ErrorCode.OUT_OF_ORDER)
    return state


def _session(record: ConfigRecord, session_id: bytes) -> Session:
    purpose = _field(record, wire.FIELD_PURPOSE, str)
    length = _field(record, wire.FIELD_LENGTH, int)
    bits = _field(record, wire.FIELD_MODULUS_BITS, int)
    if not (1 <= length <= wire.MAX_LENGTH and wire.MIN_MODULUS_BITS <= bits <= wire.MAX_MODULUS_BITS):
        raise Refusal(ErrorCode.MALFORMED)
    return Session(session_id, purpose, length, bits)


def _state_session(state: ConfigRecord) -> Session:
    return _session(state, _bytes(state, wire.FIELD_SESSION))


def _limit(record: ConfigRecord, session: Session) -> int:
    largest = (1 << (session.modulus_bits - 1)) - 1
    limit = _field(record, wire.FIELD_MAGNITUDE_LIMIT, int)
    if not 0 <= limit <= largest:
        raise Refusal(ErrorCode.MALFORMED)
    return limit or largest


def _floor(context: Context) -> int:
    floor = context.node_config.get(wire.CONFIG_MIN_NEIGHBOURS, wire.DEFAULT_MIN_NEIGHBOURS)
    if type(floor) is not int or floor < 1:
        raise Refusal(ErrorCode.MISCONFIGURED)
    return floor


def _reply(session_id: bytes, stage: str, fields: dict[str, Any]) -> RecordDict:
    head = {wire.FIELD_SCHEMA: wire.SCHEMA, wire.FIELD_STAGE: stage, wire.FIELD_SESSION: session_id}
    return RecordDict({wire.RECORD_SECURE_SUM: ConfigRecord({**head, **fields})})


def _field(record: ConfigRecord, name: str, kind: type, size: int | None = None) -> Any:
    value = record.get(name)
    if type(value) is not kind or (size is not None and len(value) != size):  # type: ignore[arg-type]
        raise Refusal(ErrorCode.MALFORMED)
    return value


def _ids(record: ConfigRecord, name: str) -> list[int]:
    value = _field(record, name, list)
    if any(type(item) is not int for item in value) or len(set(value)) != len(value):
        raise Refusal(ErrorCode.MALFORMED)
    return list(value)


def _items(blob: bytes, size: int = wire.SHARE_BYTES) -> list[bytes]:
    return [blob[i : i + size] for i in range(0, len(blob), size)]


def _bytes(state: ConfigRecord, name: str) -> bytes:
    value = state[name]
    assert isinstance(value, bytes)  # noqa: S101  (our own record; also narrows the type)
    return value


def _agree(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return keys.agree(private, public)
    except ValueError:
        raise Refusal(ErrorCode.MALFORMED) from None


def _pair_key(private: X25519PrivateKey, public: bytes, session: Session, me: int, peer: int) -> bytes:
    try:
        return keys.pair_mask_key(private, public, session, me, peer)
    except ValueError:
        raise Refusal(ErrorCode.MALFORMED) from None
