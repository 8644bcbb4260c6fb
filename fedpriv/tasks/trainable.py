"""Refuse model state that must not be averaged: BatchNorm statistics and integer buffers.

Running statistics are sums over private examples that no clip bounds, and an average of integers is not an
integer: noise would be truncated away or the state would travel without noise. The check needs names and
dtypes only, so it runs on numpy arrays, on torch tensors and on modules alike, without importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_ADVICE = (
    "use GroupNorm (torch.nn.GroupNorm) instead of BatchNorm: it has the same role and no running statistics"
)


class UntrainableState(ValueError):
    """The model holds state that cannot be averaged privately."""


def _is_floating(value: Any) -> bool:
    is_floating_point = getattr(value, "is_floating_point", None)
    if callable(is_floating_point):
        return bool(is_floating_point())
    # bfloat16 and the float8 family are extension types of numpy: their kind is "V", their name says what
    # they are.
    dtype = np.asarray(value).dtype
    return dtype.kind == "f" or "float" in dtype.name


def check_trainable(model_or_state: Any) -> None:
    """Check that every array of a model can be clipped, noised and averaged.

    Parameters
    ----------
    model_or_state : torch.nn.Module or Mapping[str, array]
        A module, its ``state_dict()``, or a mapping from names to numpy arrays (what
        ``ArrayRecord.to_numpy_ndarrays`` and a state dict turned into arrays give).

    Raises
    ------
    UntrainableState
        For BatchNorm layers or running statistics (by name), and for arrays that are not of a floating-point
        type; the message names the entries and what to use instead.
    TypeError
        If the argument is neither a module nor a mapping.

    Examples
    --------
    >>> check_trainable({"weight": np.zeros((2, 3), np.float32)})
    >>> check_trainable({"bn.num_batches_tracked": np.zeros((), np.int64)})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedpriv.tasks.trainable.UntrainableState: 'bn.num_batches_tracked' holds running statistics of private ...
    """
    if callable(getattr(model_or_state, "named_modules", None)):
        layers = [
            name or "the model itself"
            for name, module in model_or_state.named_modules()
            if any(cls.__name__ == "_BatchNorm" for cls in type(module).__mro__)
        ]
        if layers:
            raise UntrainableState(f"BatchNorm layers {_listed(layers)} mix examples of one batch; {_ADVICE}")
        model_or_state = model_or_state.state_dict()
    if not isinstance(model_or_state, Mapping):
        raise TypeError(
            f"expected a module or a mapping from names to arrays, got {type(model_or_state).__name__}"
        )
    statistics = [name for name in model_or_state if str(name).rsplit(".", 1)[-1] in _RUNNING_STATISTICS]
    if statistics:
        verb = "holds" if len(statistics) == 1 else "hold"
        raise UntrainableState(
            f"{_listed(statistics)} {verb} running statistics of private examples; {_ADVICE}"
        )
    integers = [name for name, value in model_or_state.items() if not _is_floating(value)]
    if integers:
        verb = "is" if len(integers) == 1 else "are"
        raise UntrainableState(
            f"{_listed(integers)} {verb} not of a floating-point type: an average of integers with noise is "
            "not an integer; register such buffers with persistent=False (they are constants) or drop them; "
            f"if they come from BatchNorm, {_ADVICE}"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
