"""What a client makes of its own function's vector, and what leaves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord
from secure_sum_helpers import Federation

from fedpriv import wire
from fedpriv.secure_sum import Refusal, client_state
from fedpriv.wire import ErrorCode

VECTORS = np.arange(10, dtype=np.int64).reshape(5, 2)


# -- what the caller's function gives ----------------------------------------------------------------------

SECRET = 918273645


def raising(partition: int, msg: Message, context: Context) -> Any:
    raise ValueError(f"row {SECRET} is broken")


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (lambda *_: np.array([1, 2, SECRET]), ErrorCode.BAD_VECTOR),
        (lambda *_: np.array([[1, SECRET]]), ErrorCode.BAD_VECTOR),
        (lambda *_: np.array([1.0, SECRET]), ErrorCode.BAD_VECTOR),
        (lambda *_: np.array([np.nan, SECRET]), ErrorCode.BAD_VECTOR),
        (lambda *_: np.array([True, False]), ErrorCode.BAD_VECTOR),
        (lambda *_: np.array([SECRET, 2**70], dtype=object), ErrorCode.BAD_VECTOR),
        (lambda *_: np.int64(SECRET), ErrorCode.BAD_VECTOR),
        (lambda *_: None, ErrorCode.BAD_VECTOR),
        (lambda *_: [[1], [SECRET, 2]], ErrorCode.PRODUCE_FAILED),
        (lambda *_: np.array([2**31, SECRET]), ErrorCode.OUT_OF_RANGE),
        (lambda *_: np.array([-(2**31), SECRET]), ErrorCode.OUT_OF_RANGE),
        (lambda *_: np.array([2**64 - 1, SECRET], dtype=np.uint64), ErrorCode.OUT_OF_RANGE),
        (raising, ErrorCode.PRODUCE_FAILED),
    ],
)
def test_a_bad_vector_is_an_error_that_names_the_node_and_is_not_summed(
    bad: Callable[..., Any], code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation(lambda p, m, c: bad(p, m, c) if p == 2 else VECTORS[p], num_nodes=5)
    with caplog.at_level(logging.DEBUG):
        result = federation.sum(length=2)
    assert federation.partitions(result.survivors) == {0, 1, 3, 4}
    np.testing.assert_array_equal(result.total, VECTORS[[0, 1, 3, 4]].sum(axis=0))
    assert result.dropped == {wire.STAGE_MASKED_INPUT: (federation.grid.node_of(2),)}
    (error,) = result.errors
    assert (error.node_id, error.code) == (federation.grid.node_of(2), code)
    assert wire.STATE_SESSION not in federation.state(2)
    reply = federation.grid.reply_of(2, wire.STAGE_MASKED_INPUT)
    assert str(SECRET) not in f"{reply.error} {error} {caplog.text}"
    assert "silo" not in caplog.text and "row" not in reply.error.reason


def test_a_limit_is_checked_by_the_client_before_it_masks() -> None:
    vectors = np.array([[100, -100], [100, 0], [101, 0], [-101, 0], [0, 0]])
    federation = Federation(vectors)
    result = federation.sum(magnitude_limit=100, share_threshold=3)
    assert federation.partitions(result.survivors) == {0, 1, 4}
    assert {error.code for error in result.errors} == {ErrorCode.OUT_OF_RANGE}


def test_a_function_may_refuse_with_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wire.ERROR_WORDS, 2001, "this silo's budget is used up")

    def refuse(partition: int, msg: Message, context: Context) -> np.ndarray:
        if partition == 1:
            raise Refusal(2001)
        return VECTORS[partition]

    (error,) = Federation(refuse, num_nodes=5).sum(length=2).errors
    assert (error.code, error.message) == (2001, "this silo's budget is used up")


def test_small_integer_types_are_accepted() -> None:
    kinds = [np.int8, np.uint8, np.int32, np.uint64, np.int64]
    federation = Federation(lambda p, m, c: np.array([p, 1], dtype=kinds[p]), num_nodes=5)
    np.testing.assert_array_equal(federation.sum(length=2).total, [10, 5])


# -- what leaves the client --------------------------------------------------------------------------------


def test_a_masked_reply_carries_the_vector_and_no_metric() -> None:
    def produce(partition: int, msg: Message, context: Context) -> np.ndarray:
        msg.content["metrics"] = MetricRecord({"loss": 0.25})
        context.state["own"] = MetricRecord({"loss": 0.25})
        return VECTORS[partition]

    federation = Federation(produce, num_nodes=5)
    federation.sum(length=2)
    content = federation.grid.reply_of(0, wire.STAGE_MASKED_INPUT).content
    assert set(content) == {wire.RECORD_SECURE_SUM, wire.RECORD_RESULT}
    assert set(content[wire.RECORD_SECURE_SUM]) == {
        wire.FIELD_SCHEMA,
        wire.FIELD_STAGE,
        wire.FIELD_SESSION,
        wire.FIELD_UNREADABLE,
    }
    assert set(content[wire.RECORD_RESULT]) == {wire.RESULT_ARRAY}
    for stage in (wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_UNMASK):
        assert set(federation.grid.reply_of(0, stage).content) == {wire.RECORD_SECURE_SUM}


def test_no_reply_or_request_carries_a_seed_or_a_private_key() -> None:
    federation = Federation(VECTORS)
    kept: list[bytes] = []

    def collect(partition: int, stage: str, record: ConfigRecord) -> None:
        state = federation.state(partition).get(wire.STATE_SESSION) or {}
        kept.extend(
            bytes(state[name])
            for name in (client_state.KEY_SEED, client_state.SELF_SEED, client_state.SHARE_PRIVATE)
            if name in state
        )

    federation.grid.rewrite = collect
    federation.sum()
    assert len(set(kept)) == 5 * 3
    for _, _, message in federation.grid.requests + federation.grid.replies:
        for record in message.content.values():
            for value in record.values():
                sent = value.data if hasattr(value, "data") else value
                assert not (isinstance(sent, bytes) and any(secret in sent for secret in kept))


def test_secrets_are_gone_before_the_function_runs() -> None:
    seen: list[set[str]] = []

    def produce(partition: int, msg: Message, context: Context) -> np.ndarray:
        seen.append(set(context.state[wire.STATE_SESSION]))
        return VECTORS[partition]

    Federation(produce, num_nodes=5).sum(length=2)
    hidden = {
        client_state.KEY_SEED,
        client_state.SELF_SEED,
        client_state.SHARE_PRIVATE,
        client_state.INCOMING_KEYS,
    }
    assert len(seen) == 5 and all(not names & hidden for names in seen)
