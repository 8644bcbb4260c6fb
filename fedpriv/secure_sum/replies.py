"""Reading a client's replies: every field is checked before use, a misfit is a :class:`BadReply`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import keys
from fedpriv.secure_sum.exchange import BadReply
from fedpriv.secure_sum.keys import Session


@dataclass(frozen=True)
class Keys:
    """Public keys of one node."""

    mask_key: bytes
    share_key: bytes


@dataclass(frozen=True)
class SealedShares:
    """Sealed shares of one node by receiver, and the commitment to its self-mask seed."""

    boxes: dict[int, bytes]
    commitment: bytes


@dataclass(frozen=True)
class MaskedVector:
    """Masked vector of one node, and the neighbours whose shares it could not read."""

    vector: np.ndarray
    unreadable: tuple[int, ...]


@dataclass(frozen=True)
class RevealedShares:
    """Shares that one node holds, by owner."""

    self_shares: dict[int, bytes]
    key_shares: dict[int, bytes]


def read_keys(record: ConfigRecord) -> Keys:
    """Reply to the keys request: two different keys that X25519 accepts."""
    answer = Keys(
        _bytes(record, wire.FIELD_MASK_KEY, wire.KEY_BYTES),
        _bytes(record, wire.FIELD_SHARE_KEY, wire.KEY_BYTES),
    )
    probe = X25519PrivateKey.generate()
    for key in (answer.mask_key, answer.share_key):
        try:
            keys.agree(probe, key)
        except ValueError:
            raise BadReply("a public key is not a valid X25519 key") from None
    return answer


def read_shares(record: ConfigRecord, neighbours: tuple[int, ...]) -> SealedShares:
    """Reply to the shares request."""
    size = wire.SEALED_SHARE_BYTES
    blob = _bytes(record, wire.FIELD_SHARES, size * len(neighbours))
    boxes = {peer: blob[i * size : (i + 1) * size] for i, peer in enumerate(neighbours)}
    return SealedShares(boxes, _bytes(record, wire.FIELD_COMMITMENT, wire.COMMITMENT_BYTES))


def read_masked(content: RecordDict, session: Session, senders: tuple[int, ...]) -> MaskedVector:
    """Reply to the masked-input request."""
    unreadable = _ids(main_record(content), wire.FIELD_UNREADABLE, set(senders))
    return MaskedVector(read_vector(content, session), tuple(unreadable))


def read_revealed(content: RecordDict, alive: set[int], dead: set[int]) -> RevealedShares:
    """Reply to the unmask request."""
    record = main_record(content)
    return RevealedShares(
        _shares(record, wire.FIELD_ALIVE, wire.FIELD_SELF_SHARES, alive),
        _shares(record, wire.FIELD_DEAD, wire.FIELD_KEY_SHARES, dead),
    )


def read_vector(content: RecordDict, session: Session) -> np.ndarray:
    """Vector of residues, shape (session.length,), in the session's word type."""
    record = content.get(wire.RECORD_RESULT)
    array = record.get(wire.RESULT_ARRAY) if isinstance(record, ArrayRecord) else None
    if array is None:
        raise BadReply("the reply has no vector")
    expected = session.length * session.dtype.itemsize
    # The size is checked before parsing, so that a header cannot ask for a large allocation.
    if not expected <= len(array.data) <= expected + 256:
        raise BadReply(
            f"the vector has the wrong length or dtype: {session.length} {session.dtype.name} expected"
        )
    try:
        vector = array.numpy()
    except Exception:
        raise BadReply("the vector cannot be parsed") from None
    if vector.dtype != session.dtype:
        raise BadReply(f"the vector has dtype {vector.dtype.name}: {session.dtype.name} expected")
    if vector.shape != (session.length,):
        raise BadReply(f"the vector has shape {vector.shape}: ({session.length},) expected")
    if int(vector.max()) >> session.modulus_bits:
        raise BadReply(f"the vector has a value out of range: below 2^{session.modulus_bits} expected")
    return vector


def main_record(content: RecordDict) -> ConfigRecord:
    """Record of the open session, which the exchange has checked to be there."""
    record = content[wire.RECORD_SECURE_SUM]
    assert isinstance(record, ConfigRecord)
    return record


def ahead_record(content: RecordDict, session_id: bytes, stage: str) -> ConfigRecord:
    """Record of the next session."""
    record = content.get(wire.RECORD_AHEAD)
    if not isinstance(record, ConfigRecord):
        raise BadReply("nothing for the next session came along")
    asked = {wire.FIELD_SCHEMA: wire.SCHEMA, wire.FIELD_SESSION: session_id, wire.FIELD_STAGE: stage}
    if any(record.get(name) != value for name, value in asked.items()):
        raise BadReply("what came along belongs to another session or stage")
    return record


def _shares(record: ConfigRecord, ids_field: str, shares_field: str, allowed: set[int]) -> dict[int, bytes]:
    owners = _ids(record, ids_field, allowed)
    blob = _bytes(record, shares_field, wire.SHARE_BYTES * len(owners))
    return {owner: blob[i * wire.SHARE_BYTES : (i + 1) * wire.SHARE_BYTES] for i, owner in enumerate(owners)}


def _bytes(record: ConfigRecord, name: str, size: int) -> bytes:
    value = record.get(name)
    if type(value) is not bytes or len(value) != size:
        raise BadReply(f"field {name!r} must be {size} bytes")
    return value


def _ids(record: ConfigRecord, name: str, allowed: set[int]) -> list[int]:
    value = record.get(name)
    if type(value) is not list or not all(type(item) is int for item in value):
        raise BadReply(f"field {name!r} must be a list of node ids")
    ids = [int(item) for item in value]  # type: ignore[arg-type]
    if len(set(ids)) != len(ids) or not set(ids) <= allowed:
        raise BadReply(f"field {name!r} names a node twice or one that was not asked for")
    return ids
