"""Record-level training end to end: what is averaged, what silos charge, when they stop, what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from scipy import stats
from silos import DIMENSION, Silos, make_plan, make_strategy, model, open_ledger, vector

from fedpriv import wire
from fedpriv.accounting import Accountant, InvalidArgument
from fedpriv.ledger import Budget, BudgetExceeded, read_ledger
from fedpriv.wire import ErrorCode

FLAKE = 1e-9
QUIET = {"noise_multiplier": 1e-3, "sampling_rate": 1.0, "clipping_norm": 100.0}


def epsilon_of(path: Path, view: Any = "server") -> float:
    return read_ledger(path).epsilon(view, 1e-5).epsilon


def planned_epsilon(plan: Any, rounds: int) -> float:
    event = plan.events()["server"]
    return Accountant("add_or_remove", "record").compose(event, rounds).epsilon(1e-5).epsilon


@pytest.mark.parametrize("mode", ["simulated", "protocol"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_average_of_the_silos_models(tmp_path: Path, mode: str, weighted: bool) -> None:
    """Points at 1, 2, 3; half the way twice from 0: models .75, 1.5, 2.25, for 50, 100, 150 records."""
    silos = Silos(tmp_path)
    strategy = make_strategy(make_plan(**QUIET, weighted=weighted), mode=mode)
    outcome = strategy.train_round(silos.grid, 1, model())
    expected = (0.75 * 50 + 1.5 * 100 + 2.25 * 150) / 300 if weighted else 1.5
    assert vector(outcome.arrays) == pytest.approx(expected, abs=0.05)
    assert (outcome.survivors, outcome.trained) == (3, 3)


def test_the_released_average_carries_the_noise_that_is_charged(tmp_path: Path) -> None:
    """No signal: every coordinate is the mean of three independent noises of known variance."""
    silos = Silos(tmp_path, records=lambda silo: np.zeros((40, 300)))
    plan = make_plan(length=300, noise_multiplier=2.0, sampling_rate=0.25, local_steps=1)
    start = ArrayRecord({"w": Array(np.zeros(300))})
    outcome = make_strategy(plan, learning_rate=0.1).train_round(silos.grid, 1, start)
    std = 0.1 * 2.0 / (0.25 * 40) / np.sqrt(3)
    square = float(np.sum((vector(outcome.arrays) / std) ** 2))
    assert stats.chi2.ppf(FLAKE, 300) < square < stats.chi2.isf(FLAKE, 300)


def test_a_record_cannot_pull_further_than_its_clip(tmp_path: Path) -> None:
    """The same silo with one record far away: the model moves by at most rate C / (q n) per step."""
    plan = make_plan(noise_multiplier=1e-3, sampling_rate=1.0, local_steps=1, num_clients=2, radius=1e3)

    def one_round(last: float, name: str) -> np.ndarray:
        points = np.zeros((20, DIMENSION))
        points[-1, 0] = last
        silos = Silos(tmp_path / name, records=lambda silo: points, num_silos=2)
        return vector(make_strategy(plan, learning_rate=1.0).train_round(silos.grid, 1, model()).arrays)

    moved = one_round(1e9, "far") - one_round(0.0, "near")
    assert np.linalg.norm(moved) == pytest.approx(1 / 20, abs=1e-3)


def test_server_and_every_silo_charge_the_same_steps(tmp_path: Path) -> None:
    silos, plan = Silos(tmp_path), make_plan()
    with open_ledger(tmp_path / "server.jsonl") as ledger:
        strategy, arrays = make_strategy(plan, ledger), model()
        for number in (1, 2, 3):
            arrays = strategy.train_round(silos.grid, number, arrays).arrays or arrays
    for view in ("server", "participants", "release"):
        assert epsilon_of(tmp_path / "server.jsonl", view) == planned_epsilon(plan, 3)
        assert {epsilon_of(silos.account(silo), view) for silo in range(3)} == {planned_epsilon(plan, 3)}
    assert read_ledger(silos.account(0)).entries[0].stage == "train"


def test_a_silo_that_drops_out_has_paid_and_an_aborted_round_costs_the_server_nothing(tmp_path: Path) -> None:
    lost = lambda silo, msg: "silent-after" if silo == 2 else None  # noqa: E731
    silos = Silos(tmp_path, drop=lambda silo, msg: lost(silo, msg))
    plan = make_plan(min_survivors=3)
    with open_ledger(tmp_path / "server.jsonl") as ledger:
        outcome = make_strategy(plan, ledger).train_round(silos.grid, 1, model())
    assert outcome.arrays is None and not outcome.released
    assert epsilon_of(tmp_path / "server.jsonl") == 0
    assert epsilon_of(silos.account(2)) == planned_epsilon(plan, 1)


def test_drop_outs_leave_the_others_average(tmp_path: Path) -> None:
    silos = Silos(tmp_path, drop=lambda silo, msg: "error" if silo == 2 else None)
    outcome = make_strategy(make_plan(**QUIET)).train_round(silos.grid, 1, model())
    assert vector(outcome.arrays) == pytest.approx(1.125, abs=0.05)
    assert outcome.survivors == 2


def test_a_silo_without_budget_answers_without_touching_its_records(tmp_path: Path) -> None:
    plan = make_plan(**(QUIET | {"noise_multiplier": 50.0, "clipping_norm": 1.0}))
    limit = planned_epsilon(plan, 1) * 1.01
    silos = Silos(
        tmp_path, node_config=lambda silo: {"max-epsilon": limit, "delta": 1e-5} if silo == 0 else {}
    )
    strategy = make_strategy(plan, mode="protocol")
    first = strategy.train_round(silos.grid, 1, model())
    second = strategy.train_round(silos.grid, 2, model())
    assert (first.trained, second.trained, second.out_of_budget) == (3, 2, 1)
    assert silos.touched == [1, 2, 2]
    assert epsilon_of(silos.account(0)) <= limit < epsilon_of(silos.account(1))


def test_the_runs_own_limit_stops_silos_and_server_at_the_same_round(tmp_path: Path) -> None:
    plan = make_plan(sampling_rate=1.0)
    limit = planned_epsilon(plan, 2) * 1.0001
    silos = Silos(tmp_path)
    budget = Budget(limit, 1e-5, "server")
    with open_ledger(tmp_path / "server.jsonl", limit) as ledger:
        strategy = make_strategy(plan, ledger, budget=budget)
        assert [strategy.train_round(silos.grid, n, model()).trained for n in (1, 2)] == [3, 3]
        with pytest.raises(BudgetExceeded):
            strategy.train_round(silos.grid, 3, model())
    # a server without a ledger asks on: the silos hold the limit themselves
    silent = make_strategy(plan, None, budget=budget)
    assert silent.train_round(silos.grid, 3, model(0.5)).out_of_budget == 3
    assert silos.touched == [2, 2, 2]


def test_when_no_silo_trains_the_model_stays_and_the_run_stops(tmp_path: Path) -> None:
    silos = Silos(tmp_path, node_config=lambda silo: {"max-epsilon": 1e-6, "delta": 1e-5})
    strategy = make_strategy(make_plan(sampling_rate=1.0))
    outcome = strategy.train_round(silos.grid, 1, model(0.5))
    assert np.array_equal(vector(outcome.arrays), vector(model(0.5)))
    assert (outcome.trained, outcome.out_of_budget) == (0, 3)
    with pytest.raises(BudgetExceeded, match="3 have no budget left"):
        strategy.train_round(silos.grid, 2, model(0.5))


def unusable(silo: int) -> np.ndarray:
    if silo == 1:
        raise FileNotFoundError("secret-name.csv")
    return np.full((0 if silo == 2 else 50, DIMENSION), 1.0)


def test_silos_without_usable_data_abstain_and_pay_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silos = Silos(tmp_path, records=unusable)
    outcome = make_strategy(make_plan(**QUIET)).train_round(silos.grid, 1, model())
    assert (outcome.trained, outcome.without_data) == (1, 2)
    assert vector(outcome.arrays) == pytest.approx(0.75, abs=0.05)
    assert epsilon_of(silos.account(1)) == epsilon_of(silos.account(2)) == 0
    assert "this silo abstains" in caplog.text and "secret-name" not in caplog.text


def test_an_account_that_cannot_be_written_means_no_training(tmp_path: Path) -> None:
    silos = Silos(tmp_path)
    silos.account(1).parent.mkdir(parents=True)
    silos.account(1).write_text("something else\n")
    outcome = make_strategy(make_plan()).train_round(silos.grid, 1, model())
    assert (outcome.trained, outcome.out_of_budget) == (2, 1)
    assert silos.touched == [1, 0, 1]
    assert silos.account(1).read_text() == "something else\n"


def test_the_check_before_the_run_names_sizes_and_refusals(tmp_path: Path) -> None:
    silos = Silos(
        tmp_path,
        records=unusable,
        node_config=lambda silo: {"min-noise-multiplier": 5.0} if silo == 3 else {},
        num_silos=5,
        drop=lambda silo, msg: "error" if silo == 4 else None,
    )
    found = make_strategy(make_plan(num_clients=5)).check_silos(silos.grid, model())
    node = silos.grid.node_of
    assert found.records == {node(0): 50}
    assert found.refused == {
        node(1): ErrorCode.SILO_NO_DATA,
        node(2): ErrorCode.SILO_NO_DATA,
        node(3): ErrorCode.SILO_NOISE_TOO_SMALL,
    }
    assert found.silent == (node(4),)
    # a check costs nothing
    assert epsilon_of(silos.account(0)) == 0


def test_a_ball_around_the_initial_model(tmp_path: Path) -> None:
    silos = Silos(tmp_path)
    plan = make_plan(**QUIET, radius=0.5)
    outcome = make_strategy(plan, center=model(5.0)).train_round(silos.grid, 1, model(5.0))
    found = vector(outcome.arrays)
    # every silo is pulled to lower values and stopped by the ball
    assert found == pytest.approx(np.full(DIMENSION, 5.0 - 0.25), abs=0.02)
    assert np.linalg.norm(found - 5.0) <= 0.5 + 1e-12


def test_seeded_runs_repeat_and_real_silos_refuse_them(tmp_path: Path) -> None:
    def run(name: str) -> np.ndarray:
        strategy = make_strategy(make_plan(seeded=True), seed=3)
        return vector(strategy.train_round(Silos(tmp_path / name).grid, 1, model()).arrays)

    assert np.array_equal(run("a"), run("b"))
    real = Silos(tmp_path / "c", simulation=False)
    outcome = make_strategy(make_plan(seeded=True), seed=3, mode="protocol").train_round(
        real.grid, 1, model()
    )
    assert outcome.arrays is None and real.touched == [0, 0, 0]
    with pytest.raises(InvalidArgument, match="seed"):
        make_strategy(make_plan(), seed=3)


def test_garbage_counts_in_the_sum_end_the_round_and_not_the_run(tmp_path: Path) -> None:
    def tamper(silo: int, request: Message, reply: Message) -> list[Message]:
        if silo == 1 and reply.has_content() and wire.RECORD_RESULT in reply.content:
            garbage = reply.content.array_records[wire.RECORD_RESULT][wire.RESULT_ARRAY].numpy().copy()
            garbage[-1] = 2**20
            reply.content[wire.RECORD_RESULT] = ArrayRecord({wire.RESULT_ARRAY: Array(garbage)})
        return [reply]

    silos = Silos(tmp_path, intercept=tamper)
    with open_ledger(tmp_path / "server.jsonl") as ledger:
        outcome = make_strategy(make_plan(), ledger).train_round(silos.grid, 1, model())
    assert outcome.arrays is None and outcome.released
    assert epsilon_of(tmp_path / "server.jsonl") > 0


def test_as_a_flower_strategy(tmp_path: Path) -> None:
    silos = Silos(tmp_path)
    strategy = make_strategy(make_plan(**QUIET, rounds=3))
    found = strategy.start(silos.grid, model(), num_rounds=5, timeout=60)
    assert strategy.stopped is not None and "3 rounds" in strategy.stopped
    assert vector(found.arrays) == pytest.approx(2.0 * (1 - 0.25**3), abs=0.1)
    assert silos.touched == [3, 3, 3]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({wire.SILO_NOISE_STD: 0.0}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_NOISE_STD: "1"}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_SAMPLING_RATE: 0.0}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_SAMPLING_RATE: 0.9}, ErrorCode.SILO_RATE_TOO_LARGE),
        ({wire.SILO_NOISE_STD: 20.0}, ErrorCode.SILO_NOISE_TOO_SMALL),
        ({wire.UPDATE_CLIP_UNITS: 2**20}, ErrorCode.SILO_NOISE_TOO_SMALL),
        ({wire.SILO_ADJACENCY: "replace_one"}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_STEPS: 0}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_RADIUS: float("nan")}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_MAX_WEIGHT: 2**25}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_RUN: ""}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_LEARNING_RATE: float("inf")}, ErrorCode.BAD_REQUEST),
        ({wire.SILO_DELTA: 1.0}, ErrorCode.BAD_REQUEST),
        ({"arrays": float("nan")}, ErrorCode.BAD_REQUEST),
        ({"arrays": None}, ErrorCode.BAD_REQUEST),
        ({"center": float("inf")}, ErrorCode.BAD_REQUEST),
    ],
    ids=str,
)
def test_requests_that_a_silo_refuses_before_it_charges_or_touches_anything(
    tmp_path: Path, changes: dict[str, Any], code: int
) -> None:
    silos = Silos(tmp_path, node_config=lambda silo: {"min-noise-multiplier": 0.9, "max-sampling-rate": 0.6})
    strategy = make_strategy(make_plan(), budget=Budget(5.0, 1e-5, "server"))
    make = strategy._payload

    def payload(arrays: ArrayRecord, server_round: int) -> RecordDict:
        content = make(arrays, server_round)
        for key, value in changes.items():
            if key in ("arrays", "center"):
                content.pop(key, None)
                if value is not None:
                    content[key] = model(value)
            else:
                content[wire.RECORD_RECORD_LEVEL][key] = value
        return content

    strategy._payload = payload  # type: ignore[method-assign]
    outcome = strategy.train_round(silos.grid, 1, model())
    assert outcome.arrays is None
    found = strategy.check_silos(silos.grid, model())
    assert set(found.refused.values()) == {code}
    assert silos.touched == [0, 0, 0]
    assert not any(silos.account(silo).exists() and epsilon_of(silos.account(silo)) for silo in range(3))


def test_a_model_or_federation_that_the_plan_was_not_made_for(tmp_path: Path) -> None:
    silos = Silos(tmp_path)
    with pytest.raises(InvalidArgument, match="coordinates"):
        make_strategy(make_plan(length=9)).train_round(silos.grid, 1, model())
    with pytest.raises(InvalidArgument, match="clients"):
        make_strategy(make_plan(num_clients=2)).train_round(silos.grid, 1, model())
