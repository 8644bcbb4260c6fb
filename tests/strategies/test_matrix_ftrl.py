"""Training with correlated noise over messages: what is released and charged, and what a crash can do."""

from __future__ import annotations

import math
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from scipy import stats
from strategy_helpers import FLAKE, Clients, Update, open_ledger, record, vector_of

from fedpriv.accounting.allocation import RandomAllocation
from fedpriv.accounting.events import NonPrivate, NoRelease
from fedpriv.accounting.matrices import StrategyMatrix, bandmf, blt, bsr, identity
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.ledger import BudgetExceeded, Ledger
from fedpriv.mechanisms import Ball, RandomAllocationSchedule
from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.plans import MatrixPlan
from fedpriv.strategies import DpsgdDc, MatrixFtrl, MatrixSecrets, NoisedSum, ServerSgd
from fedpriv.testing import LocalGrid

CLIENTS, LENGTH, QUIET = 8, 4, 1e-3


def make_plan(bins: int = 4, epochs: int = 1, **changes: Any) -> MatrixPlan:
    redrawn, drawn_by = changes.pop("redrawn", False), changes.pop("drawn_by", "self")
    values: dict[str, Any] = {
        "schedule": RandomAllocationSchedule(bins, epochs, redrawn, drawn_by),
        "matrix": bsr(bins if redrawn else bins * epochs, 2),
        "clipping_norm": 1.0,
        "noise_multiplier": QUIET,
        "num_clients": CLIENTS,
        "min_survivors": 5,
        "length": LENGTH,
    }
    return MatrixPlan.build(**(values | changes))


def make_strategy(
    plan: MatrixPlan, ledger: Ledger | None = None, path: Path | None = None, **options: Any
) -> MatrixFtrl:
    secrets = (
        MatrixSecrets.in_memory(plan.schedule) if path is None else MatrixSecrets.open(path, plan.schedule)
    )
    sums = NoisedSum(ledger, mode=options.pop("mode", "simulated"), seed=options.get("seed"))
    return MatrixFtrl(plan, sums, secrets, **options)


def ones(client: int, model: np.ndarray) -> np.ndarray:
    found = np.zeros_like(model)
    found[0] = 1.0
    return found


def play(strategy: MatrixFtrl, grid: LocalGrid, rounds: range, start: ArrayRecord | None = None) -> list[Any]:
    model, outcomes = start or record(np.zeros(LENGTH)), []
    for server_round in rounds:
        outcomes.append(strategy.train_round(grid, server_round, model))
        model = outcomes[-1].arrays or model
    return outcomes


def rows(outcomes: list[Any], start: np.ndarray | None = None) -> np.ndarray:
    """Released means, round by round."""
    models = [np.zeros(LENGTH) if start is None else start] + [vector_of(o.arrays) for o in outcomes]
    return -np.diff(np.stack(models), axis=0)


def local(update: Update = ones, **options: Any) -> LocalGrid:
    return LocalGrid(Clients(update).app, CLIENTS, **options)


# -- what is released ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn_by", ["self", "server"])
@pytest.mark.parametrize("mode", ["protocol", "simulated"])
def test_every_client_is_summed_once_per_epoch(drawn_by: str, mode: str) -> None:
    plan = make_plan(3, 2, drawn_by=drawn_by)
    found = rows(play(make_strategy(plan, mode=mode), local(), range(1, 7))) * plan.divisor
    counts = np.rint(found[:, 0])
    assert np.abs(found[:, 0] - counts).max() < 0.05
    assert counts[:3].tolist() == counts[3:].tolist()  # kept bins
    assert counts[:3].sum() == CLIENTS


def test_redrawn_bins_sum_every_client_once_per_epoch() -> None:
    different = 0
    for drawn_by in ("self", "server"):
        plan = make_plan(3, 4, redrawn=True, drawn_by=drawn_by)
        found = rows(play(make_strategy(plan), local(), range(1, 13))) * plan.divisor
        counts = np.rint(found[:, 0]).reshape(4, 3)
        assert counts.sum(axis=1).tolist() == [CLIENTS] * 4
        different += len({tuple(row) for row in counts.tolist()}) > 1
    assert different  # chance that 8 clients fall alike in all: far below 1e-9


