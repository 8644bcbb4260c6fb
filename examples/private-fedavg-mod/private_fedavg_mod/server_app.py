"""Server of the FedAvg app. New for privacy: the plan, the ledger, and `DpsgdDc` in the place of `FedAvg`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedpriv.ledger import Budget, Ledger
from fedpriv.mechanisms import FullParticipation
from fedpriv.plans import DpsgdDcPlan, calibrate_plans
from fedpriv.strategies import DpsgdDc, NoisedSum
from private_fedavg_mod import task

DELTA = 1e-3

app = ServerApp()


def make_plan(num_clients: int, rounds: int, noise_multiplier: float) -> DpsgdDcPlan:
    """Sampling, clip and noise in one object; what runs and what is charged both come from it."""
    return DpsgdDcPlan.build(
        sampler=FullParticipation(),
        clipping_norm=1.0,  # L2 bound on a client's whole update
        noise_multiplier=noise_multiplier,  # guaranteed noise of the sum over the clip
        kind="distributed",  # every client adds a share before its update is masked
        adjacency="add_or_remove",
        num_clients=num_clients,
        min_survivors=num_clients * 9 // 10,  # fewer clients in the sum: nothing is opened
        rounds=rounds,
        length=sum(parameter.numel() for parameter in task.new_model().parameters()),
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Solve the noise for the target epsilon, then train."""
    config = context.run_config
    num_clients, rounds = int(config["num-clients"]), int(config["num-rounds"])
    target = float(config["target-epsilon"])
    solved = calibrate_plans(
        target_epsilon=target,
        delta=DELTA,
        adjacency="add_or_remove",
        view="server",
        make_train=lambda noise_multiplier: make_plan(num_clients, rounds, noise_multiplier),
    )
    plan = solved.train
    assert isinstance(plan, DpsgdDcPlan)  # what make_train makes
    print(f"noise multiplier {plan.noise_multiplier:.3f} for epsilon {target:g} at delta {DELTA:g}")

    ledger_file = Path(str(config["ledger"]) or Path(tempfile.mkdtemp()) / "ledger.jsonl")
    budget = Budget(max_epsilon=target, delta=DELTA, view="server")
    with Ledger.open(
        ledger_file, unit="client", adjacency="add_or_remove", run="train", delta=DELTA, budgets=budget
    ) as ledger:
        strategy = DpsgdDc(plan, NoisedSum(ledger))
        result = strategy.start(
            grid, ArrayRecord(task.new_model().state_dict()), num_rounds=rounds, evaluate_fn=_evaluate
        )
        if strategy.stopped:
            print(f"stopped early: {strategy.stopped}")  # the model that was reached is in result.arrays
        for view in ("server", "participants", "release"):
            print(f"{view}: epsilon {ledger.epsilon(view, DELTA).epsilon:.3f}")
    accuracy = task.evaluate(task.model_from(result.arrays), task.test_examples())[1]
    print(f"accuracy {accuracy:.3f}")
    print(f"ledger: {ledger_file}")


def _evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    loss, accuracy = task.evaluate(task.model_from(arrays), task.test_examples())
    print(f"round {server_round}: accuracy {accuracy:.3f}")
    return MetricRecord({"loss": loss, "accuracy": accuracy})
