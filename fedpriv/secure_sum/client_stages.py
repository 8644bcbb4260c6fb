"""The four stages of a client, each from a checked request and the open session to the content of a reply."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import client_state as st
from fedpriv.secure_sum import keys, shamir
from fedpriv.secure_sum.client_state import Refusal
from fedpriv.secure_sum.keys import Session
from fedpriv.wire import ErrorCode

Values = Callable[[Session, int], np.ndarray]


def answer_keys(
    record: ConfigRecord, context: Context, session_id: bytes, me: int, slot: str = wire.STATE_SESSION
) -> RecordDict:
    """Open a session, the next one or at once, and announce two public keys."""
    st.remember_session(context, session_id)
    session = st.session_in(record, session_id)
    # The server begins anew for this purpose: it will not use what was exchanged ahead.
    st.forget_ahead(context, session.purpose)
    limit = st.magnitude_limit(record, session)
    st.floor(context)
    seed = keys.random_seed()
    share_key = X25519PrivateKey.generate()
    context.state[slot] = ConfigRecord(
        {
            wire.FIELD_SESSION: session_id,
            wire.FIELD_STAGE: wire.STAGE_KEYS,
            wire.FIELD_PURPOSE: session.purpose,
            wire.FIELD_LENGTH: session.length,
            wire.FIELD_MODULUS_BITS: session.modulus_bits,
            wire.FIELD_MAGNITUDE_LIMIT: limit,
            st.ME: me,
            st.KEY_SEED: seed,
            st.SHARE_PRIVATE: share_key.private_bytes_raw(),
        }
    )
    public = {
        wire.FIELD_MASK_KEY: keys.public_bytes(keys.mask_private_key(seed, session, me)),
        wire.FIELD_SHARE_KEY: keys.public_bytes(share_key),
    }
    return st.reply(session_id, wire.STAGE_KEYS, public)


def answer_shares(record: ConfigRecord, context: Context, state: ConfigRecord, me: int) -> RecordDict:
    """Share the two seeds among the neighbours, sealed for each."""
    session = _session(state)
    neighbours = st.node_ids(record, wire.FIELD_NEIGHBOURS)
    threshold = st.field(record, wire.FIELD_THRESHOLD, int)
    size = wire.KEY_BYTES * len(neighbours)
    mask_keys = st.field(record, wire.FIELD_MASK_KEYS, bytes, size)
    share_keys = st.items(st.field(record, wire.FIELD_SHARE_KEYS, bytes, size), wire.KEY_BYTES)
    announced = [*st.items(mask_keys, wire.KEY_BYTES), *share_keys]
    if me in neighbours or neighbours != sorted(neighbours) or len(set(announced)) != len(announced):
        raise Refusal(ErrorCode.MALFORMED)
    _check_neighbourhood(len(neighbours), threshold, st.floor(context))

    self_seed = keys.random_seed()
    holders = sorted([*neighbours, me])
    self_shares = dict(zip(holders, shamir.split(self_seed, threshold, len(holders)), strict=True))
    key_seed = st.blob(state, st.KEY_SEED)
    key_shares = dict(zip(holders, shamir.split(key_seed, threshold, len(holders)), strict=True))
    private = X25519PrivateKey.from_private_bytes(st.blob(state, st.SHARE_PRIVATE))
    sealed, incoming = [], []
    for peer, public in zip(neighbours, share_keys, strict=True):
        secret = _agree(private, public)
        key = keys.derive_key(secret, session, keys.USE_SHARE, me, peer)
        pair = (self_shares[peer], key_shares[peer])
        sealed.append(keys.seal_shares(key, session, me, peer, threshold, pair))
        incoming.append(keys.derive_key(secret, session, keys.USE_SHARE, peer, me))
    del state[st.SHARE_PRIVATE]
    state.update(
        {
            wire.FIELD_STAGE: wire.STAGE_SHARES,
            wire.FIELD_THRESHOLD: threshold,
            wire.FIELD_NEIGHBOURS: neighbours,
            wire.FIELD_MASK_KEYS: mask_keys,
            st.INCOMING_KEYS: b"".join(incoming),
            st.SELF_SEED: self_seed,
            st.OWN_SELF_SHARE: self_shares[me],
        }
    )
    fields = {
        wire.FIELD_SHARES: b"".join(sealed),
        wire.FIELD_COMMITMENT: keys.commit_seed(self_seed, session, me),
    }
    return st.reply(session.session_id, wire.STAGE_SHARES, fields)


def _check_neighbourhood(neighbours: int, threshold: int, floor: int) -> None:
    if neighbours < floor:
        raise Refusal(ErrorCode.TOO_FEW_NEIGHBOURS)
    # Above half, two disjoint sets of holders cannot open two secrets; above the floor, the survivors of the
    # neighbourhood (never fewer than the threshold) hold at least `floor` others.
    if 2 * threshold <= neighbours + 1 or threshold <= floor:
        raise Refusal(ErrorCode.LOW_THRESHOLD)
    if threshold > neighbours + 1:
        raise Refusal(ErrorCode.MALFORMED)


def answer_masked_input(record: ConfigRecord, state: ConfigRecord, me: int, values: Values) -> RecordDict:
    """Open the neighbours' shares, let the caller produce its vector, send it masked."""
    session = _session(state)
    if st.session_in(record, session.session_id) != session:
        raise Refusal(ErrorCode.MALFORMED)
    senders = st.node_ids(record, wire.FIELD_NEIGHBOURS)
    size = wire.SEALED_SHARE_BYTES
    boxes = st.items(st.field(record, wire.FIELD_SHARES, bytes, size * len(senders)), size)
    neighbours = st.peers(state, wire.FIELD_NEIGHBOURS)
    threshold = st.field(state, wire.FIELD_THRESHOLD, int)
    if not set(senders) <= set(neighbours):
        raise Refusal(ErrorCode.MALFORMED)
    if len(senders) + 1 < threshold:
        raise Refusal(ErrorCode.TOO_FEW_SURVIVORS)

    position = {peer: i for i, peer in enumerate(neighbours)}
    incoming = st.items(st.blob(state, st.INCOMING_KEYS), wire.KEY_BYTES)
    mask_keys = st.items(st.blob(state, wire.FIELD_MASK_KEYS), wire.KEY_BYTES)
    private = keys.mask_private_key(st.blob(state, st.KEY_SEED), session, me)
    opened: dict[int, tuple[bytes, bytes]] = {}
    pair_keys: dict[int, bytes] = {}
    for peer, box in zip(senders, boxes, strict=True):
        shares = keys.open_shares(incoming[position[peer]], session, peer, me, threshold, box)
        if shares is not None:
            opened[peer] = shares
        pair_keys[peer] = _pair_key(private, mask_keys[position[peer]], session, me, peer)

    # The secrets go before the caller's function runs: whatever happens in it, this stage is answered once.
    self_key = keys.self_mask_key(st.blob(state, st.SELF_SEED), session, me)
    for name in (st.KEY_SEED, st.SELF_SEED, st.INCOMING_KEYS, wire.FIELD_MASK_KEYS):
        del state[name]
    state.update(
        {
            wire.FIELD_STAGE: wire.STAGE_MASKED_INPUT,
            wire.FIELD_NEIGHBOURS: senders,
            st.READABLE: list(opened),
            wire.FIELD_SELF_SHARES: b"".join(self_share for self_share, _ in opened.values()),
            wire.FIELD_KEY_SHARES: b"".join(key_share for _, key_share in opened.values()),
        }
    )
    limit = st.field(state, wire.FIELD_MAGNITUDE_LIMIT, int)
    vector = keys.to_residues(values(session, limit), session)
    keys.add_mask(vector, self_key, 1)
    for peer, key in pair_keys.items():
        keys.add_mask(vector, key, keys.pair_sign(me, peer))
    unreadable = [peer for peer in senders if peer not in opened]
    content = st.reply(session.session_id, wire.STAGE_MASKED_INPUT, {wire.FIELD_UNREADABLE: unreadable})
    content[wire.RECORD_RESULT] = _vector_record(keys.reduce_residues(vector, session))
    return content


