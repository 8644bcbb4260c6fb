"""Models that lie in a ball, as integers whose secure sum gives their average and can never wrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.validators import InvalidArgument, check_integer, check_positive
from fedpriv.mechanisms.grid import MAX_CLIP_UNITS, GridCodec

#: Largest weight of a silo that is weighed by its records; a larger silo counts as one of this size.
MOST_RECORDS = 2**24

#: Coordinates behind those of the model: weight, silos out of budget, silos without data.
_COUNTS = 3


@dataclass(frozen=True)
class AverageOfModels:
    """What a secure sum of models found.

    Parameters
    ----------
    offset : np.ndarray or None
        Shape (d,): weighted mean of the models minus the centre; None when no silo trained.
    weight : int
        Sum of the weights.
    out_of_budget, without_data : int
        Silos that took part without touching their data, and why.
    """

    offset: NDArray[np.float64] | None
    weight: int
    out_of_budget: int
    without_data: int


@dataclass(frozen=True)
class ModelGrid:
    """Grid on which models of a ball are summed.

    Parameters
    ----------
    radius : float
        R: a model lies within R of the centre.
    radius_units : int
        R in grid steps.
    max_weight : int
        Largest weight of a silo; 1 for a uniform average.

    Notes
    -----
    A silo that did not train sends a weight of zero, a vector of zeros and a one in the count of its reason:
    numbers that do not depend on its records.
    """

    radius: float
    radius_units: int
    max_weight: int = 1

    def __post_init__(self) -> None:
        check_integer(1, max_weight=self.max_weight)
        _ = self._codec  # validates

    @classmethod
    def choose(cls, radius: float, num_clients: int, *, weighted: bool) -> ModelGrid:
        """The finest grid that fits: 32 bits for a uniform average, 62 for one by records."""
        check_positive(radius=radius)
        check_integer(1, num_clients=num_clients)
        max_weight, bits = (MOST_RECORDS, 62) if weighted else (1, 32)
        units = (2 ** (bits - 1) - 1) // (num_clients * max_weight) - 1
        if units < 2**12:
            raise InvalidArgument(
                f"num_clients: {num_clients} models cannot be summed precisely in {bits} bits"
            )
        return cls(radius, min(units, MAX_CLIP_UNITS), max_weight)

    @property
    def _codec(self) -> GridCodec:
        return GridCodec(self.radius, self.radius_units)

    def length(self, dimension: int) -> int:
        """Coordinates of the secure sum for a model of ``dimension`` coordinates."""
        return dimension + _COUNTS

    def magnitude(self, num_clients: int) -> int:
        """Largest absolute value of a coordinate of the sum when every silo keeps to its range."""
        return num_clients * self.radius_units * self.max_weight

    def modulus_bits(self, num_clients: int) -> int:
        """Smallest of 32 and 62 bits in which the sum cannot wrap.

        Raises
        ------
        InvalidArgument
            When even 62 are too few.
        """
        for bits in (32, 62):
            if self.magnitude(num_clients) < 2 ** (bits - 1):
                return bits
        raise InvalidArgument(f"num_clients: {num_clients} models on this grid could wrap around in 62 bits")

    def encode(self, offset: NDArray[np.float64], weight: int) -> NDArray[np.int64]:
        """A trained model, shape (d + 3,).

        Parameters
        ----------
        offset : np.ndarray
            Shape (d,): model minus centre, norm at most R up to float error.
        weight : int
            1 to ``max_weight``.
        """
        if not 1 <= weight <= self.max_weight:
            raise InvalidArgument(f"weight: {weight} is outside 1 .. {self.max_weight}")
        return np.concatenate([self._codec.encode(offset) * weight, np.array([weight, 0, 0])])

    def abstention(self, dimension: int, *, out_of_budget: bool) -> NDArray[np.int64]:
        """What a silo sends that did not train, shape (d + 3,)."""
        values = np.zeros(self.length(dimension), dtype=np.int64)
        values[dimension + (1 if out_of_budget else 2)] = 1
        return values

    def decode(self, total: NDArray[np.int64], survivors: int) -> AverageOfModels:
        """Read a sum.

        Parameters
        ----------
        total : np.ndarray
            Shape (d + 3,).
        survivors : int
            Silos summed.

        Raises
        ------
        InvalidArgument
            When the counts are not those of so many silos: some client sent another vector.
        """
        weight, out_of_budget, without_data = (int(value) for value in total[-_COUNTS:])
        trained = survivors - out_of_budget - without_data
        if (
            min(out_of_budget, without_data, trained) < 0
            or not trained <= weight <= trained * self.max_weight
        ):
            raise InvalidArgument(
                f"total: its counts are not those of {survivors} silos; some client sent another vector"
            )
        offset = self._codec.decode(total[:-_COUNTS]) / weight if weight else None
        return AverageOfModels(offset, weight, out_of_budget, without_data)
