"""Two-point quotients of a model's losses along directions, with the parameters perturbed in place.

Memory: the model's one copy of its parameters and one block of a direction. A perturbed float parameter cannot
in general be restored by subtracting what was added, because both steps round. So float32 and float64 parameters
are first put on a grid per tensor, fine enough to make no difference (2^-21 of the largest parameter) and coarse
enough that parameter, perturbation and sum are all exact: then subtracting restores every bit. Putting a model on
its grid is idempotent; a server that does it too (`fedpriv.mechanisms.parameter_grid`) broadcasts models that a
client leaves as they are. Narrower types (bfloat16) have no bits to spare: they are restored from a copy.

Imports torch: only modules that are loaded for a model's work import this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.accounting.validators import InvalidArgument, check_positive
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.parameter_grid import grid_step

_EXACT = (torch.float32, torch.float64)


class Objective(Protocol):
    """Per-record losses of a model whose parameters are perturbed in place.

    Attributes
    ----------
    parameters : sequence of torch.Tensor
        The trainable tensors, in the order of the arrays that travel.
    num_records : int
        Records of the client.
    """

    @property
    def parameters(self) -> Sequence[torch.Tensor]: ...
    @property
    def num_records(self) -> int: ...

    def losses(self, records: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """One loss per record, in the order of ``records`` (all by default), at the present parameters.

        Two calls with the same parameters return the same numbers: no dropout, no data augmentation.
        """


class Perturbation:
    """Moves a model's parameters along directions and back.

    Parameters
    ----------
    parameters : sequence of torch.Tensor
        Changed in place: first put on their grids, then moved and restored.
    directions : Directions
        Of as many coordinates as the parameters have together.
    smoothing : float
        xi, the length of a step along a direction.

    Raises
    ------
    InvalidArgument
        When the sizes differ, or a parameter is not finite.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], directions: Directions, smoothing: float) -> None:
        check_positive(smoothing=smoothing)
        size = sum(parameter.numel() for parameter in parameters)
        if size != directions.dimension:
            raise InvalidArgument(
                f"parameters: {size} coordinates, the directions have {directions.dimension}"
            )
        self._parameters = [parameter.detach() for parameter in parameters]
        self._directions, self._smoothing = directions, smoothing
        self._steps = [self._put_on_grid(parameter) for parameter in self._parameters]
        self._copies = [
            None if parameter.dtype in _EXACT else parameter.clone() for parameter in self._parameters
        ]

    def _put_on_grid(self, parameter: torch.Tensor) -> float:
        largest = float(parameter.abs().max()) if parameter.numel() else 0.0
        if not math.isfinite(largest):
            raise InvalidArgument("parameters: some are not finite")
        step = grid_step(largest, self._smoothing)
        if parameter.dtype in _EXACT:
            # float32 divided by a power of two is exact, and so is the product
            parameter.div_(step).round_().mul_(step)
        return step

    @contextmanager
    def moved(self, index: int, sign: int) -> Iterator[None]:
        """Within the context the parameters are w + sign * xi * u_index; afterwards w, to the last bit."""
        self._add(index, sign)
        try:
            yield
        finally:
            self._add(index, -sign)
            for parameter, copy in zip(self._parameters, self._copies, strict=True):
                if copy is not None:
                    parameter.copy_(copy)

    def _add(self, index: int, sign: int) -> None:
        places = list(self._places())
        first = 0
        for start, block in self._directions.blocks(index):
            end = start + block.size
            while first < len(places) and places[first][1] <= start:
                first += 1
            position = first
            while position < len(places) and places[position][0] < end:
                begin, stop, parameter, step = places[position]
                low, high = max(begin, start), min(stop, end)
                piece = torch.from_numpy(block[low - start : high - start])
                # rounded in float64: the product with 1 / step must not round before rint does
                units = torch.round(piece.to(torch.float64) * (sign * self._smoothing / step))
                moved = (units * step).to(parameter.dtype).to(parameter.device)
                parameter.view(-1)[low - begin : high - begin].add_(moved)
                position += 1

    def _places(self) -> Iterator[tuple[int, int, torch.Tensor, float]]:
        offset = 0
        for parameter, step in zip(self._parameters, self._steps, strict=True):
            yield offset, offset + parameter.numel(), parameter, step
            offset += parameter.numel()


def two_point_quotients(
    objective: Objective,
    directions: Directions,
    smoothing: float,
    records: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """(l_i(w + xi u_k) - l_i(w - xi u_k)) / (2 xi) for every record and direction.

    Parameters
    ----------
    objective : Objective
        Its parameters are restored to the last bit, also when a loss function fails.
    directions : Directions
        u_1 .. u_K.
    smoothing : float
        xi > 0.
    records : np.ndarray, optional
        Indices of records; all by default.

    Returns
    -------
    np.ndarray
        Shape (K, n), float64. A quotient that is not finite is 0: it never passes a clip.
    """
    found = []
    with torch.no_grad():
        perturbation = Perturbation(objective.parameters, directions, smoothing)
        for index in range(directions.count):
            with perturbation.moved(index, +1):
                above = np.asarray(objective.losses(records), dtype=np.float64)
            with perturbation.moved(index, -1):
                below = np.asarray(objective.losses(records), dtype=np.float64)
            with np.errstate(all="ignore"):
                found.append(above / (2.0 * smoothing) - below / (2.0 * smoothing))
    quotients = np.stack(found)
    return np.where(np.isfinite(quotients), quotients, 0.0)
