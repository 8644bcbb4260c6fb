"""Evaluation of the model during a run: a public hold-out, noised counts, or the clients' metrics in the clear."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpriv.ledger import BudgetExceeded
from fedpriv.reporting import Progress
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.settings import Settings
from fedpriv.stages.base import Evaluator
from fedpriv.stages.planning import RunPlans
from fedpriv.strategies import NoisedSum, PrivateEvaluation

if TYPE_CHECKING:
    from fedpriv.tasks.base import Task


def public_evaluator(settings: Settings, task: Task) -> Evaluator:
    """Accuracy on the public hold-out that belongs to no client: free."""
    import torch

    from fedpriv.tasks.client_data import public_split
    from fedpriv.tasks.training import evaluate

    run = settings.run
    split = public_split(task, run.holdout_fraction, run.seed)
    model = task.build_model(run.model, run.seed)

    def accuracy(server_round: int, arrays: ArrayRecord) -> float | None:
        model.load_state_dict({k: torch.from_numpy(a.numpy().copy()) for k, a in arrays.items()})
        found = evaluate(model, split).accuracy
        return None if math.isnan(found) else found

    return accuracy


def private_evaluator(
    settings: Settings,
    plans: RunPlans,
    grid: Grid,
    clients: list[int],
    sums: NoisedSum,
    progress: Progress,
) -> Evaluator:
    """Noised counts of the clients: every evaluation is a release that the ledger charges."""
    assert plans.evaluation is not None
    seed = settings.run.seed if settings.run.seeded_noise else None
    evaluation = PrivateEvaluation(plans.evaluation, sums, seed=seed)

    def accuracy(server_round: int, arrays: ArrayRecord) -> float | None:
        try:
            found = evaluation.evaluate(grid, server_round, arrays, clients).accuracy
        except (BudgetExceeded, SecureSumAborted) as refused:
            progress.warn(f"no evaluation after round {server_round}: {refused}")
            return None
        return None if math.isnan(found) else found

    return accuracy


def clear_evaluator(settings: Settings, grid: Grid, clients: list[int]) -> Evaluator:
    """The clients' own metrics, averaged by examples, in the clear: for research only, covered by nothing."""

    def accuracy(server_round: int, arrays: ArrayRecord) -> float | None:
        config = ConfigRecord({"server-round": server_round})
        messages = [
            Message(
                RecordDict({"arrays": arrays, "config": config}), dst_node_id=client, message_type="evaluate"
            )
            for client in clients
        ]
        correct = examples = 0.0
        for reply in grid.send_and_receive(messages, timeout=settings.run.timeout):
            if reply.has_content():
                metrics = next(iter(reply.content.metric_records.values()))
                correct += float(metrics["accuracy"]) * float(metrics["num-examples"])  # type: ignore[arg-type]
                examples += float(metrics["num-examples"])  # type: ignore[arg-type]
        return correct / examples if examples > 0 else None

    return accuracy


def make_evaluator(
    settings: Settings,
    plans: RunPlans,
    task: Task,
    grid: Grid,
    clients: list[int],
    sums: NoisedSum,
    progress: Progress,
) -> Evaluator:
    """The evaluator that ``evaluate`` selects."""
    choice = settings.run.evaluate
    if choice == "public":
        return public_evaluator(settings, task)
    if choice == "private" and plans.evaluation is not None:
        return private_evaluator(settings, plans, grid, clients, sums, progress)
    if choice == "clear":
        return clear_evaluator(settings, grid, clients)
    return lambda server_round, arrays: None
