"""Replies that do not fit, aborts, and the order of things."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from secure_sum_helpers import Federation, losses

from fedpriv import wire
from fedpriv.secure_sum import SecureSumAborted

VECTORS = np.array([[3, -1, 5], [-7, 2, 0], [11, 4, -6], [0, 8, 1], [2, -9, 4], [-5, 5, 5]], dtype=np.int64)
Change = Callable[[RecordDict], Any]


def tampering(
    partition: int, stage: str, change: Change
) -> Callable[[int, Message, Message], Iterable[Message]]:
    """Change the content of one node's reply in one stage."""

    def intercept(node: int, request: Message, reply: Message) -> Iterable[Message]:
        if node == partition and wire.stage_of(request) == stage and reply.has_content():
            change(reply.content)
        return [reply]

    return intercept


def vector(content: RecordDict, array: Array | np.ndarray) -> None:
    content[wire.RECORD_RESULT] = ArrayRecord(
        {wire.RESULT_ARRAY: array if isinstance(array, Array) else Array(array)}
    )


def field(content: RecordDict, **fields: Any) -> None:
    content[wire.RECORD_SECURE_SUM].update(fields)


GARBAGE = Array(dtype="uint32", shape=(3,), stype="numpy.ndarray", data=b"\x93NUMPY" + bytes(60))
HUGE_HEADER = Array(
    dtype="uint32",
    shape=(3,),
    stype="numpy.ndarray",
    data=b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<u4', 'fortran_order': False, 'shape': (99999999999,), }".ljust(117)
    + b"\n"
    + bytes(12),
)
PICKLE = Array(dtype="object", shape=(3,), stype="numpy.ndarray", data=b"cos\nsystem\n(S'true'\ntR.")

BAD_MASKED: dict[str, tuple[Change, str]] = {
    "too long": (lambda c: vector(c, np.zeros(4, np.uint32)), "shape (4,)"),
    "too short": (lambda c: vector(c, np.zeros(2, np.uint32)), "shape (2,)"),
    "two-dimensional": (lambda c: vector(c, np.zeros((3, 1), np.uint32)), "shape (3, 1)"),
    "signed": (lambda c: vector(c, np.zeros(3, np.int32)), "dtype int32"),
    "floating": (lambda c: vector(c, np.zeros(3, np.float32)), "dtype float32"),
    "wide": (lambda c: vector(c, np.zeros(3, np.uint64)), "dtype uint64"),
    "very wide": (lambda c: vector(c, np.zeros(300, np.uint64)), "wrong length or dtype"),
    "garbage bytes": (lambda c: vector(c, GARBAGE), "cannot be parsed"),
    "a header that asks for 400 GB": (lambda c: vector(c, HUGE_HEADER), "cannot be parsed"),
    "a pickle": (lambda c: vector(c, PICKLE), "cannot be parsed"),
    "no vector": (lambda c: c.pop(wire.RECORD_RESULT), "no vector"),
    "another record in its place": (
        lambda c: c.update({wire.RECORD_RESULT: MetricRecord({"vector": 1})}),
        "no vector",
    ),
    "no protocol record": (lambda c: c.pop(wire.RECORD_SECURE_SUM), "no secure-sum record"),
    "another session": (lambda c: field(c, session=bytes(24)), "another session"),
    "another stage": (lambda c: field(c, stage=wire.STAGE_UNMASK), "another session or stage"),
    "another schema": (lambda c: field(c, schema=7), "schema"),
    "complaint about a stranger": (lambda c: field(c, unreadable=[17]), "not asked for"),
    "complaint of a wrong type": (lambda c: field(c, unreadable="all"), "list of node ids"),
}


@pytest.mark.parametrize("name", BAD_MASKED)
def test_a_masked_reply_that_does_not_fit_names_the_node_and_is_not_summed(name: str) -> None:
    change, words = BAD_MASKED[name]
    federation = Federation(VECTORS, intercept=tampering(2, wire.STAGE_MASKED_INPUT, change))
    result = federation.sum()
    assert federation.partitions(result.survivors) == {0, 1, 3, 4, 5}
    np.testing.assert_array_equal(result.total, VECTORS[[0, 1, 3, 4, 5]].sum(axis=0))
    (error,) = result.errors
    assert error.node_id == federation.grid.node_of(2) and error.stage == wire.STAGE_MASKED_INPUT
    assert words in error.message


