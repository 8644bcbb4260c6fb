"""From named arrays to one flat vector and back, and which arrays may take part at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.accounting.validators import InvalidArgument

_RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def check_private_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays that cannot be clipped and noised as part of one real vector.

    Parameters
    ----------
    arrays : mapping of str to np.ndarray
        The model, by name.

    Raises
    ------
    InvalidArgument
        For BatchNorm running statistics (they would have to be averaged in the clear) and for integer or
        boolean buffers (noise on them is truncated to nothing). The message says what to use instead.
    """
    if not arrays:
        raise InvalidArgument("arrays: the model has no arrays, at least one floating-point array is needed")
    for name, array in arrays.items():
        if name.rsplit(".", 1)[-1] in _RUNNING_STATISTICS:
            raise InvalidArgument(
                f"arrays: {name!r} is a BatchNorm running statistic, which cannot be trained privately; "
                "replace BatchNorm by GroupNorm (torch.nn.GroupNorm), which keeps no statistics"
            )
        if not np.issubdtype(array.dtype, np.floating):
            raise InvalidArgument(
                f"arrays: {name!r} has dtype {array.dtype}; only floating-point arrays can be clipped and "
                "noised. Keep integer buffers out of the exchanged arrays"
            )


@dataclass(frozen=True)
class ArrayLayout:
    """Names, shapes and dtypes of a model's arrays, in the order in which they are flattened."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> ArrayLayout:
        """Read the layout of named arrays (0-d arrays count as one coordinate)."""
        check_private_arrays(arrays)
        return cls(
            tuple(arrays),
            tuple(tuple(a.shape) for a in arrays.values()),
            tuple(str(a.dtype) for a in arrays.values()),
        )

    @property
    def size(self) -> int:
        """Number of coordinates d of the flat vector."""
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    def flatten(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Concatenate the arrays to one float64 vector of shape (d,).

        Raises
        ------
        InvalidArgument
            When names or shapes differ from the layout.
        """
        if set(arrays) != set(self.names):
            missing, extra = set(self.names) - set(arrays), set(arrays) - set(self.names)
            raise InvalidArgument(f"arrays: missing {sorted(missing)}, unexpected {sorted(extra)}")
        for name, shape in zip(self.names, self.shapes, strict=True):
            if tuple(arrays[name].shape) != shape:
                raise InvalidArgument(
                    f"arrays: {name!r} has shape {tuple(arrays[name].shape)}, expected {shape}"
                )
        return np.concatenate([np.asarray(arrays[n], dtype=np.float64).reshape(-1) for n in self.names])

    def unflatten(self, vector: np.ndarray) -> dict[str, Any]:
        """Cut a flat vector of shape (d,) into named arrays with the layout's shapes and dtypes."""
        arrays, start = {}, 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = vector[start : start + count].reshape(shape).astype(dtype)
            start += count
        return arrays
