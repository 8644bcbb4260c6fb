"""Evaluation by noised counts."""

import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context
from strategy_helpers import Clients, open_ledger, partition, record

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.clients import client_level_dp_mod, private_evaluation_mod
from fedpriv.plans import EvaluationPlan
from fedpriv.strategies import EvaluationOutcome, NoisedSum, PrivateEvaluation
from fedpriv.testing import LocalGrid


def make_plan(**changes: object) -> EvaluationPlan:
    values: dict = {
        "cap": 10,
        "noise_multiplier": 1e-3,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": 8,
        "min_survivors": 6,
        "evaluations": 2,
    }
    return EvaluationPlan.build(**(values | changes))


def make_grid(count) -> LocalGrid:  # type: ignore[no-untyped-def]
    return LocalGrid(Clients(mods=[private_evaluation_mod(count), client_level_dp_mod]).app, 8)


def test_counts_are_summed_and_capped() -> None:
    def count(arrays: ArrayRecord, context: Context) -> tuple[int, int]:
        assert arrays["w"].numpy().tolist() == [1.0, 2.0]
        return (4, 8) if partition(context) else (300, 400)  # the large client is scaled to 7 of 10

    outcome = PrivateEvaluation(make_plan(), NoisedSum(None)).evaluate(
        make_grid(count), 1, record(np.array([1.0, 2.0]))
    )
    assert outcome.correct == pytest.approx(7 * 4 + 7.5, abs=0.5)
    assert outcome.examples == pytest.approx(7 * 8 + 10, abs=0.5)
    assert outcome.accuracy == pytest.approx(35.5 / 66, abs=0.01)
    assert outcome.survivors == 8


@pytest.mark.parametrize("bad", [ValueError("4711"), SystemExit(), (math.nan, 3), ("a", 3), None])
def test_a_client_that_cannot_count_sends_zeros_and_noise(bad: object, caplog) -> None:  # type: ignore[no-untyped-def]
    def count(arrays: ArrayRecord, context: Context) -> tuple[int, int]:
        if partition(context) >= 2:
            return 1, 2
        if isinstance(bad, BaseException):
            raise bad
        return bad  # type: ignore[return-value]

    outcome = PrivateEvaluation(make_plan(), NoisedSum(None)).evaluate(
        make_grid(count), 1, record(np.ones(2))
    )
    assert outcome.survivors == 8
    assert outcome.examples == pytest.approx(12, abs=0.5)
    assert "4711" not in caplog.text


def test_each_evaluation_is_charged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=5.0)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        evaluation = PrivateEvaluation(plan, NoisedSum(ledger))
        for server_round in (1, 2):
            evaluation.evaluate(make_grid(lambda arrays, context: (1, 2)), server_round, record(np.ones(2)))
        assert [(entry.stage, entry.round) for entry in ledger.entries] == [("evaluate", 1), ("evaluate", 2)]
        assert all(entry.events == plan.events() for entry in ledger.entries)


def test_accuracy_of_noisy_counts_is_a_number_in_range_or_nan() -> None:
    assert EvaluationOutcome(120.0, 100.0, 8).accuracy == 1.0
    assert EvaluationOutcome(-3.0, 100.0, 8).accuracy == 0.0
    assert EvaluationOutcome(3.0, 4.0, 8).accuracy == 0.75
    assert math.isnan(EvaluationOutcome(3.0, -4.0, 8).accuracy)
    assert math.isnan(EvaluationOutcome(3.0, 0.0, 8).accuracy)


def test_seed_must_be_declared() -> None:
    with pytest.raises(InvalidArgument, match="seed: 1"):
        PrivateEvaluation(make_plan(), NoisedSum(None), seed=1)
    with pytest.raises(InvalidArgument, match="seed: None"):
        PrivateEvaluation(make_plan(seeded=True), NoisedSum(None))
