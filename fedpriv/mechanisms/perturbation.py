"""Two-point quotients of a model's losses along directions, with the parameters perturbed in place.

Memory: the model's one copy of its parameters and some blocks of a direction. A perturbed float parameter cannot
in general be restored by subtracting what was added, because both steps round. So float32 and float64 parameters
are first put on a grid per tensor (`fedpriv.mechanisms.parameter_grid`), fine enough to make no difference (2^-21
of the largest parameter in float32) and coarse enough that parameter, perturbation and sum are all exact: then
subtracting restores every bit. Only this working copy is rounded, not the model that a server or a client keeps.
Narrower types (bfloat16) have no bits to spare: they are restored from a copy.

A direction of few coordinates, or one that acts on an accelerator, is kept while it is used; others are made
afresh for every move.

Imports torch: only modules that are loaded for a model's work import this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.accounting.validators import InvalidArgument, check_positive
from fedpriv.mechanisms.directions import Directions, sign_length
from fedpriv.mechanisms.parameter_grid import grid_step, largest_move

_EXACT = (torch.float32, torch.float64)

#: Coordinates up to which a direction is kept in memory (16 MiB of float32).
KEPT_COORDINATES = 2**22


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
        When the sizes differ, or a parameter is not finite, not contiguous or given twice.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], directions: Directions, smoothing: float) -> None:
        check_positive(smoothing=smoothing)
        size = sum(parameter.numel() for parameter in parameters)
        if size != directions.dimension:
            raise InvalidArgument(
                f"parameters: {size} coordinates, the directions have {directions.dimension}"
            )
        self._parameters = [parameter.detach() for parameter in parameters]
        places = [p.data_ptr() for p in self._parameters if p.numel()]
        if len(set(places)) < len(places) or not all(p.is_contiguous() for p in self._parameters):
            raise InvalidArgument("parameters: tensors must be contiguous, and tied ones be given once")
        self._directions, self._smoothing = directions, smoothing
        self._move = largest_move(size, smoothing)
        self._steps = [self._put_on_grid(parameter) for parameter in self._parameters]
        self._copies = [
            None if parameter.dtype in _EXACT else parameter.clone() for parameter in self._parameters
        ]
        self._keeps = size <= KEPT_COORDINATES or any(p.device.type != "cpu" for p in self._parameters)
        self._kept: tuple[int, list[tuple[int, int, int, torch.Tensor]]] | None = None
        # A coordinate of a direction of signs moves by the same number of grid steps either way: no rounding each.
        exact = not self._keeps and not any(copy is not None for copy in self._copies)
        self._moves: list[float] | None = None
        if directions.kind == "signs" and exact:
            length = torch.tensor([sign_length(size)])
            self._moves = [float(self._rounded(length, number)[0]) for number in range(len(self._steps))]

    def _put_on_grid(self, parameter: torch.Tensor) -> float:
        low, high = torch.aminmax(parameter) if parameter.numel() else (torch.zeros(()), torch.zeros(()))
        largest = max(abs(float(low)), abs(float(high)))
        if not math.isfinite(largest):
            raise InvalidArgument("parameters: some are not finite")
        if parameter.dtype not in _EXACT:
            return 0.0
        step = grid_step(largest, self._move, parameter.element_size())
        # dividing by a power of two is exact, and so is the product
        parameter.div_(step).round_().mul_(step)
        return step

    @contextmanager
    def along(self, index: int) -> Iterator[Callable[[int], None]]:
        """Within the context ``move(sign)`` sets the parameters to w + sign * xi * u_index; afterwards to w.

        Parameters
        ----------
        index : int
            Which direction.

        Yields
        ------
        callable
            ``move(sign)`` with sign -1, 0 or +1. All values are exact, so that w comes back to the last bit.
        """
        place = 0

        def move(sign: int) -> None:
            nonlocal place
            if sign != place:
                self._shift(index, sign - place, sign)
                place = sign

        try:
            yield move
        finally:
            move(0)
            self._kept = None

    def _shift(self, index: int, multiple: int, sign: int) -> None:
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            if copy is not None:
                parameter.copy_(copy)
        if self._moves is not None:
            for number, low, high, signs in self._placed(self._directions.sign_blocks(index)):
                parameter, move = (
                    self._parameters[number],
                    multiple * self._steps[number] * self._moves[number],
                )
                parameter.view(-1)[low:high].add_(signs, alpha=move)
            return
        for number, low, high, piece in self._pieces(index):
            parameter, step = self._parameters[number], self._steps[number]
            factor = sign if self._copies[number] is not None else multiple
            if factor:
                unit = step or 1.0
                parameter.view(-1)[low:high].add_(piece, alpha=factor * unit)

    def _pieces(self, index: int) -> Iterator[tuple[int, int, int, torch.Tensor]]:
        """Yield (tensor, first, end, moves in grid steps) of xi u_index, in order."""
        if not self._keeps:
            yield from self._made(index)
            return
        if self._kept is None or self._kept[0] != index:
            self._kept = index, list(self._made(index))
        yield from self._kept[1]

    def _made(self, index: int) -> Iterator[tuple[int, int, int, torch.Tensor]]:
        for number, low, high, piece in self._placed(self._directions.blocks(index)):
            yield number, low, high, self._rounded(piece, number)

    def _placed(
        self, blocks: Iterator[tuple[int, NDArray[np.float32]]]
    ) -> Iterator[tuple[int, int, int, torch.Tensor]]:
        """Yield (tensor, first, end, coordinates) for the parts of the blocks that fall into one tensor each."""
        number, begin = 0, 0
        for start, block in blocks:
            values, end = torch.from_numpy(block), start + block.size
            position = start
            while position < end:
                parameter = self._parameters[number]
                stop = min(begin + parameter.numel(), end)
                if stop > position:
                    piece = values[position - start : stop - start]
                    yield number, position - begin, stop - begin, piece
                    position = stop
                if position == begin + parameter.numel():
                    begin, number = begin + parameter.numel(), number + 1

    def _rounded(self, piece: torch.Tensor, number: int) -> torch.Tensor:
        parameter, step = self._parameters[number], self._steps[number]
        if not step:
            return (piece * self._smoothing).to(parameter.device, parameter.dtype)
        scaled = piece.to(parameter.device, parameter.dtype) * (self._smoothing / step)
        # cut only to keep the promise of exact sums; see LARGEST_COORDINATE
        most = math.ceil(self._move / step)
        return scaled.round_().clamp_(-most, most)


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
            with perturbation.along(index) as move:
                move(+1)
                above = np.asarray(objective.losses(records), dtype=np.float64)
                move(-1)
                below = np.asarray(objective.losses(records), dtype=np.float64)
            with np.errstate(all="ignore"):
                found.append(above / (2.0 * smoothing) - below / (2.0 * smoothing))
    quotients = np.stack(found)
    return np.where(np.isfinite(quotients), quotients, 0.0)
