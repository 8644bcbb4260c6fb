"""A task as seen by one client of the app: its data, local training, trying a candidate, counting.

Plain functions of (settings, partition, arrays): no Flower message and no privacy here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedpriv.mechanisms import ArrayLayout, Ball, clip_to_norm
from fedpriv.settings import Settings
from fedpriv.tasks import task_of
from fedpriv.tasks.client_data import ClientData, client_split
from fedpriv.tasks.partitions import PartitionSettings
from fedpriv.tasks.seeds import derive_seed
from fedpriv.tasks.training import Evaluation, LocalTraining, evaluate, train
from fedpriv.tasks.trials import find_trial

Arrays = dict[str, np.ndarray]


def partition_settings(settings: Settings) -> PartitionSettings:
    """How the run configuration spreads the data."""
    run = settings.run
    return PartitionSettings(
        kind=run.partition,
        num_partitions=run.num_clients,
        alpha=run.alpha,
        seed=run.seed,
        min_size=run.min_partition_size,
    )


def client_data(settings: Settings, partition: int | str) -> ClientData:
    """Training and validation data of one client: its part of the built-in data, or the silo's own file.

    Parameters
    ----------
    settings : Settings
        The run's configuration.
    partition : int or str
        As :func:`fedpriv.tasks.silo_data.data_place` tells it.
    """
    run = settings.run
    if isinstance(partition, str):
        from fedpriv.tasks.silo_data import silo_data

        return silo_data(partition, run.task, run.min_partition_size, run.validation_fraction, run.seed)
    return client_split(
        task_of(settings),
        partition_settings(settings),
        partition,
        run.holdout_fraction,
        run.validation_fraction,
        run.seed,
    )


def _model(settings: Settings, arrays: Mapping[str, np.ndarray] | None = None) -> torch.nn.Module:
    model = task_of(settings).build_model(settings.run.model, settings.run.seed)
    if arrays is not None:
        model.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})
    return model


def _arrays(model: torch.nn.Module) -> Arrays:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def train_locally(
    settings: Settings,
    partition: int | str,
    arrays: Mapping[str, np.ndarray],
    local: LocalTraining,
    server_round: int,
) -> Arrays:
    """Train from ``arrays`` on the client's training part and return the new arrays."""
    model = _model(settings, arrays)
    seed = derive_seed(settings.run.seed, "order", server_round, partition)
    train(model, client_data(settings, partition).train, local, seed)
    return _arrays(model)


def count_correct(settings: Settings, partition: int | str, arrays: Mapping[str, np.ndarray]) -> Evaluation:
    """Evaluate ``arrays`` on the client's validation part."""
    return evaluate(_model(settings, arrays), client_data(settings, partition).validation)


def candidate_loss(settings: Settings, partition: int | str, candidate: Mapping[str, Any]) -> float:
    """Loss of a candidate as one client can tell; NaN when it has no data for it (it then abstains).

    The trial is that of the stage that the vote tunes.
    """
    data = client_data(settings, partition)
    if len(data.validation) == 0 or len(data.train) == 0:
        return math.nan
    trial = find_trial(settings.tuned.stage)
    return trial(settings.with_candidate(candidate), partition)


def train_trial(settings: Settings, partition: int | str) -> float:
    """Loss of client-level training: the run in small, on one client's own data.

    The client plays ``tune.proxy-rounds`` rounds of a federation of which it is the only member: local steps,
    flat clip of the update, server step, projection, no noise. The loss is that of its validation part.
    """
    data, tried = client_data(settings, partition), settings
    local, train_settings = local_training(tried), tried.train
    model = _model(tried)
    layout = ArrayLayout.of(_arrays(model))
    weights = layout.flatten(_arrays(model))
    start = weights.copy()
    ball = None
    if train_settings.radius > 0:
        ball = Ball(train_settings.radius, start if train_settings.center == "initial" else None)
    rate = train_settings.server_learning_rate if train_settings.server_optimizer == "sgd" else 1.0
    for proxy_round in range(tried.tune.proxy_rounds):
        train(model, data.train, local, derive_seed(tried.run.seed, "proxy", proxy_round, partition))
        update = weights - layout.flatten(_arrays(model))
        weights = weights - rate * clip_to_norm(update, train_settings.clip_norm).vector
        if ball is not None:
            weights = ball.project(weights)
        model.load_state_dict({k: torch.from_numpy(v) for k, v in layout.unflatten(weights).items()})
    return evaluate(model, data.validation).loss


def local_training(settings: Settings) -> LocalTraining:
    """Local training as the train settings have it."""
    train_settings = settings.train
    return LocalTraining(
        learning_rate=train_settings.learning_rate,
        local_steps=train_settings.local_steps,
        momentum=train_settings.momentum,
        batch_size=train_settings.batch_size or None,
    )
