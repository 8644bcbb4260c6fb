"""PACZero under attack: is the record that decides every sign among those that the silo trains on?

One silo holds a record whose quotient outweighs all others, which pull the other way: the sign of a subset says
whether the record is in it, and so would an unprotected bit. The adversary knows records, subsets and directions.
"Present" are the runs whose secret subset holds the record; the silo draws it, the auditor looks it up afterwards.
What is claimed is no epsilon but the success of such an attack, which is 1/2 without any release.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from fedpriv import wire
from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, make_app
from fedpriv.audit.result import Claim
from fedpriv.audit.target import Setup, Target
from fedpriv.audit.targets.linear import ManyLinearLosses
from fedpriv.audit.targets.updates import plain
from fedpriv.clients import pac_zero_mod
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.sign_release import balanced_subsets
from fedpriv.plans import PacZeroPlan
from fedpriv.settings.pac_zero import PacZeroSettings
from fedpriv.strategies import NoisedSum, PacZero

_RECORDS, _DIMENSION = 6, 8
_STEEP = 1e6


class PacZeroTarget(Target):
    """Rounds of `PacZero` with one silo.

    Parameters
    ----------
    setup : Setup
        Configured stage.
    """

    kind = "PACZero"
    code = "PacZero.train_round, pac_zero_mod, SignRelease, through Flower messages in process"

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.plan, PacZeroPlan)
        self.stage, self.configured = setup.stage, setup.plan
        settings = setup.settings
        own = PacZeroSettings.from_run_config({}) if settings is None else settings.of(PacZeroSettings)
        self._rate = own.learning_rate
        self.plan = replace(setup.plan, num_silos=1, min_survivors=1, dimension=_DIMENSION)
        self._seeds: list[tuple[bytes, str]] = []
        app = make_app([pac_zero_mod(self._objective)])
        self._grid = AuditGrid(app, 1, watch=self._see)
        self._runs = 0

    @classmethod
    def of(cls, setup: Setup) -> PacZeroTarget:
        return cls(setup)

    def views(self) -> tuple[View, ...]:
        """Every bit, or the final model alone."""
        return ("server", "release")

    def claim(self, view: View, delta: float) -> Claim:
        """The success of an attack on one secret, whatever the view."""
        bound = f"mutual information, {self.configured.nats:g} nats"
        return Claim(self.configured.posterior_success, "success", bound)

    def _objective(self, arrays: dict[str, np.ndarray], context: Context) -> ManyLinearLosses:
        slopes = np.full((_RECORDS, _DIMENSION), -0.5 * self.plan.clip / _RECORDS)
        slopes[0] = _STEEP * self.plan.clip
        return ManyLinearLosses(arrays, slopes)

    def _see(self, messages: list[Message]) -> None:
        for message in messages:
            record = message.content[wire.RECORD_PAC_ZERO]
            seed, kind = record[wire.ZEROTH_ORDER_SEED], record[wire.ZEROTH_ORDER_KIND]
            self._seeds.append((bytes(seed), str(kind)))  # type: ignore[arg-type]

    def _holds_the_record(self) -> bool:
        """Whether the silo's secret subset holds record 0."""
        (context,) = self._grid.contexts.values()
        for name, record in context.state.items():
            if name.startswith(wire.STATE_SILO_FILE) and isinstance(record, ConfigRecord):
                secret = json.loads(record["content"])  # type: ignore[arg-type]
                seed = bytes.fromhex(secret["subset-seed"])
                members = balanced_subsets(_RECORDS, self.plan.subsets, seed)
                return bool(members[secret["release"]["secret"]][0])
        raise AssertionError("the silo has no secret")

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """One whole run with a secret subset that holds the record, or does not."""
        while True:
            self._grid.restart_node(0)  # another run of the silo: another secret
            self._seeds.clear()
            self._runs += 1
            sums = NoisedSum(None, mode="simulated")
            seed = self._runs if self.plan.seeded else None
            strategy = PacZero(
                self.plan,
                sums,
                run=f"audit-{self._runs}",
                learning_rate=self._rate,
                seed=seed,
                stage=self.stage,
            )
            model = ArrayRecord({"w": Array(np.zeros(_DIMENSION))})
            bits: list[int] = []
            for server_round in range(1, self.plan.rounds + 1):
                outcome = strategy.train_round(self._grid, server_round, model)
                assert outcome.arrays is not None
                model = outcome.arrays
                bits.append(outcome.total)
                if server_round == 1 and self._holds_the_record() != present:
                    break  # the coin fell the other way: another run
            else:
                return self._statistics(np.array(bits), plain(model))

    def _statistics(self, bits: np.ndarray, final: np.ndarray) -> dict[View, np.ndarray]:
        rows = [Directions(s, _DIMENSION, 1, k).direction(0) for s, k in self._seeds]  # type: ignore[arg-type]
        directions = np.array(rows, dtype=np.float64)
        signs = np.sign(directions.sum(axis=1))
        return {
            "server": np.array([float(bits @ signs), float(bits[0] * signs[0])]),
            "release": np.array([-float(final @ (signs @ directions))]),
        }
