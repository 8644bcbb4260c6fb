"""The client half of training: what a train function may do wrong, and what a server may ask wrongly."""

import logging
import warnings

import numpy as np
import pytest
from client_helpers import LENGTH, arrays, ask, partition, payload_of, plain_message, refusal, update_record
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import wire
from fedpriv.clients import client_level_dp_mod
from fedpriv.secure_sum import keys
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode

UPDATE = wire.PURPOSE_UPDATE


def make_grid(train, nodes: int = 3, **options) -> LocalGrid:  # type: ignore[no-untyped-def]
    app = ClientApp()
    app.train(mods=[client_level_dp_mod])(train)
    return LocalGrid(app, nodes, **options)


def moved(msg: Message, *update: float) -> Message:
    model = next(iter(msg.content.array_records.values()))["w"].numpy()
    return Message(RecordDict({"arrays": arrays(*(model - np.array(update)))}), reply_to=msg)


def contribution(train, model: ArrayRecord | None = None, **changes) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Integers of one client, without noise, on a grid of 1000 steps per clip."""
    model = arrays() if model is None else model
    payload = payload_of(wire.RECORD_UPDATE, update_record(**changes), model)
    return ask(make_grid(train, 1), payload, UPDATE)


# -- what a train function returns -----------------------------------------------------------------------------


def test_received_minus_returned_is_clipped_over_all_and_rounded_toward_zero() -> None:
    # .6006 * 1000 is not a grid point
    assert contribution(lambda msg, ctx: moved(msg, 0.3, -0.0004, 0.0016, 0.0)).tolist() == [300, 0, 1, 0]
    assert contribution(lambda msg, ctx: moved(msg, 300.0, 0.0, -400.0, 0.0)).tolist() in (
        [600, 0, -800, 0],
        [599, 0, -800, 0],  # float division just below the grid point
        [600, 0, -799, 0],
        [599, 0, -799, 0],
    )
    assert contribution(lambda msg, ctx: moved(msg, 1e200, 1e200, 0.0, 0.0)).tolist() == [707, 707, 0, 0]


def bad_shape(msg: Message, context: Context) -> Message:
    return Message(RecordDict({"a": ArrayRecord({"w": Array(np.ones((LENGTH, 1)))})}), reply_to=msg)


def bad_name(msg: Message, context: Context) -> Message:
    return Message(RecordDict({"a": ArrayRecord({"v": Array(np.ones(LENGTH))})}), reply_to=msg)


def two_records(msg: Message, context: Context) -> Message:
    return Message(RecordDict({"a": arrays(1, 1, 1, 1), "b": arrays(1, 1, 1, 1)}), reply_to=msg)


def no_arrays(msg: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=msg)


def error_reply(msg: Message, context: Context) -> Message:
    return Message(Error(code=99, reason="patient zero"), reply_to=msg)


def nothing(msg: Message, context: Context) -> None:
    return None


def not_a_number(msg: Message, context: Context) -> Message:
    return moved(msg, np.nan, 1e9, 0.0, 0.0)


def infinite(msg: Message, context: Context) -> Message:
    return moved(msg, np.inf, 0.0, 0.0, 0.0)


def raises(msg: Message, context: Context) -> Message:
    raise RuntimeError("patient zero")


def exits(msg: Message, context: Context) -> Message:
    raise SystemExit("patient zero")


def broken_array(msg: Message, context: Context) -> Message:
    broken = Array("float64", (LENGTH,), "numpy.ndarray", b"patient zero")
    return Message(RecordDict({"a": ArrayRecord({"w": broken})}), reply_to=msg)


BAD = [
    bad_shape,
    bad_name,
    two_records,
    no_arrays,
    error_reply,
    nothing,
    not_a_number,
    infinite,
    raises,
    exits,
    broken_array,
]


@pytest.mark.parametrize("train", BAD)
def test_a_contribution_that_fails_is_zero_and_said_at_the_silo_without_data(train, caplog) -> None:  # type: ignore[no-untyped-def]
    with caplog.at_level(logging.DEBUG):
        assert contribution(train).tolist() == [0] * LENGTH
    assert "contributes zeros" in caplog.text or "not finite" in caplog.text
    assert "patient" not in caplog.text


@pytest.mark.parametrize("train", BAD)
def test_a_contribution_that_fails_is_still_noised(train) -> None:  # type: ignore[no-untyped-def]
    noised = contribution(train, share_std=1e11)
    assert np.all(noised != 0)  # chance 2e-11 that one is zero


def test_floating_point_exceptions_of_the_function_do_not_become_a_drop_out() -> None:
    """A function that turns underflow into an exception must not make small updates drop out."""
    before = np.geterr()

    def train(msg: Message, context: Context) -> Message:
        np.seterr(all="raise")
        return moved(msg, 1e-320, 300.0, 0.0, 0.0)

    def huge(msg: Message, context: Context) -> Message:
        np.seterr(all="raise")
        warnings.simplefilter("error")
        found = ArrayRecord({"w": Array(np.array([-1.7e308, 0.0, 0.0, 0.0]))})
        return Message(RecordDict({"a": found}), reply_to=msg)

    try:
        assert contribution(train).tolist() in ([0, 1000, 0, 0], [0, 999, 0, 0])
        with warnings.catch_warnings():
            assert contribution(huge, arrays(1.7e308, 0.0, 0.0, 0.0)).tolist() == [0] * LENGTH
    finally:
        np.seterr(**before)


def test_a_model_that_is_not_finite_contributes_zero() -> None:
    assert (
        contribution(lambda msg, ctx: moved(msg, 1.0, 0.0, 0.0, 0.0), arrays(np.nan, 0, 0, 0)).tolist()
        == [0] * 4
    )


def test_the_function_may_change_what_it_received() -> None:
    def train(msg: Message, context: Context) -> Message:
        reply = moved(msg, 0.5, 0.0, 0.0, 0.0)
        msg.content.clear()
        return reply

    assert contribution(train).tolist() == [500, 0, 0, 0]


def test_clients_keep_a_state_of_their_own() -> None:
    def train(msg: Message, context: Context) -> Message:
        count = int(context.state["mine"]["count"]) + 1 if "mine" in context.state else 1  # type: ignore[arg-type,call-overload]
        context.state["mine"] = ConfigRecord({"count": count})
        return moved(msg, 0.001 * count + 1e-6, 0.0, 0.0, 0.0)

    grid = make_grid(train)
    payload = payload_of(wire.RECORD_UPDATE, update_record(), arrays())
    totals = [ask(grid, payload, UPDATE, mode="protocol")[0] for _ in range(3)]
    assert totals == [3, 6, 9]


# -- the coin --------------------------------------------------------------------------------------------------


def test_rates_zero_and_one_need_no_coin() -> None:
    calls = []

    def train(msg: Message, context: Context) -> Message:
        calls.append(1)
        return moved(msg, 1.0, 0.0, 0.0, 0.0)

    assert contribution(train, sampling_rate=0.0, idle_trains=False).tolist() == [0] * LENGTH
    assert calls == []
    assert contribution(train, sampling_rate=0.0, idle_trains=True).tolist() == [0] * LENGTH
    assert len(calls) == 1
    assert contribution(train, sampling_rate=1.0).tolist() == [1000, 0, 0, 0]


def test_the_coin_is_tossed_anew_in_every_round_and_never_sent() -> None:
    grid = make_grid(lambda msg, ctx: moved(msg, 1.0, 0.0, 0.0, 0.0), 1)
    payload = payload_of(wire.RECORD_UPDATE, update_record(sampling_rate=0.5), arrays())
    took_part = [ask(grid, payload, UPDATE)[0] // 1000 for _ in range(200)]
    assert set(took_part) == {0, 1}
    assert 55 < sum(took_part) < 145  # binomial(200, 1/2), chance 1e-10


# -- what a server may ask -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"clipping_norm": 0.0},
        {"clipping_norm": float("nan")},
        {"clipping_norm": float("inf")},
        {"clipping_norm": "1.0"},
        {"clipping_norm": None},
        {"clip_units": 0},
        {"clip_units": 2**30 + 1},
        {"clip_units": 10.0},
        {"clip_units": True},
        {"sampling_rate": -0.1},
        {"sampling_rate": 1.5},
        {"sampling_rate": float("nan")},
        {"sampling_rate": None},
        {"share_std": -1.0},
        {"share_std": 15.9},
        {"share_std": float("nan")},
        {"share_std": 2.0**53},
        {"share_std": None},
        {"round": -1},
        {"round": None},
    ],
)
def test_bad_parameters_are_refused_before_the_function_runs(changes: dict) -> None:
    calls = []
    grid = make_grid(lambda msg, ctx: calls.append(1))
    payload = payload_of(wire.RECORD_UPDATE, update_record(**changes), arrays())
    assert refusal(grid, payload, UPDATE) == ErrorCode.BAD_REQUEST
    assert calls == []


def test_missing_records_are_refused() -> None:
    grid = make_grid(lambda msg, ctx: msg)
    assert refusal(grid, RecordDict({"arrays": arrays()}), UPDATE) == ErrorCode.BAD_REQUEST
    payload = payload_of(wire.RECORD_UPDATE, update_record())
    assert refusal(grid, payload, UPDATE) == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(("share", "accepted"), [(1000.0, True), (999.0, False), (0.0, False)])
def test_a_clients_floor_on_its_noise_share(share: float, accepted: bool) -> None:
    """min-noise-share 1: a share's deviation is at least the clip."""
    grid = make_grid(lambda msg, ctx: moved(msg, 0, 0, 0, 0), node_config={"min-noise-share": 1.0})
    payload = payload_of(wire.RECORD_UPDATE, update_record(share_std=share), arrays())
    if accepted:
        assert ask(grid, payload, UPDATE).shape == (LENGTH,)
    else:
        assert refusal(grid, payload, UPDATE) == ErrorCode.NOISE_TOO_SMALL


