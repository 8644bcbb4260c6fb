"""The step of zeroth-order descent along public directions: the same code at the server and at its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.validators import InvalidArgument, check_finite
from fedpriv.mechanisms.directions import Directions, Kind


def clipped_quotients(quotients: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Clip every quotient to [-clip, clip]; what is not finite becomes 0.

    Parameters
    ----------
    quotients : np.ndarray
        Any shape.
    clip : float
        Delta > 0.
    """
    return np.clip(np.where(np.isfinite(quotients), quotients, 0.0), -clip, clip)


@dataclass(frozen=True)
class PublicStep:
    """What everybody may know of a round: w <- w - sum_k c_k u_k.

    Parameters
    ----------
    seed : bytes
        Seed of the directions.
    kind : {"orthonormal", "independent", "signs"}
        Kind of the directions.
    coefficients : tuple of float
        c_k: learning rate times released quotient over K.
    norms : tuple of float, optional
        :attr:`fedpriv.mechanisms.directions.Directions.norms`, which spare a pass; None to compute them.
    """

    seed: bytes
    kind: Kind
    coefficients: tuple[float, ...]
    norms: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.coefficients:
            raise InvalidArgument("coefficients: a step needs at least one")
        for value in self.coefficients:
            check_finite(coefficients=value)

    def directions(self, dimension: int) -> Directions:
        """The round's directions."""
        return Directions(self.seed, dimension, len(self.coefficients), self.kind, self.norms)

    def apply(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the step on writable arrays, in place, in memory of some blocks.

        Every number is computed in float64 and rounded once, so that whoever takes the same step from the same
        arrays gets the same bits.
        """
        flat = [array.reshape(-1) for array in arrays.values()]
        if any(not np.shares_memory(a, b) for a, b in zip(flat, arrays.values(), strict=True) if a.size):
            raise InvalidArgument("arrays: they must be contiguous")
        number, begin = 0, 0
        for start, block in self.directions(sum(a.size for a in flat)).combined_blocks(self.coefficients):
            position, end = start, start + block.size
            while position < end:
                array = flat[number]
                stop = min(begin + array.size, end)
                if stop > position:
                    part = array[position - begin : stop - begin]
                    part[:] = part.astype(np.float64) - block[position - start : stop - start]
                    position = stop
                if position == begin + array.size:
                    begin, number = begin + array.size, number + 1


def replay(arrays: Mapping[str, np.ndarray], steps: Sequence[PublicStep]) -> dict[str, np.ndarray]:
    """Rebuild a model from an earlier one and the public steps since, bit for bit as the server computed it.

    Parameters
    ----------
    arrays : mapping of str to np.ndarray
        The earlier model; unchanged.
    steps : sequence of PublicStep
        In order.
    """
    rebuilt = {name: np.array(array, order="C") for name, array in arrays.items()}
    for step in steps:
        step.apply(rebuilt)
    return rebuilt
