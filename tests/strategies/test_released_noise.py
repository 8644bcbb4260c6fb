"""End to end: the noise in a released sum has the variance that the plan claims, whoever drops out."""

import numpy as np
import pytest
from flwr.app import Message
from scipy import stats
from strategy_helpers import FLAKE, Clients, assert_normal, make_plan, make_strategy, record, vector_of

from fedpriv import wire
from fedpriv.clients import dp_hype_mod
from fedpriv.mechanisms import Ballot, PoissonCohort, SelfSampling
from fedpriv.plans import DpsgdDcPlan, VotePlan
from fedpriv.strategies import DpHype, NoisedSum
from fedpriv.testing import LocalGrid

LENGTH, ROUNDS = 20_000, 3


def lose(stage: str, *clients: int):  # type: ignore[no-untyped-def]
    def drop(client: int, request: Message) -> str | None:
        return "silent" if client in clients and wire.stage_of(request) == stage else None

    return drop


def released_noise(plan: DpsgdDcPlan, clients: Clients, **options: object) -> tuple[np.ndarray, list[int]]:
    """Sums of zero updates in grid steps over some rounds, and how many clients were in each."""
    grid = LocalGrid(clients.app, 8, **options)  # type: ignore[arg-type]
    strategy = make_strategy(plan)
    found, survivors = [], []
    for server_round in range(1, ROUNDS + 1):
        outcome = strategy.train_round(grid, server_round, record(np.zeros(plan.length)))
        assert outcome.arrays is not None
        found.append(-vector_of(outcome.arrays) * plan.divisor / plan.codec.step)
        survivors.append(outcome.survivors)
    sums = np.concatenate(found)
    assert np.allclose(sums, np.round(sums), atol=1e-5)  # exact integer arithmetic
    return sums, survivors


def assert_guaranteed(sums: np.ndarray, plan: DpsgdDcPlan) -> None:
    """The variance is not below the guaranteed one (beyond chance)."""
    square = float(np.sum((sums / plan.noise.total_std_units) ** 2))
    assert square > stats.chi2.ppf(FLAKE, len(sums))


@pytest.mark.parametrize(
    ("stage", "lost", "summed"),
    [
        (wire.STAGE_KEYS, (), 8),
        (wire.STAGE_KEYS, (1, 5), 6),
        (wire.STAGE_MASKED_INPUT, (0, 7), 6),
        (wire.STAGE_UNMASK, (3,), 8),
    ],
)
def test_variance_is_that_of_the_survivors_shares(stage: str, lost: tuple[int, ...], summed: int) -> None:
    plan = make_plan(length=LENGTH, colluders=1)
    sums, survivors = released_noise(plan, Clients(), drop=lose(stage, *lost))
    assert survivors == [summed] * ROUNDS
    assert_normal(sums, plan.noise.share_std_units * np.sqrt(summed))
    assert_guaranteed(sums, plan)


@pytest.mark.parametrize("idle_clients_train", [True, False])
def test_clients_whose_coin_says_no_add_their_share(idle_clients_train: bool) -> None:
    plan = make_plan(length=LENGTH, sampler=SelfSampling(1e-9), idle_clients_train=idle_clients_train)
    clients = Clients(lambda client, model: np.ones_like(model))
    sums, _ = released_noise(plan, clients)
    assert len(clients.calls) == (8 * ROUNDS if idle_clients_train else 0)
    assert_normal(sums, plan.noise.share_std_units * np.sqrt(8))


@pytest.mark.parametrize("failure", ["raise", "nan", "shape"])
def test_clients_that_fail_add_their_share(failure: str) -> None:
    def update(client: int, model: np.ndarray) -> np.ndarray:
        if failure == "raise":
            raise ValueError("bad data")
        return np.full(len(model), np.nan) if failure == "nan" else np.zeros((len(model), 2)).T.copy()

    plan = make_plan(length=LENGTH)
    sums, survivors = released_noise(plan, Clients(update))
    assert survivors == [8] * ROUNDS
    assert_normal(sums, plan.noise.share_std_units * np.sqrt(8))


def test_central_noise_is_the_same_whoever_drops_out() -> None:
    plan = make_plan(length=LENGTH, kind="central")
    sums, survivors = released_noise(plan, Clients(), drop=lose(wire.STAGE_MASKED_INPUT, 2))
    assert survivors == [7] * ROUNDS
    assert_normal(sums, plan.noise.total_std_units)


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_an_empty_poisson_cohort_releases_noise(kind: str) -> None:
    plan = make_plan(length=LENGTH, sampler=PoissonCohort(1e-9), kind=kind, min_survivors=3)
    clients = Clients(lambda client, model: np.ones_like(model))
    sums, survivors = released_noise(plan, clients)
    assert clients.calls == []
    assert survivors == [3] * ROUNDS  # filled up with clients that send zeros
    std = plan.noise.total_std_units if kind == "central" else plan.noise.share_std_units * np.sqrt(3)
    assert_normal(sums, std)


def test_sums_of_different_rounds_and_clients_are_independent() -> None:
    plan = make_plan(length=LENGTH)
    sums, _ = released_noise(plan, Clients())
    first, second, third = sums.reshape(ROUNDS, LENGTH)
    for a, b in ((first, second), (second, third), (first[1:], first[:-1])):
        z = np.mean(a * b) / (plan.noise.share_std_units**2 * 8) * np.sqrt(len(a))
        assert abs(z) < stats.norm.isf(FLAKE / 2)


@pytest.mark.parametrize("lost", [(), (2,)])
def test_vote_noise_has_the_claimed_variance(lost: tuple[int, ...]) -> None:
    candidates = [{"index": index} for index in range(2500)]
    plan = VotePlan.build(Ballot(len(candidates), 3), "add_or_remove", 8, 2.0, "distributed", 6)
    clients = Clients(mods=[dp_hype_mod(lambda candidate, context: float("nan"))])  # everyone abstains
    grid = LocalGrid(clients.app, 8, drop=lose(wire.STAGE_MASKED_INPUT, *lost))
    found = []
    for _ in range(4):
        outcome = DpHype(candidates, plan, NoisedSum(None)).vote(grid)
        assert len(outcome.result.survivors) == 8 - len(lost)
        found.append(outcome.tallies)
    tallies = np.concatenate(found)
    share = plan.noise.share_std_units / plan.units_per_vote
    assert_normal(tallies, share * np.sqrt(8 - len(lost)))
    square = float(np.sum((tallies / plan.noise_std_votes) ** 2))
    assert square > stats.chi2.ppf(FLAKE, len(tallies))


def test_release_noise_comes_on_top_in_model_units() -> None:
    plan = make_plan(length=LENGTH, noise_multiplier=1e-3)
    grid = LocalGrid(Clients().app, 8)
    outcome = make_strategy(plan, release_noise=0.7).train_round(grid, 1, record(np.zeros(LENGTH)))
    assert outcome.arrays is not None
    assert_normal(vector_of(outcome.arrays), 0.7)
    seeded = make_plan(length=LENGTH, noise_multiplier=1e-3, seeded=True)
    runs = []
    for _ in range(2):
        strategy = make_strategy(seeded, release_noise=0.7, seed=3)
        found = strategy.train_round(grid, 1, record(np.zeros(LENGTH))).arrays
        assert found is not None
        runs.append(vector_of(found))
    assert np.array_equal(*runs)
