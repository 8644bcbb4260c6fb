"""Server of the FedAvg app. New for the vote: `choose_learning_rate` and the call of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedpriv.ledger import Ledger
from fedpriv.mechanisms import Ballot
from fedpriv.plans import VotePlan
from fedpriv.strategies import DpHype, NoisedSum
from vote_in_fedavg import task

CANDIDATES = [{"learning-rate": rate} for rate in (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)]
DELTA = 1e-3

app = ServerApp()


def choose_learning_rate(grid: Grid, num_clients: int, ledger_file: Path) -> float:
    """Hold one private vote among all clients and return the winner."""
    plan = VotePlan.build(
        Ballot(candidates=len(CANDIDATES), votes=1),
        adjacency="add_or_remove",
        num_clients=num_clients,
        noise_multiplier=2.0,  # standard deviation of a tally's noise, in votes
        kind="distributed",  # every client adds a share of it before its ballot is masked
        min_survivors=num_clients * 9 // 10,  # fewer ballots: nothing is opened
    )
    with Ledger.open(ledger_file, unit="client", adjacency="add_or_remove", run="vote") as ledger:
        outcome = DpHype(CANDIDATES, plan, NoisedSum(ledger)).vote(grid)
        spent = ledger.epsilon("server", DELTA).epsilon
    print("noisy tallies: " + "  ".join(f"{tally:.1f}" for tally in outcome.tallies))
    rate = float(outcome.candidate["learning-rate"])
    print(f"the vote chose learning rate {rate:g} and cost epsilon {spent:.3f} at delta {DELTA:g}")
    print(f"ledger: {ledger_file}")
    return rate


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Vote, then train with FedAvg as before."""
    config = context.run_config
    num_clients, rate = int(config["num-clients"]), float(config["learning-rate"])
    if config["vote"]:
        ledger_file = Path(str(config["ledger"]) or Path(tempfile.mkdtemp()) / "ledger.jsonl")
        rate = choose_learning_rate(grid, num_clients, ledger_file)

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=num_clients, min_available_nodes=num_clients)
    result = strategy.start(
        grid,
        ArrayRecord(task.new_model().state_dict()),
        num_rounds=int(config["num-rounds"]),
        train_config=ConfigRecord({"learning-rate": rate}),
        evaluate_fn=_evaluate,
    )
    final = result.evaluate_metrics_serverapp[int(config["num-rounds"])]
    print(f"learning rate {rate:g}: accuracy {final['accuracy']:.3f}")


def _evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    loss, accuracy = task.evaluate(task.model_from(arrays), task.test_examples())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
