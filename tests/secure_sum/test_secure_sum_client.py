"""What a client refuses, and what is left of its secrets afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secure_sum_helpers import Federation, code_of

from fedpriv import wire
from fedpriv.secure_sum import SecureSumAborted, keys
from fedpriv.wire import ErrorCode

VECTORS = np.arange(10, dtype=np.int64).reshape(5, 2)


def stopped_before(stage: str, **options: Any) -> Federation:
    """A federation whose session was broken off by the server before a stage."""
    federation = Federation(VECTORS, **options)
    federation.grid.stop_before = stage
    with pytest.raises(SecureSumAborted):
        federation.sum()
    federation.grid.stop_before = None
    return federation


def unmask_request(federation: Federation, alive: list[int], dead: list[int], me: int = 0) -> Message:
    """Ask node ``me`` for shares, naming partitions."""
    masked = federation.grid.request_to(me, wire.STAGE_MASKED_INPUT).content[wire.RECORD_SECURE_SUM]
    fields = {name: masked[name] for name in (wire.FIELD_SCHEMA, wire.FIELD_SESSION)} | {
        wire.FIELD_STAGE: wire.STAGE_UNMASK,
        wire.FIELD_ALIVE: [federation.grid.node_of(p) for p in alive],
        wire.FIELD_DEAD: [federation.grid.node_of(p) for p in dead],
    }
    return federation.ask(me, content=RecordDict({wire.RECORD_SECURE_SUM: ConfigRecord(fields)}))


def assert_wiped(federation: Federation, partition: int = 0) -> None:
    assert wire.STATE_SESSION not in federation.state(partition)


# -- unmasking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alive", "dead", "code"),
    [
        ([0, 1, 2, 3, 4], [4], ErrorCode.BOTH_SHARES),  # one peer both alive and dead
        ([1, 2, 3, 4], [0], ErrorCode.BOTH_SHARES),  # the node itself declared dead
        ([0, 1, 2, 3], [], ErrorCode.MALFORMED),  # a peer left out, to be asked for elsewhere
        ([1, 2, 3, 4], [], ErrorCode.MALFORMED),  # the node itself left out
        ([0, 1, 2], [3, 4], ErrorCode.TOO_FEW_SURVIVORS),  # threshold 4 of 5
        ([0], [1, 2, 3, 4], ErrorCode.TOO_FEW_SURVIVORS),  # alone: its vector would be opened
    ],
)
def test_refuses_to_reveal(alive: list[int], dead: list[int], code: ErrorCode) -> None:
    federation = stopped_before(wire.STAGE_UNMASK)
    assert code_of(unmask_request(federation, alive, dead)) == code
    assert_wiped(federation)
    # Nothing is left to reveal, whatever is asked next.
    assert code_of(unmask_request(federation, [0, 1, 2, 3, 4], [])) == ErrorCode.OUT_OF_ORDER


def test_refuses_an_unknown_peer() -> None:
    federation = stopped_before(wire.STAGE_UNMASK)
    stranger = federation.grid.request_to(1, wire.STAGE_MASKED_INPUT).metadata.dst_node_id ^ 1
    masked = federation.grid.request_to(0, wire.STAGE_MASKED_INPUT).content[wire.RECORD_SECURE_SUM]
    alive = [federation.grid.node_of(p) for p in range(5)]
    fields = {
        wire.FIELD_SCHEMA: wire.SCHEMA,
        wire.FIELD_SESSION: masked[wire.FIELD_SESSION],
        wire.FIELD_STAGE: wire.STAGE_UNMASK,
        wire.FIELD_ALIVE: alive,
        wire.FIELD_DEAD: [stranger],
    }
    reply = federation.ask(0, content=RecordDict({wire.RECORD_SECURE_SUM: ConfigRecord(fields)}))
    assert code_of(reply) == ErrorCode.MALFORMED


def test_reveals_one_kind_of_share_per_peer_and_only_once() -> None:
    federation = stopped_before(wire.STAGE_UNMASK)
    record = unmask_request(federation, [0, 1, 2, 3], [4]).content[wire.RECORD_SECURE_SUM]
    node_of = federation.grid.node_of
    assert set(record[wire.FIELD_ALIVE]) == {node_of(p) for p in (0, 1, 2, 3)}
    assert list(record[wire.FIELD_DEAD]) == [node_of(4)]
    assert len(record[wire.FIELD_SELF_SHARES]) == 4 * wire.SHARE_BYTES
    assert len(record[wire.FIELD_KEY_SHARES]) == wire.SHARE_BYTES
    assert_wiped(federation)
    assert code_of(unmask_request(federation, [0, 1, 2, 4], [3])) == ErrorCode.OUT_OF_ORDER


# -- order, repetition, replay -----------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT])
def test_a_stage_asked_twice(stage: str) -> None:
    following = {wire.STAGE_SHARES: wire.STAGE_MASKED_INPUT, wire.STAGE_MASKED_INPUT: wire.STAGE_UNMASK}
    federation = stopped_before(following[stage])
    produced = list(federation.produced)
    assert code_of(federation.repeat(0, stage)) == ErrorCode.OUT_OF_ORDER
    assert federation.produced == produced
    assert_wiped(federation)


def test_the_unmask_stage_asked_twice() -> None:
    federation = Federation(VECTORS)
    federation.sum()
    assert code_of(federation.repeat(0, wire.STAGE_UNMASK)) == ErrorCode.OUT_OF_ORDER


@pytest.mark.parametrize("open_until", [wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT])
def test_a_stage_too_early(open_until: str) -> None:
    whole = Federation(VECTORS)
    whole.sum()
    federation = stopped_before(open_until)
    session = federation.grid.request_to(0, wire.STAGE_KEYS).content[wire.RECORD_SECURE_SUM][
        wire.FIELD_SESSION
    ]
    late = wire.STAGE_UNMASK if open_until == wire.STAGE_MASKED_INPUT else wire.STAGE_MASKED_INPUT
    content = RecordDict(dict(whole.grid.request_to(0, late).content.items()))
    content[wire.RECORD_SECURE_SUM] = ConfigRecord(
        {**content[wire.RECORD_SECURE_SUM], wire.FIELD_SESSION: session}
    )
    assert code_of(federation.ask(0, content=content)) == ErrorCode.OUT_OF_ORDER
    assert_wiped(federation)
    assert federation.produced == []


def test_an_unknown_stage() -> None:
    federation = stopped_before(wire.STAGE_SHARES)
    assert code_of(federation.repeat(0, wire.STAGE_KEYS, stage="reveal")) == ErrorCode.OUT_OF_ORDER


def test_a_session_id_seen_before_is_refused_and_ends_the_open_session() -> None:
    federation = stopped_before(wire.STAGE_MASKED_INPUT)
    assert code_of(federation.repeat(0, wire.STAGE_KEYS)) == ErrorCode.SESSION_SEEN
    assert_wiped(federation)


def test_a_replayed_finished_session_is_refused() -> None:
    federation = Federation(VECTORS)
    federation.sum()
    for stage in (wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK):
        assert code_of(federation.repeat(0, stage)) in (ErrorCode.SESSION_SEEN, ErrorCode.OUT_OF_ORDER)
    assert sorted(federation.produced) == [0, 1, 2, 3, 4]


def test_a_late_request_of_an_older_session_is_refused_without_harm_to_the_newer() -> None:
    federation = stopped_before(wire.STAGE_SHARES)
    old = federation.grid.request_to(0, wire.STAGE_KEYS).content
    federation.grid.stop_before = wire.STAGE_UNMASK
    with pytest.raises(SecureSumAborted):
        federation.sum()
    assert code_of(federation.ask(0, content=old)) == ErrorCode.SESSION_SEEN
    assert not unmask_request(federation, [0, 1, 2, 3, 4], []).has_error()


def test_a_request_of_a_newer_session_that_was_never_opened_ends_the_open_one() -> None:
    federation = stopped_before(wire.STAGE_MASKED_INPUT)
    reply = federation.repeat(0, wire.STAGE_SHARES, session=keys.new_session_id())
    assert code_of(reply) == ErrorCode.OUT_OF_ORDER
    assert_wiped(federation)


def test_a_session_cannot_be_redescribed_between_stages() -> None:
    federation = Federation(VECTORS)

    def longer(partition: int, stage: str, record: ConfigRecord) -> None:
        if stage == wire.STAGE_MASKED_INPUT:
            record[wire.FIELD_PURPOSE] = "another purpose"

    federation.grid.rewrite = longer
    with pytest.raises(SecureSumAborted) as caught:
        federation.sum()
    assert {error.code for error in caught.value.errors} == {ErrorCode.MALFORMED}
    assert federation.produced == []


def test_a_message_for_another_node_of_the_same_process_does_not_continue_the_session() -> None:
    federation = stopped_before(wire.STAGE_SHARES)
    context = federation.grid.contexts[federation.grid.node_of(0)]
    request = RecordDict(
        {
            wire.RECORD_SECURE_SUM: ConfigRecord(
                {
                    wire.FIELD_SCHEMA: wire.SCHEMA,
                    wire.FIELD_STAGE: wire.STAGE_SHARES,
                    wire.FIELD_SESSION: context.state[wire.STATE_SESSION][wire.FIELD_SESSION],
                }
            )
        }
    )
    federation.state(1)[wire.STATE_SESSION] = context.state[wire.STATE_SESSION]
    assert code_of(federation.ask(1, content=request)) == ErrorCode.OUT_OF_ORDER


# -- neighbourhood and threshold ---------------------------------------------------------------------------


def abort_codes(federation: Federation, **options: Any) -> set[int | None]:
    with pytest.raises(SecureSumAborted) as caught:
        federation.sum(**options)
    assert caught.value.released is False
    return {error.code for error in caught.value.errors}


def test_default_floor_asks_for_two_neighbours() -> None:
    assert abort_codes(Federation(VECTORS[:2], min_neighbours=None)) == {ErrorCode.TOO_FEW_NEIGHBOURS}
    assert len(Federation(VECTORS[:3], min_neighbours=None).sum().survivors) == 3


def test_floor_from_the_node_config() -> None:
    assert abort_codes(Federation(VECTORS, min_neighbours=5)) == {ErrorCode.TOO_FEW_NEIGHBOURS}
    assert abort_codes(Federation(VECTORS, min_neighbours=4)) == {ErrorCode.LOW_THRESHOLD}
    assert len(Federation(VECTORS, min_neighbours=3).sum().survivors) == 5


@pytest.mark.parametrize("floor", [0, -1, True, 2.0, "2"])
def test_a_floor_that_makes_no_sense_is_refused(floor: Any) -> None:
    federation = Federation(VECTORS, node_config={wire.CONFIG_MIN_NEIGHBOURS: floor})
    assert abort_codes(federation) == {ErrorCode.MISCONFIGURED}


@pytest.mark.parametrize(
    ("threshold", "code"),
    [
        (0, "LOW_THRESHOLD"),
        (1, "LOW_THRESHOLD"),
        (2, "LOW_THRESHOLD"),
        (6, "MALFORMED"),
        (-7, "LOW_THRESHOLD"),
    ],
)
def test_a_threshold_outside_more_than_half_of_the_holders(threshold: int, code: str) -> None:
    federation = Federation(VECTORS)

    def lower(partition: int, stage: str, record: ConfigRecord) -> None:
        if stage == wire.STAGE_SHARES:
            record[wire.FIELD_THRESHOLD] = threshold

    federation.grid.rewrite = lower
    assert abort_codes(federation) == {ErrorCode[code]}


def test_too_few_neighbours_that_dealt_shares() -> None:
    federation = Federation(VECTORS)

    def fewer(partition: int, stage: str, record: ConfigRecord) -> None:
        if stage == wire.STAGE_MASKED_INPUT:
            record[wire.FIELD_NEIGHBOURS] = list(record[wire.FIELD_NEIGHBOURS])[:2]
            record[wire.FIELD_SHARES] = bytes(record[wire.FIELD_SHARES])[: 2 * wire.SEALED_SHARE_BYTES]

    federation.grid.rewrite = fewer
    assert abort_codes(federation) == {ErrorCode.TOO_FEW_SURVIVORS}
    assert federation.produced == []


def change_keys(record: ConfigRecord, name: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    blob = bytes(record[name])
    record[name] = b"".join(change([blob[i : i + 32] for i in range(0, len(blob), 32)]))


@pytest.mark.parametrize(
    "change",
    [
        lambda record, me: change_keys(record, wire.FIELD_MASK_KEYS, lambda k: [k[0], k[0], *k[2:]]),
        lambda record, me: change_keys(record, wire.FIELD_SHARE_KEYS, lambda k: [k[0], k[0], *k[2:]]),
        lambda record, me: change_keys(record, wire.FIELD_SHARE_KEYS, lambda k: [bytes(32), *k[1:]]),
        lambda record, me: change_keys(record, wire.FIELD_SHARE_KEYS, lambda k: k[1:]),
        lambda record, me: record.update(
            {wire.FIELD_NEIGHBOURS: [me, *list(record[wire.FIELD_NEIGHBOURS])[1:]]}
        ),
        lambda record, me: record.update({wire.FIELD_NEIGHBOURS: list(record[wire.FIELD_NEIGHBOURS])[::-1]}),
        lambda record, me: record.update({wire.FIELD_NEIGHBOURS: [min(record[wire.FIELD_NEIGHBOURS])] * 4}),
        lambda record, me: record.update(
            {wire.FIELD_NEIGHBOURS: [0, *list(record[wire.FIELD_NEIGHBOURS])[1:]]}
        ),
    ],
    ids=["mask key twice", "share key twice", "low order", "missing key", "itself", "order", "same", "zero"],
)
def test_a_malformed_neighbourhood(change: Callable[[ConfigRecord, int], None]) -> None:
    federation = Federation(VECTORS)

    def rewrite(partition: int, stage: str, record: ConfigRecord) -> None:
        if stage == wire.STAGE_SHARES:
            change(record, federation.grid.node_of(partition))

    federation.grid.rewrite = rewrite
    assert abort_codes(federation) == {ErrorCode.MALFORMED}
    assert federation.produced == []


# -- not a secure-sum message ------------------------------------------------------------------------------


def request(**fields: Any) -> RecordDict:
    base = {
        wire.FIELD_SCHEMA: wire.SCHEMA,
        wire.FIELD_STAGE: wire.STAGE_KEYS,
        wire.FIELD_SESSION: keys.new_session_id(),
        wire.FIELD_PURPOSE: "test",
        wire.FIELD_LENGTH: 2,
        wire.FIELD_MODULUS_BITS: 32,
        wire.FIELD_MAGNITUDE_LIMIT: 0,
    }
    return RecordDict({wire.RECORD_SECURE_SUM: ConfigRecord({**base, **fields})})


def test_without_the_record() -> None:
    federation = Federation(VECTORS)
    arrays = ArrayRecord({"w": Array(np.zeros(3))})
    for content in (
        RecordDict(),
        RecordDict({"arrays": arrays}),
        RecordDict({wire.RECORD_SECURE_SUM: arrays}),
    ):
        assert code_of(federation.ask(0, content=content)) == ErrorCode.NO_RECORD
    assert federation.produced == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"schema": 2}, ErrorCode.WRONG_SCHEMA),
        ({"schema": "1"}, ErrorCode.WRONG_SCHEMA),
        ({"stage": 1}, ErrorCode.MALFORMED),
        ({"session": b"short"}, ErrorCode.MALFORMED),
        ({"session": "x" * 24}, ErrorCode.MALFORMED),
        ({"purpose": 3}, ErrorCode.MALFORMED),
        ({"length": 0}, ErrorCode.MALFORMED),
        ({"length": -4}, ErrorCode.MALFORMED),
        ({"length": 2**31}, ErrorCode.MALFORMED),
        ({"length": 2.0}, ErrorCode.MALFORMED),
        ({"length": True}, ErrorCode.MALFORMED),
        ({"modulus-bits": 1}, ErrorCode.MALFORMED),
        ({"modulus-bits": 65}, ErrorCode.MALFORMED),
        ({"magnitude-limit": -1}, ErrorCode.MALFORMED),
        ({"magnitude-limit": 2**31}, ErrorCode.MALFORMED),
    ],
)
def test_malformed_opening(changes: dict[str, Any], code: ErrorCode) -> None:
    federation = Federation(VECTORS)
    assert not federation.ask(0, content=request()).has_error()
    assert code_of(federation.ask(0, content=request(**changes))) == code
    assert_wiped(federation)


values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=200),
    st.lists(st.integers(0, 2**63 - 1), max_size=6),
    st.lists(st.binary(max_size=40), max_size=4),
)
names = st.sampled_from([value for name, value in vars(wire).items() if name.startswith("FIELD_")])


@given(
    stage=st.sampled_from([*wire.STAGES, "else"]),
    fields=st.dictionaries(names, values, max_size=5),
    opened=st.sampled_from([wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK]),
    keep_session=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_garbage_is_answered_by_our_own_words_and_never_by_the_vector(
    stage: str, fields: dict[str, Any], opened: str, keep_session: bool
) -> None:
    federation = stopped_before(opened, simulation=False)
    produced = list(federation.produced)
    session = federation.state(0)[wire.STATE_SESSION][wire.FIELD_SESSION]
    base = {wire.FIELD_STAGE: stage, **({wire.FIELD_SESSION: session} if keep_session else {})}
    reply = federation.ask(0, content=request(**{**base, **fields}))
    assert federation.produced == produced
    if reply.has_error():
        assert reply.error.reason == wire.ERROR_WORDS[reply.error.code]
    else:
        assert wire.stage_of(reply) == wire.STAGE_KEYS  # a well-formed new session


# -- simulated sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node_config", [{}, {wire.CONFIG_SIMULATION: False}, {wire.CONFIG_SIMULATION: "yes"}]
)
def test_an_unmasked_sum_outside_a_simulation_is_refused(node_config: dict[str, Any]) -> None:
    federation = Federation(VECTORS, simulation=False, node_config=node_config)
    assert abort_codes(federation, mode="simulated") == {ErrorCode.NOT_A_SIMULATION}
    assert federation.produced == []


def test_a_simulated_session_cannot_be_repeated() -> None:
    federation = Federation(VECTORS)
    federation.sum(mode="simulated")
    assert code_of(federation.repeat(0, wire.STAGE_SIMULATED)) == ErrorCode.SESSION_SEEN
