"""Local training and evaluation on tensors in memory.

No data loader: at 30 examples a loader costs a hundred times the step itself. Everything that is random comes
from the seed that is passed in, never from a global generator, so that the same client in the same round does
the same steps whichever process it lands in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedpriv.accounting.validators import check_integer, check_non_negative, check_positive
from fedpriv.tasks.base import Split, check_fraction
from fedpriv.tasks.models import ClippedLogisticRegression


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains.

    Parameters
    ----------
    learning_rate : float
        Step size, > 0.
    local_steps : int
        Number of steps, at least 1.
    momentum : float
        Heavy-ball momentum in [0, 1), starting from zero in every call.
    batch_size : int or None
        Examples per step; None, or at least as many as there are, means full batches (every step sees all
        examples).
    weight_decay : float
        Adds ``weight_decay / 2 * ||parameters||^2`` to the loss, >= 0. Biases included.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """

    learning_rate: float
    local_steps: int = 1
    momentum: float = 0.0
    batch_size: int | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_positive(learning_rate=self.learning_rate)
        check_integer(1, local_steps=self.local_steps)
        check_fraction(momentum=self.momentum)
        if self.batch_size is not None:
            check_integer(1, batch_size=self.batch_size)
        check_non_negative(weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` found.

    Attributes
    ----------
    loss : float
        Mean cross-entropy in nats; NaN for an empty split.
    accuracy : float
        Part of the examples whose largest logit is the label, in [0, 1]; NaN for an empty split.
    num_examples : int
        Number of examples.
    """

    loss: float
    accuracy: float
    num_examples: int


def batch_order(num_examples: int, local: LocalTraining, seed: int) -> Iterator[torch.Tensor | None]:
    """Yield the rows of each step: ``local_steps`` index tensors, or None where the step sees all examples.

    Each pass over the examples is a fresh permutation cut into consecutive batches (the last one may be
    shorter). The order depends on the seed, the batch size and the number of examples, never on their
    content.
    """
    if local.batch_size is None or local.batch_size >= num_examples:
        for _ in range(local.local_steps):
            yield None
        return
    generator = torch.Generator().manual_seed(seed & (2**63 - 1))
    remaining = local.local_steps
    while remaining > 0:
        for batch in torch.randperm(num_examples, generator=generator).split(local.batch_size)[:remaining]:
            yield batch
            remaining -= 1


def _gradient_function(
    model: torch.nn.Module, split: Split, parameters: list[torch.Tensor]
) -> Callable[[torch.Tensor | None], list[torch.Tensor]]:
    """Return what computes the gradients of the mean loss on some rows (None: all)."""
    if type(model) is ClippedLogisticRegression and len(parameters) == 2:
        linear, features = model, model.clip_features(split.x)
        targets = functional.one_hot(split.y, model.linear.out_features).to(features.dtype)
        return lambda rows: (
            linear.gradients(features, targets)
            if rows is None
            else linear.gradients(features[rows], targets[rows])
        )

    def by_autograd(rows: torch.Tensor | None) -> list[torch.Tensor]:
        x, y = (split.x, split.y) if rows is None else (split.x[rows], split.y[rows])
        return list(torch.autograd.grad(functional.cross_entropy(model(x), y), parameters))

    return by_autograd


def train(model: torch.nn.Module, split: Split, local: LocalTraining, seed: int) -> None:
    """Train `model` in place by SGD on the mean cross-entropy.

    Parameters
    ----------
    model : torch.nn.Module
        Parameters with ``requires_grad`` are changed. It runs in training mode; its mode is put back.
    split : Split
        The client's examples. An empty split leaves the model as it is: the client's update is zero.
    local : LocalTraining
        Step size, number of steps, batch size.
    seed : int
        Seed of the data order; see :func:`fedpriv.tasks.derive_seed`.

    Notes
    -----
    A step that diverges leaves non-finite parameters; the caller (the client half) turns a
    non-finite update into zeros.
    """
    was_training = model.training
    model.train()
    parameters: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    velocities: list[torch.Tensor] | None = None
    if len(split) > 0:
        gradients_at = _gradient_function(model, split, parameters)
        for rows in batch_order(len(split), local, seed):
            gradients = gradients_at(rows)
            with torch.no_grad():
                if local.weight_decay:
                    torch._foreach_add_(gradients, parameters, alpha=local.weight_decay)
                if local.momentum and velocities is None:
                    velocities = gradients
                elif local.momentum and velocities is not None:
                    torch._foreach_mul_(velocities, local.momentum)
                    torch._foreach_add_(velocities, gradients)
                step = gradients if velocities is None else velocities
                torch._foreach_add_(parameters, step, alpha=-local.learning_rate)
    model.train(was_training)


@torch.no_grad()
def evaluate(model: torch.nn.Module, split: Split, chunk: int = 2048) -> Evaluation:
    """Return mean loss and accuracy of `model` on `split`.

    Parameters
    ----------
    model : torch.nn.Module
        Evaluated in ``eval`` mode; its mode is put back.
    split : Split
        May be empty: loss and accuracy are then NaN and ``num_examples`` is 0.
    chunk : int
        Examples per forward pass, to bound memory.
    """
    if len(split) == 0:
        return Evaluation(math.nan, math.nan, 0)
    was_training = model.training
    model.eval()
    loss, correct = 0.0, 0
    for start in range(0, len(split), chunk):
        logits = model(split.x[start : start + chunk])
        labels = split.y[start : start + chunk]
        loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        correct += int((logits.argmax(1) == labels).sum())
    model.train(was_training)
    return Evaluation(loss / len(split), correct / len(split), len(split))
