"""The vote over messages: who wins, what is charged, what clients may do wrong."""

import json
import math

import numpy as np
import pytest
from flwr.app import Context, Message
from strategy_helpers import Clients, open_ledger, partition, record

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.clients import client_level_dp_mod, dp_hype_mod
from fedpriv.ledger import BudgetExceeded
from fedpriv.mechanisms import Ballot
from fedpriv.plans import VotePlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies import DpHype, NoisedSum
from fedpriv.testing import LocalGrid

CANDIDATES = [{"learning-rate": rate, "name": f"r{rate}"} for rate in (0.01, 0.1, 1.0, 10.0)]
#: losses of the 8 clients over the 4 candidates
LOSSES = np.array([[4, 1, 2, 3]] * 5 + [[1, 4, 3, 2]] * 2 + [[2, 1, 4, 3]], dtype=float)
TALLIES = {1: [2, 6, 0, 0], 2: [3, 6, 5, 2]}


def loss(candidate: dict, context: Context) -> float:
    return float(LOSSES[partition(context), CANDIDATES.index(candidate)])


def make_plan(**changes: object) -> VotePlan:
    values: dict = {
        "ballot": Ballot(4, 1),
        "adjacency": "add_or_remove",
        "num_clients": 8,
        "noise_multiplier": 1e-3,
        "kind": "distributed",
        "min_survivors": 6,
    }
    return VotePlan.build(**(values | changes))


def make_grid(evaluate=loss, **options: object) -> LocalGrid:  # type: ignore[no-untyped-def]
    return LocalGrid(Clients(mods=[dp_hype_mod(evaluate), client_level_dp_mod]).app, 8, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("votes", [1, 2])
@pytest.mark.parametrize("mode", ["protocol", "simulated"])
def test_the_most_approved_candidate_wins(votes: int, mode: str) -> None:
    plan = make_plan(ballot=Ballot(4, votes))
    outcome = DpHype(CANDIDATES, plan, NoisedSum(None, mode=mode)).vote(make_grid())  # type: ignore[arg-type]
    assert outcome.winner == 1
    assert outcome.candidate == CANDIDATES[1]
    assert outcome.tallies == pytest.approx(TALLIES[votes], abs=0.05)
    assert len(outcome.result.survivors) == 8


def test_a_vote_is_one_secure_sum_whatever_the_number_of_candidates() -> None:
    stages = []

    def drop(client: int, request: Message) -> None:
        if client == 0:
            stages.append(wire.stage_of(request))

    candidates = [{"index": index} for index in range(30)]
    plan = make_plan(ballot=Ballot(30, 3))
    grid = make_grid(lambda candidate, context: candidate["index"], drop=drop)
    outcome = DpHype(candidates, plan, NoisedSum(None)).vote(grid)
    assert stages == list(wire.STAGES[:4])
    assert outcome.tallies == pytest.approx([8] * 3 + [0] * 27, abs=0.1)


def test_clients_that_cannot_evaluate_abstain_or_count_a_candidate_as_worst() -> None:
    def evaluate(candidate: dict, context: Context) -> float:
        client = partition(context)
        if client == 0:
            return math.nan  # no validation data
        if client == 1:
            raise RuntimeError("no candidate at all")
        if client == 2 and candidate["learning-rate"] == 0.1:
            raise SystemExit  # the best one diverges
        if client == 3 and candidate["learning-rate"] == 0.1:
            return math.inf
        return loss(candidate, context)

    outcome = DpHype(CANDIDATES, make_plan(), NoisedSum(None)).vote(make_grid(evaluate))
    # clients 2 and 3 give their vote to their second best
    assert outcome.tallies == pytest.approx([2, 2, 2, 0], abs=0.05)


def test_losses_and_ballots_do_not_leave_a_client() -> None:
    seen = []

    def intercept(client: int, request: Message, reply: Message) -> list[Message]:
        seen.append(set(reply.content))
        return [reply]

    DpHype(CANDIDATES, make_plan(), NoisedSum(None)).vote(make_grid(intercept=intercept))
    assert len(seen) == 32
    assert set().union(*seen) == {wire.RECORD_SECURE_SUM, wire.RECORD_RESULT}


def test_the_train_function_is_not_called_for_a_vote() -> None:
    clients = Clients(mods=[dp_hype_mod(loss)])
    DpHype(CANDIDATES, make_plan(), NoisedSum(None)).vote(LocalGrid(clients.app, 8))
    assert clients.calls == []


def test_vote_through_flowers_loop_is_held_once(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=2.0)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        strategy = DpHype(CANDIDATES, plan, NoisedSum(ledger))
        result = strategy.start(make_grid(), record(np.zeros(1)), num_rounds=3)
        assert strategy.outcome is not None
        assert result.arrays.to_numpy_ndarrays()[0].tolist() == strategy.outcome.tallies.tolist()
        assert dict(result.train_metrics_clientapp[1]) == {
            "winner": strategy.outcome.winner,
            "survivors": 8,
        }
        assert len(ledger.entries) == 1
        entry = ledger.entries[0]
        assert (entry.stage, entry.status, entry.events) == ("tune", "committed", plan.events())


def test_budget_and_aborts_are_passed_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=1.0)
    with open_ledger(tmp_path / "l.jsonl", plan, 0.5) as ledger:
        with pytest.raises(BudgetExceeded):
            DpHype(CANDIDATES, plan, NoisedSum(ledger)).vote(make_grid())
        assert ledger.entries == ()
    with open_ledger(tmp_path / "m.jsonl", plan) as ledger:
        grid = make_grid(drop=lambda client, request: "silent" if client < 3 else None)
        with pytest.raises(SecureSumAborted) as aborted:
            DpHype(CANDIDATES, plan, NoisedSum(ledger)).vote(grid)
        assert not aborted.value.released
        assert [entry.status for entry in ledger.entries] == ["void"]


