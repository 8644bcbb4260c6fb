"""Search for the best hidden-state bound of a zeroth-order run at a given failure mass.

Everything is stated as the squared shift of a dominating Gaussian, RDP(alpha) = alpha shift^2 / 2: j steps
of contributions cost ``P = j s^2 / sigma^2`` over the variance share that pays for them, the shifts their
energy E relative to the isotropic noise. If a part kappa of the isotropic noise pays for contributions too,

    P / (beta + kappa x) + E / (1 - kappa),     x = (1 - beta) K/d,

is least at kappa = (sqrt(P x) - beta sqrt(E)) / (x sqrt(E) + sqrt(P x)), clipped to [0, 1).

Formal guarantees
-----------------
* Every number returned belongs to a plan whose steps fail with total probability at most the mass asked for.
* Restricting the candidates (windows on a geometric grid, a few splits) only makes the result larger.
"""

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpriv.accounting.curves import FloatArray
from fedpriv.accounting.shifts import affine_iterates, constant_shift_energies, forward_distances

if TYPE_CHECKING:
    from fedpriv.accounting.zeroth_order import ZerothOrderHiddenState

Counts = NDArray[np.int64]

_SHIFT_STEPS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers j2 of final shifted steps that the mean-square bound tries."""
_MARKOV_SHARES: Final = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Parts of the failure mass that Markov's inequality gets."""


class ReleaseSearch:
    """Bounds of one run as functions of the failure mass.

    Parameters
    ----------
    event : ZerothOrderHiddenState
        A run with smoothness and isotropic noise.
    """

    def __init__(self, event: "ZerothOrderHiddenState") -> None:
        self._step = event.step
        self._rounds = int(event.rounds)
        eta, root = event.learning_rate, math.sqrt(event.directions)
        self._diameter = 2 * event.radius
        self._drift = event.drift
        self._kick = eta * event.sensitivity / root
        self._largest_move = 2 * eta * event.clip / root
        self._isotropic_std = eta * event.noise_std * math.sqrt((1 - event.direction_share) / event.dimension)
        self._per_step = (event.sensitivity / event.noise_std) ** 2
        self._direction_share = event.direction_share
        self._shared = event._shared_noise

    def quantile(self, masses: ArrayLike) -> FloatArray:
        """Least squared shift of the quantile bound for each failure mass, shape (m,)."""
        mass = np.atleast_1d(np.asarray(masses, dtype=np.float64))[:, None]
        j = _spread(self._rounds)
        # Distances that hold surely: only the window's own steps can fail.
        sure = np.minimum(self._diameter, self._largest_move * (self._rounds - j))
        best = self._least_total(j, self._energies(self._step.quantile_factor(mass / j), j, sure))
        # Distances by the recursion from the start: every step of the run can fail.
        factors = self._step.quantile_factor(mass / self._rounds)
        grown = np.array([self._forward(float(factor))[self._rounds - j] for factor in factors[:, 0]])
        return np.minimum(best, self._least_total(j, self._energies(factors, j, grown)))

    def mean_square(self, masses: ArrayLike) -> FloatArray:
        """Least squared shift of the mean-square bound for each failure mass > 0, shape (m,)."""
        mass = np.atleast_1d(np.asarray(masses, dtype=np.float64))[:, None, None]
        markov = np.array(_MARKOV_SHARES)[:, None]
        root = math.sqrt(self._step.mean_square_factor())
        start = self._forward(root)
        best = np.full(mass.shape[0], math.inf)
        for shifted in _SHIFT_STEPS:
            if shifted > self._rounds:
                break
            # `free` unshifted steps, then the shifted ones, end the run.
            free = np.concatenate([[0], _spread(self._rounds - shifted)])
            begin = start[self._rounds - shifted - free]
            distance = np.minimum(self._diameter, affine_iterates(root, self._drift, begin, free))
            bounded = np.minimum(self._diameter, distance / np.sqrt(markov * mass))
            factor = self._step.quantile_factor(mass * (1 - markov) / shifted)
            best = np.minimum(
                best, self._least_total(free + shifted, self._energies(factor, shifted, bounded))
            )
        return best

    def _forward(self, factor: float) -> FloatArray:
        """Distance (sure, or in root mean square) after t = 0..T rounds from a common start."""
        size = self._rounds
        others = max(0.0, self._largest_move - self._kick)
        return forward_distances(
            np.full(size, factor),
            np.full(size, self._drift),
            np.full(size, self._kick),
            self._diameter,
            np.full(size, others),
        )

    def _energies(self, factor: ArrayLike, windows: ArrayLike, distances: ArrayLike) -> FloatArray:
        return constant_shift_energies(factor, self._drift, self._isotropic_std, windows, distances)

    def _least_total(self, steps: Counts, energies: FloatArray) -> FloatArray:
        """Least squared shift at the best kappa, over all candidates along every axis but the first."""
        paid = steps * self._per_step
        share, x = self._direction_share, self._shared
        root_energy, root_paid = np.sqrt(energies), np.sqrt(paid * x)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            kappa = np.zeros(energies.shape)
            if x > 0:
                kappa = np.maximum(0.0, (root_paid - share * root_energy) / (x * root_energy + root_paid))
            spared = np.where(energies > 0, 1 - kappa, 1.0)
            totals = paid / (share + kappa * x) + energies / spared
        totals = np.where(np.isfinite(totals), totals, np.inf)
        return totals.reshape(totals.shape[0], -1).min(axis=1)


def _spread(largest: int) -> Counts:
    """1, 2, ..., 32, then 4 % apart, up to the largest: every count is within 4 % below one of these."""
    if largest < 1:
        return np.zeros(0, dtype=np.int64)
    geometric = np.floor(32 * 1.04 ** np.arange(0, math.log(max(largest, 33) / 32) / math.log(1.04)))
    counts = np.unique(np.concatenate([np.arange(1, 33), geometric, [largest]]).astype(np.int64))
    return counts[counts <= largest]
