"""Zeroth-order fine-tuning under attack: a canary client whose loss is so steep that every quotient is at the clip.

The loss is linear in the model, so that the adversary, who knows the public directions, knows the sign of every
quotient. Everybody else contributes zeros; the federation is the canary and one client that adds no noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from fedpriv import wire
from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, RecordedSums, colluding_mod, make_app, partition_of
from fedpriv.audit.ledger_check import Watch
from fedpriv.audit.target import (
    ABORTED,
    NoiseSample,
    Participation,
    PlanTarget,
    Probes,
    Setup,
    few_clients,
    signal_ratio,
)
from fedpriv.audit.targets.linear import LinearLosses
from fedpriv.audit.targets.updates import plain, quiet
from fedpriv.clients import zeroth_order_mod
from fedpriv.ledger import Ledger
from fedpriv.mechanisms import Ball, FullParticipation, SelfSampling
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.plans import ZerothOrderPlan
from fedpriv.settings import ZerothOrderSettings
from fedpriv.strategies import ZerothOrder

#: Slope of the canary's loss, in clips.
_STEEP = 1e6
#: Directions, coordinates and rounds of the noise probe.
NOISE_DIRECTIONS, NOISE_ROUNDS = 120, 12
_FEW = 8

Slopes = Callable[[int], "np.ndarray | None"]
"""From partition to the slope of the client's linear loss, shape (d,); None for a client that fails."""


class _Federation:
    """Clients with linear losses on a grid, and what was sent to them."""

    def __init__(self, clients: int, honest: int, watch: Watch | None = None) -> None:
        self.slopes: Slopes = lambda client: None
        self.seeds: list[tuple[bytes, str]] = []
        self.cohorts: set[frozenset[tuple[int, float]]] = set()
        self.took_part = False
        self._watch = watch
        app = make_app([colluding_mod(honest), zeroth_order_mod(self._objective)])
        self.grid = AuditGrid(app, clients, watch=self._see)

    def _objective(self, arrays: dict[str, np.ndarray], context: Context) -> LinearLosses:
        client = partition_of(context)
        self.took_part = self.took_part or client == 0
        slope = self.slopes(client)
        if slope is None:
            raise ValueError("this client has nothing to say")
        return LinearLosses(arrays, slope)

    def _see(self, messages: list[Message]) -> None:
        if self._watch is not None:
            self._watch(messages)
        asked = set()
        for message in messages:
            if wire.RECORD_ZEROTH_ORDER not in message.content:
                continue
            record = message.content[wire.RECORD_ZEROTH_ORDER]
            seed = bytes(record[wire.ZEROTH_ORDER_SEED]), str(record[wire.ZEROTH_ORDER_KIND])  # type: ignore[arg-type]
            if not self.seeds or self.seeds[-1] != seed:
                self.seeds.append(seed)
            rate = float(record[wire.UPDATE_SAMPLING_RATE])  # type: ignore[arg-type]
            asked.add((message.metadata.dst_node_id, rate))
        if asked:
            self.cohorts.add(frozenset(asked))


