"""Server of the app: FedAvg under Flower's own DP strategy, with an accountant to choose."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import (
    GaussianPrivacyEvent,
    Grid,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
    ServerApp,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from accountant_for_flower import task
from fedpriv.accounting import FlowerAccountant

DELTA = 1e-3

app = ServerApp()


def new_accountant(name: str, num_clients: int, max_epsilon: float) -> PrivacyAccountant:
    """Flower's accountant, or ours in its place: the protocol is the same."""
    config = PrivacyConfig(
        DELTA,
        num_clients,
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
        max_epsilon=max_epsilon,
    )
    accountants = {"fedpriv": FlowerAccountant, "flower": RdpAccountant}
    return accountants[name](config)


def affordable_rounds(accountant: PrivacyAccountant, event: GaussianPrivacyEvent) -> int:
    """Most releases of this kind that the limit allows; composes nothing.

    Known before the start: in the middle of a run Flower's strategy raises when the limit is reached, and the
    model is lost with it.
    """
    rounds = 0
    while not accountant.would_exceed(event, count=rounds + 1):
        rounds += 1
    return rounds


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the budget allows, and say what they cost."""
    config = context.run_config
    num_clients, noise_multiplier = int(config["num-clients"]), float(config["noise-multiplier"])
    name = str(config["accountant"])
    accountant = new_accountant(name, num_clients, float(config["max-epsilon"]))
    rounds = affordable_rounds(accountant, GaussianPrivacyEvent(noise_multiplier, num_clients, num_clients))
    if rounds == 0:
        raise ValueError(f"max-epsilon = {config['max-epsilon']}: allows no round at this noise multiplier")

    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=num_clients, min_available_nodes=num_clients),
        noise_multiplier=noise_multiplier,
        clipping_norm=1.0,
        num_sampled_clients=num_clients,
        accountant=accountant,
    )
    start = ArrayRecord(task.new_model().state_dict())
    result = strategy.start(grid, start, num_rounds=rounds, evaluate_fn=_evaluate)
    spent = strategy.privacy_spent()
    assert spent is not None  # an accountant was given
    accuracy = result.evaluate_metrics_serverapp[rounds]["accuracy"]
    print(
        f"{name}: {spent.num_releases} rounds, accuracy {accuracy:.3f}, "
        f"epsilon {spent.epsilon:.4f} at delta {DELTA:g} ({spent.accounting_method})"
    )


def _evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    loss, accuracy = task.evaluate(task.model_from(arrays), task.test_examples())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