def answer_unmask(record: ConfigRecord, context: Context, state: ConfigRecord, me: int) -> RecordDict:
    """Reveal one kind of share per neighbour, and close the session."""
    alive, dead = st.node_ids(record, wire.FIELD_ALIVE), st.node_ids(record, wire.FIELD_DEAD)
    if set(alive) & set(dead) or me in dead:
        raise Refusal(ErrorCode.BOTH_SHARES)
    if me not in alive or {*alive, *dead} != {me, *st.peers(state, wire.FIELD_NEIGHBOURS)}:
        raise Refusal(ErrorCode.MALFORMED)
    if len(alive) < st.field(state, wire.FIELD_THRESHOLD, int):
        raise Refusal(ErrorCode.TOO_FEW_SURVIVORS)
    readable = st.peers(state, st.READABLE)
    self_shares = dict(zip(readable, st.items(st.blob(state, wire.FIELD_SELF_SHARES)), strict=True))
    key_shares = dict(zip(readable, st.items(st.blob(state, wire.FIELD_KEY_SHARES)), strict=True))
    self_shares[me] = st.blob(state, st.OWN_SELF_SHARE)
    alive = [peer for peer in alive if peer in self_shares]
    dead = [peer for peer in dead if peer in key_shares]
    session_id = st.blob(state, wire.FIELD_SESSION)
    st.close(context)
    fields = {
        wire.FIELD_ALIVE: alive,
        wire.FIELD_SELF_SHARES: b"".join(self_shares[peer] for peer in alive),
        wire.FIELD_DEAD: dead,
        wire.FIELD_KEY_SHARES: b"".join(key_shares[peer] for peer in dead),
    }
    return st.reply(session_id, wire.STAGE_UNMASK, fields)


def answer_ahead(record: ConfigRecord, carrier: str, context: Context, me: int) -> ConfigRecord:
    """Answer the stage of the next session that goes along with a stage of the open one."""
    stage, session_id = st.stage_and_session(record)
    if stage != wire.STAGES_AHEAD.get(carrier):
        raise Refusal(ErrorCode.OUT_OF_ORDER)
    if stage == wire.STAGE_KEYS:
        content = answer_keys(record, context, session_id, me, slot=wire.STATE_AHEAD)
    else:
        state = st.open_state(context, session_id, stage, me, slot=wire.STATE_AHEAD)
        content = answer_shares(record, context, state, me)
    answer = content[wire.RECORD_SECURE_SUM]
    assert isinstance(answer, ConfigRecord)
    return answer


def answer_simulated(record: ConfigRecord, context: Context, session_id: bytes, values: Values) -> RecordDict:
    """The residues in the clear, for a simulation that the caller has made sure of."""
    st.remember_session(context, session_id)
    session = st.session_in(record, session_id)
    limit = st.magnitude_limit(record, session)
    content = st.reply(session_id, wire.STAGE_SIMULATED, {})
    content[wire.RECORD_RESULT] = _vector_record(keys.to_residues(values(session, limit), session))
    return content


def _session(state: ConfigRecord) -> Session:
    return st.session_in(state, st.blob(state, wire.FIELD_SESSION))


def _vector_record(vector: np.ndarray) -> ArrayRecord:
    return ArrayRecord({wire.RESULT_ARRAY: Array(vector)})


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
