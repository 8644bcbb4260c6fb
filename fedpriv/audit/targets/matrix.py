"""Correlated noise under random allocation, attacked by a canary client that pushes one coordinate in its secret bin.

The adversary undoes the correlation: it multiplies the released sums by the strategy matrix C, which leaves C times
the contributions plus independent noise, and weighs the canary's possible bins against each other. The server adds the
noise, so the federation is the canary alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord
from scipy.special import logsumexp

from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, RecordedSums
from fedpriv.audit.ledger_check import Watch
from fedpriv.audit.target import ABORTED, NoiseSample, Participation, PlanTarget, Probes, Setup
from fedpriv.audit.targets.updates import (
    QUIET_CLIP_UNITS,
    QUIET_NOISE_UNITS,
    WORST_UPDATES,
    Arrays,
    DictatedClients,
    Update,
    model_of,
    plain,
    push,
    unflattened,
    zeros_like,
)
from fedpriv.ledger import Ledger
from fedpriv.mechanisms import Ball
from fedpriv.plans.matrix import MatrixPlan
from fedpriv.settings.matrix import MatrixSettings
from fedpriv.strategies import MatrixFtrl, MatrixSecrets, ServerSgd

_FEW = 6
_LOUD = 1e3
#: Draws of the noise probe, over all rounds.
_NOISE_DRAWS = 12_000


def whitened(plan: MatrixPlan, rows: np.ndarray) -> np.ndarray:
    """C times released rows, shape (rounds, length): contributions through C, and independent noise."""
    matrix = plan.matrix.dense()
    epochs = rows.reshape(-1, len(matrix), rows.shape[1])
    return np.concatenate([matrix @ epoch for epoch in epochs])


def bin_means(plan: MatrixPlan) -> np.ndarray:
    """Shape (draws, bins, rounds): what a contribution of 1 in all rounds of a bin adds to the whitened rows."""
    schedule, matrix = plan.schedule, plan.matrix.dense()
    draws = schedule.epochs if schedule.redrawn else 1
    found = np.zeros((draws, schedule.bins, schedule.rounds))
    for draw in range(draws):
        start = draw * schedule.bins if schedule.redrawn else 0
        rows = np.arange(start, start + len(matrix))
        for number in range(schedule.bins):
            columns = np.arange(number, len(matrix), schedule.bins)
            found[draw, number, rows] = matrix[:, columns].sum(axis=1)
    return found


class MatrixTarget(PlanTarget):
    """Rounds of `MatrixFtrl`.

    Parameters
    ----------
    setup : Setup
        Configured stage; without settings the server's step is plain, of rate 1, without a ball.
    """

    kind = "correlated noise under random allocation"
    code = (
        "MatrixFtrl.train_round, CorrelatedNoise, NoisedSum.release, SecureSum (simulated), client_level_dp_mod with "
        "its own bin, through Flower messages in process"
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.plan, MatrixPlan)
        self._own = (
            MatrixSettings.from_run_config({})
            if setup.settings is None
            else setup.settings.of(MatrixSettings)
        )
        self.plan = few(setup.plan, 1, _FEW)
        self._clients = DictatedClients(lambda client, model: zeros_like(model), 1)
        self._grid = AuditGrid(self._clients.app, 1)
        self._means = bin_means(self.plan) * self.plan.codec.clip_units / self.plan.noise.total_std_units

    @classmethod
    def of(cls, setup: Setup) -> MatrixTarget:
        return cls(setup)

    def views(self) -> tuple[View, ...]:
        """The server adds the noise and is promised nothing."""
        return ("server", "participants", "release")

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """All rounds of one allocation, with the canary or without it."""
        plan, own = self.plan, self._own
        assert isinstance(self.configured, MatrixPlan)
        loud = _LOUD * plan.codec.clipping_norm
        self._clients.update = lambda client, model: push(model, loud) if present else zeros_like(model)
        self._grid.restart_node(0)  # another run: the client draws another bin
        sums = RecordedSums(None, mode="simulated")
        rate = own.server_learning_rate * plan.divisor / self.configured.divisor
        strategy = MatrixFtrl(
            plan,
            sums,
            MatrixSecrets.in_memory(plan.schedule),
            optimizer=ServerSgd(rate, own.server_momentum),
            ball=Ball(own.radius) if own.radius > 0 else None,
            seed=0 if plan.noise.seeded else None,
            stage=self.stage,
        )
        model, took_part = model_of(plan.length), []
        for server_round in range(1, plan.num_rounds + 1):
            self._clients.calls.clear()
            outcome = strategy.train_round(self._grid, server_round, model)
            if outcome.arrays is None:
                return {view: np.full(2, ABORTED) for view in self.views()}
            model = outcome.arrays
            took_part.append(bool(self._clients.calls))
        rows = np.array(sums.totals, dtype=np.float64)[:, -1:] / plan.noise.total_std_units
        return self._statistics(whitened(plan, rows)[:, 0], plain(model), np.array(took_part))

    def _statistics(
        self, along: np.ndarray, final: np.ndarray, took_part: np.ndarray
    ) -> dict[View, np.ndarray]:
        ratio = self._means @ along - np.sum(self._means**2, axis=2) / 2  # by draw and bin
        bins = self._means.shape[1]
        if self.plan.idle_clients_train and self.plan.schedule.drawn_by == "self":
            seen = float(np.sum(logsumexp(ratio, axis=1) - np.log(bins)))
        else:  # the time of a reply, or the server, told the bins
            own = np.array([np.flatnonzero(part)[0] for part in took_part.reshape(-1, bins)])
            seen = float(np.sum(ratio[np.arange(len(ratio)), own[: len(ratio)]]))
        mean = float(np.sum(self._means.mean(axis=1) @ along))
        found = {
            "server": np.array([seen, mean]),
            "participants": np.array([seen, mean]),
            "release": np.array([-final[-1]]),
        }
        return {view: found[view] for view in self.views()}

    def probes(self) -> MatrixProbes:
        assert isinstance(self.configured, MatrixPlan)
        return MatrixProbes(self.configured)


def few(plan: MatrixPlan, clients: int, length: int) -> MatrixPlan:
    """The plan for a few clients and coordinates, with the same events."""
    noise = replace(plan.noise, min_survivors=min(3, clients))
    return replace(plan, num_clients=clients, length=min(length, max(plan.length, _FEW)), noise=noise)


class MatrixProbes(Probes):
    """Small experiments on `MatrixFtrl` under a plan.

    Parameters
    ----------
    plan : MatrixPlan
        As configured.
    """

    charged_once = True

    def __init__(self, plan: MatrixPlan) -> None:
        self.plan: MatrixPlan = plan

    @property
    def sensitivity_units(self) -> float:
        """Of one round's sum: events are in noise of Z over the clip."""
        return float(self.plan.codec.clip_units)

    def _sums(
        self, plan: MatrixPlan, update: Update, rounds: int
    ) -> tuple[RecordedSums, list[ArrayRecord], bool]:
        seed = 0 if plan.noise.seeded else None
        clients = DictatedClients(update, plan.num_clients)
        sums, requests = RecordedSums(None, mode="simulated"), set()

        def watch(messages: list) -> None:  # type: ignore[type-arg]
            requests.add(frozenset(message.metadata.dst_node_id for message in messages))

        grid = AuditGrid(clients.app, plan.num_clients, watch=watch)
        strategy = MatrixFtrl(plan, sums, MatrixSecrets.in_memory(plan.schedule), seed=seed)
        models = []
        for server_round in range(1, rounds + 1):
            outcome = strategy.train_round(grid, server_round, model_of(plan.length))
            if outcome.arrays is not None:
                models.append(outcome.arrays)
        return sums, models, len(requests) > 1

    def noise(self, *, counted: bool) -> NoiseSample:
        """Sums of zeros, multiplied by C: independent draws again."""
        rounds = self.plan.num_rounds
        length = max(200, _NOISE_DRAWS // rounds)
        plan = replace(
            self.plan,
            num_clients=1,
            length=length,
            noise=replace(self.plan.noise, min_survivors=1),
        )
        sums, _, _ = self._sums(plan, lambda client, model: zeros_like(model), rounds)
        draws = whitened(plan, np.array(sums.totals, dtype=np.float64))
        total = plan.noise.total_std_units
        return NoiseSample(draws, np.full(rounds, total), total, counted)

    def _quiet(self, clients: int, length: int) -> MatrixPlan:
        plan = self.plan
        return replace(
            plan,
            num_clients=clients,
            length=length,
            codec=replace(plan.codec, clip_units=QUIET_CLIP_UNITS),
            noise=replace(plan.noise, total_std_units=QUIET_NOISE_UNITS, min_survivors=min(3, clients)),
        )

    def shifts(self) -> dict[str, float]:
        """The largest move of a round's model by a canary in its bin, beside the others' pushes."""
        plan = self._quiet(1, _FEW)
        rounds, clip = plan.schedule.bins, plan.codec.clipping_norm

        def released(canary: Update) -> float:
            _, models, _ = self._sums(plan, canary, rounds)
            if len(models) < rounds:
                return float("inf")
            return max(float(np.linalg.norm(plain(model))) * plan.divisor / clip for model in models)

        found = {}
        for name, make in WORST_UPDATES.items():
            found[name] = released(lambda _, model, make=make: make(model, clip))  # type: ignore[misc]
        return found

    def participation(self) -> Participation | None:
        """Clients that push a coordinate each, over all rounds."""
        rounds = self.plan.num_rounds
        clients = max(4, min(40, 200 // rounds))
        plan = self._quiet(clients, clients)

        def update(client: int, model: Arrays) -> Arrays:
            flat = np.zeros(plan.length)
            flat[client] = plan.codec.clipping_norm
            return unflattened(flat, model)

        sums, _, visible = self._sums(plan, update, rounds)
        took_part = int(np.sum(np.array(sums.totals) > plan.codec.clip_units / 2))
        return Participation(took_part, clients * rounds, visible)

    def play_with(self, ledger: Ledger, watch: Watch) -> None:
        """The first rounds, in the protocol's messages."""
        plan = few(self.plan, 4, _FEW)
        seed = 0 if plan.noise.seeded else None
        app = DictatedClients(lambda client, model: zeros_like(model), 4).app
        grid = AuditGrid(app, 4, watch=watch)
        sums = RecordedSums(ledger, mode="protocol" if plan.schedule.drawn_by == "self" else "simulated")
        strategy = MatrixFtrl(plan, sums, MatrixSecrets.in_memory(plan.schedule), seed=seed, stage="matrix")
        for server_round in range(1, min(3, plan.num_rounds) + 1):
            strategy.train_round(grid, server_round, model_of(plan.length))
