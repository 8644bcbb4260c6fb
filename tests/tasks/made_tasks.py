"""A made task for tests."""

from __future__ import annotations

import numpy as np

from fedpriv.tasks.base import Examples, Task


def make_task(
    num_examples: int = 60,
    num_classes: int = 3,
    num_train: int | None = None,
    seed: int = 0,
    num_columns: int = 4,
) -> Task:
    """A made task with unbalanced classes, 2 to 1 between neighbours."""
    rng = np.random.default_rng(seed)
    shares = 2.0 ** np.arange(num_classes)
    labels = rng.choice(num_classes, size=num_examples, p=shares / shares.sum())
    features = rng.normal(size=(num_examples, num_columns)) + 2.0 * labels[:, None]
    return Task(
        name=f"made-{num_examples}-{num_classes}",
        title="Made",
        num_classes=num_classes,
        input_shape=(num_columns,),
        feature_norm=3.0,
        models=("logistic", "mlp"),
        default_model="logistic",
        read=lambda: Examples(features.astype(np.float32), labels.astype(np.int64), num_train, "made"),
    )
