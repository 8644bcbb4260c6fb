"""A client's session between two requests, and the fields of a request.

Everything lives in records of ``Context.state``, since every message may be handled by a fresh process. There
are at most two sessions: the open one, and the next one, whose keys and shares go along with the last two
messages of the open one. They have no secret in common.

Flower's SuperNode hands a node's messages to its ClientApp one at a time and stores the state with the
reply; the defences against a stage that is asked twice rest on that.
"""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import keys
from fedpriv.secure_sum.keys import Session
from fedpriv.wire import ErrorCode

# fields of the state record beside those that wire.py names
ME = "me"
KEY_SEED = "key-seed"
SELF_SEED = "self-seed"
SHARE_PRIVATE = "share-private"
INCOMING_KEYS = "incoming-keys"
OWN_SELF_SHARE = "own-self-share"
READABLE = "readable"

_ORDER = (wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK)


class Refusal(Exception):
    """Ends a session at the client with an error reply.

    A ``produce`` function may raise it to answer with a code of its own (add its words to
    ``fedpriv.wire.ERROR_WORDS``).

    Parameters
    ----------
    code : int
        Code of the error reply.
    wipe : bool
        Whether the state of the open session and of the next one goes. Only a request that belongs to an older
        session, of which nothing is left, keeps that of the newer ones.
    """

    def __init__(self, code: int, wipe: bool = True) -> None:
        super().__init__(wire.error_words(code))
        self.code = int(code)
        self.wipe = wipe


# -- requests ----------------------------------------------------------------------------------------------


def request_of(msg: Message) -> tuple[ConfigRecord, str, bytes]:
    """Record, stage and session id of a request; refuses whatever is not one."""
    if msg.metadata.message_type != wire.MESSAGE_TYPE:
        raise Refusal(ErrorCode.WRONG_MESSAGE_TYPE)
    record = msg.content.get(wire.RECORD_SECURE_SUM) if msg.has_content() else None
    if not isinstance(record, ConfigRecord):
        raise Refusal(ErrorCode.NO_RECORD)
    return record, *stage_and_session(record)


def stage_and_session(record: ConfigRecord) -> tuple[str, bytes]:
    """What a record of a known schema asks for, and of which session."""
    if record.get(wire.FIELD_SCHEMA) != wire.SCHEMA:
        raise Refusal(ErrorCode.WRONG_SCHEMA)
    stage = field(record, wire.FIELD_STAGE, str)
    return stage, field(record, wire.FIELD_SESSION, bytes, wire.SESSION_BYTES)


def field(record: ConfigRecord, name: str, kind: type, size: int | None = None) -> Any:
    """A field of exactly this type (and size, for bytes)."""
    value = record.get(name)
    if type(value) is not kind or (size is not None and len(value) != size):  # type: ignore[arg-type]
        raise Refusal(ErrorCode.MALFORMED)
    return value


def node_ids(record: ConfigRecord, name: str) -> list[int]:
    """A list of different node ids."""
    value = field(record, name, list)
    if any(type(item) is not int or not 0 < item < 1 << 64 for item in value) or len(set(value)) != len(
        value
    ):
        raise Refusal(ErrorCode.MALFORMED)
    return list(value)


def items(blob: bytes, size: int = wire.SHARE_BYTES) -> list[bytes]:
    """Items of fixed size."""
    return [blob[i : i + size] for i in range(0, len(blob), size)]


def session_in(record: ConfigRecord, session_id: bytes) -> Session:
    """What is summed, as a request (or the state) describes it."""
    purpose = field(record, wire.FIELD_PURPOSE, str)
    length = field(record, wire.FIELD_LENGTH, int)
    bits = field(record, wire.FIELD_MODULUS_BITS, int)
    if not (1 <= length <= wire.MAX_LENGTH and wire.MIN_MODULUS_BITS <= bits <= wire.MAX_MODULUS_BITS):
        raise Refusal(ErrorCode.MALFORMED)
    return Session(session_id, purpose, length, bits)


