"""The step of zeroth-order descent along public directions: the same code at the server and at its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.validators import InvalidArgument, check_finite
from fedpriv.mechanisms.directions import Directions, Kind
from fedpriv.mechanisms.parameter_grid import on_grid
from fedpriv.mechanisms.updates import ArrayLayout


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
    kind : {"orthonormal", "independent"}
        Kind of the directions.
    coefficients : tuple of float
        c_k: learning rate times released quotient over K.
    """

    seed: bytes
    kind: Kind
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        for value in self.coefficients:
            check_finite(coefficients=value)

    def directions(self, dimension: int) -> Directions:
        """The round's directions."""
        return Directions(self.seed, dimension, len(self.coefficients), self.kind)

    def applied_to(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights after the step, shape (d,)."""
        return weights - self.directions(weights.size).combine(self.coefficients)


def rounded_to_grids(
    weights: NDArray[np.float64], layout: ArrayLayout, smoothing: float
) -> dict[str, np.ndarray]:
    """Arrays that a client can perturb and restore exactly: each on its grid, in the layout's types.

    Parameters
    ----------
    weights : np.ndarray
        Shape (d,).
    layout : ArrayLayout
        Names, shapes and types.
    smoothing : float
        Norm xi of the clients' perturbation.
    """
    return {name: on_grid(array, smoothing) for name, array in layout.unflatten(weights).items()}


def replay(
    arrays: Mapping[str, np.ndarray], steps: Sequence[PublicStep], smoothing: float
) -> dict[str, np.ndarray]:
    """Rebuild a model from an earlier one and the public steps since, bit for bit as the server computed it.

    Raises
    ------
    InvalidArgument
        When a step has no coefficients.
    """
    current = {name: np.asarray(array) for name, array in arrays.items()}
    layout = ArrayLayout.of(current)
    for step in steps:
        if not step.coefficients:
            raise InvalidArgument("coefficients: a step needs at least one")
        current = rounded_to_grids(step.applied_to(layout.flatten(current)), layout, smoothing)
    return current
