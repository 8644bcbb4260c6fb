"""Gradients per record equal those of a loop over single records, for every model of the tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedpriv.accounting import InvalidArgument
from fedpriv.mechanisms import ArrayLayout
from fedpriv.tasks import get_task
from fedpriv.tasks.base import Split
from fedpriv.tasks.record_training import ModelRecordGradients

RECORDS = np.array([0, 3, 4, 11])


def loop(model: nn.Module, split: Split, records: NDArray) -> NDArray:
    """One backward pass per record."""
    rows = []
    for i in records:
        model.zero_grad()
        functional.cross_entropy(model(split.x[i : i + 1]), split.y[i : i + 1]).backward()
        wanted = [p for p in model.state_dict(keep_vars=True).values() if p.requires_grad]
        rows.append(np.concatenate([p.grad.numpy().ravel() for p in wanted]))
    return np.array(rows)


def weights_of(model: nn.Module) -> NDArray:
    arrays = {k: v.detach().numpy() for k, v in model.state_dict(keep_vars=True).items() if v.requires_grad}
    return ArrayLayout.of(arrays).flatten(arrays)


def some(seed: int, *shape: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    return Split(torch.randn(12, *shape, generator=generator), torch.arange(12) % 3)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("digits", "logistic"),
        ("digits", "mlp"),
        ("digits", "cnn"),
        ("breast-cancer", "logistic"),
        ("breast-cancer", "mlp"),
    ],
)
def test_all_models_against_a_loop(name: str, model: str) -> None:
    task = get_task(name)
    split = task.take(np.arange(12))
    built = task.build_model(model, 0)
    weights = weights_of(built) + np.random.default_rng(1).normal(size=weights_of(built).size) * 0.1
    found = ModelRecordGradients(task.build_model(model, 5), split).gradients(weights, RECORDS)
    layout = ArrayLayout.of({k: v.numpy() for k, v in built.state_dict().items()})
    built.load_state_dict({k: torch.from_numpy(v) for k, v in layout.unflatten(weights).items()})
    np.testing.assert_allclose(found, loop(built, split, RECORDS), rtol=2e-4, atol=2e-6)


def test_frozen_parameters_and_buffers_are_constants() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    model.register_buffer("unused", torch.zeros(2))
    gradients = ModelRecordGradients(model, some(0, 4))
    assert gradients.num_records == 12
    found = gradients.gradients(weights_of(model), RECORDS)
    assert found.shape == (4, 18)
    np.testing.assert_allclose(found, loop(model, some(0, 4), RECORDS), rtol=1e-4, atol=1e-6)


def test_the_order_of_the_arrays_that_travel_is_followed() -> None:
    model = nn.Linear(4, 3)
    forward = ModelRecordGradients(model, some(0, 4))
    backward = ModelRecordGradients(model, some(0, 4), ("bias", "weight"))
    weights = weights_of(model)
    turned = np.concatenate([weights[12:], weights[:12]])
    found = backward.gradients(turned, RECORDS)
    np.testing.assert_array_equal(found[:, 3:], forward.gradients(weights, RECORDS)[:, :12])
    with pytest.raises(InvalidArgument, match="names"):
        ModelRecordGradients(model, some(0, 4), ("bias", "other"))


def test_a_layer_that_would_mix_records_sees_one_at_a_time() -> None:
    """Batch statistics of a single record are its own: changing another record changes nothing."""
    model = nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2, track_running_stats=False), nn.Flatten())
    model.append(nn.Linear(10, 3))
    split, other = some(0, 2, 5), some(0, 2, 5)
    other.x[3] += 100.0
    weights = weights_of(model)
    before = ModelRecordGradients(model, split).gradients(weights, RECORDS)
    after = ModelRecordGradients(model, other).gradients(weights, RECORDS)
    np.testing.assert_array_equal(before[[0, 2, 3]], after[[0, 2, 3]])
    assert not np.allclose(before[1], after[1])


def test_a_record_without_a_finite_gradient_leaves_the_others_alone() -> None:
    model, split = nn.Linear(4, 3), some(0, 4)
    clean = ModelRecordGradients(model, split).gradients(weights_of(model), RECORDS)
    split.x[4, 0] = float("nan")
    found = ModelRecordGradients(model, split).gradients(weights_of(model), RECORDS)
    assert np.isnan(found[2]).any()
    np.testing.assert_array_equal(found[[0, 1, 3]], clean[[0, 1, 3]])


class Gated(nn.Module):
    """Control flow that depends on values: torch.func cannot vectorise it. One layer is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.unused = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) if float(x.sum()) > 0 else self.down(x)


def test_a_model_that_cannot_be_vectorised_goes_record_by_record() -> None:
    model, split = Gated(), some(0, 4)
    gradients = ModelRecordGradients(model, split)
    found = [gradients.gradients(weights_of(model), RECORDS) for _ in range(2)]
    expected = []
    for i in RECORDS:
        loss = functional.cross_entropy(model(split.x[i : i + 1]), split.y[i : i + 1])
        parts = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        expected.append(np.concatenate([part.numpy().ravel() for part in parts]))
    np.testing.assert_allclose(found[0], np.array(expected), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("part", ["readout", "last-block", "last-block-all", "lora", "all"])
def test_all_parts_of_a_language_model_against_a_loop(tmp_path: Path, part: str) -> None:
    from made_language import made_sentences, write_model

    from fedpriv.tasks.language import load_backbone
    from fedpriv.tasks.language_features import represent
    from fedpriv.tasks.language_models import build
    from fedpriv.tasks.sentiment import PARTS

    folder = str(write_model(tmp_path / "llama", "llama", True))
    sentences = made_sentences(12, seed=0)[0]
    x = torch.from_numpy(represent(load_backbone(folder), sentences, PARTS[part]).astype(np.float32))
    split, model = Split(x, torch.arange(12) % 2), build(part, folder, seed=1)
    weights = weights_of(model)
    found = ModelRecordGradients(model, split).gradients(weights, RECORDS)
    np.testing.assert_allclose(found, loop(model, split, RECORDS), rtol=2e-3, atol=2e-5)
    assert np.linalg.norm(found, axis=1).min() > 0