def magnitude_limit(record: ConfigRecord, session: Session) -> int:
    """Largest absolute value that the client's integers may have."""
    largest = (1 << (session.modulus_bits - 1)) - 1
    limit = field(record, wire.FIELD_MAGNITUDE_LIMIT, int)
    if not 0 <= limit <= largest:
        raise Refusal(ErrorCode.MALFORMED)
    return limit or largest


def reply(session_id: bytes, stage: str, fields: dict[str, Any]) -> RecordDict:
    """Content of a stage's reply: the protocol record and nothing else."""
    head: dict[str, Any] = {
        wire.FIELD_SCHEMA: wire.SCHEMA,
        wire.FIELD_STAGE: stage,
        wire.FIELD_SESSION: session_id,
    }
    return RecordDict({wire.RECORD_SECURE_SUM: ConfigRecord({**head, **fields})})


# -- state -------------------------------------------------------------------------------------------------


def floor(context: Context) -> int:
    """The client's own floor, from its node config."""
    value = context.node_config.get(wire.CONFIG_MIN_NEIGHBOURS, wire.DEFAULT_MIN_NEIGHBOURS)
    if type(value) is not int or value < 1:
        raise Refusal(ErrorCode.MISCONFIGURED)
    return value


def remember_session(context: Context, session_id: bytes) -> None:
    """Refuse a session that is not newer than all before; an older one leaves the open session alone."""
    sequence = keys.session_sequence(session_id)
    record = context.state.get(wire.STATE_SEEN)
    seen = int(record["last"]) if isinstance(record, ConfigRecord) else -1  # type: ignore[arg-type]
    if sequence <= seen:
        raise Refusal(ErrorCode.SESSION_SEEN, wipe=sequence == seen)
    context.state[wire.STATE_SEEN] = ConfigRecord({"last": sequence})


def open_state(
    context: Context, session_id: bytes, stage: str, me: int, slot: str = wire.STATE_SESSION
) -> ConfigRecord:
    """State of the session in a slot, if this stage is its next one."""
    state = context.state.get(slot)
    if not isinstance(state, ConfigRecord) or blob(state, wire.FIELD_SESSION) != session_id:
        raise Refusal(ErrorCode.OUT_OF_ORDER, wipe=not _is_stale(context, session_id))
    expected = _ORDER[_ORDER.index(str(state[wire.FIELD_STAGE])) + 1]
    if stage != expected or state[ME] != me:
        raise Refusal(ErrorCode.OUT_OF_ORDER)
    return state


def _is_stale(context: Context, session_id: bytes) -> bool:
    """Whether this id is older than every session that is held: of its own session nothing is left."""
    held = [context.state.get(slot) for slot in (wire.STATE_SESSION, wire.STATE_AHEAD)]
    sequences = [
        keys.session_sequence(blob(s, wire.FIELD_SESSION)) for s in held if isinstance(s, ConfigRecord)
    ]
    return bool(sequences) and keys.session_sequence(session_id) < min(sequences)


def move_up(context: Context, session_id: bytes) -> None:
    """Make the next session the open one if this is its id; what is left of the open one goes."""
    state = context.state.get(wire.STATE_AHEAD)
    if isinstance(state, ConfigRecord) and blob(state, wire.FIELD_SESSION) == session_id:
        context.state[wire.STATE_SESSION] = state
        del context.state[wire.STATE_AHEAD]


def forget_ahead(context: Context, purpose: str | None = None) -> None:
    """Drop the next session, or drop it if it is for this purpose."""
    state = context.state.get(wire.STATE_AHEAD)
    if purpose is None or (isinstance(state, ConfigRecord) and state[wire.FIELD_PURPOSE] == purpose):
        context.state.pop(wire.STATE_AHEAD, None)


def close(context: Context) -> None:
    """Drop the open session at its end."""
    context.state.pop(wire.STATE_SESSION, None)


def wipe(context: Context) -> None:
    """Drop the open session and the next one."""
    close(context)
    forget_ahead(context)


def blob(state: ConfigRecord, name: str) -> bytes:
    """A field of our own state record."""
    value = state[name]
    assert isinstance(value, bytes)
    return value


def peers(state: ConfigRecord, name: str) -> list[int]:
    """A list of node ids in our own state record."""
    value = state[name]
    assert isinstance(value, list)
    return [int(item) for item in value]
