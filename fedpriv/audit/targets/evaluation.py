"""Private evaluation under attack: a canary client that counts as many examples as the cap allows, all correct.

Everybody else has no examples; the federation is the canary and one client that adds no noise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord, Context

from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, RecordedSums, colluding_mod, make_app, partition_of
from fedpriv.audit.ledger_check import Watch
from fedpriv.audit.target import ABORTED, NoiseSample, PlanTarget, Probes, Setup, few_clients
from fedpriv.audit.targets.updates import QUIET_NOISE_UNITS, noise_shares
from fedpriv.clients import private_evaluation_mod
from fedpriv.ledger import Ledger
from fedpriv.plans import EvaluationPlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies import PrivateEvaluation

Counts = Callable[[int], tuple[int, int]]
"""From partition to correct predictions and examples."""

#: Evaluations of the noise probe: two draws each.
NOISE_EVALUATIONS = 100


class _Evaluators:
    def __init__(self, clients: int, honest: int, watch: Watch | None = None) -> None:
        self.counts: Counts = lambda client: (0, 0)
        app = make_app([colluding_mod(honest), private_evaluation_mod(self._count)])
        self.grid = AuditGrid(app, clients, watch=watch)
        self.model = ArrayRecord({"w": Array(np.zeros(1))})

    def _count(self, arrays: ArrayRecord, context: Context) -> tuple[int, int]:
        return self.counts(partition_of(context))

    def evaluate(
        self, plan: EvaluationPlan, evaluations: int, ledger: Ledger | None = None
    ) -> tuple[np.ndarray, list[int]]:
        """Released integers, shape (evaluations, 2), and how many clients were in each; fewer where one ended early."""
        seed = 0 if plan.noise.seeded else None
        sums = RecordedSums(
            ledger, mode="simulated" if ledger is None or seed is not None else "protocol", seed=seed
        )
        evaluation = PrivateEvaluation(plan, sums, seed)
        with suppress(SecureSumAborted):  # because of a canary: what is missing tells
            for number in range(1, evaluations + 1):
                evaluation.evaluate(self.grid, number, self.model)
        return np.array(sums.totals, dtype=np.float64), sums.summed


class EvaluationTarget(PlanTarget):
    """All evaluations of `PrivateEvaluation`.

    Parameters
    ----------
    setup : Setup
        Configured stage.
    """

    kind = "private evaluation"
    code = (
        "PrivateEvaluation.evaluate, NoisedSum.release, SecureSum (simulated), private_evaluation_mod, through Flower "
        "messages in process"
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.plan, EvaluationPlan)
        helpers = 1 if setup.plan.noise.kind == "distributed" else 0
        noise = few_clients(setup.plan.noise, 1, helpers)
        self.plan = replace(setup.plan, num_clients=1 + helpers, noise=noise)
        self._evaluators = _Evaluators(1 + helpers, 1)

    @classmethod
    def of(cls, setup: Setup) -> EvaluationTarget:
        return cls(setup)

    def views(self) -> tuple[View, ...]:
        """The counts are what every view sees; with central noise the server sees more, and is promised nothing."""
        return ("server",) if self.configured.noise.kind == "distributed" else ("server", "participants")

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """All evaluations with the canary, or with a client without examples."""
        plan, most = self.plan, 1000 * self.plan.cap
        self._evaluators.counts = lambda client: (most, most) if client == 0 and present else (0, 0)
        totals, _ = self._evaluators.evaluate(plan, plan.evaluations)
        if len(totals) < plan.evaluations:
            return dict.fromkeys(self.views(), np.array([ABORTED]))
        return dict.fromkeys(self.views(), np.array([float(totals.sum()) / plan.noise.total_std_units]))

    def probes(self) -> EvaluationProbes:
        assert isinstance(self.configured, EvaluationPlan)
        return EvaluationProbes(self.configured)


#: Worst-case counts of a client, from the cap.
WORST_COUNTS: dict[str, Callable[[int], tuple[int, int]]] = {
    "the cap, all correct": lambda cap: (cap, cap),
    "more than the cap": lambda cap: (1000 * cap, 1000 * cap),
    "more correct than examples": lambda cap: (10 * cap, cap),
    "more correct than many examples": lambda cap: (10**9, 2 * cap),
    "negative": lambda cap: (-5 * cap, -5 * cap),
    "negative examples": lambda cap: (cap, -3 * cap),
}


class EvaluationProbes(Probes):
    """Small experiments on private evaluation.

    Parameters
    ----------
    plan : EvaluationPlan
        As configured.
    """

    def __init__(self, plan: EvaluationPlan) -> None:
        self.plan: EvaluationPlan = plan

    def noise(self, *, counted: bool) -> NoiseSample:
        """Evaluations of clients without examples, as one round: few numbers each."""
        distributed = self.plan.noise.kind == "distributed"
        honest, helpers = (1, 1 if distributed else 0) if counted else (3, 0)
        noise = few_clients(self.plan.noise, honest, helpers)
        plan = replace(self.plan, num_clients=honest + helpers, noise=noise)
        totals, summed = _Evaluators(honest + helpers, honest).evaluate(plan, NOISE_EVALUATIONS)
        std = plan.noise.total_std_units if counted else plan.noise.realised_std_units(summed[0])
        return NoiseSample(totals.reshape(2, -1), np.full(2, std), plan.noise.total_std_units, counted)

    def shifts(self) -> dict[str, float]:
        """Counts against none, and between the extremes: a client's pair lies in a triangle."""
        noise = few_clients(self.plan.noise, 3, 0)
        noise = replace(noise, total_std_units=QUIET_NOISE_UNITS * noise_shares(noise) ** 0.5)
        units = max(1, 2**20 // self.plan.cap)  # the most that the client half takes is 2**20
        plan = replace(self.plan, num_clients=3, units_per_example=units, noise=noise)
        evaluators, cap = _Evaluators(3, 3), self.plan.cap

        def released(counts: tuple[int, int]) -> np.ndarray:
            evaluators.counts = lambda client: counts if client == 0 else (cap // 2, cap)
            totals, _ = evaluators.evaluate(plan, 1)
            return totals[0] / units if len(totals) else np.full(2, np.inf)

        corners = [released((0, 0)), released((0, cap))]
        found = {}
        for name, make in WORST_COUNTS.items():
            moved = released(make(cap))
            distances = [float(np.linalg.norm(moved - corner)) for corner in corners]
            found[name] = max(distances) / (cap * 2**0.5)
        return found

    def play_with(self, ledger: Ledger, watch: Watch) -> None:
        """Two evaluations in the protocol's messages."""
        plan = replace(self.plan, num_clients=4, noise=few_clients(self.plan.noise, 4, 0))
        _Evaluators(4, 4, watch).evaluate(plan, 2, ledger)