def test_a_value_above_the_modulus_is_out_of_range() -> None:
    change = lambda c: vector(c, np.array([1, 2, 1 << 20], np.uint32))  # noqa: E731
    federation = Federation(VECTORS, intercept=tampering(2, wire.STAGE_MASKED_INPUT, change))
    result = federation.sum(modulus_bits=20)
    assert "out of range" in result.errors[0].message
    np.testing.assert_array_equal(result.total, VECTORS[[0, 1, 3, 4, 5]].sum(axis=0))


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        (wire.STAGE_KEYS, lambda c: field(c, **{wire.FIELD_MASK_KEY: b"short"})),
        (wire.STAGE_KEYS, lambda c: field(c, **{wire.FIELD_MASK_KEY: bytes(32)})),
        (wire.STAGE_KEYS, lambda c: field(c, **{wire.FIELD_SHARE_KEY: 4})),
        (
            wire.STAGE_KEYS,
            lambda c: field(c, **{wire.FIELD_SHARE_KEY: c[wire.RECORD_SECURE_SUM]["mask-key"]}),
        ),
        (wire.STAGE_KEYS, lambda c: c.clear()),
        (wire.STAGE_SHARES, lambda c: field(c, **{wire.FIELD_SHARES: bytes(10)})),
        (wire.STAGE_SHARES, lambda c: field(c, **{wire.FIELD_COMMITMENT: "x"})),
        (wire.STAGE_SHARES, lambda c: c.clear()),
        (wire.STAGE_UNMASK, lambda c: field(c, **{wire.FIELD_SELF_SHARES: bytes(5)})),
        (wire.STAGE_UNMASK, lambda c: field(c, **{wire.FIELD_ALIVE: [1, 2, 3]})),
        (wire.STAGE_UNMASK, lambda c: c.clear()),
    ],
)
def test_garbage_in_the_other_stages_is_a_loss_of_that_node(stage: str, change: Change) -> None:
    federation = Federation(VECTORS, intercept=tampering(1, stage, change))
    result = federation.sum()
    assert federation.partitions(result.dropped[stage]) == {1}
    assert {error.node_id for error in result.errors} == {federation.grid.node_of(1)}
    np.testing.assert_array_equal(result.total, federation.expected(result))


def test_a_node_that_copies_anothers_key_costs_both_their_places() -> None:
    copied: list[bytes] = []

    def intercept(node: int, request: Message, reply: Message) -> Iterable[Message]:
        if wire.stage_of(request) == wire.STAGE_KEYS:
            if node == 0:
                copied.append(reply.content[wire.RECORD_SECURE_SUM][wire.FIELD_MASK_KEY])
            if node == 3:
                field(reply.content, **{wire.FIELD_MASK_KEY: copied[0]})
        return [reply]

    federation = Federation(VECTORS, intercept=intercept)
    result = federation.sum()
    assert federation.partitions(result.dropped[wire.STAGE_KEYS]) == {0, 3}
    np.testing.assert_array_equal(result.total, federation.expected(result))


@pytest.mark.parametrize(
    "stage", [wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK]
)
def test_two_replies_to_one_request_are_reported_and_not_counted(stage: str) -> None:
    def intercept(node: int, request: Message, reply: Message) -> Iterable[Message]:
        return [reply, reply] if node == 4 and wire.stage_of(request) == stage else [reply]

    federation = Federation(VECTORS, intercept=intercept)
    result = federation.sum()
    assert federation.partitions(result.dropped[stage]) == {4}
    assert [error.message for error in result.errors] == ["2 replies to one request"]
    np.testing.assert_array_equal(result.total, federation.expected(result))


def test_a_reply_under_another_nodes_id_is_not_counted() -> None:
    def intercept(node: int, request: Message, reply: Message) -> Iterable[Message]:
        if node == 4 and wire.stage_of(request) == wire.STAGE_MASKED_INPUT:
            reply.metadata.__dict__["_src_node_id"] = federation.grid.node_of(0)
        return [reply]

    federation = Federation(VECTORS, intercept=intercept)
    result = federation.sum()
    assert federation.partitions(result.survivors) == {0, 1, 2, 3, 5}
    np.testing.assert_array_equal(result.total, federation.expected(result))


def test_a_reply_of_an_earlier_session_is_not_counted() -> None:
    first: list[Message] = []

    def intercept(node: int, request: Message, reply: Message) -> Iterable[Message]:
        if node != 1 or wire.stage_of(request) != wire.STAGE_MASKED_INPUT:
            return [reply]
        if not first:
            first.append(reply)
            return [reply]
        return [Message(first[0].content, reply_to=request)]

    federation = Federation(VECTORS, intercept=intercept)
    federation.sum()
    result = federation.sum()
    assert federation.partitions(result.survivors) == {0, 2, 3, 4, 5}
    np.testing.assert_array_equal(result.total, federation.expected(result))


