"""Model, data and training: handwritten digits, one part per client. Nothing here knows about privacy."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import ArrayRecord
from sklearn.datasets import load_digits

#: Inputs of shape (examples, 64) in [0, 1], and labels of shape (examples,).
Examples = tuple[torch.Tensor, torch.Tensor]
TEST_EXAMPLES = 360


def new_model() -> torch.nn.Module:
    """Softmax regression on 8 x 8 pixels, 650 parameters, the same at every start."""
    torch.manual_seed(0)
    return torch.nn.Linear(64, 10)


def model_from(arrays: ArrayRecord) -> torch.nn.Module:
    """The model with the given parameters."""
    model = new_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


@functools.cache
def _shuffled_digits() -> Examples:
    inputs, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(inputs[order] / 16, dtype=torch.float32), torch.tensor(labels[order])


def client_examples(node_config: Mapping[str, object]) -> tuple[Examples, Examples]:
    """A client's examples for training and, a quarter of them, for validation."""
    partition, num_partitions = int(str(node_config["partition-id"])), int(str(node_config["num-partitions"]))
    inputs, labels = _shuffled_digits()
    mine = slice(TEST_EXAMPLES + partition, None, num_partitions)
    inputs, labels = inputs[mine], labels[mine]
    cut = len(labels) // 4
    return (inputs[cut:], labels[cut:]), (inputs[:cut], labels[:cut])


def test_examples() -> Examples:
    """Examples that the server has and that belong to no client."""
    inputs, labels = _shuffled_digits()
    return inputs[:TEST_EXAMPLES], labels[:TEST_EXAMPLES]


def train(model: torch.nn.Module, examples: Examples, learning_rate: float, steps: int) -> None:
    """Full-batch gradient steps, in place."""
    inputs, labels = examples
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model: torch.nn.Module, examples: Examples) -> tuple[float, float]:
    """Mean cross-entropy (nats) and accuracy in [0, 1]."""
    inputs, labels = examples
    scores = model(inputs)
    loss = torch.nn.functional.cross_entropy(scores, labels)
    return float(loss), float((scores.argmax(dim=1) == labels).float().mean())