@pytest.mark.parametrize("matrix", [identity(6), bandmf(6, 3), blt(3, 2, 2)], ids=lambda m: m.kind)
def test_the_released_rows_carry_the_noise_of_the_inverse_matrix(matrix: StrategyMatrix) -> None:
    """End to end, over messages: the covariance of what is released is that of C^-1 Z at the charged multiplier."""
    length = 6000
    plan = make_plan(3, 2, matrix=matrix, noise_multiplier=1.5, length=length, clipping_norm=2.0)
    zeros = Clients().app
    outcomes, model = [], record(np.zeros(length))
    strategy, grid = make_strategy(plan), LocalGrid(zeros, CLIENTS)
    for server_round in range(1, 7):
        outcomes.append(strategy.train_round(grid, server_round, model))
        assert outcomes[-1].arrays is not None
        model = outcomes[-1].arrays
    models = np.stack([np.zeros(length)] + [vector_of(o.arrays) for o in outcomes if o.arrays])
    event = plan.events()["release"]
    assert isinstance(event, RandomAllocation)
    released = -np.diff(models, axis=0) * plan.divisor / (event.noise_multiplier * 2.0)
    inverse = np.linalg.inv(matrix.dense())
    expected = inverse @ inverse.T
    spread = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / length)
    off = np.abs(released @ released.T / length - expected) / spread
    assert off.max() < stats.norm.isf(FLAKE / 72)
    assert stats.kstest((matrix.dense() @ released).ravel(), "norm").pvalue > FLAKE


def test_a_client_that_is_away_is_never_moved_to_another_round() -> None:
    away: set[int] = set()

    def drop(client: int, request: Message) -> Any:
        return "silent" if client in away else None

    for drawn_by in ("self", "server"):
        plan = make_plan(4, 1, drawn_by=drawn_by, min_survivors=3 if drawn_by == "self" else 1)
        grid = local(drop=drop)
        strategy = make_strategy(plan)
        away.update({0, 1, 2})
        model, trained = record(np.zeros(LENGTH)), 0.0
        for server_round in range(1, 5):
            if server_round == 3:
                away.clear()
            before = vector_of(model)
            model = strategy.train_round(grid, server_round, model).arrays or model
            trained += round(float((before - vector_of(model))[0]) * plan.divisor)
        assert CLIENTS - 3 <= trained <= CLIENTS


def test_momentum_schedule_and_projection_act_on_the_released_rows() -> None:
    plan = make_plan(1, 4, matrix=identity(4))

    def cosine(server_round: int) -> float:
        return schedule_factor("cosine", server_round, 4)

    found = rows(
        play(make_strategy(plan, optimizer=ServerSgd(1.0, 0.5), schedule=cosine), local(), range(1, 5))
    )
    expected = np.array([1.0, 1.5, 1.75, 1.875]) * [0.5 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]
    assert found[:, 0] == pytest.approx(expected, abs=0.02)
    kept = play(make_strategy(plan, ball=Ball(1.5)), local(), range(1, 5))
    assert [float(np.linalg.norm(vector_of(o.arrays))) for o in kept] == pytest.approx(
        [1.0, 1.5, 1.5, 1.5], abs=0.02
    )
    # without a ball nothing is projected
    free = play(make_strategy(plan), local(), range(1, 5))
    assert np.linalg.norm(vector_of(free[-1].arrays)) == pytest.approx(4.0, abs=0.02)


def test_flowers_own_loop_reaches_the_end_and_stops_there() -> None:
    plan = make_plan(2, 1, matrix=identity(2))
    strategy = make_strategy(plan)
    result = strategy.start(local(), record(np.zeros(LENGTH)), num_rounds=4, train_config=ConfigRecord({}))
    assert vector_of(result.arrays)[0] == pytest.approx(-CLIENTS / plan.divisor, abs=0.02)
    assert strategy.stopped == "the noise was made for 2 rounds"


