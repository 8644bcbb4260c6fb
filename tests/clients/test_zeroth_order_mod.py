"""The client half of zeroth-order fine-tuning: what an objective may do wrong, and what a server may ask wrongly."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from client_helpers import ask, payload_of, plain_message, refusal
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import wire
from fedpriv.clients import zeroth_order_mod
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.model_identity import model_identity
from fedpriv.mechanisms.zeroth_order import PublicStep, replay
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode

PURPOSE = wire.PURPOSE_ZEROTH_ORDER
D, K, SEED = 6, 2, bytes(range(16))
START = {"a": np.arange(4, dtype=np.float32), "b": np.full((1, 2), 0.5, dtype=np.float32)}
UNITS = 10_000


class Slopes:
    """Losses <s_i, w> of n records; counts what it is asked."""

    def __init__(self, arrays: dict[str, np.ndarray], slopes: np.ndarray) -> None:
        self.parameters = [torch.from_numpy(array) for array in arrays.values()]
        self.slopes, self.num_records, self.asked = slopes, len(slopes), []  # type: ignore[var-annotated]

    def losses(self, records: np.ndarray | None = None) -> np.ndarray:
        self.asked.append(records)
        w = torch.cat([p.reshape(-1) for p in self.parameters]).double().numpy()
        return (self.slopes if records is None else self.slopes[records]) @ w


def directions() -> Directions:
    return Directions(SEED, D, K)


def request(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        wire.ZEROTH_ORDER_SEED: SEED,
        wire.ZEROTH_ORDER_KIND: "orthonormal",
        wire.ZEROTH_ORDER_DIRECTIONS: K,
        wire.ZEROTH_ORDER_FINGERPRINT: directions().fingerprint(),
        wire.ZEROTH_ORDER_NORMS: [],
        wire.ZEROTH_ORDER_SMOOTHING: 0.25,
        wire.ZEROTH_ORDER_CLIP: 1.0,
        wire.ZEROTH_ORDER_BATCH: 0,
        wire.UPDATE_CLIP_UNITS: UNITS,
        wire.UPDATE_SAMPLING_RATE: 1.0,
        wire.UPDATE_IDLE_TRAINS: True,
        wire.UPDATE_ROUND: 1,
        wire.NOISE_SHARE_STD: 0.0,
        wire.NOISE_SEED: "",
    }
    return _changed(values, changes)


def model_record(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        wire.MODEL_ID: model_identity(START),
        wire.MODEL_KEEP: True,
        wire.MODEL_HISTORY: bytes(16),
        wire.MODEL_POSITION: 0,
        wire.MODEL_SEEDS: b"",
        wire.MODEL_COEFFICIENTS: [],
        wire.MODEL_NORMS: [],
        wire.ZEROTH_ORDER_KIND: "orthonormal",
    }
    return _changed(values, changes)


def _changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    values = {**values, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return {key: value for key, value in values.items() if value is not None}


def payload(
    asked: dict[str, Any], model: dict[str, Any], arrays: dict[str, np.ndarray] | None = START
) -> RecordDict:
    record = None if arrays is None else ArrayRecord({n: Array(a) for n, a in arrays.items()})
    content = payload_of(wire.RECORD_ZEROTH_ORDER, asked, record)
    content[wire.RECORD_MODEL] = ConfigRecord(model)
    return content


def make_grid(objective: Any, nodes: int = 1, initial: Any = None, **options: Any) -> LocalGrid:
    app = ClientApp()

    @app.train(mods=[zeroth_order_mod(objective, initial)])
    def train(msg: Message, context: Context) -> Message:
        return Message(RecordDict({"own": ConfigRecord({"reached": True})}), reply_to=msg)

    return LocalGrid(app, nodes, **options)


def contribution(objective: Any, **changes: Any) -> np.ndarray:
    """Integers of one client without noise; the grid has UNITS steps per sqrt(K) clips."""
    return ask(make_grid(objective), payload(request(**changes), model_record()), PURPOSE, K)


def linear(slopes: Any) -> Any:
    return lambda arrays, context: Slopes(arrays, np.atleast_2d(np.asarray(slopes, dtype=np.float64)))


def frame() -> np.ndarray:
    return np.stack([directions().direction(k) for k in range(K)]).astype(np.float64)


# -- what an objective returns ---------------------------------------------------------------------------------


def test_mean_quotients_are_clipped_and_rounded_toward_zero() -> None:
    slopes = np.random.default_rng(0).normal(size=(5, D)) / 4
    exact = frame() @ slopes.mean(axis=0) / np.sqrt(K) * UNITS
    found = contribution(linear(slopes))
    assert np.all(np.abs(found) <= np.abs(exact) + 2)  # float32 weights move a quotient by a few steps
    assert np.allclose(found, exact, atol=4)
    huge = contribution(linear(1e6 * slopes))
    limit = UNITS / np.sqrt(K)
    assert np.array_equal(np.sign(huge), np.sign(exact))
    assert np.all(np.abs(huge) <= limit)
    assert np.all(np.abs(huge) > limit - 2)


def test_a_client_counts_once_however_many_records_it_has() -> None:
    slope = np.random.default_rng(1).normal(size=D) / 4
    once, often = contribution(linear(slope)), contribution(linear(np.tile(slope, (1000, 1))))
    assert np.abs(once - often).max() <= 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_losses_that_are_not_finite_are_zero(value: float) -> None:
    class Broken(Slopes):
        def losses(self, records: np.ndarray | None = None) -> np.ndarray:
            return np.full(self.num_records, value)

    assert not contribution(lambda arrays, context: Broken(arrays, np.ones((3, D)))).any()


def fails(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
    raise ValueError("patient zero")


def leaves(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
    raise SystemExit("patient zero")


def no_records(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
    return Slopes(arrays, np.zeros((0, D)))


def another_model(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
    return Slopes({"a": arrays["a"]}, np.ones((3, 4)))


def wrong_losses(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
    found = Slopes(arrays, np.ones((3, D)))
    found.losses = lambda records=None: "patient zero"  # type: ignore[assignment,method-assign,return-value]
    return found


def nothing(arrays: dict[str, np.ndarray], context: Context) -> None:
    return None


@pytest.mark.parametrize("objective", [fails, leaves, no_records, another_model, wrong_losses, nothing])
def test_a_failing_objective_contributes_zeros(objective: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert not contribution(objective).any()
    assert "contributes zeros" in caplog.text
    assert "patient zero" not in caplog.text


def test_a_failing_objective_still_sends_noise() -> None:
    grid, asked = make_grid(fails), payload(request(share_std=1000.0), model_record())
    noise = np.array([ask(grid, asked, PURPOSE, K) for _ in range(40)]).ravel()
    assert 0.6 < np.std(noise) / 1000.0 < 1.6
    assert abs(np.mean(noise)) < 700


# -- batches ---------------------------------------------------------------------------------------------------


def test_batches_follow_the_public_seed_and_both_points_see_the_same_one() -> None:
    made: list[Slopes] = []

    def objective(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
        made.append(Slopes(arrays, np.ones((50, D))))
        return made[-1]

    for _ in range(2):
        contribution(objective, batch_size=8)
    other = bytes(16)
    fingerprint = Directions(other, D, K).fingerprint()
    contribution(objective, batch_size=8, direction_seed=other, fingerprint=fingerprint)
    batches = [[tuple(records) for records in objective.asked] for objective in made]
    assert all(len(set(batch)) == 1 and len(set(batch[0])) == 8 for batch in batches)
    assert len(batches[0]) == 2 * K
    assert batches[0] == batches[1] != batches[2]
    contribution(objective, batch_size=50)
    assert made[-1].asked == [None] * 2 * K


# -- taking part -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idle_trains", "calls"), [(True, 1), (False, 0)])
def test_an_idle_client_sends_zeros_and_works_all_the_same_if_told_to(idle_trains: bool, calls: int) -> None:
    made = []

    def objective(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
        made.append(1)
        return Slopes(arrays, np.ones((3, D)))

    assert not contribution(objective, sampling_rate=0.0, idle_trains=idle_trains).any()
    assert len(made) == calls


def test_each_client_tosses_its_own_coin() -> None:
    grid = make_grid(linear(np.ones((2, D))), nodes=60)
    total = ask(grid, payload(request(sampling_rate=0.5), model_record()), PURPOSE, K)
    one = ask(make_grid(linear(np.ones((2, D)))), payload(request(), model_record()), PURPOSE, K)
    took_part = total[0] / one[0]
    assert took_part == int(took_part)
    assert 8 < took_part < 52  # chance 1e-8 outside


def test_other_purposes_and_ordinary_messages_are_passed_on() -> None:
    grid = make_grid(fails)
    assert plain_message(grid, "train")[0].content["own"]["reached"] is True
    asked = payload(request(), model_record())
    assert refusal(grid, asked, wire.PURPOSE_UPDATE, length=K) == ErrorCode.UNKNOWN_PURPOSE


# -- what a server may ask wrongly -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"direction_seed": None},
        {"direction_seed": b"short"},
        {"direction_seed": "0" * 16},
        {"direction_kind": "gaussian"},
        {"direction_kind": None},
        {"directions": 0},
        {"directions": True},
        {"directions": D + 1},
        {"norms": [1.0, 1.0]},
        {"norms": ["1"]},
        {"norms": 1.0},
        {"smoothing": 0.0},
        {"smoothing": float("nan")},
        {"clip": 0.0},
        {"clip": float("inf")},
        {"batch_size": -1},
        {"batch_size": 1.5},
        {"clip_units": 0},
        {"sampling_rate": 1.5},
        {"round": -1},
        {"share_std": -1.0},
        {"share_std": 1.0},
    ],
)
def test_a_bad_request_is_refused_before_the_objective_is_built(changes: dict[str, Any]) -> None:
    def never(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
        raise AssertionError("built")

    asked = payload(request(**changes), model_record())
    assert refusal(make_grid(never), asked, PURPOSE, length=K) == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_id": None}, ErrorCode.BAD_REQUEST),
        ({"model_id": bytes(16)}, ErrorCode.MODEL_UNKNOWN),
        ({"history": b""}, ErrorCode.BAD_REQUEST),
        ({"position": -1}, ErrorCode.BAD_REQUEST),
        ({"step_seeds": b"17 bytes, not 16."}, ErrorCode.BAD_REQUEST),
        ({"step_seeds": SEED}, ErrorCode.BAD_REQUEST),
        ({"step_seeds": SEED, "step_coefficients": [float("nan")]}, ErrorCode.BAD_REQUEST),
        ({"step_seeds": 2 * SEED, "step_coefficients": [1.0, 2.0, 3.0]}, ErrorCode.BAD_REQUEST),
        ({"step_coefficients": [1.0]}, ErrorCode.BAD_REQUEST),
        ({"step_norms": [1.0]}, ErrorCode.BAD_REQUEST),
        ({"direction_kind": "gaussian"}, ErrorCode.BAD_REQUEST),
    ],
)
def test_a_bad_model_record_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    asked = payload(request(), model_record(**changes))
    assert refusal(make_grid(fails), asked, PURPOSE, length=K) == code


def test_missing_records_are_refused() -> None:
    grid = make_grid(fails)
    content = payload(request(), model_record())
    del content[wire.RECORD_MODEL]
    assert refusal(grid, content, PURPOSE, length=K) == ErrorCode.BAD_REQUEST
    content = payload(request(), model_record())
    del content[wire.RECORD_ZEROTH_ORDER]
    assert refusal(grid, content, PURPOSE, length=K) == ErrorCode.BAD_REQUEST


def test_another_expansion_of_the_seed_is_noticed() -> None:
    asked = payload(request(fingerprint=bytes(8)), model_record())
    assert refusal(make_grid(fails), asked, PURPOSE, length=K) == ErrorCode.DIRECTIONS_DIFFER


def test_the_floor_of_the_silo_and_seeds_outside_a_simulation() -> None:
    grid = make_grid(fails, node_config={"min-noise-share": 0.5})
    little = payload(request(share_std=0.4 * UNITS), model_record())
    assert refusal(grid, little, PURPOSE, length=K) == ErrorCode.NOISE_TOO_SMALL
    assert ask(grid, payload(request(share_std=0.6 * UNITS), model_record()), PURPOSE, K).any()
    real = make_grid(fails, nodes=3, simulation=False)
    seeded = payload(request(share_std=100.0, noise_seed="7"), model_record())
    assert refusal(real, seeded, PURPOSE, length=K, mode="protocol") == ErrorCode.SEED_REFUSED


# -- the model -------------------------------------------------------------------------------------------------


def step(number: int) -> PublicStep:
    return PublicStep(number.to_bytes(16, "little"), "orthonormal", (0.125 * number, -0.25))


def steps_record(first: int, last: int, position: int, **changes: Any) -> dict[str, Any]:
    """The record by which a client rebuilds model ``last`` from model ``position`` of the history 1, 2, ..."""
    taken = [step(number) for number in range(first, last + 1)]
    reached = replay(START, [step(number) for number in range(1, last + 1)])
    return model_record(
        **{
            "model_id": model_identity(reached),
            "position": position,
            "step_seeds": b"".join(s.seed for s in taken),
            "step_coefficients": [c for s in taken for c in s.coefficients],
            **changes,
        }
    )


def test_a_model_is_rebuilt_from_the_kept_one_whatever_the_server_has_missed() -> None:
    seen: list[dict[str, np.ndarray]] = []

    def objective(arrays: dict[str, np.ndarray], context: Context) -> Slopes:
        seen.append({name: array.copy() for name, array in arrays.items()})
        return Slopes(arrays, np.ones((2, D)))

    grid = make_grid(objective)
    ask(grid, payload(request(), model_record()), PURPOSE, K)
    ask(grid, payload(request(), steps_record(1, 2, 0), None), PURPOSE, K)
    # the server thinks that the client is still at the initial model
    ask(grid, payload(request(), steps_record(1, 3, 0), None), PURPOSE, K)
    for arrays, last in zip(seen, (0, 2, 3), strict=True):
        expected = replay(START, [step(number) for number in range(1, last + 1)])
        assert all(np.array_equal(arrays[name], expected[name]) for name in START)
        assert all(arrays[name].dtype == expected[name].dtype for name in START)


def test_what_a_client_cannot_rebuild_it_refuses_and_forgets() -> None:
    grid = make_grid(linear(np.ones((2, D))))
    unknown = payload(request(), steps_record(1, 1, 0), None)
    assert refusal(grid, unknown, PURPOSE, length=K) == ErrorCode.MODEL_UNKNOWN
    ask(grid, payload(request(), model_record()), PURPOSE, K)
    other = payload(request(), steps_record(1, 1, 0, history=bytes(15) + b"x"), None)
    assert refusal(grid, other, PURPOSE, length=K) == ErrorCode.MODEL_UNKNOWN
    later = payload(request(), steps_record(2, 2, 1), None)
    assert refusal(grid, later, PURPOSE, length=K) == ErrorCode.MODEL_UNKNOWN
    wrong = payload(request(), steps_record(1, 1, 0, step_coefficients=[0.5, 0.5]), None)
    assert refusal(grid, wrong, PURPOSE, length=K) == ErrorCode.MODEL_UNKNOWN
    again = payload(request(), steps_record(1, 1, 0), None)
    assert refusal(grid, again, PURPOSE, length=K) == ErrorCode.MODEL_UNKNOWN  # nothing is kept any more


def test_a_model_is_kept_only_where_the_server_says_so() -> None:
    grid = make_grid(linear(np.ones((2, D))))
    ask(grid, payload(request(), model_record(keep=False)), PURPOSE, K)
    context = next(iter(grid.contexts.values()))
    assert wire.STATE_MODEL not in context.state
    ask(grid, payload(request(), model_record()), PURPOSE, K)
    assert wire.STATE_MODEL in context.state
