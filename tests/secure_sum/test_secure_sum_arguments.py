"""What the caller of a secure sum may ask, what is sent, and what it is told afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from secure_sum_helpers import Federation

from fedpriv import wire
from fedpriv.secure_sum import SecureSum, SecureSumAborted, SecureSumSettings

VECTORS = np.array([[3, -1, 5], [-7, 2, 0], [11, 4, -6], [0, 8, 1], [2, -9, 4], [-5, 5, 5]], dtype=np.int64)


def test_the_payload_travels_with_the_masked_input_request_alone() -> None:
    federation = Federation(VECTORS)
    federation.sum(payload=RecordDict({"arrays": ArrayRecord({"w": Array(np.arange(4.0))})}))
    for _, stage, message in federation.grid.requests:
        assert ("arrays" in message.content) == (stage == wire.STAGE_MASKED_INPUT)
        assert message.metadata.message_type == "train"


def test_a_payload_for_every_node() -> None:
    def produce(partition: int, msg: Message, context: Any) -> np.ndarray:
        return np.array([int(msg.content["factor"]["x"])])

    federation = Federation(produce, num_nodes=4)

    def payload(node: int) -> RecordDict:
        return RecordDict({"factor": ConfigRecord({"x": 10 ** federation.grid.partition_of(node)})})

    assert federation.sum(length=1, payload=payload).total.tolist() == [1111]


@pytest.mark.parametrize("mode", ["protocol", "simulated"])
def test_reserved_names_in_a_payload_are_refused(mode: str) -> None:
    federation = Federation(VECTORS)
    payload = RecordDict({wire.RECORD_RESULT: ConfigRecord({"x": 1})})
    with pytest.raises(ValueError, match=r"fedpriv\.secure-sum\.vector' is reserved"):
        federation.sum(payload=payload, mode=mode)
    assert federation.grid.requests == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"node_ids": [1, 2, 2]}, "named twice"),
        ({"node_ids": [1]}, "1 nodes, but min_survivors = 2"),
        ({"length": 0}, "length = 0"),
        ({"length": 2.0}, "length = 2.0"),
        ({"length": True}, "length = True"),
        ({"purpose": ""}, "purpose = ''"),
        ({"magnitude_limit": 0}, "magnitude_limit = 0"),
        ({"magnitude_limit": 1.5}, "magnitude_limit = 1.5"),
        ({"magnitude_limit": 2**30}, "at most 1 nodes fit"),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(arguments: dict[str, Any], words: str) -> None:
    federation = Federation(VECTORS)
    given = {"node_ids": [1, 2, 3], "payload": RecordDict(), "length": 3, "purpose": "p", **arguments}
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        SecureSum(federation.grid, SecureSumSettings(min_survivors=2)).run(**given)
    assert federation.grid.requests == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_survivors": 1}, "min_survivors = 1: must be at least 2"),
        ({"min_survivors": 2.5}, "min_survivors = 2.5: must be an integer"),
        ({"min_survivors": True}, "min_survivors = True"),
        ({"min_survivors": 0, "mode": "simulated"}, "min_survivors = 0: must be at least 1"),
        ({"min_survivors": 3, "share_threshold": 1}, "share_threshold = 1: must be at least 2"),
        ({"min_survivors": 3, "neighbours": 0}, "neighbours = 0: must be at least 1"),
        ({"min_survivors": 3, "modulus_bits": 65}, "modulus_bits = 65: must be from 2 to 64"),
        ({"min_survivors": 3, "modulus_bits": 1}, "modulus_bits = 1: must be from 2 to 64"),
        ({"min_survivors": 3, "timeout": 0}, "timeout = 0"),
        ({"min_survivors": 3, "timeout": float("inf")}, "timeout = inf"),
        ({"min_survivors": 3, "mode": "off"}, "mode = 'off'"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SecureSumSettings(**given)


@pytest.mark.parametrize("threshold", [2, 3, 7])
def test_a_share_threshold_that_does_not_fit_the_neighbourhood(threshold: int) -> None:
    with pytest.raises(SecureSumAborted, match="from 4 to 6") as caught:
        Federation(VECTORS).sum(share_threshold=threshold)
    assert not caught.value.released


def test_the_result_tells_bytes_seconds_and_the_graph() -> None:
    federation = Federation(VECTORS)
    result = federation.sum()
    up = sum(wire.content_bytes(reply.content) for _, _, reply in federation.grid.replies)
    down = sum(wire.content_bytes(request.content) for _, _, request in federation.grid.requests)
    assert (result.bytes_up, result.bytes_down) == (up, down)
    assert set(result.seconds) == {
        wire.STAGE_KEYS,
        wire.STAGE_SHARES,
        wire.STAGE_MASKED_INPUT,
        wire.STAGE_UNMASK,
    }
    assert all(seconds > 0 for seconds in result.seconds.values())
    assert (result.neighbours, result.share_threshold) == (5, 5)


def test_bytes_of_a_content() -> None:
    content = RecordDict(
        {
            "c": ConfigRecord(
                {"a": 1, "b": b"xyz", "d": "uv", "e": [1, 2], "f": [], "g": b"", "h": [b"q", b"rs"]}
            ),
            "v": ArrayRecord({"w": Array(np.zeros(2, np.uint32))}),
        }
    )
    array = len(content["v"]["w"].data)
    assert wire.content_bytes(content) == 1 + 7 + 8 + 3 + 2 + 16 + 3 + 1 + 1 + array


def test_stage_of_a_message() -> None:
    assert wire.stage_of(Message(RecordDict(), dst_node_id=5, message_type="train")) is None
    other = RecordDict({wire.RECORD_SECURE_SUM: ArrayRecord({"w": Array(np.zeros(1))})})
    assert wire.stage_of(Message(other, dst_node_id=5, message_type="train")) is None
    named = RecordDict({wire.RECORD_SECURE_SUM: ConfigRecord({wire.FIELD_STAGE: "keys"})})
    assert wire.stage_of(Message(named, dst_node_id=5, message_type="train")) == wire.STAGE_KEYS
    assert (
        wire.stage_of(Message(Error(5), reply_to=Message(named, dst_node_id=5, message_type="train"))) is None
    )
