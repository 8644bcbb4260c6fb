"""What the app's clients and server do in a round, as the hidden-state bound needs to know it."""

from __future__ import annotations

import math

import numpy as np
from flwr.app import ArrayRecord

from fedpriv.mechanisms import ArrayLayout
from fedpriv.plans import TrainingFacts
from fedpriv.settings import Settings
from fedpriv.strategies.optimizers import ServerAdam, ServerOptimizer, ServerSgd
from fedpriv.tasks import task_of


def make_optimizer(settings: Settings) -> ServerOptimizer:
    """The server's optimizer."""
    train = settings.train
    if train.server_optimizer == "adam":
        return ServerAdam(train.server_learning_rate)
    return ServerSgd(train.server_learning_rate, train.server_momentum)


def training_facts(settings: Settings, initial: ArrayRecord) -> TrainingFacts:
    """What the app's client and server do in a round, for the hidden-state bound."""
    run, train = settings.run, settings.train
    task = task_of(settings)
    proved = task.smoothness(run.model)
    features = math.prod(task.example_shape) + 1
    center = 0.0
    if train.center == "initial" and train.radius > 0:
        arrays = {name: array.numpy() for name, array in initial.items()}
        center = float(np.linalg.norm(ArrayLayout.of(arrays).flatten(arrays)))
    return TrainingFacts(
        smoothness=proved if proved is not None else (train.assume_smoothness or None),
        smoothness_proved=proved is not None,
        local_learning_rate=train.learning_rate,
        local_steps=train.local_steps,
        local_momentum=train.momentum,
        server_learning_rate=train.server_learning_rate,
        plain_server=make_optimizer(settings).is_plain,
        constant_rate=train.schedule == "constant",
        radius=train.radius,
        center_norm=center,
        release_noise=train.release_noise,
        round_metrics=run.evaluate != "none" and run.evaluate_every < train.rounds,
        linear_features=features if proved is not None else None,
        most_examples=len(task.labels),
    )
