"""The client halves of votes and evaluations, alone and in a chain."""

import math

import numpy as np
import pytest
from client_helpers import (
    arrays,
    ask,
    evaluate_record,
    partition,
    payload_of,
    plain_message,
    refusal,
    update_record,
    vote_record,
)
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import wire
from fedpriv.clients import client_level_dp_mod, dp_hype_mod, private_evaluation_mod
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode

VOTE, EVALUATE, UPDATE = wire.PURPOSE_VOTE, wire.PURPOSE_EVALUATE, wire.PURPOSE_UPDATE


def plain_train(msg: Message, context: Context) -> Message:
    """An ordinary function, whose reply is private data in the clear."""
    return Message(RecordDict({"arrays": arrays(4, 7, 1, 1)}), reply_to=msg)


def make_grid(*mods, train=plain_train, nodes: int = 3, **options) -> LocalGrid:  # type: ignore[no-untyped-def]
    app = ClientApp()
    app.train(mods=list(mods))(train)
    return LocalGrid(app, nodes, **options)


def test_a_chain_answers_every_purpose_in_any_order_of_the_first_mods() -> None:
    vote = dp_hype_mod(lambda candidate, context: candidate["x"])
    evaluation = private_evaluation_mod(lambda model, context: (2, 3))

    def train(msg: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": arrays(-1, 0, 0, 0)}), reply_to=msg)

    candidates = '[{"x": 3}, {"x": 1}, {"x": 2}, {"x": 4}]'
    for mods in ([vote, evaluation], [evaluation, vote]):
        for mode in ("protocol", "simulated"):
            grid = make_grid(*mods, client_level_dp_mod, train=train)
            votes = payload_of(wire.RECORD_VOTE, vote_record(candidates=candidates))
            assert ask(grid, votes, VOTE, mode=mode).tolist() == [0, 30, 0, 0]
            counts = payload_of(wire.RECORD_EVALUATE, evaluate_record(), arrays())
            assert ask(grid, counts, EVALUATE, length=2, mode=mode).tolist() == [6, 9]
            update = payload_of(wire.RECORD_UPDATE, update_record(), arrays())
            assert ask(grid, update, UPDATE, mode=mode).tolist() == [3000, 0, 0, 0]


@pytest.mark.parametrize(
    "mod",
    [
        dp_hype_mod(lambda candidate, context: 0.0),
        private_evaluation_mod(lambda model, context: (1, 1)),
    ],
)
@pytest.mark.parametrize("mode", ["protocol", "simulated"])
def test_a_train_functions_reply_never_answers_a_secure_sum(mod, mode: str) -> None:  # type: ignore[no-untyped-def]
    """A chain without client_level_dp_mod: the update's request reaches the function, its reply stays."""
    sent = []

    def intercept(client: int, request: Message, reply: Message) -> list[Message]:
        sent.append(reply)
        return [reply]

    update = payload_of(wire.RECORD_UPDATE, update_record(), arrays())
    assert (
        refusal(make_grid(mod, intercept=intercept), update, UPDATE, mode=mode) == ErrorCode.UNKNOWN_PURPOSE
    )

    def raises(msg: Message, context: Context) -> Message:
        raise ValueError("patient zero")

    code = refusal(make_grid(mod, train=raises, intercept=intercept), update, UPDATE, mode=mode)
    assert code == ErrorCode.UNKNOWN_PURPOSE
    assert len(sent) == 6
    assert all(reply.has_error() and "patient" not in reply.error.reason for reply in sent)


def test_messages_that_are_no_secure_sum_go_to_the_function_as_before() -> None:
    grid = make_grid(dp_hype_mod(lambda candidate, context: 0.0))
    for reply in plain_message(grid, "train"):
        assert reply.content["arrays"]["w"].numpy().tolist() == [4, 7, 1, 1]  # type: ignore[index,union-attr]


@pytest.mark.parametrize(
    "changes",
    [
        {"candidates": None},
        {"candidates": "not json"},
        {"candidates": "[]"},
        {"candidates": "{}"},
        {"candidates": "[1, 2, 3, 4]"},
        {"votes": 0},
        {"votes": 5},
        {"votes": 1.0},
        {"votes": None},
        {"units_per_vote": 0},
        {"units_per_vote": None},
        {"share_std": 3.0},
        {"share_std": float("nan")},
        {"share_std": None},
    ],
)
def test_bad_votes_are_refused_before_anything_is_evaluated(changes: dict) -> None:
    calls = []
    grid = make_grid(dp_hype_mod(lambda candidate, context: calls.append(1)))  # type: ignore[arg-type,func-returns-value]
    payload = payload_of(wire.RECORD_VOTE, vote_record(**changes))
    assert refusal(grid, payload, VOTE) == ErrorCode.BAD_REQUEST
    assert calls == []


def test_a_vote_without_its_record_is_refused() -> None:
    grid = make_grid(dp_hype_mod(lambda candidate, context: 0.0))
    payload = RecordDict({"config": ConfigRecord()})
    assert refusal(grid, payload, VOTE) == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("loss", [math.nan, math.inf, "text", None, [1.0]])
def test_losses_that_are_no_numbers_abstain(loss: object) -> None:
    grid = make_grid(dp_hype_mod(lambda candidate, context: loss))  # type: ignore[arg-type,return-value]
    payload = payload_of(wire.RECORD_VOTE, vote_record())
    assert ask(grid, payload, VOTE).tolist() == [0, 0, 0, 0]


def test_an_abstaining_client_still_adds_its_noise_share() -> None:
    grid = make_grid(dp_hype_mod(lambda candidate, context: math.nan), nodes=1)
    payload = payload_of(wire.RECORD_VOTE, vote_record(share_std=1e11))
    assert np.all(ask(grid, payload, VOTE) != 0)  # chance 2e-11 that one is zero


def test_every_candidate_is_evaluated_once_with_the_clients_context() -> None:
    seen = []

    def evaluate(candidate: dict, context: Context) -> float:
        seen.append((partition(context), candidate["x"]))
        return 0.0

    candidates = '[{"x": 0}, {"x": 1}]'
    payload = payload_of(wire.RECORD_VOTE, vote_record(candidates=candidates))
    ask(make_grid(dp_hype_mod(evaluate)), payload, VOTE, length=2, mode="protocol")
    assert sorted(seen) == [(client, x) for client in range(3) for x in range(2)]


@pytest.mark.parametrize(("share", "accepted"), [(20 * math.sqrt(2), True), (20.0, False)])
def test_the_floor_of_a_vote_is_held_against_its_sensitivity(share: float, accepted: bool) -> None:
    """Two votes of 10 steps each have sensitivity 10 sqrt(2); the floor asks for twice that."""
    grid = make_grid(dp_hype_mod(lambda candidate, context: 0.0), node_config={"min-noise-share": 2.0})
    payload = payload_of(wire.RECORD_VOTE, vote_record(votes=2, share_std=share))
    if accepted:
        assert ask(grid, payload, VOTE).shape == (4,)
    else:
        assert refusal(grid, payload, VOTE) == ErrorCode.NOISE_TOO_SMALL


@pytest.mark.parametrize(
    "changes",
    [
        {"cap": 0},
        {"cap": 2**21},
        {"cap": None},
        {"units_per_example": 0},
        {"round": None},
        {"share_std": None},
    ],
)
def test_bad_evaluations_are_refused(changes: dict) -> None:
    calls = []
    grid = make_grid(private_evaluation_mod(lambda model, context: calls.append(1)))  # type: ignore[arg-type,func-returns-value]
    payload = payload_of(wire.RECORD_EVALUATE, evaluate_record(**changes), arrays())
    assert refusal(grid, payload, EVALUATE, length=2) == ErrorCode.BAD_REQUEST
    assert refusal(grid, payload_of(wire.RECORD_EVALUATE, evaluate_record()), EVALUATE, length=2) == (
        ErrorCode.BAD_REQUEST
    )
    assert calls == []


def test_unexpected_message_types_are_answered_by_an_error() -> None:
    app = ClientApp()
    app.train("vote", mods=[dp_hype_mod(lambda candidate, context: 0.0)])(plain_train)
    content = payload_of(wire.RECORD_VOTE, vote_record())
    content[wire.RECORD_SECURE_SUM] = ConfigRecord({wire.FIELD_PURPOSE: VOTE})
    for reply in plain_message(LocalGrid(app, 2), "train.vote", content):
        assert reply.has_error()
        assert reply.error.code == ErrorCode.WRONG_MESSAGE_TYPE