def test_the_same_run_as_independent_noise_when_there_is_one_bin() -> None:
    """b = 1, no correlation: DpsgdDc with full participation and central noise, seeded alike but for the stream."""
    from fedpriv.mechanisms import FullParticipation
    from fedpriv.plans import DpsgdDcPlan

    plan = make_plan(1, 3, matrix=identity(3), noise_multiplier=QUIET)
    other = DpsgdDcPlan.build(
        sampler=FullParticipation(),
        clipping_norm=1.0,
        noise_multiplier=QUIET,
        kind="central",
        adjacency="add_or_remove",
        num_clients=CLIENTS,
        min_survivors=5,
        rounds=3,
        length=LENGTH,
    )
    assert plan.codec == other.codec and plan.divisor == other.divisor
    mine = play(make_strategy(plan), local(), range(1, 4))
    strategy, model = DpsgdDc(other, NoisedSum(None, mode="simulated")), record(np.zeros(LENGTH))
    grid = local()
    for server_round in range(1, 4):
        outcome = strategy.train_round(grid, server_round, model)
        assert outcome.arrays is not None
        model = outcome.arrays
    assert vector_of(mine[-1].arrays) == pytest.approx(vector_of(model), abs=0.02)


# -- what is charged -------------------------------------------------------------------------------------------


def test_the_run_is_charged_whole_with_its_first_round(tmp_path: Path) -> None:
    plan = make_plan(noise_multiplier=1.0)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        play(make_strategy(plan, ledger), local(), range(1, 5))
        assert [e.events["release"] for e in ledger.entries] == [plan.amplified()] + [NoRelease()] * 3
        assert all(isinstance(e.events["server"], NonPrivate) for e in ledger.entries)
        assert len({e.details["noise stream"] for e in ledger.entries}) == 1
        whole = ledger.epsilon("release", 1e-5).epsilon
    from fedpriv.accounting import Accountant

    assert whole == Accountant("add_or_remove").compose(plan.amplified()).epsilon(1e-5).epsilon


def test_a_first_round_that_released_nothing_hands_the_charge_on(tmp_path: Path) -> None:
    lost = True

    def drop(client: int, request: Message) -> Any:
        return "silent" if lost else None

    plan = make_plan(noise_multiplier=1.0)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        strategy, grid = make_strategy(plan, ledger), local(drop=drop)
        (first,) = play(strategy, grid, range(1, 2))
        assert (first.arrays, first.released) == (None, False)
        assert ledger.epsilon("release", 1e-5).epsilon == 0
        lost = False
        play(strategy, grid, range(2, 5))
        charged = [e for e in ledger.entries if e.charged]
        assert [e.round for e in charged] == [2, 3, 4]
        assert [e.events["release"] for e in charged] == [plan.amplified(), NoRelease(), NoRelease()]


def test_a_budget_below_the_whole_run_sends_nothing(tmp_path: Path) -> None:
    plan = make_plan(noise_multiplier=1.0)
    clients = Clients(ones)
    with open_ledger(tmp_path / "l.jsonl", plan, max_epsilon=0.5, view="release") as ledger:
        with pytest.raises(BudgetExceeded):
            make_strategy(plan, ledger).train_round(
                LocalGrid(clients.app, CLIENTS), 1, record(np.zeros(LENGTH))
            )
        assert clients.calls == [] and ledger.entries == ()