@pytest.mark.parametrize("floor", ["1", True, -1.0, float("nan"), float("inf")])
def test_a_floor_that_is_no_number_refuses_everything(floor: object) -> None:
    grid = make_grid(lambda msg, ctx: msg, node_config={"min-noise-share": floor})
    payload = payload_of(wire.RECORD_UPDATE, update_record(share_std=1e6), arrays())
    assert refusal(grid, payload, UPDATE) == ErrorCode.MISCONFIGURED


def test_seeded_noise_is_refused_outside_a_simulation() -> None:
    payload = payload_of(wire.RECORD_UPDATE, update_record(noise_seed="7", share_std=1e3), arrays())
    train = lambda msg, ctx: moved(msg, 0, 0, 0, 0)  # noqa: E731
    real = make_grid(train, simulation=False)
    assert refusal(real, payload, UPDATE, mode="protocol") == ErrorCode.SEED_REFUSED
    first, again = (ask(make_grid(train), payload, UPDATE, mode="protocol") for _ in range(2))
    assert np.array_equal(first, again)
    secure = payload_of(wire.RECORD_UPDATE, update_record(share_std=1e3), arrays())
    assert not np.array_equal(*(ask(real, secure, UPDATE, mode="protocol") for _ in range(2)))


def test_seeded_noise_differs_between_clients_and_rounds() -> None:
    drawn = []

    def intercept(client: int, request: Message, reply: Message) -> list[Message]:
        drawn.append(reply.content[wire.RECORD_RESULT][wire.RESULT_ARRAY].numpy().tobytes())  # type: ignore[index,union-attr]
        return [reply]

    grid = make_grid(lambda msg, ctx: moved(msg, 0, 0, 0, 0), intercept=intercept)
    for server_round in (1, 2):
        values = update_record(noise_seed="7", share_std=1e9, round=server_round)
        ask(grid, payload_of(wire.RECORD_UPDATE, values, arrays()), UPDATE)
    assert len(set(drawn)) == len(drawn) == 6


