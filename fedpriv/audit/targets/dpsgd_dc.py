"""Client-level DPSGD-DC under attack: a canary client that always pushes one coordinate as far as the clip allows.

Everybody else contributes zeros. Where everyone is asked, the federation is the canary and one client that adds no
noise: the adversary knows the shares of those who help it, so what it sees is the sum with exactly the noise that the
guarantee counts. The server's learning rate is scaled so that canary and noise move the model as in the configured
federation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord

from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, RecordedSums
from fedpriv.audit.ledger_check import Watch
from fedpriv.audit.one_run import OneRun
from fedpriv.audit.target import (
    ABORTED,
    NoiseSample,
    Participation,
    PlanTarget,
    Probes,
    Setup,
    Shadow,
    few_clients,
    finer_by,
    signal_ratio,
)
from fedpriv.audit.targets.updates import (
    WORST_UPDATES,
    Arrays,
    DictatedClients,
    Update,
    model_of,
    negated,
    plain,
    push,
    quiet,
    unflattened,
    zeros_like,
)
from fedpriv.ledger import Ledger
from fedpriv.mechanisms import Ball, FullParticipation, SelfSampling
from fedpriv.plans import DpsgdDcPlan
from fedpriv.settings import TrainSettings
from fedpriv.strategies import DpsgdDc, ServerOptimizer, ServerSgd
from fedpriv.strategies.optimizers import ServerAdam

#: Models are cut to so many coordinates where the claim does not depend on their number.
FEW_COORDINATES = 8
#: Zero-sum rounds and coordinates of the noise probe.
NOISE_ROUNDS, NOISE_LENGTH = 2, 20_000
_LOUD = 1e3  # clips that the canary would move the model by, if it were not clipped


def _default_settings() -> TrainSettings:
    return TrainSettings.from_run_config({"train.radius": 0.0})


class DpsgdDcTarget(PlanTarget):
    """Rounds of `DpsgdDc`.

    Parameters
    ----------
    setup : Setup
        Configured stage; without settings the server's step is plain, of rate 1, without a ball.
    """

    kind = "client-level DPSGD-DC"
    code = (
        "DpsgdDc.train_round, NoisedSum.release, SecureSum (simulated), client_level_dp_mod, through Flower "
        "messages in process"
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.plan, DpsgdDcPlan)
        self.settings = setup.settings
        self.train = _default_settings() if setup.settings is None else setup.settings.train
        self.plan, self._helpers = self._small(setup.plan)
        self._sign = 0.0
        self._clients = DictatedClients(self._update, self.plan.num_clients - self._helpers)
        self._grid = AuditGrid(self._clients.app, self.plan.num_clients)

    @classmethod
    def of(cls, setup: Setup) -> DpsgdDcTarget:
        return cls(setup)

    def _small(self, plan: DpsgdDcPlan) -> tuple[DpsgdDcPlan, int]:
        """The plan for very few clients and coordinates, with the same events; and how many help the adversary."""
        length = plan.length if self.bound is not None and self.bound.event is not None else FEW_COORDINATES
        plan = replace(plan, length=min(length, plan.length))
        if plan.sampler.name == "server":
            # who is not drawn adds no noise, so nobody may be left out
            return plan, 0
        helpers = 1 if plan.noise.kind == "distributed" else 0
        noise = few_clients(plan.noise, 1, helpers)
        return replace(plan, num_clients=1 + helpers, noise=noise), helpers

    # -- one run -------------------------------------------------------------------------------------------------

    def _update(self, client: int, model: Arrays) -> Arrays:
        if client != 0 or self._sign == 0.0:
            return zeros_like(model)
        return push(model, self._sign * _LOUD * self.plan.codec.clipping_norm)

    def _optimizer(self, plan: DpsgdDcPlan) -> ServerOptimizer:
        train = self.train
        if train.server_optimizer == "adam":
            return ServerAdam(train.server_learning_rate)
        rate = train.server_learning_rate * plan.divisor / self.configured_plan.divisor
        return ServerSgd(rate, train.server_momentum)

    @property
    def configured_plan(self) -> DpsgdDcPlan:
        """The plan as configured."""
        assert isinstance(self.configured, DpsgdDcPlan)
        return self.configured

    def _strategy(self, plan: DpsgdDcPlan) -> tuple[DpsgdDc, RecordedSums]:
        train, sums = self.train, RecordedSums(None, mode="simulated")
        strategy = DpsgdDc(
            plan,
            sums,
            optimizer=self._optimizer(plan),
            ball=Ball(train.radius) if train.radius > 0 else None,
            release_noise=train.release_noise,
            cosine=train.schedule == "cosine",
            seed=0 if plan.noise.seeded else None,
            stage=self.stage,
        )
        return strategy, sums

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """All rounds, with the canary or without it (replace_one: with its opposite)."""
        plan = self.plan
        both = plan.adjacency == "replace_one"
        self._sign = 1.0 if present else (-1.0 if both else 0.0)
        strategy, sums = self._strategy(plan)
        model, took_part = model_of(plan.length), []
        for server_round in range(1, plan.rounds + 1):
            self._clients.calls.clear()
            outcome = strategy.train_round(self._grid, server_round, model)
            if outcome.arrays is None:  # the round ended because of the canary: everybody sees it
                return {view: np.array([ABORTED]) for view in self.views()}
            model = outcome.arrays
            took_part.append(0 in self._clients.calls)
        along = np.array([total[-1] for total in sums.totals]) / plan.noise.total_std_units
        shift = plan.codec.clip_units / plan.noise.total_std_units
        return self._statistics(along, plain(model), np.array(took_part), shift, both)

    def _statistics(
        self, along: np.ndarray, final: np.ndarray, took_part: np.ndarray, shift: float, both: bool
    ) -> dict[View, np.ndarray]:
        sampler = self.plan.sampler
        middle = -shift / 2 if both else 0.0  # replace_one: the means are -shift and +shift
        rate = sampler.rate if isinstance(sampler, SelfSampling) and self.plan.idle_clients_train else 1.0
        seen = signal_ratio((along - middle)[took_part], shift, rate)
        found: dict[View, float] = {"server": seen, "participants": seen, "release": -final[-1]}
        return {view: np.array([found[view]]) for view in self.views()}

    def has_one_run(self, view: View) -> bool:
        """For views that see every sum, under add_or_remove, where the server draws no cohort."""
        plan = self.configured_plan
        return view != "release" and plan.sampler.name != "server" and plan.adjacency == "add_or_remove"

    def one_run(self, view: View, canaries: int) -> OneRun:
        """Canaries push a coordinate each."""
        plan = self.configured_plan
        noise = few_clients(plan.noise, canaries, 0)
        factor = finer_by(noise)
        plan = replace(
            plan,
            num_clients=canaries,
            length=canaries,
            codec=replace(plan.codec, clip_units=factor * plan.codec.clip_units),
            noise=replace(noise, total_std_units=factor * noise.total_std_units),
        )
        included = np.random.default_rng().random(canaries) < 0.5

        def update(client: int, model: Arrays) -> Arrays:
            moved = zeros_like(model)
            if included[client]:
                flat = np.zeros(plan.length)
                flat[client] = plan.codec.clipping_norm
                moved = unflattened(flat, model)
            return moved

        clients = DictatedClients(update, canaries)
        strategy, sums = self._strategy(plan)
        grid, model = AuditGrid(clients.app, canaries), model_of(plan.length)
        for server_round in range(1, plan.rounds + 1):
            strategy.train_round(grid, server_round, model)
        std = plan.noise.realised_std_units(canaries)
        shift = plan.codec.clip_units / std
        rate = plan.sampler.rate if isinstance(plan.sampler, SelfSampling) else 1.0
        scores = [signal_ratio(column, shift, rate) for column in np.array(sums.totals).T / std]
        return OneRun(included, np.array(scores))

    def shadow(self) -> Shadow | None:
        """On the task of the settings, where the server draws no cohort."""
        plan = self.configured_plan
        if self.settings is None or plan.sampler.name == "server" or plan.adjacency != "add_or_remove":
            return None
        from fedpriv.audit.shadow import UpdateShadow

        return UpdateShadow(plan, self.settings)

    def probes(self) -> DpsgdDcProbes:
        return DpsgdDcProbes(self.configured_plan)


class DpsgdDcProbes(Probes):
    """Small experiments on `DpsgdDc` under a plan. A round that a canary ends is one that it moves without bound.

    Parameters
    ----------
    plan : DpsgdDcPlan
        As configured.
    """

    def __init__(self, plan: DpsgdDcPlan) -> None:
        self.plan: DpsgdDcPlan = plan

    def _sums(
        self, plan: DpsgdDcPlan, update: Update, honest: int, rounds: int
    ) -> tuple[RecordedSums, list[ArrayRecord], AuditGrid]:
        """Sums and models of rounds that each start from the zero model."""
        clients = DictatedClients(update, honest)
        sums = RecordedSums(None, mode="simulated", seed=0 if plan.noise.seeded else None)
        grid = AuditGrid(clients.app, plan.num_clients)
        strategy = DpsgdDc(plan, sums, seed=0 if plan.noise.seeded else None)
        models = []
        for server_round in range(1, rounds + 1):
            outcome = strategy.train_round(grid, server_round, model_of(plan.length))
            if outcome.arrays is not None:
                models.append(outcome.arrays)
        return sums, models, grid

    def noise(self, *, counted: bool) -> NoiseSample:
        """Sums of zeros: of four honest clients, or of one honest and one that adds no noise."""
        plan = replace(self.plan, length=NOISE_LENGTH, rounds=NOISE_ROUNDS)
        distributed = plan.noise.kind == "distributed"
        honest, helpers = (1, 1 if distributed else 0) if counted else (4, 0)
        sampler = plan.sampler if isinstance(plan.sampler, SelfSampling) else FullParticipation()
        plan = replace(
            plan,
            sampler=sampler,
            num_clients=honest + helpers,
            noise=few_clients(plan.noise, honest, helpers),
        )
        sums, _, _ = self._sums(plan, lambda client, model: zeros_like(model), honest, NOISE_ROUNDS)
        expected = [
            plan.noise.total_std_units if counted else plan.noise.realised_std_units(survivors)
            for survivors in sums.summed
        ]
        return NoiseSample(
            np.array(sums.totals, dtype=np.float64),
            np.array(expected),
            plan.noise.total_std_units,
            counted,
        )

    def shifts(self) -> dict[str, float]:
        """Canaries against zeros (replace_one: against their opposite), beside clients that push, too."""
        codec, noise = quiet(self.plan.codec, few_clients(self.plan.noise, 3, 0))
        plan = replace(
            self.plan,
            sampler=FullParticipation(),
            length=FEW_COORDINATES,
            num_clients=3,
            rounds=1,
            codec=codec,
            noise=noise,
        )
        both = plan.adjacency == "replace_one"
        clip = codec.clipping_norm

        def released(canary: Update | None) -> np.ndarray:
            def update(client: int, model: Arrays) -> Arrays:
                if client == 0:
                    return zeros_like(model) if canary is None else canary(client, model)
                flat = np.zeros(plan.length)
                flat[client - 1] = clip
                return unflattened(flat, model)

            _, models, _ = self._sums(plan, update, 3, 1)
            # the model, not the sum: a wrong divisor or weight shows there
            return -plain(models[0]) * plan.divisor / clip if models else np.full(plan.length, np.inf)

        absent, found = released(None), {}
        for name, make in WORST_UPDATES.items():
            moved = released(lambda _, model, make=make: make(model, clip))  # type: ignore[misc]
            other = released(lambda _, model, make=make: negated(make(model, clip))) if both else absent  # type: ignore[misc]
            sensitivity = plan.sensitivity_units / codec.clip_units
            distance = float(np.linalg.norm(moved - other)) if np.isfinite(moved - other).all() else np.inf
            found[name] = distance / sensitivity
        return found

    def play_with(self, ledger: Ledger, watch: Watch) -> None:
        """Two rounds of the protocol's messages, or of the simulated sum under seeded noise."""
        plan = self.plan
        clients = 4 if plan.sampler.name != "server" else plan.num_clients
        least = min(3, plan.sampler.expected_asked(clients))
        noise = plan.noise if plan.sampler.name == "server" else few_clients(plan.noise, 4, 0)
        plan = replace(plan, length=FEW_COORDINATES, num_clients=clients, rounds=2, noise=noise)
        seed = 0 if plan.noise.seeded else None
        app = DictatedClients(lambda client, model: zeros_like(model), clients).app
        grid = AuditGrid(app, clients, watch=watch, node_config={"min-neighbours": max(1, least - 1)})
        protocol = seed is None and plan.sampler.name != "server"
        strategy = DpsgdDc(
            plan, RecordedSums(ledger, mode="protocol" if protocol else "simulated", seed=seed), seed=seed
        )
        for server_round in (1, 2):
            strategy.train_round(grid, server_round, model_of(plan.length))

    def participation(self) -> Participation | None:
        """Clients that push a coordinate each: whose coordinate moved?"""
        plan = self.plan
        if isinstance(plan.sampler, FullParticipation):
            return None
        clients, rounds = (20 if isinstance(plan.sampler, SelfSampling) else plan.num_clients), 3
        codec, noise = quiet(plan.codec, replace(plan.noise, min_survivors=2, colluders=0))
        plan = replace(plan, num_clients=clients, length=clients, rounds=rounds, codec=codec, noise=noise)
        asked: list[frozenset[tuple[int, float]]] = []

        def watch(messages: list) -> None:  # type: ignore[type-arg]
            asked.append(frozenset(_cohort_in(messages)))

        def update(client: int, model: Arrays) -> Arrays:
            flat = np.zeros(plan.length)
            flat[client] = codec.clipping_norm
            return unflattened(flat, model)

        found = DictatedClients(update, clients)
        sums = RecordedSums(None, mode="simulated", seed=0 if plan.noise.seeded else None)
        grid = AuditGrid(found.app, clients, watch=watch)
        strategy = DpsgdDc(plan, sums, seed=0 if plan.noise.seeded else None)
        for server_round in range(1, rounds + 1):
            strategy.train_round(grid, server_round, model_of(plan.length))
        took_part = int(np.sum(np.array(sums.totals) > codec.clip_units / 2))
        return Participation(took_part, clients * rounds, len(set(asked)) > 1 or any(map(_differ, asked)))


def _cohort_in(messages: list) -> list[tuple[int, float]]:  # type: ignore[type-arg]
    """What a server knows of the cohort: whom it asked, and with which rate."""
    from fedpriv import wire

    return [
        (m.metadata.dst_node_id, float(m.content[wire.RECORD_UPDATE][wire.UPDATE_SAMPLING_RATE]))
        for m in messages
        if wire.RECORD_UPDATE in m.content
    ]


def _differ(cohort: frozenset[tuple[int, float]]) -> bool:
    return len({rate for _, rate in cohort}) > 1