def test_a_client_without_the_mod_refuses_and_says_why() -> None:
    clients = Clients()  # client_level_dp_mod only
    with pytest.raises(SecureSumAborted, match="no mod for the purpose") as aborted:
        DpHype(CANDIDATES, make_plan(), NoisedSum(None)).vote(LocalGrid(clients.app, 8))
    assert aborted.value.stage == wire.STAGE_KEYS
    assert clients.calls == []


def test_noise_free_vote_needs_to_go_without_a_ledger(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=0.0)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger, pytest.raises(InvalidArgument, match="infinite"):
        DpHype(CANDIDATES, plan, NoisedSum(ledger)).vote(make_grid())
    outcome = DpHype(CANDIDATES, plan, NoisedSum(None)).vote(make_grid())
    assert outcome.tallies.tolist() == TALLIES[1]


def test_central_noise_comes_from_the_server() -> None:
    plan = make_plan(kind="central", noise_multiplier=1e-3)
    outcome = DpHype(CANDIDATES, plan, NoisedSum(None)).vote(make_grid())
    assert outcome.tallies == pytest.approx(TALLIES[1], abs=0.05)
    assert np.any(outcome.tallies != np.round(outcome.tallies))


def test_candidates_arrive_as_they_were_given() -> None:
    candidates = [{"a": 1, "b": 0.5, "c": "x", "d": True}, {"a": 2, "nested": [1, {"y": None}]}]
    seen = []

    def evaluate(candidate: dict, context: Context) -> float:
        seen.append(candidate)
        return 0.0

    DpHype(candidates, make_plan(ballot=Ballot(2, 1)), NoisedSum(None)).vote(make_grid(evaluate))
    assert sorted(map(json.dumps, seen)) == sorted([json.dumps(c) for c in candidates] * 8)


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        (CANDIDATES[:3], "3 given, the plan was made for 4"),
        ([*CANDIDATES[:3], {"x": math.nan}], "JSON"),
        ([*CANDIDATES[:3], {"x": object()}], "JSON"),
    ],
)
def test_candidates_that_do_not_fit_are_refused(candidates: list, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        DpHype(candidates, make_plan(), NoisedSum(None))


def test_seed_must_be_declared() -> None:
    with pytest.raises(InvalidArgument, match="seed: 5"):
        DpHype(CANDIDATES, make_plan(), NoisedSum(None), seed=5)
    plan = make_plan(seeded=True, noise_multiplier=1.0)
    tallies = [DpHype(CANDIDATES, plan, NoisedSum(None), seed=5).vote(make_grid()).tallies for _ in range(2)]
    assert np.array_equal(*tallies)
