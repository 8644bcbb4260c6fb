"""PACZero rounds: bits, majority, silo state, and what the whole transcript tells about the secret."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from scipy import stats

from fedpriv import wire
from fedpriv.accounting.pac import membership_success
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.clients import pac_zero_mod
from fedpriv.ledger import Ledger
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.sign_release import balanced_subsets
from fedpriv.plans import PacZeroPlan
from fedpriv.strategies import NoisedSum, PacZero
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode

D, RECORDS = 6, 10


class Linear:
    """Records with losses <a_i, w>."""

    def __init__(self, weights: np.ndarray, slopes: np.ndarray) -> None:
        self.parameters = [torch.from_numpy(weights.copy())]
        self.slopes, self.num_records = slopes, len(slopes)

    def losses(self, records: np.ndarray | None = None) -> np.ndarray:
        return self.slopes @ self.parameters[0].double().numpy()


class Silos:
    def __init__(self, slopes: dict[int, np.ndarray] | np.ndarray) -> None:
        self.slopes, self.fail = slopes, set[int]()
        self.app = ClientApp()

        @self.app.train(mods=[pac_zero_mod(self.objective)])
        def never(msg: Message, context: Context) -> Message:
            raise AssertionError("reached the train function")

    def objective(self, arrays: dict[str, np.ndarray], context: Context) -> Linear:
        silo = int(context.node_config["partition-id"])
        if silo in self.fail:
            raise ValueError("no data")
        return Linear(arrays["w"], self.slopes[silo])


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(D, dtype=np.float32))})


def values(arrays: ArrayRecord | None) -> np.ndarray:
    assert arrays is not None
    return arrays["w"].numpy().astype(np.float64)


def make_plan(**changes: Any) -> PacZeroPlan:
    arguments: dict[str, Any] = {
        "variant": "zpl",
        "budget_nats": 0.0,
        "subsets": 8,
        "rounds": 40,
        "num_silos": 4,
        "min_survivors": 3,
        "dimension": D,
        "clip": 10.0,
        "smoothing": 0.01,
    }
    return PacZeroPlan(**(arguments | changes))


def make(plan: PacZeroPlan, ledger: Ledger | None = None, mode: Any = "protocol", **options: Any) -> PacZero:
    sums = NoisedSum(ledger, mode=mode, timeout=5.0)
    return PacZero(plan, sums, **({"run": "test", "learning_rate": 0.5} | options))


def agreeing(silos: int = 4) -> np.ndarray:
    """All records of a silo have one slope: every subset agrees."""
    slope = np.random.default_rng(1).normal(size=D)
    return np.stack([np.tile(slope, (RECORDS, 1)) * (1 + silo) for silo in range(silos)])


def state_of(grid: LocalGrid, silo: int) -> dict[str, Any]:
    context = grid.contexts[grid.node_of(silo)]
    found = [r for name, r in context.state.items() if name.startswith(wire.STATE_SILO_FILE)]
    return json.loads(found[0]["content"])  # type: ignore[index,arg-type]


@pytest.mark.parametrize("silos", [1, 2, 4])
@pytest.mark.parametrize("aggregate", ["majority", "mean"])
def test_agreeing_silos_descend_by_the_sign(
    silos: int, aggregate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(num_silos=silos, min_survivors=silos)
    strategy, data = make(plan, aggregate=aggregate), agreeing(silos)
    monkeypatch.setattr(strategy, "_direction_seed", lambda server_round: bytes(16))
    outcome = strategy.train_round(LocalGrid(Silos(data).app, silos), 1, model())
    direction = Directions(bytes(16), D, 1).direction(0).astype(np.float64)
    sign = np.sign(data[0, 0] @ direction)
    assert np.allclose(values(outcome.arrays), -0.5 * sign * direction, atol=1e-5)
    assert (outcome.total, outcome.survivors, outcome.released) == (sign * silos, silos, True)


def test_the_majority_decides_and_the_mean_weighs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = agreeing(4)
    data[3] *= -1
    direction = Directions(bytes(16), D, 1).direction(0).astype(np.float64)
    sign = np.sign(data[0, 0] @ direction)
    for aggregate, length in (("majority", 0.5), ("mean", 0.25)):
        strategy = make(make_plan(), aggregate=aggregate)
        monkeypatch.setattr(strategy, "_direction_seed", lambda server_round: bytes(16))
        outcome = strategy.train_round(LocalGrid(Silos(data).app, 4), 1, model())
        assert np.allclose(values(outcome.arrays), -length * sign * direction, atol=1e-5)


def test_ties_are_broken_by_a_coin() -> None:
    strategy = make(make_plan())
    assert {strategy._decision(0, 4, r) for r in range(60)} == {-1.0, 1.0}


def test_the_budget_is_charged_once_before_the_first_bit_and_never_as_epsilon(tmp_path: Path) -> None:
    plan = make_plan(variant="mi", budget_nats=0.2)
    path = tmp_path / "ledger.jsonl"
    for first in (1, 3):  # a resumed run charges nothing again
        with Ledger.open(path, unit="client", adjacency="add_or_remove", run="test", delta=1e-3) as ledger:
            strategy, arrays = make(plan, ledger), model()
            grid = LocalGrid(Silos(agreeing()).app, 4)
            for server_round in (first, first + 1):
                outcome = strategy.train_round(grid, server_round, arrays)
                assert outcome.nats == 0.2
            assert ledger.pac_totals() == {("paczero", "each"): 0.2}
            assert ledger.epsilon("server", 1e-3).epsilon == 0.0


def test_silos_that_drop_out_are_left_out_and_too_few_move_nothing() -> None:
    lost: set[int] = set()
    grid = LocalGrid(Silos(agreeing()).app, 4, drop=lambda silo, request: "silent" if silo in lost else None)
    strategy, arrays = make(make_plan()), model()
    lost.add(1)
    outcome = strategy.train_round(grid, 1, arrays)
    assert (outcome.survivors, outcome.released) == (3, True)
    lost.add(2)
    outcome = strategy.train_round(grid, 2, arrays)
    assert (outcome.arrays, outcome.released) == (None, False)


def test_failing_silos_answer_by_a_coin() -> None:
    silos = Silos(agreeing(1))
    silos.fail.add(0)
    grid = LocalGrid(silos.app, 1)
    strategy = make(make_plan(num_silos=1, min_survivors=1))
    bits = {strategy.train_round(grid, r, model()).total for r in range(1, 41)}
    assert bits == {-1, 1}


def test_the_state_is_private_on_disk_and_survives_a_restart(tmp_path: Path) -> None:
    plan = make_plan(variant="mi", budget_nats=0.3, num_silos=1, min_survivors=1)
    data = np.random.default_rng(0).normal(size=(1, RECORDS, D))
    folder = tmp_path / "state"

    def grid() -> LocalGrid:
        return LocalGrid(
            Silos(data).app, 1, node_config={wire.CONFIG_STATE_PATH: str(folder)}, simulation=False
        )

    def stored() -> dict[str, Any]:
        (file,) = folder.glob("*.json")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        return json.loads(file.read_text())

    first = grid()
    strategy = make(plan)
    for server_round in range(1, 6):
        strategy.train_round(first, server_round, model())
    before = stored()
    assert not any(name.startswith(wire.STATE_SILO_FILE) for name in first.contexts[first.node_of(0)].state)
    strategy = make(plan)
    strategy.train_round(grid(), 6, model())
    after = stored()
    assert after["release"]["secret"] == before["release"]["secret"]
    assert after["subset-seed"] == before["subset-seed"]
    assert after["release"]["round"] == 6
    assert after["release"]["used"] >= before["release"]["used"]

    def code() -> int | None:
        found: list[int] = []

        def watch(silo: int, request: Message, reply: Message) -> list[Message]:
            found.extend([reply.error.code] if reply.has_error() else [])
            return [reply]

        watched = grid()
        watched.intercept = watch
        make(plan).train_round(watched, 7, model())
        return found[0] if found else None

    (file,) = folder.glob("*.json")
    content = file.read_text()
    file.write_text(content[:-20])
    assert code() == ErrorCode.STATE_UNREADABLE
    file.write_text(content)
    data = data[:, :-2]
    assert code() == ErrorCode.UNIVERSE_CHANGED


def test_a_silo_without_a_folder_refuses_outside_a_simulation() -> None:
    codes = []

    def watch(silo: int, request: Message, reply: Message) -> list[Message]:
        codes.append(reply.error.code if reply.has_error() else 0)
        return [reply]

    plan = make_plan(num_silos=1, min_survivors=1, variant="mi", budget_nats=0.5)
    make(plan).train_round(
        LocalGrid(Silos(agreeing(1)).app, 1, simulation=False, intercept=watch), 1, model()
    )
    grid = LocalGrid(Silos(agreeing(1)).app, 1, node_config={wire.CONFIG_MAX_NATS: 0.1}, intercept=watch)
    make(plan).train_round(grid, 1, model())
    assert codes == [ErrorCode.NO_STATE_PATH, ErrorCode.BUDGET_TOO_LARGE]


def test_the_same_request_gets_the_same_bit_and_spends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).normal(size=(1, RECORDS, D))
    grid = LocalGrid(Silos(data).app, 1)
    strategy = make(make_plan(num_silos=1, min_survivors=1, variant="mi", budget_nats=0.3))
    monkeypatch.setattr(strategy, "_direction_seed", lambda server_round: bytes(16))
    bits = {strategy.train_round(grid, 1, model()).total for _ in range(12)}
    assert len(bits) == 1
    assert state_of(grid, 0)["release"]["round"] == 1


@pytest.mark.parametrize(("variant", "nats"), [("zpl", 0.0), ("mi", 0.4)])
@pytest.mark.parametrize("again", [0, 1])
def test_a_resumed_run_ends_in_the_same_model(variant: str, nats: float, again: int, tmp_path: Path) -> None:
    """Also when every client forgot its context, and a round that the server lost is played twice."""
    plan = make_plan(seeded=True, variant=variant, budget_nats=nats, rounds=8)
    data = np.random.default_rng(2).normal(size=(4, RECORDS, D))

    def run(name: str, split: int | None) -> np.ndarray:
        def start() -> tuple[LocalGrid, PacZero]:
            folder = str(tmp_path / name)
            strategy = make(plan, seed=5, mode="simulated", simulation_folder=folder)
            return LocalGrid(Silos(data).app, 4), strategy

        (grid, strategy), arrays = start(), model()
        for server_round in range(1, 9):
            if server_round == split:
                for _ in range(again):
                    strategy.train_round(grid, server_round, arrays)
                grid, strategy = start()
            outcome = strategy.train_round(grid, server_round, arrays)
            assert outcome.arrays is not None
            arrays = outcome.arrays
        return values(arrays)

    assert np.array_equal(run("whole", None), run("halves", 4))


# -- evidence ------------------------------------------------------------------------------------------------


def transcripts(variant: str, nats: float, runs: int, rounds: int) -> list[tuple[int, np.ndarray, list[int]]]:
    """Secret, memberships and bits of independent runs of one silo with disagreeing records."""
    data = np.random.default_rng(3).normal(size=(1, RECORDS, D))
    plan = make_plan(
        variant=variant, budget_nats=nats, rounds=rounds, num_silos=1, min_survivors=1, subsets=4
    )
    found = []
    for _ in range(runs):
        grid = LocalGrid(Silos(data).app, 1)
        strategy, bits = make(plan), []
        strategy._direction_seed = lambda r: r.to_bytes(16, "little")  # type: ignore[method-assign]
        for server_round in range(1, rounds + 1):
            bits.append(strategy.train_round(grid, server_round, model()).total)
        state = state_of(grid, 0)
        members = balanced_subsets(RECORDS, 4, bytes.fromhex(state["subset-seed"]))
        found.append((state["release"]["secret"], members, bits))
    return found


def signs_of(members: np.ndarray, rounds: int) -> np.ndarray:
    """What an attacker who knows all records computes: the sign of every subset in every round."""
    data = np.random.default_rng(3).normal(size=(RECORDS, D))
    directions = [Directions(r.to_bytes(16, "little"), D, 1).direction(0) for r in range(1, rounds + 1)]
    return np.stack([np.where(members @ (data @ u) >= 0, 1, -1) for u in directions])


def agreement(found: list[tuple[int, np.ndarray, list[int]]], rounds: int) -> tuple[int, int]:
    """How often a bit is the secret subset's sign, over the rounds in which the subsets differ."""
    hits = total = 0
    for secret, members, bits in found:
        signs = signs_of(members, rounds)
        differ = np.abs(signs.sum(axis=1)) < 4
        hits += int((signs[differ, secret] == np.array(bits)[differ]).sum())
        total += int(differ.sum())
    return hits, total


