"""Federated training without noise: what the private runs are measured against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedpriv.mechanisms import ArrayLayout, Ball, clip_to_norm
from fedpriv.settings import Settings
from fedpriv.stages.train import make_optimizer
from fedpriv.strategies.optimizers import cosine_factor
from fedpriv.tasks import federated, get_task
from fedpriv.tasks.client_data import public_split
from fedpriv.tasks.training import evaluate

Arrays = dict[str, np.ndarray]


def train_candidate(settings: Settings, candidate: Mapping[str, Any], *, clipped: bool = True) -> Arrays:
    """Train one candidate over all clients as the train stage does, but without noise, grid and messages.

    Parameters
    ----------
    settings : Settings
        Task, federation and train settings of the run.
    candidate : mapping
        Train keys put in, as after a vote for it.
    clipped : bool
        Whether updates are clipped and the model is projected, as in the private run. Without, this is plain
        federated averaging of all clients with equal weights.

    Returns
    -------
    dict of str to np.ndarray
        The model after the last round. An update that is not finite counts as zero, as at a private client.
    """
    tried = settings.with_candidate(candidate)
    rules, clients = tried.train, tried.run.num_clients
    task = get_task(tried.run.task)
    model = task.build_model(tried.run.model, tried.run.seed)
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}
    layout = ArrayLayout.of(arrays)
    weights = layout.flatten(arrays)
    ball = None
    if clipped and rules.radius > 0:
        ball = Ball(rules.radius, weights.copy() if rules.center == "initial" else None)
    local, optimizer = federated.local_training(tried), make_optimizer(tried)
    for server_round in range(1, rules.rounds + 1):
        arrays = layout.unflatten(weights)
        start = layout.flatten(arrays)
        total = np.zeros(layout.size)
        for partition in range(clients):
            trained = federated.train_locally(tried, partition, arrays, local, server_round)
            update = start - layout.flatten(trained)
            if clipped:
                total += clip_to_norm(update, rules.clip_norm).vector
            elif np.all(np.isfinite(update)):
                total += update
        factor = cosine_factor(server_round, rules.rounds) if rules.schedule == "cosine" else 1.0
        weights = weights - optimizer.step(total / clients, factor)
        if ball is not None:
            weights = ball.project(weights)
    return layout.unflatten(weights)


def holdout_accuracy(settings: Settings, arrays: Mapping[str, np.ndarray]) -> float:
    """Accuracy in [0, 1] on the public hold-out, which belongs to no client."""
    run = settings.run
    task = get_task(run.task)
    model = task.build_model(run.model, run.seed)
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    return evaluate(model, public_split(task, run.holdout_fraction, run.seed)).accuracy


def candidate_accuracies(settings: Settings, *, clipped: bool = True) -> np.ndarray:
    """Hold-out accuracy of every candidate of the grid, each trained over all clients without noise.

    Returns
    -------
    np.ndarray
        Shape (candidates,), in [0, 1].
    """
    return np.array(
        [
            holdout_accuracy(settings, train_candidate(settings, candidate, clipped=clipped))
            for candidate in settings.tune.candidates
        ]
    )
