"""Record-level training under attack: one record of a silo whose gradient always pushes one coordinate.

The silo's other records have no gradient, and the only other silo abstains, so that the average is the silo's model:
server and other silos together see no more of it. Nobody's noise but the silo's own is counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from scipy.special import gammaln, logsumexp

from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, RecordedSums, make_app, partition_of
from fedpriv.audit.ledger_check import Watch
from fedpriv.audit.target import ABORTED, NoiseSample, Participation, PlanTarget, Probes, Setup
from fedpriv.audit.targets.updates import QUIET_CLIP_UNITS, QUIET_NOISE_UNITS, plain
from fedpriv.clients import record_level_mod
from fedpriv.ledger import Ledger
from fedpriv.mechanisms import GridCodec
from fedpriv.plans import RecordLevelPlan
from fedpriv.settings.record import RecordSettings
from fedpriv.strategies import FederatedAverage

_FEW, _RECORDS = 6, 100
_LOUD = 1e3
#: Coordinates and rounds of the noise probe.
NOISE_ROUNDS, NOISE_LENGTH = 2, 20_000

Rows = Callable[[np.ndarray, int], np.ndarray]
"""From record numbers and d to their gradients, shape (m, d)."""


class _Records:
    """The silo's records."""

    def __init__(self, rows: Rows, num_records: int) -> None:
        self.num_records, self._rows = num_records, rows

    def gradients(self, weights: np.ndarray, records: np.ndarray) -> np.ndarray:
        """Whatever the auditor dictates."""
        return self._rows(records, weights.size)


class _Silos:
    """A silo with dictated gradients, and one that abstains; and the gradients that were asked for."""

    def __init__(self, num_records: int, watch: Watch | None = None) -> None:
        self.rows: Rows = no_gradients
        self.num_records = num_records
        self.grid = AuditGrid(make_app([record_level_mod(self._gradients)]), 2, watch=watch)

    def _gradients(self, arrays: dict[str, np.ndarray], context: Context) -> _Records:
        if partition_of(context) != 0:
            raise ValueError("this silo has nothing to say")
        return _Records(self.rows, self.num_records)


def no_gradients(records: np.ndarray, length: int) -> np.ndarray:
    """Zeros."""
    return np.zeros((len(records), length))


def pushing(size: float) -> Rows:
    """Record 0 pushes the last coordinate."""

    def rows(records: np.ndarray, length: int) -> np.ndarray:
        found = np.zeros((len(records), length))
        found[records == 0, -1] = size
        return found

    return rows


def small(plan: RecordLevelPlan, length: int) -> RecordLevelPlan:
    """The plan for two silos and a few coordinates, with the same events."""
    return replace(
        plan, num_clients=2, min_survivors=2, length=min(length, max(plan.length, _FEW)), records=()
    )


class RecordLevelTarget(PlanTarget):
    """Rounds of `FederatedAverage` of models that a silo trains by noised steps.

    Parameters
    ----------
    setup : Setup
        Configured stage; without settings the silo's learning rate is that of the defaults.
    """

    kind = "record-level training inside silos"
    code = (
        "FederatedAverage.train_round, NoisedSum.release, SecureSum (simulated), record_level_mod with the silo's "
        "account, NoisedSteps.descend, through Flower messages in process"
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.plan, RecordLevelPlan)
        self._own = (
            RecordSettings.from_run_config({})
            if setup.settings is None
            else setup.settings.of(RecordSettings)
        )
        self.plan = small(setup.plan, _FEW)
        self._silos = _Silos(setup.plan.records[0] if setup.plan.records else _RECORDS)

    @classmethod
    def of(cls, setup: Setup) -> RecordLevelTarget:
        return cls(setup)

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """All rounds, with the canary's gradient or without it (replace_one: with the opposite one)."""
        plan, silos = self.plan, self._silos
        both = plan.adjacency == "replace_one"
        sign = 1.0 if present else (-1.0 if both else 0.0)
        silos.rows = pushing(sign * _LOUD * plan.steps.codec.clipping_norm)
        model = ArrayRecord({"w": Array(np.zeros(plan.length))})
        positions = [0.0]
        with tempfile.TemporaryDirectory(prefix="fedpriv-audit-") as folder:
            strategy = FederatedAverage(
                plan,
                RecordedSums(None, mode="simulated"),
                learning_rate=self._own.learning_rate,
                simulation_folder=folder,
                seed=0 if plan.seeded else None,
                stage=self.stage,
            )
            for server_round in range(1, plan.rounds + 1):
                outcome = strategy.train_round(silos.grid, server_round, model)
                if outcome.arrays is None:
                    return {view: np.array([ABORTED]) for view in self.views()}
                model = outcome.arrays
                positions.append(float(plain(model)[-1]))
        return self._statistics(-np.diff(positions), -positions[-1], both)

    def _statistics(self, moves: np.ndarray, final: float, both: bool) -> dict[View, np.ndarray]:
        steps = self.plan.steps
        # clips that the canary added in a round, and noise
        scale = self._own.learning_rate * steps.codec.clipping_norm
        scale /= steps.sampling_rate * self._silos.num_records
        seen = sum(
            steps_ratio(move / scale, steps.steps, steps.sampling_rate, steps.noise_multiplier, both=both)
            for move in moves
        )
        found: dict[View, float] = {"server": seen, "participants": seen, "release": final}
        return {view: np.array([found[view]]) for view in self.views()}

    def probes(self) -> RecordLevelProbes:
        assert isinstance(self.configured, RecordLevelPlan)
        return RecordLevelProbes(self.configured)