def test_misfits_are_refused_before_anything_is_sent() -> None:
    clients = Clients(ones)
    strategy, grid = make_strategy(make_plan()), LocalGrid(clients.app, CLIENTS)
    for server_round, length, message in (
        (0, LENGTH, "server_round"),
        (5, LENGTH, "4 rounds"),
        (1, 5, "5 coord"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            strategy.train_round(grid, server_round, record(np.zeros(length)))
    strategy.train_round(grid, 2, record(np.zeros(LENGTH)))
    calls = len(clients.calls)
    for again in (1, 2):  # without a ledger the noise itself knows
        with pytest.raises(InvalidArgument, match="no round is run twice"):
            strategy.train_round(grid, again, record(np.zeros(LENGTH)))
    assert len(clients.calls) == calls


# -- crashes ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The server's process dies here."""


def test_killed_between_two_rounds_a_run_continues_the_same_matrix(tmp_path: Path) -> None:
    """Zero updates show the noise: before and after the crash it is one C^-1 Z, and no row appears twice."""
    plan = make_plan(3, 2, matrix=bandmf(6, 3), noise_multiplier=1.0)
    grid = LocalGrid(Clients().app, CLIENTS)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        first = make_strategy(plan, ledger, tmp_path / "secrets.json")
        before = play(first, grid, range(1, 4))
        saved = {name: value.copy() for name, value in first.state().items()}
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        second = make_strategy(plan, ledger, tmp_path / "secrets.json")
        second.load_state(saved)
        after = play(second, grid, range(4, 7), before[-1].arrays)
        assert [e.round for e in ledger.entries] == [1, 2, 3, 4, 5, 6]
        assert [e.events["release"] for e in ledger.entries][1:] == [NoRelease()] * 5
    released = np.rint(rows([*before, *after]) * plan.divisor / plan.codec.step).astype(np.int64)
    unbroken = plan.make_noise(MatrixSecrets.open(tmp_path / "secrets.json", plan.schedule).key)
    assert np.array_equal(released, np.stack([unbroken.row(index) for index in range(6)]))


@pytest.mark.parametrize("instant", ["before the sum", "after the sum", "after the round"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_round_that_was_under_way_is_never_run_again(
    tmp_path: Path, instant: str, checkpoint: bool
) -> None:
    plan = make_plan(6, 1, matrix=bandmf(6, 3), noise_multiplier=1.0)
    clients = Clients()
    grid = LocalGrid(clients.app, CLIENTS)
    saved: dict[str, np.ndarray] = {}
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        first = make_strategy(plan, ledger, tmp_path / "secrets.json")
        before = play(first, grid, range(1, 3))
        saved = {name: value.copy() for name, value in first.state().items()} if checkpoint else {}
        if instant == "before the sum":
            grid.send_and_receive = _die  # type: ignore[method-assign]
        elif instant == "after the sum":
            first.noise.row = _die  # type: ignore[method-assign]
        with pytest.raises(Killed):
            first.train_round(grid, 3, before[-1].arrays)
            raise Killed  # the round is over, the checkpoint is not written
        grid = LocalGrid(clients.app, CLIENTS)
    calls = len(clients.calls)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        second = make_strategy(plan, ledger, tmp_path / "secrets.json")
        second.load_state(saved)
        skipped = second.train_round(grid, 3, before[-1].arrays)
        assert len(clients.calls) == calls  # nobody was asked
        assert (skipped.released, skipped.asked) == (True, 0)
        assert "never used on a second sum" in skipped.note
        assert skipped.arrays is not None
        assert np.array_equal(vector_of(skipped.arrays), vector_of(before[-1].arrays))
        after = play(second, grid, range(4, 7), skipped.arrays)
        assert sorted(e.round for e in ledger.entries) == [1, 2, 3, 4, 5, 6]
        assert sum(e.events["release"] != NoRelease() for e in ledger.entries) == 1
    found = np.rint(rows([*before, *after]) * plan.divisor / plan.codec.step).astype(np.int64)
    unbroken = plan.make_noise(MatrixSecrets.open(tmp_path / "secrets.json", plan.schedule).key)
    expected = np.stack([unbroken.row(index) for index in range(6)])
    assert np.array_equal(found, expected[[0, 1, 3, 4, 5]])


def _die(*_: Any, **__: Any) -> Any:
    raise Killed


def test_the_key_is_on_the_disk_before_anybody_is_asked(tmp_path: Path) -> None:
    plan = make_plan(drawn_by="server")
    path = tmp_path / "new" / "secrets.json"
    seen = []

    def drop(client: int, request: Message) -> Any:
        seen.append(MatrixSecrets.open(path, plan.schedule))
        return None

    strategy = make_strategy(plan, None, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    play(strategy, local(drop=drop), range(1, 3))
    assert {s.key for s in seen} == {strategy.secrets.key}
    dealt = strategy.secrets.dealt.assigned
    assert dealt is not None and len(dealt) == CLIENTS
    assert all(s.dealt.assigned == dealt for s in seen)  # dealt bins too


@pytest.mark.parametrize("redrawn", [False, True])
def test_bins_dealt_by_the_server_survive_its_death_in_every_round(tmp_path: Path, redrawn: bool) -> None:
    plan = make_plan(3, 2, drawn_by="server", redrawn=redrawn, noise_multiplier=1.0)
    trained: list[int] = []
    clients = Clients(ones)
    model = record(np.zeros(LENGTH))
    for server_round in range(1, 7):
        with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
            strategy = make_strategy(plan, ledger, tmp_path / "secrets.json")
            outcome = strategy.train_round(LocalGrid(clients.app, CLIENTS), server_round, model)
            assert outcome.arrays is not None
            model = outcome.arrays
        if server_round == 3:
            trained, clients.calls = clients.calls, []
    assert sorted(trained) == sorted(clients.calls) == list(range(CLIENTS))


def test_clients_under_new_ids_after_a_restart_are_not_dealt_in_again(tmp_path: Path) -> None:
    plan = make_plan(3, 1, drawn_by="server", num_clients=9, noise_multiplier=1.0)
    model = record(np.zeros(LENGTH))
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        make_strategy(plan, ledger, tmp_path / "s.json").train_round(local(), 1, model)
    clients = Clients(ones)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        strategy = make_strategy(plan, ledger, tmp_path / "s.json")
        with pytest.raises(InvalidArgument, match="none of the 9 clients has a bin"):
            strategy.train_round(LocalGrid(clients.app, 9), 2, model)  # other ids
        assert not clients.calls


@pytest.mark.parametrize("drawn_by", ["self", "server"])
def test_a_late_joiner_takes_part_at_most_once(drawn_by: str) -> None:
    plan = make_plan(3, 1, drawn_by=drawn_by)
    total = 0.0
    for _ in range(12):
        grid = local()
        nodes = list(grid.get_node_ids())
        strategy, model = make_strategy(plan), record(np.zeros(LENGTH))
        for server_round in range(1, 4):
            present = nodes[: 6 if server_round < 3 else 8]  # two join for the last round
            outcome = strategy.train_round(grid, server_round, model, clients=present)
            assert outcome.arrays is not None
            model = outcome.arrays
        total += round(-vector_of(model)[0] * plan.divisor) - 6
    # of 24 joiners a third has the last bin; all of them if they drew among what is left
    assert total < stats.binom.isf(1e-7, 24, 1 / 3) + 1


def test_another_key_or_another_plan_does_not_continue_a_run(tmp_path: Path) -> None:
    plan = make_plan(noise_multiplier=1.0)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        play(make_strategy(plan, ledger, tmp_path / "s.json"), local(), range(1, 2))
        with pytest.raises(InvalidArgument, match="another noise key"):
            make_strategy(plan, ledger)
        for other in (make_plan(noise_multiplier=1.1), make_plan(noise_multiplier=1.0, drawn_by="server")):
            with pytest.raises(InvalidArgument, match="another schedule, matrix or noise"):
                make_strategy(other, ledger, tmp_path / "s.json")
        assert make_strategy(plan, ledger, tmp_path / "s.json", stage="other").stopped is None


def test_spoilt_secrets_are_an_error_and_not_fresh_ones(tmp_path: Path) -> None:
    schedule = RandomAllocationSchedule(3)
    path = tmp_path / "s.json"
    good = MatrixSecrets.open(path, schedule)
    again = MatrixSecrets.open(path, schedule)
    assert (again.key, again.allocation) == (good.key, good.allocation)
    for content in (
        "",
        "{}",
        "[]",
        '{"key": "00", "allocation": "a", "dealt": {"draw": -1, "assigned": {}}}',
    ):
        path.write_text(content)
        with pytest.raises(InvalidArgument, match="key"):
            MatrixSecrets.open(path, schedule)
        assert path.read_text() == content


def test_seeds_must_be_declared_and_repeat() -> None:
    with pytest.raises(InvalidArgument, match="seeded"):
        make_strategy(make_plan(), seed=3)
    plan = replace(make_plan(1, 2, matrix=bsr(2, 2), noise_multiplier=1.0, seeded=True))
    runs = [
        rows(play(make_strategy(plan, seed=seed), LocalGrid(Clients().app, CLIENTS), range(1, 3)))
        for seed in (3, 3, 4)
    ]
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], runs[2])
