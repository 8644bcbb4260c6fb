"""A session whose set-up goes along with the messages of the one before: two exchanges, nothing else changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secure_sum_helpers import Federation, code_of

from fedpriv import wire
from fedpriv.secure_sum import Ahead, SecureSum, SecureSumAborted, SecureSumResult, SecureSumSettings
from fedpriv.wire import ErrorCode

FOUR = [wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK]
TWO = FOUR[2:]
VECTORS = np.arange(18, dtype=np.int64).reshape(6, 3) - 7


class Rounds:
    """Sums of one run, one after the other."""

    def __init__(self, federation: Federation, **options: Any) -> None:
        self.federation, self.ahead = federation, Ahead()
        self.settings = SecureSumSettings(**{"min_survivors": 2, **options})

    def sum(
        self, *, nodes: list[int] | None = None, purpose: str = "test", repeats: bool = True, length: int = 3
    ) -> SecureSumResult:
        grid = self.federation.grid
        grid.requests.clear()
        asked = list(grid.get_node_ids()) if nodes is None else [grid.node_of(p) for p in nodes]
        secure_sum = SecureSum(grid, self.settings, self.ahead)
        return secure_sum.run(asked, RecordDict(), length, purpose, repeats=repeats)

    @property
    def stages(self) -> list[str]:
        """Stages of the last sum, one per exchange."""
        return list(dict.fromkeys(stage for _, stage, _ in self.federation.grid.requests))


def in_round(loses: dict[tuple[int, str, int], str]) -> tuple[Any, dict[str, int]]:
    """A ``drop`` function from (round, stage, partition), and the clock that says which round it is."""
    clock = {"round": 1}
    return lambda partition, message: loses.get((clock["round"], wire.stage_of(message), partition)), clock


def test_from_the_second_round_on_two_exchanges_and_the_same_sum() -> None:
    rounds = Rounds(Federation(VECTORS))
    seen = []
    for _ in range(4):
        result = rounds.sum()
        np.testing.assert_array_equal(result.total, VECTORS.sum(axis=0))
        assert not result.errors and not result.dropped
        seen.append(rounds.stages)
        assert list(result.seconds) == rounds.stages
    assert seen == [FOUR, TWO, TWO, TWO]
    assert sorted(rounds.federation.produced) == sorted(4 * list(range(6)))


def test_a_session_ahead_has_its_own_id_keys_seeds_and_shares() -> None:
    rounds = Rounds(Federation(VECTORS))
    federation, secrets, sessions, replies = rounds.federation, [], [], []
    for _ in range(3):
        federation.grid.replies.clear()
        rounds.sum()
        state = federation.state(0)[wire.STATE_AHEAD]
        secrets += [state["self-seed"], state["key-seed"], state["own-self-share"]]
        sessions.append(state[wire.FIELD_SESSION])
        replies += [reply.content for _, _, reply in federation.grid.replies]
    assert len(set(secrets)) == len(secrets) and sessions == sorted(set(sessions))
    public = [
        record[name]
        for content in replies
        for key in (wire.RECORD_SECURE_SUM, wire.RECORD_AHEAD)
        if (record := content.get(key)) is not None
        for name in (wire.FIELD_MASK_KEY, wire.FIELD_SHARE_KEY, wire.FIELD_COMMITMENT)
        if name in record
    ]
    assert len(public) == 6 * 3 * 4 and len(set(public)) == len(public)
    sent = [
        content[wire.RECORD_RESULT]["vector"].numpy() for content in replies if wire.RECORD_RESULT in content
    ]
    assert len({vector.tobytes() for vector in sent}) == len(sent) == 18


def test_nothing_is_kept_after_the_last_round() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    rounds.sum(repeats=False)
    assert rounds.stages == TWO
    for partition in range(6):
        state = rounds.federation.state(partition)
        assert wire.STATE_AHEAD not in state and wire.STATE_SESSION not in state
    rounds.sum()
    assert rounds.stages == FOUR


def test_without_a_keeper_every_sum_takes_four_exchanges() -> None:
    federation = Federation(VECTORS)
    for _ in range(2):
        federation.sum()
        assert not any(wire.RECORD_AHEAD in m.content for _, _, m in federation.grid.requests)
    assert [stage for p, stage, _ in federation.grid.requests if p == 0] == FOUR * 2


@pytest.mark.parametrize("stage", TWO)
@pytest.mark.parametrize("loss", ["silent", "silent-after", "error", "raise", "late"])
def test_a_node_lost_in_a_short_round_is_recovered_and_the_next_but_one_is_short_again(
    stage: str, loss: str
) -> None:
    drop, clock = in_round({(2, stage, 3): loss})
    rounds = Rounds(Federation(VECTORS, drop=drop))
    seen = []
    for number in range(1, 5):
        clock["round"] = number
        result = rounds.sum()
        np.testing.assert_array_equal(result.total, rounds.federation.expected(result))
        assert len(result.survivors) == (5 if (number, stage) == (2, wire.STAGE_MASKED_INPUT) else 6)
        seen.append(rounds.stages)
    assert seen == [FOUR, TWO, FOUR, TWO]


def test_a_node_lost_in_the_set_up_brings_back_the_full_one() -> None:
    drop, clock = in_round({(1, wire.STAGE_SHARES, 3): "silent"})
    rounds = Rounds(Federation(VECTORS, drop=drop))
    assert len(rounds.sum().survivors) == 5
    clock["round"] = 2
    assert len(rounds.sum().survivors) == 6
    assert rounds.stages == FOUR  # the session opened ahead is for five nodes


def test_a_federation_that_has_shrunk_goes_on_in_two_exchanges() -> None:
    drop, clock = in_round({(1, wire.STAGE_MASKED_INPUT, 3): "silent"})
    rounds = Rounds(Federation(VECTORS, drop=drop))
    rounds.sum()
    clock["round"] = 2
    result = rounds.sum(nodes=[0, 1, 2, 4, 5])
    assert rounds.stages == TWO and len(result.survivors) == 5
    np.testing.assert_array_equal(result.total, VECTORS[[0, 1, 2, 4, 5]].sum(axis=0))


def test_a_node_that_joins_is_in_the_very_next_sum() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum(nodes=[0, 1, 2, 3])
    assert len(rounds.sum().survivors) == 6
    assert rounds.stages == FOUR
    rounds.sum()
    assert rounds.stages == TWO


def test_a_restarted_node_is_missed_once() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    rounds.federation.grid.restart_node(2)
    result = rounds.sum()
    assert rounds.federation.partitions(result.dropped[wire.STAGE_MASKED_INPUT]) == {2}
    assert result.errors[0].code == ErrorCode.OUT_OF_ORDER
    np.testing.assert_array_equal(result.total, rounds.federation.expected(result))
    assert len(rounds.sum().survivors) == 6
    assert rounds.stages == FOUR


def test_a_restarted_node_that_is_needed_aborts_before_anything_is_revealed() -> None:
    rounds = Rounds(Federation(VECTORS), min_survivors=6)
    rounds.sum()
    rounds.federation.grid.restart_node(2)
    with pytest.raises(SecureSumAborted) as aborted:
        rounds.sum()
    assert not aborted.value.released and aborted.value.stage == wire.STAGE_MASKED_INPUT
    assert len(rounds.sum().survivors) == 6
    assert rounds.stages == FOUR


@pytest.mark.parametrize(
    "change",
    [
        {"length": 2},
        {"purpose": "another"},
        {"nodes": [0, 1, 2, 3, 4]},
    ],
)
def test_a_session_ahead_serves_only_the_sum_it_was_opened_for(change: dict[str, Any]) -> None:
    rounds = Rounds(
        Federation(lambda partition, message, context: np.ones(3, np.int64)[: len_of(message)], 6)
    )
    rounds.sum()
    result = rounds.sum(**change)
    assert rounds.stages == FOUR
    assert set(result.total) == {len(result.survivors)}


def len_of(message: Message) -> int:
    return int(message.content[wire.RECORD_SECURE_SUM][wire.FIELD_LENGTH])


def test_other_settings_begin_anew() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    rounds.settings = SecureSumSettings(min_survivors=3)
    rounds.sum()
    assert rounds.stages == FOUR


def test_a_sum_for_another_purpose_in_between_leaves_the_session_ahead() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    rounds.sum(purpose="evaluate", repeats=False)
    assert rounds.stages == FOUR
    np.testing.assert_array_equal(rounds.sum().total, VECTORS.sum(axis=0))
    assert rounds.stages == TWO


def test_a_full_set_up_for_the_same_purpose_drops_the_session_ahead() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    before = rounds.federation.state(0)[wire.STATE_AHEAD][wire.FIELD_SESSION]
    rounds.ahead = Ahead()  # the server was restarted
    rounds.sum(repeats=False)
    assert rounds.stages == FOUR
    assert wire.STATE_AHEAD not in rounds.federation.state(0)
    stale = rounds.federation.repeat(0, wire.STAGE_MASKED_INPUT, **{wire.FIELD_SESSION: before})
    assert code_of(stale) == ErrorCode.OUT_OF_ORDER


def masked_reply(rounds: Rounds, partition: int, **changes: Any) -> Message:
    return rounds.federation.repeat(partition, wire.STAGE_MASKED_INPUT, **changes)


def test_a_session_ahead_reveals_a_vector_once() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    rounds.sum()
    produced = list(rounds.federation.produced)
    assert code_of(masked_reply(rounds, 0)) == ErrorCode.OUT_OF_ORDER
    assert code_of(rounds.federation.repeat(0, wire.STAGE_UNMASK)) == ErrorCode.OUT_OF_ORDER
    assert rounds.federation.produced == produced


@pytest.mark.parametrize("stage", [wire.STAGE_SHARES, *TWO])
def test_a_replay_between_two_rounds_gets_nothing_and_costs_nothing(stage: str) -> None:
    """An old message cannot deal shares again, and does not drop the session that waits for its round."""
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    before = dict(rounds.federation.state(0)[wire.STATE_AHEAD])
    assert code_of(rounds.federation.repeat(0, stage)) == ErrorCode.OUT_OF_ORDER
    assert dict(rounds.federation.state(0)[wire.STATE_AHEAD]) == before
    assert len(rounds.sum().survivors) == 6
    assert rounds.stages == TWO


def test_an_unknown_newer_session_between_two_rounds_drops_the_next_one() -> None:
    rounds = Rounds(Federation(VECTORS))
    rounds.sum()
    unknown = b"\xff" * wire.SESSION_BYTES
    reply = rounds.federation.repeat(0, wire.STAGE_UNMASK, **{wire.FIELD_SESSION: unknown})
    assert code_of(reply) == ErrorCode.OUT_OF_ORDER
    assert wire.STATE_AHEAD not in rounds.federation.state(0)


def ahead_changed(stage: str, partition: int, change: Any) -> Any:
    """A ``rewrite`` of what goes along for the next session; for one node in one stage."""

    def send(federation: Federation) -> None:
        original = federation.grid.send_and_receive

        def changed(messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            for message in messages:
                if (federation.grid.partition_of(message.metadata.dst_node_id), wire.stage_of(message)) == (
                    partition,
                    stage,
                ) and wire.RECORD_AHEAD in message.content:
                    record = message.content[wire.RECORD_AHEAD]
                    message.content[wire.RECORD_AHEAD] = ConfigRecord(
                        dict(record)
                    )  # others have the same object
                    change(message.content)
            return original(messages, timeout=timeout)

        federation.grid.send_and_receive = changed  # type: ignore[method-assign]

    return send


def edit(**fields: Any) -> Any:
    return lambda content: content[wire.RECORD_AHEAD].update(fields)


BAD_AHEAD = {
    "an old session": (wire.STAGE_MASKED_INPUT, edit(session=bytes(24))),
    "another schema": (wire.STAGE_MASKED_INPUT, edit(schema=9)),
    "a stage too far": (wire.STAGE_MASKED_INPUT, edit(stage=wire.STAGE_SHARES)),
    "a masked input on the side": (wire.STAGE_UNMASK, edit(stage=wire.STAGE_MASKED_INPUT)),
    "unmasking on the side": (wire.STAGE_UNMASK, edit(stage=wire.STAGE_UNMASK)),
    "a low threshold": (wire.STAGE_UNMASK, edit(threshold=1)),
    "too few neighbours": (
        wire.STAGE_UNMASK,
        edit(**{wire.FIELD_NEIGHBOURS: [], wire.FIELD_MASK_KEYS: b"", wire.FIELD_SHARE_KEYS: b""}),
    ),
    "keys of low order": (wire.STAGE_UNMASK, edit(**{wire.FIELD_SHARE_KEYS: bytes(160)})),
    "garbage": (wire.STAGE_UNMASK, lambda content: content[wire.RECORD_AHEAD].clear()),
}


@pytest.mark.parametrize("name", BAD_AHEAD)
def test_a_bad_request_ahead_costs_the_next_session_alone(name: str) -> None:
    stage, change = BAD_AHEAD[name]
    federation = Federation(VECTORS)
    ahead_changed(stage, 1, change)(federation)
    rounds = Rounds(federation)
    result = rounds.sum()
    np.testing.assert_array_equal(result.total, VECTORS.sum(axis=0))
    assert not result.dropped and len(result.survivors) == 6
    assert wire.STATE_AHEAD not in federation.state(1)
    (error,) = result.errors
    assert error.node_id == federation.grid.node_of(1) and error.message.startswith("next session: ")
    federation.grid.__dict__.pop("send_and_receive")
    for stages in (FOUR, TWO):
        np.testing.assert_array_equal(rounds.sum().total, VECTORS.sum(axis=0))
        assert rounds.stages == stages


BAD_REPLIES = {
    "nothing": (TWO[0], lambda content: content.pop(wire.RECORD_AHEAD)),
    "short key": (TWO[0], edit(**{wire.FIELD_MASK_KEY: b"short"})),
    "key of low order": (TWO[0], edit(**{wire.FIELD_MASK_KEY: bytes(32)})),
    "one key for both": (
        TWO[0],
        lambda c: c[wire.RECORD_AHEAD].update({wire.FIELD_MASK_KEY: c[wire.RECORD_AHEAD]["share-key"]}),
    ),
    "another session": (TWO[0], edit(session=bytes(24))),
    "short shares": (TWO[1], edit(**{wire.FIELD_SHARES: bytes(3)})),
    "no commitment": (TWO[1], edit(**{wire.FIELD_COMMITMENT: "x"})),
    "no shares": (TWO[1], lambda content: content.pop(wire.RECORD_AHEAD)),
}


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_bad_reply_ahead_costs_nobody_its_place_in_the_sum(name: str) -> None:
    stage, change = BAD_REPLIES[name]
    active = {"on": True}

    def intercept(node: int, request: Message, reply: Message) -> list[Message]:
        if (
            active["on"]
            and node == 1
            and wire.stage_of(request) == stage
            and wire.RECORD_AHEAD in reply.content
        ):
            change(reply.content)
        return [reply]

    rounds = Rounds(Federation(VECTORS, intercept=intercept))
    result = rounds.sum()
    np.testing.assert_array_equal(result.total, VECTORS.sum(axis=0))
    assert {error.node_id for error in result.errors} == {rounds.federation.grid.node_of(1)}
    active["on"] = False
    assert len(rounds.sum().survivors) == 6
    assert rounds.stages == FOUR
    rounds.sum()
    assert rounds.stages == TWO


def test_a_client_that_does_not_know_sessions_ahead_keeps_four_exchanges() -> None:
    federation = Federation(VECTORS)
    for stage in TWO:
        ahead_changed(stage, 4, lambda content: content.pop(wire.RECORD_AHEAD))(federation)
    rounds = Rounds(federation)
    for _ in range(3):
        np.testing.assert_array_equal(rounds.sum().total, VECTORS.sum(axis=0))
        assert rounds.stages == FOUR


def test_an_aborted_round_keeps_no_session() -> None:
    drop, clock = in_round({(2, wire.STAGE_MASKED_INPUT, p): "silent" for p in range(5)})
    rounds = Rounds(Federation(VECTORS, drop=drop))
    rounds.sum()
    clock["round"] = 2
    with pytest.raises(SecureSumAborted):
        rounds.sum()
    clock["round"] = 3
    np.testing.assert_array_equal(rounds.sum().total, VECTORS.sum(axis=0))
    assert rounds.stages == FOUR


def test_state_of_a_client_is_bounded() -> None:
    rounds = Rounds(Federation(VECTORS))
    sizes = []
    for _ in range(5):
        rounds.sum()
        sizes.append({name: len(record) for name, record in rounds.federation.state(0).items()})
    assert sizes[0] == sizes[-1]
    assert set(sizes[0]) == {wire.STATE_AHEAD, wire.STATE_SEEN}
    assert isinstance(rounds.federation.state(0)[wire.STATE_AHEAD], ConfigRecord)


LOSSES = st.sampled_from([None, None, None, "silent", "silent-after", "error", "late"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_lost_in_four_rounds_sums_are_exact_or_aborted(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(3, 6))
    drop, clock = in_round(
        {
            (number, stage, partition): loss
            for number in range(1, 5)
            for partition in range(nodes)
            if (loss := data.draw(LOSSES))
            for stage in [data.draw(st.sampled_from(FOUR))]
        }
    )
    vectors = np.arange(2 * nodes, dtype=np.int64).reshape(nodes, 2) ** 3
    rounds = Rounds(Federation(vectors, drop=drop))
    for number in range(1, 5):
        clock["round"] = number
        if data.draw(st.integers(0, 5)) == 0:
            rounds.federation.grid.restart_node(data.draw(st.integers(0, nodes - 1)))
        try:
            result = rounds.sum(length=2)
        except SecureSumAborted:
            continue
        np.testing.assert_array_equal(result.total, rounds.federation.expected(result))
        assert len(result.survivors) >= 2
