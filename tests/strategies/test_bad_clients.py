"""Bad clients at every exchange: none stops the run or reaches the sum, and each is named in our own words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_helpers import Clients, make_plan, partition, record, vector_of

from fedpriv import wire
from fedpriv.clients import client_level_dp_mod, dp_hype_mod
from fedpriv.ledger import read_ledger
from fedpriv.mechanisms import Ballot
from fedpriv.plans import VotePlan
from fedpriv.secure_sum import Ahead
from fedpriv.strategies import DpHype, DpsgdDc, NoisedSum
from fedpriv.testing import LocalGrid

QUIET = 1e-3  # a noise multiplier that leaves every client's part of the sum visible
CLIENTS, BAD = 6, 2
SECRET = "loss=0.123456789"  # what a client must not be able to write into the server's log

Replies = Callable[[Message, Message], Iterable[Message]]


def _update(client: int, model: np.ndarray) -> np.ndarray:
    """Client i moves coordinate i alone, so that the sum tells who is in it."""
    found = np.zeros(CLIENTS)
    found[client] = 0.5
    return found


def _loss(candidate: dict[str, Any], context: Context) -> float:
    """Client i approves candidate i alone."""
    return float(candidate["index"] != partition(context))


@dataclass
class Federation:
    """A grid with one bad client, the sums that are asked of it, and what the server saw.

    ``kind`` is "vote", "train" with a full set-up in every round, or "train on" in two exchanges a round.
    """

    kind: str
    ledger: Any = None
    faulty: Callable[[int, str], Replies | None] = lambda session, stage: None

    def __post_init__(self) -> None:
        mods = [dp_hype_mod(_loss), client_level_dp_mod]
        self.session = 0
        self.exchanges: list[tuple[int, str]] = []
        self.hit = 0
        self.grid = LocalGrid(
            Clients(_update, mods=mods).app, CLIENTS, drop=self._note, intercept=self._reply
        )
        sums = NoisedSum(self.ledger)
        plan = make_plan(
            num_clients=CLIENTS, min_survivors=4, noise_multiplier=QUIET, length=CLIENTS, rounds=3
        )
        self.training = DpsgdDc(plan, sums)
        ballot = Ballot(CLIENTS, 1)
        vote = VotePlan.build(ballot, "add_or_remove", CLIENTS, QUIET, "distributed", 4)
        self.vote = DpHype([{"index": index} for index in range(CLIENTS)], vote, sums)

    def sum(self) -> set[int]:
        """One round or vote; the clients whose part is in the released sum."""
        self.session += 1
        if self.kind == "vote":
            tallies = self.vote.vote(self.grid).tallies
        else:
            if self.kind == "train":
                self.training.sums.ahead = Ahead()
            outcome = self.training.train_round(self.grid, self.session, record(np.zeros(CLIENTS)))
            assert outcome.arrays is not None
            tallies = -vector_of(outcome.arrays) * CLIENTS / 0.5
        assert np.abs(tallies - np.round(tallies)).max() < 0.1  # whole clients, and nothing else
        assert set(np.round(tallies)) <= {0.0, 1.0}
        return set(np.flatnonzero(np.round(tallies)).tolist())

    def _note(self, client: int, request: Message) -> None:
        if client == BAD:
            self.exchanges.append((self.session, wire.stage_of(request) or ""))

    def _reply(self, client: int, request: Message, reply: Message) -> Iterable[Message]:
        change = self.faulty(*self.exchanges[-1]) if client == BAD else None
        if change is None:
            return [reply]
        self.hit += 1
        return change(request, reply)


def _exchanges(kind: str) -> list[str]:
    """Names of the exchanges that a client takes part in, in its second session."""
    probe = Federation(kind)
    probe.sum()
    probe.sum()
    return [stage for session, stage in probe.exchanges if session == 2]


CASES = [(kind, stage) for kind in ("train", "train on", "vote") for stage in _exchanges(kind)]
#: The node is in the sum when only its last reply is bad: its vector had arrived.
SUMMED = {wire.STAGE_UNMASK}
HEAD = (wire.FIELD_SCHEMA, wire.FIELD_STAGE, wire.FIELD_SESSION)


def _own_fields(reply: Message, arrays: bool) -> list[tuple[Any, str, Any]]:
    """The arrays of a reply, or its fields beside the three that all replies have."""
    return [
        (found, name, found[name])
        for found in reply.content.values()
        for name in found
        if name not in HEAD and isinstance(found[name], Array) == arrays
    ]


def _each(change: Callable[[Any], Any], arrays: bool = True) -> Replies:
    """Replace every array of the reply, or every field where there is no array, by what ``change`` makes of it."""

    def replies(request: Message, reply: Message) -> list[Message]:
        chosen = (_own_fields(reply, True) if arrays else []) or _own_fields(reply, False)
        for found, name, value in chosen:
            changed = change(value)
            del found[name]
            if changed is not None:
                found[name] = changed
        return [reply]

    return replies


def _wrong_shape(value: Any) -> Any:
    if isinstance(value, Array):
        return Array(value.numpy()[None, :])
    return value[:-1] if value else [1, 2, 3]


def _wrong_dtype(value: Any) -> Any:
    return Array(value.numpy().astype(np.int64)) if isinstance(value, Array) else "text"


def _nan(value: Any) -> Any:
    return Array(np.full(CLIENTS, np.nan)) if isinstance(value, Array) else float("nan")


def _oversized(value: Any) -> Any:
    if isinstance(value, Array):
        return Array(np.zeros(200_000, np.uint32))
    return bytes(10**6) if isinstance(value, bytes) else list(range(1, 10_000))


def _garbage(value: Any) -> Any:
    if isinstance(value, Array):
        return Array(dtype="uint32", shape=(CLIENTS,), stype="numpy.ndarray", data=b"\x93NUMPY" + bytes(99))
    return b"\xff\x00garbage"


def _error(code: int) -> Replies:
    return lambda request, reply: [
        Message(Error(code=code, reason=f"ValueError('{SECRET}')"), reply_to=request)
    ]


def _set(**fields: Any) -> Replies:
    def replies(request: Message, reply: Message) -> list[Message]:
        reply.content[wire.RECORD_SECURE_SUM].update(fields)
        return [reply]

    return replies


def _another_record(request: Message, reply: Message) -> list[Message]:
    for name in list(reply.content):
        reply.content[name] = MetricRecord({"loss": 0.123456789})
    return [reply]


def _empty(request: Message, reply: Message) -> list[Message]:
    reply.content.clear()
    return [reply]


def _forged_source(request: Message, reply: Message) -> list[Message]:
    reply.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id ^ 1
    return [reply]


FAULTS: dict[str, tuple[Replies, str]] = {
    "wrong shape": (_each(_wrong_shape), ""),
    "wrong dtype": (_each(_wrong_dtype), ""),
    "NaN": (_each(_nan), ""),
    "oversized": (_each(_oversized), ""),
    "garbage bytes": (_each(_garbage), ""),
    "fields of another type": (_each(_wrong_dtype, arrays=False), ""),
    "garbage fields": (_each(_garbage, arrays=False), ""),
    "no field": (_each(lambda value: None, arrays=False), ""),
    "no array": (_each(lambda value: None), ""),
    "silent": (lambda request, reply: [], "did not answer in time"),
    "twice": (lambda request, reply: [reply, reply], "2 replies to one request"),
    "wrong session": (_set(**{wire.FIELD_SESSION: bytes(range(24))}), "another session"),
    "wrong schema": (_set(**{wire.FIELD_SCHEMA: 99}), "another schema"),
    "another exchange": (_set(**{wire.FIELD_STAGE: "dance"}), "another session or stage"),
    "another record": (_another_record, "no secure-sum record"),
    "empty": (_empty, "no secure-sum record"),
    "under another node's id": (_forged_source, "did not answer in time"),
    "raises": (_error(2), "the ClientApp raised an exception"),
    "process crashed": (_error(8), "the client process crashed"),
    "node lost": (_error(5), "the node is unavailable"),
    "refuses": (_error(int(wire.ErrorCode.OUT_OF_ORDER)), "out of order"),
    "code that nobody knows": (_error(77), "error code 77"),
}


def _check_outcome(federation: Federation, stage: str, log: str, words: str) -> None:
    assert federation.hit > 0
    bad = federation.grid.node_of(BAD)
    lines = [line for line in log.splitlines() if f"node {bad}" in line]
    assert lines and all(f"exchange {stage!r}" in line for line in lines), log
    assert any(words in line for line in lines), log
    assert SECRET not in log and "0.12345" not in log


def _in_session_two(change: Replies, stage: str) -> Callable[[int, str], Replies | None]:
    return lambda session, now: change if (session, now) == (2, stage) else None


def _sums_around(federation: Federation, stage: str) -> None:
    everyone = set(range(CLIENTS))
    assert federation.sum() == everyone
    assert federation.sum() == (everyone if stage in SUMMED else everyone - {BAD})
    assert federation.sum() == everyone  # a fault of one session costs no later one


@pytest.mark.parametrize(("kind", "stage"), CASES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_client_neither_stops_the_run_nor_reaches_the_sum(
    name: str, stage: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, words = FAULTS[name]
    federation = Federation(kind, faulty=_in_session_two(change, stage))
    with caplog.at_level(logging.WARNING, logger="fedpriv.strategies"):
        _sums_around(federation, stage)
    _check_outcome(federation, stage, caplog.text, words)


@pytest.mark.parametrize(("kind", "stage"), CASES)
def test_a_replayed_reply_is_not_counted(stage: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The reply of session 1, sent again in session 2: it was valid once."""
    kept: list[Any] = []

    def replay(request: Message, reply: Message) -> list[Message]:
        return [Message(kept[0], reply_to=request)]

    def keep(request: Message, reply: Message) -> list[Message]:
        kept.append(reply.content)
        return [reply]

    federation = Federation(
        kind,
        faulty=lambda session, now: {1: keep, 2: replay}.get(session) if now == stage else None,
    )
    with caplog.at_level(logging.WARNING, logger="fedpriv.strategies"):
        _sums_around(federation, stage)
    _check_outcome(federation, stage, caplog.text, "another session")


