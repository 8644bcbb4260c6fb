"""What all contenders share: data, split, model, local steps, cohort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.settings import Settings, resolve_settings

COHORT, CLIP, NOISE_MULTIPLIER = 10, 1.0, 1.0
#: One local epoch: an average client has 480 training examples, 15 batches of 32.
CONFIG: Mapping[str, Any] = {
    "task": "fashion-mnist",
    "model": "cnn",
    "num-clients": 100,
    "partition": "dirichlet",
    "alpha": 0.5,
    "stages": "train",
    "train.learning-rate": 0.05,
    "train.local-steps": 15,
    "train.batch-size": 32,
}


def make_settings(**changes: Any) -> Settings:
    """Settings of the setting, with some keys changed."""
    return resolve_settings({**CONFIG, **changes})
