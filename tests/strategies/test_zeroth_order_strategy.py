"""Zeroth-order rounds: the step of the formula, the noise of the plan, models rebuilt from public numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from strategy_helpers import assert_normal, open_ledger

from fedpriv import wire
from fedpriv.accounting import Gaussian, PoissonGaussian
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.clients import zeroth_order_mod
from fedpriv.ledger import BudgetExceeded
from fedpriv.mechanisms import Ball, FullParticipation, SelfSampling
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.model_identity import model_identity
from fedpriv.plans import ZerothOrderPlan
from fedpriv.strategies import NoisedSum, ZerothOrder
from fedpriv.testing import LocalGrid

N, D = 6, 40


class Linear:
    """Losses <a, w> of three records; the two-point quotient is <a, u> whatever xi is."""

    def __init__(self, weights: np.ndarray, slope: np.ndarray) -> None:
        self.parameters = [torch.from_numpy(weights.copy())]
        self.slope, self.num_records = slope, 3

    def losses(self, records: np.ndarray | None = None) -> np.ndarray:
        count = 3 if records is None else len(records)
        return np.full(count, float(self.slope @ self.parameters[0].double().numpy()))


class Silos:
    """Clients with a slope each; keeps the arrays that they were handed."""

    def __init__(self, slopes: np.ndarray, fail: tuple[int, ...] = (), initial: Any = None) -> None:
        self.slopes, self.fail, self.seen = slopes, fail, {}  # type: ignore[var-annotated]
        self.app = ClientApp()

        @self.app.train(mods=[zeroth_order_mod(self.objective, initial)])
        def never(msg: Message, context: Context) -> Message:
            raise AssertionError("reached the train function")

    def objective(self, arrays: dict[str, np.ndarray], context: Context) -> Linear:
        client = int(context.node_config["partition-id"])
        self.seen.setdefault(client, []).append(arrays["w"].copy())
        if client in self.fail:
            raise ValueError("no data")
        return Linear(arrays["w"], self.slopes[client])


def model(vector: np.ndarray | None = None) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(D, dtype=np.float32) if vector is None else vector)})


def values(arrays: ArrayRecord | None) -> np.ndarray:
    assert arrays is not None
    return arrays["w"].numpy()


def make_plan(**changes: Any) -> ZerothOrderPlan:
    arguments: dict[str, Any] = {
        "sampler": FullParticipation(),
        "dimension": D,
        "directions": 4,
        "clip": 2.0,
        "smoothing": 1e-2,
        "direction_share": 0.5,
        "noise_multiplier": 1.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": N,
        "min_survivors": 4,
        "rounds": 50,
    }
    return ZerothOrderPlan.build(**(arguments | changes))


def make(plan: ZerothOrderPlan, ledger: Any = None, mode: Any = "simulated", **options: Any) -> ZerothOrder:
    sums = NoisedSum(ledger, mode=mode, seed=options.get("seed"))
    return ZerothOrder(plan, sums, learning_rate=options.pop("learning_rate", 0.5), **options)


def slopes(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, D)) / math.sqrt(D)


@pytest.mark.parametrize("kind", ["orthonormal", "independent", "signs"])
def test_without_noise_the_step_is_the_formula(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(noise_multiplier=0.0, direction_share=1.0)
    object.__setattr__(plan, "kind", kind)
    silos = Silos(slopes())
    strategy = make(plan)
    monkeypatch.setattr(strategy, "_direction_seed", lambda server_round: bytes(16))
    outcome = strategy.train_round(LocalGrid(silos.app, N), 1, model())
    directions = Directions(bytes(16), D, 4, kind)  # type: ignore[arg-type]
    frame = np.stack([directions.direction(k) for k in range(4)]).astype(np.float64)
    quotients = np.clip(silos.slopes @ frame.T, -2.0, 2.0).mean(axis=0)
    expected = -0.5 / 4 * quotients @ frame
    assert np.allclose(values(outcome.arrays), expected, atol=3e-2 * np.abs(expected).max())
    assert (outcome.survivors, outcome.asked, outcome.released) == (N, N, True)


def test_quotients_are_clipped_one_by_one() -> None:
    plan = make_plan(noise_multiplier=0.0, direction_share=1.0, clip=0.05)
    outcome = make(plan, learning_rate=1.0).train_round(LocalGrid(Silos(50 * slopes()).app, N), 1, model())
    assert np.linalg.norm(values(outcome.arrays)) <= 0.05 / math.sqrt(4) * (1 + 1e-6)


def test_noise_on_an_averaged_quotient_has_variance_k_beta_sigma_squared() -> None:
    """What `accounting.md` 5 fixes: (eta/K) times it is (eta/sqrt K) N(0, beta sigma^2), and s/K is not s."""
    plan = make_plan(directions=8, direction_share=0.3, min_survivors=N, rounds=400)
    strategy, grid = make(plan, learning_rate=1.0), LocalGrid(Silos(np.zeros((N, D))).app, N)
    moves = [values(strategy.train_round(grid, r, model()).arrays) for r in range(1, 31)]
    total = np.concatenate(moves).astype(np.float64)
    realised = plan.noise.realised_std_units(N) / plan.noise.total_std_units
    # along a direction (eta/sqrt K) N(0, beta sigma^2) with the realised shares, around it (1 - beta) sigma^2 / d
    sigma = plan.noise_std
    energy = (0.3 * realised**2 + 0.7) * sigma**2
    # the energy of 30 rounds scatters by less than 5 %, most of it from the 8 directional numbers
    assert np.sum(total**2) / 30 == pytest.approx(energy, rel=0.25)
    event = plan.events()["server"]
    assert isinstance(event, Gaussian)
    sensitivity = plan.clip / N
    assert event.noise_multiplier == pytest.approx(math.sqrt(0.3) * sigma / sensitivity, rel=1e-9)


def test_released_quotients_carry_the_noise_of_the_plan() -> None:
    plan = make_plan(directions=40, direction_share=1.0, noise_multiplier=2.0)
    strategy, grid = make(plan, learning_rate=40.0), LocalGrid(Silos(np.zeros((N, D))).app, N)
    released: list[float] = []
    for server_round in range(1, 9):
        strategy.train_round(grid, server_round, model())
        released += strategy.downlink._steps[-1].coefficients  # (eta/K) g, and eta = K here
    assert_normal(
        np.array(released), plan.noise.realised_std_units(N) * plan.sums.codec.step / plan.sums.divisor
    )


def test_events_are_those_of_the_sum_for_every_sampling() -> None:
    plan = make_plan(sampler=SelfSampling(0.5))
    assert all(isinstance(event, PoissonGaussian) for event in plan.events().values())
    central = make_plan(kind="central")
    assert central.infinite_views() == ("server",)
    one = make_plan(directions=1).events()["server"]
    many = make_plan(directions=16).events()["server"]
    assert one == many  # noise follows the sensitivity: the price does not depend on K


def test_clients_rebuild_the_model_bit_for_bit_and_no_model_is_sent() -> None:
    plan = make_plan(direction_share=1.0)
    silos, requests = Silos(slopes()), []

    def watch(client: int, request: Message) -> None:
        if wire.stage_of(request) in (wire.STAGE_MASKED_INPUT, wire.STAGE_SIMULATED):
            requests.append((client, "arrays" in request.content))

    grid, strategy, arrays = LocalGrid(silos.app, N, drop=watch), make(plan), model()
    models = []
    for server_round in range(1, 7):
        models.append(values(arrays))
        outcome = strategy.train_round(grid, server_round, arrays)
        assert outcome.arrays is not None
        arrays = outcome.arrays
    assert [sent for _, sent in requests] == [True] * N + [False] * 5 * N
    for client in range(N):
        for server_model, rebuilt in zip(models, silos.seen[client], strict=True):
            assert np.array_equal(server_model, rebuilt)


class Watched:
    """A federation whose losses can be set, and what reached its clients."""

    def __init__(self, silos: Silos, **options: Any) -> None:
        self.loss: dict[int, Any] = {}
        self.sent: list[tuple[int, bool]] = []
        self.grid = LocalGrid(silos.app, N, drop=self._drop)
        self.strategy, self.arrays = make(make_plan(direction_share=1.0), **options), model(start())

    def _drop(self, client: int, request: Message) -> Any:
        if wire.stage_of(request) == wire.STAGE_SIMULATED:
            self.sent.append((client, "arrays" in request.content))
        return self.loss.get(client)

    def play(self, server_round: int) -> tuple[int, set[int]]:
        """Survivors of a round, and who was sent the whole model."""
        self.sent.clear()
        outcome = self.strategy.train_round(self.grid, server_round, self.arrays)
        assert outcome.arrays is not None
        self.arrays = outcome.arrays
        return outcome.survivors, {client for client, whole in self.sent if whole}


def start() -> np.ndarray:
    return np.linspace(-1.0, 1.0, D, dtype=np.float32)


@pytest.mark.parametrize("loss", ["silent", "silent-after"])
def test_a_late_client_catches_up_by_the_steps_that_it_lacks(loss: str) -> None:
    """Whether the request or only the reply got lost: the server cannot tell, the client can."""
    silos = Silos(slopes())
    federation = Watched(silos)
    assert federation.play(1) == (N, set(range(N)))
    federation.loss[2] = loss
    assert federation.play(2) == (N - 1, set())
    federation.loss.clear()
    assert federation.play(3) == (N, set())
    assert np.array_equal(silos.seen[2][-1], silos.seen[0][-1])


def test_a_client_far_behind_gets_the_model_when_the_steps_are_larger() -> None:
    federation = Watched(Silos(slopes()))
    federation.play(1)
    federation.loss[2] = "silent"
    for server_round in (2, 3, 4):
        federation.play(server_round)
    federation.loss.clear()
    # four steps of a seed and four numbers are more bytes than 40 float32
    assert federation.play(5) == (N, {2})


def test_a_restarted_client_says_so_and_gets_the_model_whole() -> None:
    federation = Watched(Silos(slopes()))
    federation.play(1)
    federation.grid.restart_node(4)
    assert federation.play(2) == (N - 1, set())  # left out of the round in which it was found out
    assert federation.play(3) == (N, {4})
    assert federation.play(4) == (N, set())


def test_a_client_that_keeps_failing_to_rebuild_always_gets_the_model_whole() -> None:
    federation = Watched(Silos(slopes()))
    federation.play(1)
    for server_round in (2, 4):
        federation.grid.restart_node(4)
        assert federation.play(server_round)[0] == N - 1
        assert federation.play(server_round + 1) == (N, {4})
    assert federation.play(6) == (N, {4})


def test_where_everybody_builds_the_initial_model_none_is_sent() -> None:
    silos = Silos(slopes(), initial=lambda context: {"w": start()})
    federation = Watched(silos, initial_known=model_identity({"w": start()}))
    for server_round in (1, 2):
        assert federation.play(server_round) == (N, set())
    federation.grid.restart_node(4)
    assert federation.play(3) == (N - 1, set())
    assert federation.play(4) == (N, set())
    for client in set(range(N)) - {4}:
        assert all(np.array_equal(a, b) for a, b in zip(silos.seen[client], silos.seen[0], strict=True))


def test_an_initial_model_that_differs_or_fails_is_found_out() -> None:
    def initial(context: Context) -> dict[str, np.ndarray]:
        client = int(context.node_config["partition-id"])
        if client == 1:
            raise OSError("no file of weights")
        return {"w": start() + (1e-6 if client == 2 else 0.0)}

    silos = Silos(slopes(), initial=initial)
    federation = Watched(silos, initial_known=model_identity({"w": start()}))
    assert federation.play(1) == (N - 2, set())
    assert federation.play(2) == (N, {1, 2})
    assert np.array_equal(silos.seen[2][0], silos.seen[0][1])


def test_isotropic_noise_or_a_ball_needs_the_model_every_round() -> None:
    for options, share in (({}, 0.5), ({"ball": Ball(1.0)}, 1.0)):
        strategy = make(make_plan(direction_share=share), **options)
        assert not strategy.downlink.steps_only


def test_a_resumed_run_ends_in_the_same_model() -> None:
    plan = make_plan(seeded=True, direction_share=0.5)

    def run(split: int | None) -> np.ndarray:
        arrays = model()
        strategy, grid = make(plan, seed=3), LocalGrid(Silos(slopes()).app, N)
        for server_round in range(1, 9):
            if server_round == split:
                strategy, grid = make(plan, seed=3), LocalGrid(Silos(slopes()).app, N)
            outcome = strategy.train_round(grid, server_round, arrays)
            assert outcome.arrays is not None
            arrays = outcome.arrays
        return values(arrays)

    assert np.array_equal(run(None), run(4))


def test_projection_keeps_the_model_in_the_ball() -> None:
    plan = make_plan(noise_multiplier=20.0)
    strategy, grid, arrays = (
        make(plan, ball=Ball(0.5), learning_rate=5.0),
        LocalGrid(Silos(slopes()).app, N),
        model(),
    )
    outcome = strategy.train_round(grid, 1, arrays)
    assert np.linalg.norm(values(outcome.arrays)) == pytest.approx(0.5, rel=1e-4)


def test_failing_clients_contribute_zeros_and_noise(tmp_path: Path) -> None:
    plan = make_plan(noise_multiplier=1.0, direction_share=1.0)
    silos = Silos(slopes(), fail=tuple(range(N)))
    with open_ledger(tmp_path / "ledger.jsonl", plan) as ledger:
        outcome = make(plan, ledger, mode="protocol").train_round(LocalGrid(silos.app, N), 1, model())
        assert outcome.survivors == N
        assert np.linalg.norm(values(outcome.arrays)) > 0
        assert [entry.stage for entry in ledger.entries] == ["zeroth-order"]


def test_too_few_survivors_release_nothing_and_cost_nothing(tmp_path: Path) -> None:
    plan = make_plan()
    with open_ledger(tmp_path / "ledger.jsonl", plan) as ledger:
        grid = LocalGrid(
            Silos(slopes()).app, N, drop=lambda client, request: "silent" if client > 2 else None
        )
        outcome = make(plan, ledger, mode="protocol").train_round(grid, 1, model())
        assert (outcome.arrays, outcome.released) == (None, False)
        assert not [entry for entry in ledger.entries if entry.charged]


def test_the_budget_stops_before_anything_is_sent(tmp_path: Path) -> None:
    plan = make_plan()
    silos = Silos(slopes())
    with (
        open_ledger(tmp_path / "ledger.jsonl", plan, max_epsilon=0.1) as ledger,
        pytest.raises(BudgetExceeded),
    ):
        make(plan, ledger).train_round(LocalGrid(silos.app, N), 1, model())
    assert silos.seen == {}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"direction_share": 0.0}, "direction_share"),
        ({"direction_share": 1.5}, "direction_share"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"clip": 0.0}, "clip"),
        ({"directions": 0}, "directions"),
        ({"dimension": 0}, "dimension"),
    ],
)
def test_bad_plans_are_named(changes: dict, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        make_plan(**changes)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgument, match="learning_rate"):
        make(make_plan(), learning_rate=0.0)
    with pytest.raises(InvalidArgument, match="seed"):
        make(make_plan(), seed=1)
    strategy, grid = make(make_plan()), LocalGrid(Silos(slopes()).app, N)
    with pytest.raises(InvalidArgument, match="server_round"):
        strategy.train_round(grid, 51, model())
    with pytest.raises(InvalidArgument, match="3 coordinates"):
        strategy.train_round(grid, 1, model(np.zeros(3, dtype=np.float32)))