class ZerothOrderTarget(PlanTarget):
    """Rounds of `ZerothOrder`.

    Parameters
    ----------
    setup : Setup
        Configured stage; without settings the rate is 1 and there is no ball.
    """

    kind = "zeroth-order fine-tuning"
    code = (
        "ZerothOrder.train_round, NoisedSum.release, SecureSum (simulated), zeroth_order_mod, through Flower "
        "messages in process"
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.plan, ZerothOrderPlan)
        self.settings = (
            ZerothOrderSettings.from_run_config({})
            if setup.settings is None
            else setup.settings.of(ZerothOrderSettings)
        )
        self.plan = self._small(setup.plan)
        clients = self.plan.num_clients
        # where the server draws the cohort nobody may be without noise, see DpsgdDcTarget
        helpers = 1 if self.plan.sampler.name != "server" and self.plan.noise.kind == "distributed" else 0
        self._federation = _Federation(clients, clients - helpers)

    @classmethod
    def of(cls, setup: Setup) -> ZerothOrderTarget:
        return cls(setup)

    def _small(self, plan: ZerothOrderPlan) -> ZerothOrderPlan:
        bounded = self.bound is not None and self.bound.event is not None
        if not bounded:
            plan = replace(plan, dimension=min(plan.dimension, max(_FEW, 2 * plan.directions)))
        if plan.sampler.name == "server":
            return plan
        helpers = 1 if plan.noise.kind == "distributed" else 0
        noise = few_clients(plan.noise, 1, helpers)
        return replace(plan, sums=replace(plan.sums, num_clients=1 + helpers, noise=noise))

    def _strategy(
        self, plan: ZerothOrderPlan, configured: ZerothOrderPlan
    ) -> tuple[ZerothOrder, RecordedSums]:
        own, seed = self.settings, 0 if plan.noise.seeded else None
        sums = RecordedSums(None, mode="simulated", seed=seed)
        # the same step for the same sum: the divisor of the small federation is another
        rate = own.learning_rate * plan.sums.divisor / configured.sums.divisor
        strategy = ZerothOrder(
            plan,
            sums,
            learning_rate=rate,
            schedule=lambda server_round: schedule_factor(own.schedule, server_round, plan.rounds),
            ball=Ball(own.radius) if own.radius > 0 else None,
            seed=seed,
            stage=self.stage,
        )
        return strategy, sums

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """All rounds, with the canary or without it (replace_one: with the opposite slope)."""
        plan, federation = self.plan, self._federation
        assert isinstance(self.configured, ZerothOrderPlan)
        both = plan.adjacency == "replace_one"
        slope = np.full(plan.dimension, _STEEP * plan.clip)
        slope *= 1.0 if present else (-1.0 if both else 0.0)
        federation.slopes = lambda client: slope if client == 0 else None
        federation.seeds.clear()
        strategy, sums = self._strategy(plan, self.configured)
        model, took_part = start_model(plan.dimension), []
        for server_round in range(1, plan.rounds + 1):
            federation.took_part = False
            outcome = strategy.train_round(federation.grid, server_round, model)
            if outcome.arrays is None:
                return {view: np.full(2, ABORTED) for view in self.views()}
            model = outcome.arrays
            took_part.append(federation.took_part)
        return self._statistics(np.array(sums.totals), plain(model), np.array(took_part), both)

    def _statistics(
        self, totals: np.ndarray, final: np.ndarray, took_part: np.ndarray, both: bool
    ) -> dict[View, np.ndarray]:
        plan = self.plan
        signs, reach = known_signs(plan.dimension, plan.directions, self._federation.seeds)
        std, count = plan.noise.total_std_units, plan.directions
        shift = plan.sums.codec.clip_units / std
        along = np.sum(totals * signs, axis=1) / (std * count**0.5)
        sampler = plan.sampler
        rate = sampler.rate if isinstance(sampler, SelfSampling) and plan.sums.idle_clients_train else 1.0
        middle = -shift / 2 if both else 0.0
        seen = np.array([signal_ratio((along - middle)[took_part], shift, rate), float(np.sum(along))])
        # the model moves against the noised quotients: everything along the canary's way, and its last step alone
        released = -np.array([final @ reach.sum(axis=0), final @ reach[-1]])
        found: dict[View, np.ndarray] = {"server": seen, "participants": seen, "release": released}
        return {view: found[view] for view in self.views()}

    def probes(self) -> ZerothOrderProbes:
        assert isinstance(self.configured, ZerothOrderPlan)
        return ZerothOrderProbes(self.configured, self._strategy)


def start_model(dimension: int) -> ArrayRecord:
    """A model of zeros in two arrays."""
    left = dimension // 2
    arrays = {"first": np.zeros(left), "second": np.zeros(dimension - left)}
    return ArrayRecord({name: Array(value) for name, value in arrays.items() if value.size})


