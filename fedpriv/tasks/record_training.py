"""Gradients of a torch model's loss, one per record, for record-level training.

Imports torch and the tasks: only loaded for a model's work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import func
from torch.nn import functional

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.settings import Settings
from fedpriv.tasks import task_of
from fedpriv.tasks.base import Split
from fedpriv.tasks.federated import client_data


def record_gradients(
    settings: Settings, partition: int | str, arrays: Mapping[str, np.ndarray]
) -> ModelRecordGradients:
    """Gradients of the records of one silo of the app: of its training part, in the order of ``arrays``."""
    model = task_of(settings).build_model(settings.run.model, settings.run.seed)
    return ModelRecordGradients(model, client_data(settings, partition).train, tuple(arrays))


class ModelRecordGradients:
    """Cross-entropy gradients per record, by ``torch.func``: one vectorised backward pass for a whole batch.

    The function that is differentiated sees a single record (as a batch of one), so no layer can mix records. A
    model that cannot be vectorised (its control flow depends on values) is differentiated record by record.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode while gradients are taken; its parameters are not changed. Parameters without
        ``requires_grad`` and buffers are constants.
    split : Split
        The silo's records.
    names : sequence of str, optional
        Order of the trainable arrays in the flat weights; by default that of the model's state.

    Raises
    ------
    InvalidArgument
        When ``names`` are not the model's trainable parameters.
    """

    def __init__(self, model: torch.nn.Module, split: Split, names: tuple[str, ...] | None = None) -> None:
        self.split = split
        state = model.state_dict(keep_vars=True)
        trainable = {name: value for name, value in state.items() if getattr(value, "requires_grad", False)}
        names = tuple(trainable) if names is None else tuple(names)
        if set(names) != set(trainable):
            raise InvalidArgument(
                f"names: {sorted(set(names) ^ set(trainable))} differ from the trainable parameters of the model"
            )
        self._parameters = {name: trainable[name].detach() for name in names}
        constants = {name: value.detach() for name, value in state.items() if name not in trainable}
        model.train()

        def loss(parameters: Mapping[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            output = func.functional_call(model, {**constants, **parameters}, (x.unsqueeze(0),))
            return functional.cross_entropy(output, y.unsqueeze(0))

        self._loss, self._vectorised = loss, True
        # dropout, where a model has it, is drawn for every record by itself
        self._per_record = func.vmap(func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    @property
    def num_records(self) -> int:
        """Records of the silo."""
        return len(self.split)

    def gradients(self, weights: NDArray[np.float64], records: NDArray[np.int64]) -> NDArray[np.float32]:
        """One gradient per record at the weights, shape (m, d)."""
        parameters, start = {}, 0
        for name, value in self._parameters.items():
            piece = torch.from_numpy(weights[start : start + value.numel()])
            parameters[name] = piece.reshape(value.shape).to(value.dtype).to(value.device)
            start += value.numel()
        rows = torch.from_numpy(np.asarray(records, dtype=np.int64))
        device = next(iter(parameters.values())).device
        x, y = self.split.x[rows].to(device), self.split.y[rows].to(device)
        flat = self._all_at_once(parameters, x, y) if self._vectorised else None
        if flat is None:
            flat = torch.stack([self._one(parameters, x[i], y[i]) for i in range(len(rows))])
        gradients: NDArray[np.float32] = flat.cpu().numpy()
        return gradients

    def _all_at_once(
        self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor | None:
        try:
            found = self._per_record(parameters, x, y)
        except (
            RuntimeError
        ):  # how torch.func says that it cannot; a record that is at fault fails again below
            self._vectorised = False
            return None
        return torch.cat([found[name].reshape(len(y), -1).to(torch.float32) for name in parameters], dim=1)

    def _one(self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        found = torch.autograd.grad(self._loss(leaves, x, y), list(leaves.values()), materialize_grads=True)
        return torch.cat([gradient.reshape(-1).to(torch.float32) for gradient in found])
