"""How a client judges a candidate of the stage with correlated noise."""

from __future__ import annotations

from fedpriv.settings import Settings
from fedpriv.settings.matrix import MatrixSettings
from fedpriv.tasks.federated import train_trial


def matrix_trial(settings: Settings, partition: int | str) -> float:
    """Loss of client-level training under the matrix stage's settings; a client alone sees no noise."""
    own = settings.of(MatrixSettings)
    as_training = settings.train.model_copy(
        update={
            "learning_rate": own.learning_rate,
            "momentum": own.momentum,
            "local_steps": own.local_steps,
            "batch_size": own.batch_size,
            "clip_norm": own.clip_norm,
            "server_optimizer": "sgd",
            "server_learning_rate": own.server_learning_rate,
            "radius": own.radius,
            "center": own.center,
        }
    )
    return train_trial(settings.replacing(as_training), partition)
