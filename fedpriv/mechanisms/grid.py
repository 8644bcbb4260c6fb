"""Fixed-point codec: real vectors of bounded norm to integer vectors of exactly bounded norm."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from fedpriv.accounting.validators import InvalidArgument, check_integer, check_non_negative, check_positive

#: Standard deviations of the summed noise that must fit beside the signal: the chance that any of
#: 10^9 coordinates goes beyond is under 1e-22, far below any delta.
TAIL_DEVIATIONS = 12.0

#: Finest grid: squared norms of encoded vectors stay exact in int64.
MAX_CLIP_UNITS = 2**30


@dataclass(frozen=True)
class GridCodec:
    """A grid on which the clipping norm is exactly ``clip_units`` steps.

    Parameters
    ----------
    clipping_norm : float
        The L2 bound C > 0 on what is encoded.
    clip_units : int
        C in grid steps, at least 1 and at most 2**30 (so that squared norms stay exact in int64).

    Notes
    -----
    Guarantees:

    * every encoded vector has integer L2 norm at most ``clip_units`` (checked in integer arithmetic), so
      the sensitivity that is charged, C, includes every rounding error;
    * each coordinate moves toward zero by less than one step (where float error of the clip has to be taken
      off as well, by that error more).

    Examples
    --------
    >>> codec = GridCodec(clipping_norm=1.0, clip_units=100)
    >>> units = codec.encode(np.array([0.6, -0.799]))
    >>> units.tolist(), codec.decode(units).tolist()
    ([60, -79], [0.6, -0.79])
    """

    clipping_norm: float
    clip_units: int

    def __post_init__(self) -> None:
        check_positive(clipping_norm=self.clipping_norm)
        check_integer(0, clip_units=self.clip_units)
        if not 1 <= self.clip_units <= MAX_CLIP_UNITS:
            raise InvalidArgument(f"clip_units: {self.clip_units} is outside 1 .. {MAX_CLIP_UNITS}")
        if self.step < sys.float_info.min:
            raise InvalidArgument(
                f"clipping_norm: {self.clipping_norm} over {self.clip_units} steps is below float64's range"
            )

    @property
    def step(self) -> float:
        """Real value of one grid step, C / clip_units."""
        return self.clipping_norm / self.clip_units

    @classmethod
    def choose(
        cls, clipping_norm: float, length: int, share_std: float, rounding_share: float = 0.01
    ) -> GridCodec:
        """Pick a grid that loses little to rounding and on which noise is smooth.

        Parameters
        ----------
        clipping_norm : float
            The bound C.
        length : int
            Number of coordinates d.
        share_std : float
            Standard deviation of one client's noise share, in the units of the vector (0: no noise).
        rounding_share : float
            Largest acceptable typical rounding error, step * sqrt(d) / 2, as a part of C.

        Returns
        -------
        GridCodec
            With share_std at least 64 steps where 2**30 steps per clip allow it (16 are needed for the
            lattice Gaussian to be a Gaussian up to 1e-300; more costs nothing).
        """
        check_positive(clipping_norm=clipping_norm, rounding_share=rounding_share)
        check_non_negative(share_std=share_std)
        step = 2.0 * rounding_share * clipping_norm / math.sqrt(max(length, 1))
        if share_std > 0:
            step = min(step, share_std / 64.0)
        return cls(clipping_norm, int(min(MAX_CLIP_UNITS, math.ceil(clipping_norm / step))))

    def encode(self, vector: np.ndarray) -> np.ndarray:
        """Round a clipped vector toward zero to the grid.

        Parameters
        ----------
        vector : np.ndarray
            Shape (d,), finite, L2 norm at most C (float error above C is absorbed).

        Returns
        -------
        np.ndarray
            Shape (d,), int64, with sum of squares at most clip_units**2.

        Raises
        ------
        InvalidArgument
            When a value is not finite or the norm exceeds C by more than float error.
        """
        scaled = np.asarray(vector, dtype=np.float64) / self.step
        if not np.all(np.isfinite(scaled)):
            raise InvalidArgument("vector: not finite; clip_to_norm turns such a contribution into zeros")
        if np.linalg.norm(scaled) > self.clip_units * (1.0 + 1e-6):
            raise InvalidArgument(
                f"vector: norm exceeds the clipping norm {self.clipping_norm}; clip before encoding"
            )
        units = np.trunc(scaled).astype(np.int64)
        limit = self.clip_units * self.clip_units
        while (square := int(np.dot(units, units))) > limit:  # float error of the clip; a few parts in 10^16
            scaled = scaled * ((1.0 - 2.0**-40) * self.clip_units / math.sqrt(square))
            units = np.trunc(scaled).astype(np.int64)
        return units

    def decode(self, units: np.ndarray) -> np.ndarray:
        """Turn integers (a sum of encoded, noised vectors; shape (d,)) into float64 values."""
        return np.asarray(units, dtype=np.float64) * self.step

    def magnitude(self, num_clients: int, share_std_units: float) -> int:
        """Largest absolute value that one coordinate of the sum may take, noise included.

        Parameters
        ----------
        num_clients : int
            Largest possible number of summed clients.
        share_std_units : float
            Standard deviation of one share in grid steps.
        """
        noise = TAIL_DEVIATIONS * share_std_units * math.sqrt(num_clients) + num_clients
        return math.ceil(num_clients * self.clip_units + noise)

    def modulus_bits(self, num_clients: int, share_std_units: float) -> int:
        """Smallest of 32 and 62 bits in which the noised sum cannot wrap.

        Raises
        ------
        InvalidArgument
            When even 62 bits are too few; the message names the largest possible number of clients.
        """
        for bits in (32, 62):
            if self.magnitude(num_clients, share_std_units) < 2 ** (bits - 1):
                return bits
        raise InvalidArgument(
            f"num_clients: {num_clients} clients with {self.clip_units} steps per clip could wrap around; "
            f"at most {self.max_clients(62, share_std_units)} are possible on this grid"
        )

    def check_modulus(self, modulus_bits: int, num_clients: int, share_std_units: float) -> None:
        """Refuse a configuration whose sum could wrap modulo 2**modulus_bits.

        Raises
        ------
        InvalidArgument
            Naming the largest number of clients that fits.
        """
        if self.magnitude(num_clients, share_std_units) >= 2 ** (modulus_bits - 1):
            raise InvalidArgument(
                f"num_clients: {num_clients} clients at the top of the range could wrap around modulo "
                f"2**{modulus_bits}; at most {self.max_clients(modulus_bits, share_std_units)} fit"
            )

    def max_clients(self, modulus_bits: int, share_std_units: float) -> int:
        """Largest number of clients whose noised sum cannot wrap (0 when not even one fits)."""
        low, high = 0, 2**modulus_bits
        while low < high:
            middle = (low + high + 1) // 2
            if self.magnitude(middle, share_std_units) < 2 ** (modulus_bits - 1):
                low = middle
            else:
                high = middle - 1
        return low
