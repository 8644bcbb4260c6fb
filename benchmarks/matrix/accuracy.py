"""Accuracy at equal epsilon: the plans' schedule, grid and noise in a lean loop over the clients.

Every object that decides about privacy is the library's own: plans, bins, coins, clip, grid, rows of noise, events.
Only messages are missing; the integers that a simulated secure sum would add are added here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.nonprivate import holdout_accuracy
from fedpriv.accounting import calibrate_noise_multiplier
from fedpriv.accounting.allocation import RandomAllocation, calibrate_allocation, compare_matrices
from fedpriv.mechanisms import (
    ArrayLayout,
    GridCodec,
    RandomAllocationSchedule,
    SelfSampling,
    clip_to_norm,
    rounded_gaussian,
)
from fedpriv.mechanisms.correlated_noise import new_noise_key
from fedpriv.plans import DpsgdDcPlan, MatrixPlan
from fedpriv.settings import Settings, resolve_settings
from fedpriv.tasks import federated, get_task
from fedpriv.tasks.training import LocalTraining

METHODS = ("poisson", "identity", "bandmf", "blt")
BANDS = (4, 8, 16)


@dataclass(frozen=True)
class Federation:
    """What is trained on.

    Parameters
    ----------
    task : str
        fashion-mnist, or digits.
    clients, bins, epochs : int
        n, b, k.
    delta : float
        Where epsilon is read.
    clip : float
        Clipping norm of an update.
    rate : float
        Learning rate of the clients' one full-batch step; what leaves is the clipped gradient times it.
    """

    task: str = "fashion-mnist"
    clients: int = 500
    bins: int = 20
    epochs: int = 6
    delta: float = 1e-5
    clip: float = 1.0
    rate: float = 1.0

    def settings(self, seed: int) -> Settings:
        """Split and model of one seed."""
        return resolve_settings(
            {
                "task": self.task,
                "num-clients": self.clients,
                "partition": "dirichlet",
                "alpha": 1.0,
                "validation-fraction": 0.0,
                "seed": seed,
                "stages": "train",
            }
        )


def make_plan(method: str, federation: Federation, epsilon: float, length: int) -> DpsgdDcPlan | MatrixPlan:
    """The plan of a method that spends epsilon in a view that cannot see who takes part."""
    f, survivors = federation, int(0.9 * federation.clients)
    if method == "poisson":

        def poisson(noise: float) -> DpsgdDcPlan:
            return DpsgdDcPlan.build(
                sampler=SelfSampling(1.0 / f.bins),
                clipping_norm=f.clip,
                noise_multiplier=noise,
                kind="central",
                adjacency="add_or_remove",
                num_clients=f.clients,
                min_survivors=survivors,
                rounds=f.bins * f.epochs,
                length=length,
            )

        found = calibrate_noise_multiplier(
            lambda noise: [(poisson(noise).events()["release"], f.bins * f.epochs)],
            epsilon,
            f.delta,
            "add_or_remove",
        )
        return poisson(found.noise_multiplier)
    (choice,) = compare_matrices(f.bins, f.epochs, epsilon, f.delta, (method,), bands=BANDS)  # type: ignore[arg-type]
    plan = MatrixPlan.build(
        schedule=RandomAllocationSchedule(f.bins, f.epochs),
        matrix=choice.matrix,
        clipping_norm=f.clip,
        noise_multiplier=choice.noise_multiplier,
        num_clients=f.clients,
        min_survivors=survivors,
        length=length,
    )
    event = plan.events()["release"]
    assert isinstance(event, RandomAllocation)
    assert calibrate_allocation(event, epsilon, f.delta).noise_multiplier <= event.noise_multiplier * 1.001
    return plan


def train(
    plan: DpsgdDcPlan | MatrixPlan, federation: Federation, settings: Settings, server_rate: float
) -> float:
    """Train once and return the accuracy on the public hold-out."""
    run = settings.run
    model = get_task(run.task).build_model(run.model, run.seed)
    arrays: dict[str, Any] = {name: t.detach().numpy().copy() for name, t in model.state_dict().items()}
    layout = ArrayLayout.of(arrays)
    weights = layout.flatten(arrays)
    local = LocalTraining(learning_rate=federation.rate, local_steps=1)
    if isinstance(plan, MatrixPlan):
        noise = plan.make_noise(new_noise_key())
        own = [plan.schedule.draw() for _ in range(federation.clients)]
    for server_round in range(1, plan.num_rounds + 1):
        if isinstance(plan, MatrixPlan):
            cohort = [c for c, b in enumerate(own) if b == plan.schedule.bin_of(server_round)]
        else:
            assert isinstance(plan.sampler, SelfSampling)
            cohort = [c for c in range(federation.clients) if plan.sampler.toss()]
        arrays = layout.unflatten(weights)
        start, total = layout.flatten(arrays), np.zeros(layout.size, dtype=np.int64)
        for client in cohort:
            trained = federated.train_locally(settings, client, arrays, local, server_round)
            total += encoded(start - layout.flatten(trained), plan.codec)
        if isinstance(plan, MatrixPlan):
            total += noise.row(server_round - 1)
        else:
            total += rounded_gaussian(plan.noise.total_std_units, layout.size)
        weights = weights - server_rate * plan.codec.decode(total) / plan.divisor
    return holdout_accuracy(settings, layout.unflatten(weights))


def encoded(update: np.ndarray, codec: GridCodec) -> np.ndarray:
    """A client's clipped update in grid steps."""
    return codec.encode(clip_to_norm(update, codec.clipping_norm).vector)


def model_length(federation: Federation) -> int:
    """Number of model coordinates d."""
    task = get_task(federation.task)
    model = task.build_model("", 0)
    return sum(int(tensor.numel()) for tensor in model.state_dict().values())