def steps_ratio(clips: float, steps: int, rate: float, noise_multiplier: float, *, both: bool) -> float:
    """Log-likelihood ratio of "present" for the sum of some noised steps.

    Parameters
    ----------
    clips : float
        The sum along the canary, in clips.
    steps : int
        Steps E; the canary is in each by its own coin.
    rate : float
        Probability of a coin.
    noise_multiplier : float
        Noise of one step, in clips.
    both : bool
        Against the opposite canary (then every record is in every step) instead of none.
    """
    variance = steps * noise_multiplier**2
    if both or rate >= 1.0:
        other = -float(steps) if both else 0.0
        return ((clips - other) ** 2 - (clips - steps) ** 2) / (2 * variance)
    counts = np.arange(steps + 1)
    chance = gammaln(steps + 1) - gammaln(counts + 1) - gammaln(steps - counts + 1)
    chance = chance + counts * np.log(rate) + (steps - counts) * np.log1p(-rate)
    return float(logsumexp(chance + (counts * clips - counts**2 / 2) / variance))


#: Worst-case gradients of one record, from d and the clip.
WORST_GRADIENTS: dict[str, Callable[[int, float], np.ndarray]] = {
    "the clip in one coordinate": lambda size, clip: clip * np.eye(size)[0],
    "two clips in one coordinate": lambda size, clip: 2 * clip * np.eye(size)[0],
    "a thousand clips, spread": lambda size, clip: np.full(size, 1e3 * clip),
    "largest numbers": lambda size, clip: np.full(size, 1e300),
    "a NaN": lambda size, clip: np.where(np.arange(size) == 0, np.nan, 1e9 * clip),
    "an infinity": lambda size, clip: np.where(np.arange(size) == 0, np.inf, 1e9 * clip),
}