@pytest.mark.parametrize("purpose", [wire.PURPOSE_VOTE, wire.PURPOSE_EVALUATE, "something-else"])
@pytest.mark.parametrize("mode", ["simulated", "protocol"])
def test_messages_of_another_purpose_never_reach_the_function(purpose: str, mode: str) -> None:
    calls = []
    grid = make_grid(lambda msg, ctx: calls.append(1))
    payload = payload_of(wire.RECORD_UPDATE, update_record(), arrays())
    assert refusal(grid, payload, purpose, mode=mode) == ErrorCode.UNKNOWN_PURPOSE
    assert calls == []


def test_a_plain_message_is_answered_by_an_error() -> None:
    calls = []
    grid = make_grid(lambda msg, ctx: calls.append(1))
    for reply in plain_message(grid, "train"):
        assert reply.has_error()
        assert reply.error.code == ErrorCode.NO_RECORD
    assert calls == []


def test_unexpected_message_types_are_answered_by_an_error() -> None:
    """Elsewhere a secure sum under train.vote or query is answered in the clear."""
    calls = []

    def function(msg: Message, context: Context) -> Message:
        calls.append(1)
        return Message(RecordDict({"arrays": arrays(1, 2, 3, 4)}), reply_to=msg)

    app = ClientApp(mods=[client_level_dp_mod])
    app.train("vote")(function)
    app.evaluate()(function)
    app.query("sum")(function)
    content = RecordDict(
        {
            wire.RECORD_SECURE_SUM: ConfigRecord(
                {
                    wire.FIELD_SCHEMA: wire.SCHEMA,
                    wire.FIELD_STAGE: wire.STAGE_SIMULATED,
                    wire.FIELD_SESSION: keys.new_session_id(),
                    wire.FIELD_PURPOSE: UPDATE,
                    wire.FIELD_LENGTH: LENGTH,
                    wire.FIELD_MODULUS_BITS: 32,
                    wire.FIELD_MAGNITUDE_LIMIT: 0,
                }
            ),
            wire.RECORD_UPDATE: ConfigRecord(update_record()),
            "arrays": arrays(),
        }
    )
    grid = LocalGrid(app, 2)
    for message_type in ("train.vote", "evaluate", "query.sum"):
        for reply in plain_message(grid, message_type, content):
            assert reply.has_error()
            assert reply.error.code == ErrorCode.WRONG_MESSAGE_TYPE
    assert calls == []


def test_batch_norm_and_integer_arrays_are_refused_by_the_client_too() -> None:
    for name, value in (("bn.running_var", np.ones(LENGTH)), ("steps", np.ones(LENGTH, dtype=np.int64))):
        calls = []
        grid = make_grid(lambda msg, ctx, seen=calls: seen.append(1))
        payload = payload_of(wire.RECORD_UPDATE, update_record(), ArrayRecord({name: Array(value)}))
        assert refusal(grid, payload, UPDATE) == ErrorCode.PRODUCE_FAILED
        assert calls == []


def test_each_client_trains_from_its_own_place() -> None:
    seen = []

    def train(msg: Message, context: Context) -> Message:
        seen.append((partition(context), msg.metadata.dst_node_id == context.node_id))
        return moved(msg, 0, 0, 0, 0)

    ask(make_grid(train), payload_of(wire.RECORD_UPDATE, update_record(), arrays()), UPDATE)
    assert sorted(seen) == [(0, True), (1, True), (2, True)]