def known_signs(dimension: int, count: int, seeds: list[tuple[bytes, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Signs of the canary's quotients, shape (rounds, K), and where it pushes the model, shape (rounds, d)."""
    signs, reach = [], []
    for seed, kind in seeds:
        directions = Directions(seed, dimension, count, kind)  # type: ignore[arg-type]
        rows = np.array([directions.direction(index) for index in range(count)], dtype=np.float64)
        signs.append(np.sign(rows.sum(axis=1)))
        reach.append(signs[-1] @ rows)
    return np.array(signs), np.array(reach)


#: Worst-case slopes of a client's loss, from the dimension and the clip.
WORST_SLOPES: dict[str, Callable[[int, float], np.ndarray]] = {
    "a steep loss": lambda size, clip: np.full(size, _STEEP * clip),
    "steep in one coordinate": lambda size, clip: _STEEP * clip * np.eye(size)[0],
    "a loss whose quotients are near the clip": lambda size, clip: np.linspace(-2, 2, size) * clip,
    "infinite losses": lambda size, clip: np.full(size, np.inf),
    "losses that are no numbers": lambda size, clip: np.full(size, np.nan),
    "largest numbers": lambda size, clip: np.full(size, 1e300),
}

MakeStrategy = Callable[[ZerothOrderPlan, ZerothOrderPlan], tuple[ZerothOrder, RecordedSums]]


class ZerothOrderProbes(Probes):
    """Small experiments on `ZerothOrder` under a plan.

    Parameters
    ----------
    plan : ZerothOrderPlan
        As configured.
    make : callable
        From a plan and the plan whose step is kept to a strategy.
    """

    def __init__(self, plan: ZerothOrderPlan, make: MakeStrategy) -> None:
        self.plan: ZerothOrderPlan = plan
        self._make = make

    @property
    def sensitivity_units(self) -> float:
        return float(self.plan.sums.sensitivity_units)

    def _played(
        self, federation: _Federation, plan: ZerothOrderPlan, rounds: int
    ) -> tuple[np.ndarray, list[int]]:
        strategy, sums = self._make(plan, plan)
        for server_round in range(1, rounds + 1):
            strategy.train_round(federation.grid, server_round, start_model(plan.dimension))
        return np.array(sums.totals, dtype=np.float64), sums.summed

    def _with(
        self, *, clients: int, honest: int, helpers: int, directions: int, rounds: int
    ) -> ZerothOrderPlan:
        plan = self.plan
        sampler = plan.sampler if isinstance(plan.sampler, SelfSampling) else FullParticipation()
        noise = few_clients(plan.noise, honest, helpers)
        codec = replace(
            plan.sums.codec, clipping_norm=plan.clip * directions**0.5
        )  # the quotients' clip stays as it is
        sums = replace(
            plan.sums,
            sampler=sampler,
            codec=codec,
            num_clients=clients,
            noise=noise,
            length=directions,
            rounds=rounds,
        )
        return replace(plan, sums=sums, dimension=max(directions, _FEW), kind="orthonormal")

    def noise(self, *, counted: bool) -> NoiseSample:
        """Sums of clients whose losses fail: of four honest ones, or of one and another that adds no noise."""
        distributed = self.plan.noise.kind == "distributed"
        honest, helpers = (1, 1 if distributed else 0) if counted else (4, 0)
        plan = self._with(
            clients=honest + helpers,
            honest=honest,
            helpers=helpers,
            directions=NOISE_DIRECTIONS,
            rounds=NOISE_ROUNDS,
        )
        draws, summed = self._played(_Federation(honest + helpers, honest), plan, NOISE_ROUNDS)
        total = plan.noise.total_std_units
        expected = [total if counted else plan.noise.realised_std_units(survivors) for survivors in summed]
        return NoiseSample(draws, np.array(expected), total, counted)

    def shifts(self) -> dict[str, float]:
        """Canaries against a client that fails (replace_one: against their opposite), beside others with losses."""
        plan = self._with(clients=3, honest=3, helpers=0, directions=self.plan.directions, rounds=1)
        codec, noise = quiet(plan.sums.codec, plan.noise)
        sums = replace(plan.sums, codec=codec, noise=noise, sampler=FullParticipation())
        plan = replace(plan, sums=sums)
        both = plan.adjacency == "replace_one"
        found = {}
        for name, make in WORST_SLOPES.items():
            slope = make(plan.dimension, plan.clip)
            moved = self._squared(plan, slope)
            other = self._squared(plan, -slope) if both else self._squared(plan, None)
            # directions are drawn afresh in every round, so norms are compared with the largest possible one: the
            # others contribute zeros here
            distance = moved + other if both else moved - other
            found[name] = distance / (sums.sensitivity_units / codec.clip_units)
        return found

    def _squared(self, plan: ZerothOrderPlan, slope: np.ndarray | None) -> float:
        """Norm of the released sum in clips."""
        federation = _Federation(3, 3)
        federation.slopes = lambda client: slope if client == 0 else None
        totals, _ = self._played(federation, plan, 1)
        return float(np.linalg.norm(totals[0])) / plan.sums.codec.clip_units if len(totals) else np.inf

    def play_with(self, ledger: Ledger, watch: Watch) -> None:
        """Two rounds of the protocol's messages."""
        plan = self._with(clients=4, honest=4, helpers=0, directions=self.plan.directions, rounds=2)
        strategy, sums = self._make(plan, plan)
        sums.ledger, sums.mode = ledger, "simulated" if plan.noise.seeded else "protocol"
        federation = _Federation(4, 4, watch)
        for server_round in (1, 2):
            strategy.train_round(federation.grid, server_round, start_model(plan.dimension))

    def participation(self) -> Participation | None:
        """Twenty clients with steep losses: how many quotients are in the sum?"""
        plan = self.plan
        if isinstance(plan.sampler, FullParticipation):
            return None
        clients, rounds = (20 if isinstance(plan.sampler, SelfSampling) else plan.num_clients), 3
        noise = replace(plan.noise, min_survivors=2, colluders=0)
        codec, noise = quiet(replace(plan.sums.codec, clipping_norm=plan.clip), noise)
        sums = replace(plan.sums, num_clients=clients, length=1, rounds=rounds, codec=codec, noise=noise)
        plan = replace(plan, sums=sums, dimension=_FEW, kind="orthonormal")
        federation = _Federation(clients, clients)
        federation.slopes = lambda client: np.full(_FEW, _STEEP * plan.clip)
        totals, _ = self._played(federation, plan, rounds)
        took_part = int(np.sum(np.round(np.abs(totals) / codec.clip_units)))
        cohorts = federation.cohorts
        visible = len(cohorts) > 1 or any(len({rate for _, rate in cohort}) > 1 for cohort in cohorts)
        return Participation(took_part, clients * rounds, visible)
