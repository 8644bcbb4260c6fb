"""Sentences of the table: one universe for training, one part for learning rates, one for the accuracy shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedpriv.tasks.base import Split, Task
from fedpriv.tasks.sentiment import sentiment_task


@dataclass(frozen=True)
class Sentences:
    """One part of the model with its three splits.

    Parameters
    ----------
    task : Task
    part : str
        Trainable part.
    train, validation, test : Split
        Disjoint; training sentences first in the data set's fixed shuffled order.
    """

    task: Task
    part: str
    train: Split
    validation: Split
    test: Split

    def model(self, seed: int) -> torch.nn.Module:
        """A fresh model."""
        return self.task.build_model(self.part, seed)

    def accuracy(self, model: torch.nn.Module, split: Split) -> float:
        """Accuracy on a split."""
        from fedpriv.tasks.training import evaluate

        with torch.no_grad():
            return evaluate(model, split, chunk=128).accuracy


def load(part: str, train: int, validation: int, total: int) -> Sentences:
    """Read a part's representation of the first ``total`` sentences and cut it."""
    task = sentiment_task(part, "", "", total)
    everything = task.load()

    def cut(low: int, high: int) -> Split:
        return Split(everything.x[low:high], everything.y[low:high])

    return Sentences(
        task, part, cut(0, train), cut(train, train + validation), cut(train + validation, total)
    )


def linear_probe(data: Sentences) -> float:
    """Test accuracy of logistic regression on all training features, regularisation by the validation split."""
    from sklearn.linear_model import LogisticRegression

    best, found = -1.0, 0.0
    for strength in (0.01, 0.1, 1.0, 10.0):
        probe = LogisticRegression(C=strength, max_iter=5000)
        probe.fit(data.train.x.numpy(), data.train.y.numpy())
        score = probe.score(data.validation.x.numpy(), data.validation.y.numpy())
        if score > best:
            best, found = score, probe.score(data.test.x.numpy(), data.test.y.numpy())
    return float(found)


def zero_shot(data: Sentences) -> float:
    """Test accuracy of the model's own words, with the bias of content-free inputs taken off."""
    readout = sentiment_task("readout", "", "", len(data.task.labels))
    return data.accuracy(readout.build_model("readout", 0), data.test)


def class_balance(split: Split) -> float:
    """Share of the larger class."""
    return float(np.bincount(split.y.numpy()).max() / len(split))