@pytest.mark.parametrize(("kind", "stage"), CASES)
def test_a_late_reply_is_not_counted(stage: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It arrives with the next exchange, which asked something else."""
    federation = Federation(kind)

    def late(request: Message, reply: Message) -> list[Message]:
        federation.grid._late.append(reply)
        return []

    federation.faulty = _in_session_two(late, stage)
    with caplog.at_level(logging.WARNING, logger="fedpriv.strategies"):
        _sums_around(federation, stage)
    bad = federation.grid.node_of(BAD)
    assert f"exchange {stage!r}: node {bad}: did not answer in time" in caplog.text
    assert "node: a reply to no request" in caplog.text or f"node {bad}: a reply to no request" in caplog.text


VALUES = st.one_of(
    st.binary(max_size=80),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.booleans(),
    st.lists(st.integers(-5, 2**63 - 1), max_size=5),
)


def test_training_goes_on_in_two_exchanges() -> None:
    assert _exchanges("train on") == [wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), case=st.sampled_from(CASES))
def test_arbitrary_fields_never_stop_the_run(data: st.DataObject, case: tuple[str, str]) -> None:
    kind, stage = case

    def change(request: Message, reply: Message) -> list[Message]:
        records = [name for name in (wire.RECORD_SECURE_SUM, wire.RECORD_AHEAD) if name in reply.content]
        found = reply.content[data.draw(st.sampled_from(records))]
        assert isinstance(found, ConfigRecord)
        names = data.draw(st.lists(st.sampled_from(sorted(found)), min_size=1, unique=True))
        for name in names:
            value = data.draw(VALUES)
            if value != found[name]:
                found.update({name: value})
        if wire.RECORD_RESULT in reply.content and data.draw(st.booleans()):
            shape = data.draw(st.sampled_from([(), (0,), (CLIENTS,), (CLIENTS, 1), (3, 5)]))
            dtype = data.draw(st.sampled_from(["uint8", "int32", "float32", "bool", "uint64", "complex128"]))
            reply.content[wire.RECORD_RESULT] = ArrayRecord({wire.RESULT_ARRAY: Array(np.ones(shape, dtype))})
        return [reply]

    federation = Federation(kind, faulty=_in_session_two(change, stage))
    everyone = set(range(CLIENTS))
    assert federation.sum() == everyone
    assert everyone - federation.sum() <= {BAD}
    assert federation.sum() == everyone


def test_a_round_that_bad_clients_end_is_named_charged_rightly_and_followed_by_the_next(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Three of six send NaN: fewer than four are left, nothing is unmasked, the charge goes back."""
    from strategy_helpers import open_ledger

    federation = Federation("train")
    ledger = open_ledger(tmp_path / "ledger.jsonl", federation.training.plan)
    federation.training.sums.ledger = ledger
    change = _each(_nan)

    def intercept(client: int, request: Message, reply: Message) -> Iterable[Message]:
        bad = client < 3 and federation.session == 1 and wire.stage_of(request) == wire.STAGE_MASKED_INPUT
        return change(request, reply) if bad else [reply]

    federation.grid.intercept = intercept
    federation.session = 1
    with caplog.at_level(logging.WARNING, logger="fedpriv.strategies"):
        outcome = federation.training.train_round(federation.grid, 1, record(np.zeros(CLIENTS)))
    assert outcome.arrays is None and not outcome.released
    for client in range(3):
        assert f"node {federation.grid.node_of(client)}: the vector" in caplog.text
    assert federation.sum() == set(range(CLIENTS))
    ledger.close()
    assert [entry.status for entry in read_ledger(tmp_path / "ledger.jsonl").entries] == ["void", "committed"]