def test_zpl_bits_do_not_depend_on_the_secret() -> None:
    """Two-sample test: the bits agree with the secret subset's sign as often as with any other's."""
    rounds = 12
    found = transcripts("zpl", 0.0, 60, rounds)
    hits, total = agreement(found, rounds)
    assert total > 300
    assert stats.binomtest(hits, total).pvalue > 1e-7
    secrets = np.bincount([secret for secret, _, _ in found], minlength=4)
    assert len(secrets) == 4
    assert stats.chisquare(secrets).pvalue > 1e-7


def test_the_test_of_independence_catches_a_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo that answers by its secret sign instead of a coin."""
    from fedpriv.mechanisms import sign_release

    original = sign_release.SignRelease.release

    def leaky(self: Any, signs: Any, source: Any) -> int:
        original(self, signs, source)
        return int(signs[self.secret])

    monkeypatch.setattr(sign_release.SignRelease, "release", leaky)
    hits, total = agreement(transcripts("zpl", 0.0, 30, 12), 12)
    assert stats.binomtest(hits, total).pvalue < 1e-12


def test_the_best_membership_attack_on_mi_stays_below_its_bound() -> None:
    """Bayes' rule on the released signs, the noise known from the public budget: no attacker does better."""
    rounds, nats, runs = 3, 0.3, 200
    wins = 0
    for secret, members, bits in transcripts("mi", nats, runs, rounds):
        scores = (signs_of(members, rounds) * np.array(bits)[:, None]).sum(axis=0)
        inside = scores[members[:, 0]].max() >= scores[~members[:, 0]].max()
        wins += int(inside == members[secret, 0])
    bound = membership_success(nats)
    assert 0.5 < bound < 0.95
    # the true success is at most the bound: more wins than this have probability below 1e-6
    assert wins <= stats.binom.isf(1e-6, runs, bound)
    assert math.isfinite(bound)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"variant": "other"}, "variant"),
        ({"budget_nats": 0.1}, "nats"),
        ({"variant": "mi"}, "nats"),
        ({"subsets": 7}, "subsets"),
        ({"rounds": 0}, "rounds"),
        ({"min_survivors": 9}, "min_survivors"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_bad_plans_are_named(changes: dict, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        make_plan(**changes)


def test_plans_state_nats_and_success_and_never_an_epsilon() -> None:
    plan = make_plan()
    assert (plan.nats, plan.posterior_success, plan.comparison_epsilon) == (0.0, 0.5, 0.0)
    assert not hasattr(plan, "events")
    assert make_plan(variant="mi", budget_nats=50.0).nats == pytest.approx(math.log(8))
    with pytest.raises(InvalidArgument, match="run"):
        make(plan, run="")
    with pytest.raises(InvalidArgument, match="aggregate"):
        make(plan, aggregate="median")
