"""Record-level zeroth-order fine-tuning under attack: one record of a silo whose loss is so steep that it is clipped.

The other records of the silo have no slope, and the only other silo abstains. The adversary knows the public
directions, hence the sign of each of the record's quotients.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
from flwr.app import Context, Message

from fedpriv import wire
from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, RecordedSums, make_app, partition_of
from fedpriv.audit.target import ABORTED, PlanTarget, Setup
from fedpriv.audit.targets.linear import ManyLinearLosses
from fedpriv.audit.targets.record_level import steps_ratio
from fedpriv.audit.targets.updates import plain
from fedpriv.audit.targets.zeroth_order import known_signs, start_model
from fedpriv.clients import record_zeroth_order_mod
from fedpriv.mechanisms import Ball
from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.plans import RecordZerothOrderPlan
from fedpriv.settings import ZerothOrderSettings
from fedpriv.strategies import RecordZerothOrder

_FEW, _RECORDS = 8, 40
_STEEP = 1e6


class RecordZerothOrderTarget(PlanTarget):
    """Rounds of `RecordZerothOrder`.

    Parameters
    ----------
    setup : Setup
        Configured stage; without settings the step is that of the defaults.
    """

    kind = "record-level zeroth-order fine-tuning"
    code = (
        "RecordZerothOrder.train_round, NoisedSum.release, SecureSum (simulated), record_zeroth_order_mod with the "
        "silo's account, through Flower messages in process"
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.plan, RecordZerothOrderPlan)
        self._own = (
            ZerothOrderSettings.from_run_config({})
            if setup.settings is None
            else setup.settings.of(ZerothOrderSettings)
        )
        plan = setup.plan
        silos = replace(plan.silos, num_clients=2, min_survivors=2, records=())
        self.plan = replace(plan, silos=silos, dimension=min(plan.dimension, max(_FEW, 2 * plan.directions)))
        self._records = plan.records[0] if plan.records else _RECORDS
        self._slope = 0.0
        self._seeds: list[tuple[bytes, str]] = []
        self._grid = AuditGrid(make_app([record_zeroth_order_mod(self._objective)]), 2, watch=self._see)

    @classmethod
    def of(cls, setup: Setup) -> RecordZerothOrderTarget:
        return cls(setup)

    def _objective(self, arrays: dict[str, np.ndarray], context: Context) -> ManyLinearLosses:
        if partition_of(context) != 0:
            raise ValueError("this silo has nothing to say")
        slopes = np.zeros((self._records, self.plan.dimension))
        slopes[0] = self._slope
        return ManyLinearLosses(arrays, slopes)

    def _see(self, messages: list[Message]) -> None:
        record = messages[0].content[wire.RECORD_ZEROTH_ORDER]
        seed, kind = record[wire.ZEROTH_ORDER_SEED], record[wire.ZEROTH_ORDER_KIND]
        self._seeds.append((bytes(seed), str(kind)))  # type: ignore[arg-type]

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """All rounds, with the canary record's slope or without it (replace_one: with the opposite one)."""
        plan, own = self.plan, self._own
        both = plan.adjacency == "replace_one"
        self._slope = _STEEP * plan.clip * (1.0 if present else (-1.0 if both else 0.0))
        self._seeds.clear()
        sums, model = RecordedSums(None, mode="simulated"), start_model(plan.dimension)
        with tempfile.TemporaryDirectory(prefix="fedpriv-audit-") as folder:
            strategy = RecordZerothOrder(
                plan,
                sums,
                learning_rate=own.learning_rate,
                schedule=lambda server_round: schedule_factor(own.schedule, server_round, plan.rounds),
                ball=Ball(own.radius) if own.radius > 0 else None,
                simulation_folder=folder,
                seed=0 if plan.silos.seeded else None,
                stage=self.stage,
            )
            for server_round in range(1, plan.rounds + 1):
                outcome = strategy.train_round(self._grid, server_round, model)
                if outcome.arrays is None:
                    return {view: np.array([ABORTED]) for view in self.views()}
                model = outcome.arrays
        return self._statistics(np.array(sums.totals, dtype=np.float64), plain(model), both)

    def _statistics(self, totals: np.ndarray, final: np.ndarray, both: bool) -> dict[View, np.ndarray]:
        plan, steps, grid = self.plan, self.plan.silos.steps, self.plan.silos.grid
        signs, reach = known_signs(plan.dimension, plan.directions, self._seeds)
        # means of quotients, as the silo sent them, in the grid of models; back to sums, in clips along the signs
        count = plan.directions
        means = totals[:, :count] * grid.radius / grid.radius_units / totals[:, count : count + 1]
        sums = means * steps.sampling_rate * self._records / plan.clip
        along = np.sum(sums * signs, axis=1) / count  # the canary adds 1, the noise sqrt(K) z / sqrt(K)
        seen = sum(
            steps_ratio(float(clips), 1, steps.sampling_rate, steps.noise_multiplier, both=both)
            for clips in along
        )
        found: dict[View, float] = {
            "server": seen,
            "participants": seen,
            "release": -float(final @ reach.sum(axis=0)),
        }
        return {view: np.array([found[view]]) for view in self.views()}