def test_a_grid_that_numbers_messages_in_its_own_way() -> None:
    federation = Federation(
        VECTORS, drop=losses({(wire.STAGE_SHARES, 3): "late", (wire.STAGE_KEYS, 5): "raise"})
    )
    inner = federation.grid.send_and_receive

    def renumber(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        replies = inner(messages, timeout=timeout)
        for message in messages:
            message.metadata.__dict__["_message_id"] = ""
        return replies

    federation.grid.send_and_receive = renumber  # type: ignore[method-assign]
    result = federation.sum()
    assert federation.partitions(result.survivors) == {0, 1, 2, 4}
    np.testing.assert_array_equal(result.total, federation.expected(result))
    raised, late = result.errors
    assert (raised.node_id, raised.code) == (federation.grid.node_of(5), 2)
    assert (late.node_id, late.stage) == (None, wire.STAGE_MASKED_INPUT) and "no request" in late.message


def test_words_of_a_foreign_error_are_not_repeated() -> None:
    def intercept(node: int, request: Message, reply: Message) -> Iterable[Message]:
        return (
            [Message(Error(code=77, reason="loss 0.25 of patient 12"), reply_to=request)]
            if node == 0
            else [reply]
        )

    federation = Federation(VECTORS, intercept=intercept)
    errors = federation.sum().errors
    assert {(error.code, error.message) for error in errors} == {(77, "error code 77")}


# -- wrong shares ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [wire.FIELD_SELF_SHARES, wire.FIELD_KEY_SHARES])
def test_a_wrong_share_is_found_out_and_the_sum_stays_exact(name: str) -> None:
    def flip(content: RecordDict) -> None:
        blob = bytes(content[wire.RECORD_SECURE_SUM][name])
        field(content, **{name: bytes(byte ^ 1 for byte in blob)})

    liar = min(range(6), key=lambda p: Federation(VECTORS).grid.node_of(p))  # among the first that are used
    lost = next(p for p in range(6) if p != liar)
    federation = Federation(
        VECTORS,
        drop=losses({(wire.STAGE_MASKED_INPUT, lost): "silent-after"}),
        intercept=tampering(liar, wire.STAGE_UNMASK, flip),
    )
    result = federation.sum(share_threshold=4)
    np.testing.assert_array_equal(result.total, federation.expected(result))
    assert {error.node_id for error in result.errors} == {federation.grid.node_of(liar)}
    assert all(error.message.endswith("is wrong") for error in result.errors)


def test_too_many_wrong_shares_end_the_session_and_never_give_a_sum() -> None:
    def intercept(node: int, request: Message, reply: Message) -> Iterable[Message]:
        if wire.stage_of(request) == wire.STAGE_UNMASK and node < 4:
            size = len(reply.content[wire.RECORD_SECURE_SUM][wire.FIELD_SELF_SHARES])
            field(reply.content, **{wire.FIELD_SELF_SHARES: bytes(size)})
        return [reply]

    with pytest.raises(SecureSumAborted, match="do not fit") as caught:
        Federation(VECTORS, intercept=intercept).sum()
    assert caught.value.released and caught.value.stage == wire.STAGE_UNMASK


def test_a_wrong_commitment_ends_the_session() -> None:
    change = lambda c: field(c, **{wire.FIELD_COMMITMENT: bytes(32)})  # noqa: E731
    with pytest.raises(SecureSumAborted, match="do not fit") as caught:
        Federation(VECTORS, intercept=tampering(2, wire.STAGE_SHARES, change)).sum()
    assert caught.value.released


def corrupt_boxes(count: int) -> Change:
    def change(content: RecordDict) -> None:
        blob = bytearray(content[wire.RECORD_SECURE_SUM][wire.FIELD_SHARES])
        for i in range(count):
            blob[i * wire.SEALED_SHARE_BYTES + 20] ^= 1
        field(content, **{wire.FIELD_SHARES: bytes(blob)})

    return change


def test_a_share_that_does_not_authenticate_costs_nothing_while_enough_others_do() -> None:
    federation = Federation(VECTORS, intercept=tampering(2, wire.STAGE_SHARES, corrupt_boxes(1)))
    result = federation.sum()
    assert len(result.survivors) == 6
    np.testing.assert_array_equal(result.total, federation.expected(result))
    (error,) = result.errors
    assert error.node_id == federation.grid.node_of(2) and "unreadable for 1" in error.message


def test_shares_that_do_not_authenticate_end_the_session_unrevealed_and_name_their_sender() -> None:
    federation = Federation(VECTORS, intercept=tampering(2, wire.STAGE_SHARES, corrupt_boxes(5)))
    with pytest.raises(SecureSumAborted) as caught:
        federation.sum()
    assert not caught.value.released
    assert [error.node_id for error in caught.value.errors] == [federation.grid.node_of(2)]
    assert all(stage != wire.STAGE_UNMASK for _, stage, _ in federation.grid.requests)


def test_shares_of_another_session_do_not_authenticate() -> None:
    kept: list[bytes] = []

    def change(content: RecordDict) -> None:
        kept.append(bytes(content[wire.RECORD_SECURE_SUM][wire.FIELD_SHARES]))
        field(content, **{wire.FIELD_SHARES: kept[0]})

    federation = Federation(VECTORS, intercept=tampering(2, wire.STAGE_SHARES, change))
    federation.sum()
    with pytest.raises(SecureSumAborted) as caught:
        federation.sum()
    assert "unreadable for 5" in caught.value.errors[0].message


# -- aborts and the order of things ------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT])
def test_below_min_survivors_nothing_is_revealed(stage: str) -> None:
    federation = Federation(VECTORS, drop=losses({(stage, 0): "silent", (stage, 1): "error"}))
    with pytest.raises(SecureSumAborted, match=r"4 nodes left, min_survivors = 5") as caught:
        federation.sum(min_survivors=5, before_unmask=lambda _: pytest.fail("called"))
    aborted = caught.value
    assert (aborted.stage, aborted.released) == (stage, False)
    assert federation.partitions(aborted.dropped[stage]) == {0, 1}
    assert [error.code for error in aborted.errors] == [5]
    assert all(asked != wire.STAGE_UNMASK for _, asked, _ in federation.grid.requests)


def test_an_abort_while_unmasking_counts_as_released() -> None:
    plan = {(wire.STAGE_UNMASK, node): "silent" for node in range(3)}
    with pytest.raises(SecureSumAborted, match="an unmask request had left") as caught:
        Federation(VECTORS, drop=losses(plan)).sum()
    assert caught.value.released


@pytest.mark.parametrize("stage", [wire.STAGE_KEYS, wire.STAGE_UNMASK])
def test_a_grid_that_fails(stage: str) -> None:
    federation = Federation(VECTORS)
    federation.grid.stop_before = stage
    with pytest.raises(SecureSumAborted, match="ConnectionError") as caught:
        federation.sum()
    assert caught.value.released == (stage == wire.STAGE_UNMASK)


def test_before_unmask_comes_after_the_vectors_and_before_any_unmask_request() -> None:
    federation = Federation(VECTORS, drop=losses({(wire.STAGE_MASKED_INPUT, 5): "silent"}))
    calls: list[tuple[list[int], int, set[str]]] = []

    def before(survivors: list[int]) -> None:
        calls.append(
            (survivors, len(federation.produced), {stage for _, stage, _ in federation.grid.requests})
        )

    result = federation.sum(before_unmask=before)
    ((survivors, produced, stages),) = calls
    assert tuple(survivors) == result.survivors and produced == 5
    assert stages == {wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT}


def test_an_exception_of_before_unmask_is_passed_on_and_stops_the_release() -> None:
    class LedgerIsFull(Exception):
        pass

    def before(survivors: list[int]) -> None:
        raise LedgerIsFull

    federation = Federation(VECTORS)
    with pytest.raises(LedgerIsFull):
        federation.sum(before_unmask=before)
    assert all(stage != wire.STAGE_UNMASK for _, stage, _ in federation.grid.requests)
    np.testing.assert_array_equal(federation.sum().total, VECTORS.sum(axis=0))


def test_nodes_whose_neighbours_are_gone_are_let_go_before_they_are_asked() -> None:
    federation = Federation(np.ones((20, 1), np.int64))
    first = federation.grid.node_of(0)

    def lose_neighbours_of_first(partition: int, message: Message) -> str | None:
        if wire.stage_of(message) != wire.STAGE_SHARES:
            return None
        neighbours = federation.grid.request_to(0, wire.STAGE_SHARES).content[wire.RECORD_SECURE_SUM][
            "neighbours"
        ]
        return "silent" if federation.grid.node_of(partition) in list(neighbours)[:3] else None

    federation.grid.drop = lose_neighbours_of_first
    result = federation.sum(neighbours=4, share_threshold=3)
    assert first in result.dropped[wire.STAGE_SHARES] and first not in result.survivors
    assert 0 not in federation.produced
    assert any(e.node_id == first and "neighbours were lost" in e.message for e in result.errors)
    assert result.total[0] == len(result.survivors)