class RecordLevelProbes(Probes):
    """Small experiments on one noised step of a silo.

    Parameters
    ----------
    plan : RecordLevelPlan
        As configured; a round is probed with one step.
    """

    def __init__(self, plan: RecordLevelPlan) -> None:
        self.plan: RecordLevelPlan = replace(plan, steps=replace(plan.steps, steps=1), records=())

    @property
    def sensitivity_units(self) -> float:
        moves = 1 if self.plan.adjacency == "add_or_remove" else 2
        return float(moves * self.plan.steps.codec.clip_units)

    def _sums(self, plan: RecordLevelPlan, rows: Rows, num_records: int, rounds: int) -> list[np.ndarray]:
        """Sums of a step in grid steps, as the released models show them."""
        silos = _Silos(num_records)
        silos.rows = rows
        codec = plan.steps.codec
        # the silo's sum moves the model by so much; the ball is far away and its grid is fine
        scale = codec.clipping_norm / codec.clip_units
        found = []
        with tempfile.TemporaryDirectory(prefix="fedpriv-audit-") as folder:
            strategy = FederatedAverage(
                plan,
                RecordedSums(None, mode="simulated"),
                learning_rate=plan.steps.sampling_rate * num_records,
                simulation_folder=folder,
                seed=0 if plan.seeded else None,
            )
            for server_round in range(1, rounds + 1):
                start = ArrayRecord({"w": Array(np.zeros(plan.length))})
                outcome = strategy.train_round(silos.grid, server_round, start)
                if outcome.arrays is not None:
                    found.append(-plain(outcome.arrays) / scale)
        return found

    def _far(
        self, plan: RecordLevelPlan, length: int, noise_units: float, codec: GridCodec
    ) -> RecordLevelPlan:
        """For sums of ``length`` coordinates in a ball that none of them reaches."""
        step = codec.clipping_norm / codec.clip_units
        radius = 8.0 * step * (noise_units * length**0.5 + 4 * codec.clip_units)
        steps = replace(plan.steps, codec=codec, noise_std_units=noise_units)
        grid = replace(plan.grid, radius=radius, radius_units=2**29, max_weight=1)
        return replace(small(plan, length), steps=steps, grid=grid, length=length, rounds=NOISE_ROUNDS)

    def noise(self, *, counted: bool) -> NoiseSample:
        """Steps without any gradient."""
        steps = self.plan.steps
        plan = self._far(self.plan, NOISE_LENGTH, steps.noise_std_units, steps.codec)
        draws = np.array(self._sums(plan, no_gradients, 4, NOISE_ROUNDS))
        std = steps.noise_std_units
        return NoiseSample(draws, np.full(len(draws), std), std, counted)

    def _quiet(self, length: int, rate: float) -> RecordLevelPlan:
        codec = replace(self.plan.steps.codec, clip_units=QUIET_CLIP_UNITS)
        plan = replace(self.plan, steps=replace(self.plan.steps, sampling_rate=rate))
        return self._far(plan, length, QUIET_NOISE_UNITS, codec)

    def shifts(self) -> dict[str, float]:
        """A record's gradient against none (replace_one: against its opposite), beside others that push."""
        plan = self._quiet(_FEW, 1.0)
        clip, both = plan.steps.codec.clipping_norm, plan.adjacency == "replace_one"

        def released(gradient: np.ndarray) -> np.ndarray:
            def rows(records: np.ndarray, length: int) -> np.ndarray:
                found = np.zeros((len(records), length))
                found[records == 1, 1] = clip
                found[records == 0] = gradient
                return found

            sums = self._sums(plan, rows, 2, 1)
            return sums[0] / QUIET_CLIP_UNITS if sums else np.full(_FEW, np.inf)

        absent, found = released(np.zeros(_FEW)), {}
        for name, make in WORST_GRADIENTS.items():
            gradient = make(_FEW, clip)
            moved, other = released(gradient), released(-gradient) if both else absent
            distance = float(np.linalg.norm(moved - other)) if np.isfinite(moved - other).all() else np.inf
            found[name] = distance / (2.0 if both else 1.0)
        return found

    def participation(self) -> Participation | None:
        """Records that push a coordinate each: whose coordinate moved?"""
        rate, records, rounds = self.plan.steps.sampling_rate, 200, 2
        if rate >= 1.0:
            return None
        plan = self._quiet(records, rate)
        clip = plan.steps.codec.clipping_norm
        sums = self._sums(plan, lambda chosen, length: clip * np.eye(length)[chosen], records, rounds)
        took_part = int(np.sum(np.array(sums) > QUIET_CLIP_UNITS / 2))
        return Participation(took_part, records * rounds, cohort_is_visible=False)

    def play_with(self, ledger: Ledger, watch: Watch) -> None:
        """Two rounds in the protocol's messages, of four silos of which one has records."""
        plan = replace(small(self.plan, _FEW), num_clients=4, min_survivors=3, rounds=2)
        silos = _Silos(4)
        grid = AuditGrid(silos.grid.client_app, 4, watch=watch)
        with tempfile.TemporaryDirectory(prefix="fedpriv-audit-") as folder:
            strategy = FederatedAverage(
                plan,
                RecordedSums(ledger, mode="simulated" if plan.seeded else "protocol"),
                learning_rate=0.1,
                simulation_folder=folder,
                seed=0 if plan.seeded else None,
            )
            for server_round in (1, 2):
                strategy.train_round(grid, server_round, ArrayRecord({"w": Array(np.zeros(plan.length))}))
