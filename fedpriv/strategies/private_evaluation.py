"""Server half of private evaluation: noised counts of correct predictions and of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.plans import EvaluationPlan
from fedpriv.strategies.noised_sum import NoisedSum


@dataclass(frozen=True)
class EvaluationOutcome:
    """Noisy counts over the surviving clients.

    Parameters
    ----------
    correct, examples : float
        Noisy sums of the capped counts.
    survivors : int
        Clients summed.
    """

    correct: float
    examples: float
    survivors: int

    @property
    def accuracy(self) -> float:
        """Ratio of the noisy counts, clamped to [0, 1]; nan when the number of examples is not positive."""
        return min(1.0, max(0.0, self.correct / self.examples)) if self.examples > 0 else float("nan")


@dataclass
class PrivateEvaluation:
    """Evaluates a model on the clients' own data through a noised secure sum.

    The client half is :func:`fedpriv.clients.private_evaluation_mod`.

    Parameters
    ----------
    plan : EvaluationPlan
        Cap and noise.
    sums : NoisedSum
        Ledger and secure-sum settings.
    seed : int or None
        Seed of the clients' noise; only for simulations that are declared not private.
    stage : str
        Name under which the ledger charges the evaluations.
    """

    plan: EvaluationPlan
    sums: NoisedSum
    seed: int | None = None
    stage: str = "evaluate"

    def __post_init__(self) -> None:
        if (self.seed is not None) != self.plan.noise.seeded:
            raise InvalidArgument(
                f"seed: {self.seed} does not go with a plan whose noise.seeded = {self.plan.noise.seeded}"
            )

    def evaluate(
        self, grid: Grid, server_round: int, arrays: ArrayRecord, clients: Sequence[int] | None = None
    ) -> EvaluationOutcome:
        """Ask every client for its counts on its validation data.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        server_round : int
            Under which the ledger charges it.
        arrays : ArrayRecord
            The model.
        clients : sequence of int, optional
            Node ids to ask; all that are online by default.

        Raises
        ------
        BudgetExceeded, SecureSumAborted
            See :meth:`NoisedSum.release`.
        """
        plan = self.plan
        record: dict[str, Any] = {
            wire.EVALUATE_CAP: plan.cap,
            wire.EVALUATE_UNITS: plan.units_per_example,
            wire.UPDATE_ROUND: server_round,
            wire.NOISE_SHARE_STD: plan.noise.share_std_units,
            wire.NOISE_SEED: "" if self.seed is None else str(self.seed),
        }
        payload = RecordDict({"arrays": arrays, wire.RECORD_EVALUATE: ConfigRecord(record)})
        result = self.sums.release(
            grid,
            list(grid.get_node_ids()) if clients is None else clients,
            payload,
            plan,
            plan.noise,
            stage=self.stage,
            server_round=server_round,
            length=2,
            modulus_bits=plan.modulus_bits(),
            purpose=wire.PURPOSE_EVALUATE,
            magnitude=plan.magnitude(),
        )
        correct, examples = (float(value) / plan.units_per_example for value in result.total)
        return EvaluationOutcome(correct, examples, len(result.survivors))
