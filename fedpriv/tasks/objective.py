"""The objective of zeroth-order methods, from any task's model and examples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.tasks.base import Split

#: Features of a record that its fingerprint takes in: replaced records are noticed, and large images stay cheap.
_FINGERPRINT_FEATURES = 64


class ModelObjective:
    """Cross-entropy per record of a model.

    Parameters
    ----------
    model : torch.nn.Module
        Put into evaluation mode: two calls must return the same losses.
    split : Split
        The client's records.
    batch_size : int
        Records per forward pass.
    """

    def __init__(self, model: torch.nn.Module, split: Split, batch_size: int = 256) -> None:
        self.model, self.split, self.batch_size = model.eval(), split, batch_size

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """The trainable tensors, in the order of the model's state."""
        state = self.model.state_dict(keep_vars=True)
        return [tensor for tensor in state.values() if isinstance(tensor, torch.nn.Parameter)]

    @property
    def num_records(self) -> int:
        """Records of the client."""
        return len(self.split)

    @property
    def fingerprint(self) -> bytes:
        """Hash of all labels and of up to 64 evenly spread features of every record, in their order."""
        x, y = self.split.x.detach().cpu().flatten(1), self.split.y.detach().cpu()
        spread = x[:, :: -(-x.shape[1] // _FINGERPRINT_FEATURES)].double().contiguous()
        found = hashlib.sha256(repr((tuple(self.split.x.shape), x.dtype)).encode())
        for tensor in (spread, y.contiguous()):
            found.update(tensor.numpy().tobytes())
        return found.digest()

    def losses(self, records: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Cross-entropy of each record, shape (n,)."""
        chosen = np.arange(len(self.split)) if records is None else np.asarray(records, dtype=np.int64)
        found = [np.zeros(0)]
        with torch.no_grad():
            for start in range(0, len(chosen), self.batch_size):
                rows = torch.from_numpy(chosen[start : start + self.batch_size])
                x, y = self.split.x[rows], self.split.y[rows]
                # float64: the difference of two close losses is what counts
                output = self.model(x).to(torch.float64)
                losses = functional.cross_entropy(output, y.to(output.device), reduction="none")
                found.append(losses.cpu().numpy())
        return np.concatenate(found)

    def load(self, arrays: Mapping[str, np.ndarray]) -> ModelObjective:
        """Put arrays into the model.

        Raises
        ------
        InvalidArgument
            When names or shapes are not the model's.
        """
        state = self.model.state_dict()
        if list(state) != list(arrays) or any(
            tuple(state[name].shape) != arrays[name].shape for name in state
        ):
            raise InvalidArgument("arrays: names or shapes are not those of the model")
        self.model.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})
        return self
