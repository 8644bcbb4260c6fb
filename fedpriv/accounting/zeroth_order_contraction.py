"""How one zeroth-order step moves two models together or apart: Beta laws, quantiles and mean squares.

A noiseless step is ``w -> w - (eta/K) sum_k g_k u_k`` with u_1..u_K orthonormal, uniform on the Stiefel
manifold and drawn independently of the pair of models it acts on. With P the projection on their span and H
an averaged Hessian, a pair at difference delta goes to ``delta - (eta/K) P H delta`` up to the
finite-difference error.

* Exact quotients (clip inactive). ``|(I-P) delta|^2 + |P (I - (eta/K) H) delta|^2`` is
  ``(1 - B1) |delta|^2 + B2 |(I - (eta/K) H) delta|^2 <= (1 - B1 + c^2 B2) |delta|^2`` with B1, B2 both
  Beta(K/2, (d-K)/2) (and dependent) and c = max(1 - eta mu/K, eta M/K - 1), or 1 + eta M/K without convexity.
* Any clip. Every clipped quotient moves by at most the exact one, so the squared distance is at most
  ``|delta|^2 (1 + 2 x sqrt(B) + x^2)``, x = (eta M/K) sqrt(B), with B above the Beta variables of delta and
  of all contributors' H_i delta: no contraction, no assumption beyond M-smoothness. With one averaged H
  (clip inactive) the same inequality needs two Beta variables only, and it beats the first one when there
  is no convexity.

The structure of the argument is that of Chien, Chen, Li 2025 (arXiv 2506.00158); exact Beta quantiles and
exact mean squares replace its Chernoff bounds.

Formal guarantees
-----------------
* A fixed pair at distance r is mapped to at most ``quantile_factor * r`` (plus the drift) except with the
  given probability over the directions.
* The mean squared distance is at most ``mean_square_factor * r^2``; with K = d both are deterministic.
* Beta quantiles are returned on the safe side: the tail beyond them is at most the level, as computed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincc, betainccinv, betaincinv

from fedpriv.accounting.curves import FloatArray


@dataclass(frozen=True)
class ZerothOrderStep:
    """Constants of one noiseless step.

    Parameters
    ----------
    dimension, directions : int
        d >= K >= 1.
    learning_rate : float
        eta > 0.
    smoothness : float
        M >= 0.
    strong_convexity : float or None
        mu >= 0 of the loss that both models follow; None without convexity.
    contributors : int
        Number n >= 1 of clipped quotients in an average; only used with an active clip.
    clip_inactive : bool
        True if no quotient can exceed the clip.
    """

    dimension: int
    directions: int
    learning_rate: float
    smoothness: float
    strong_convexity: float | None
    contributors: int
    clip_inactive: bool

    @property
    def lipschitz(self) -> float:
        """c: Lipschitz constant of the exact step inside the span of the directions."""
        rate = self.learning_rate / self.directions
        if self.strong_convexity is None:
            return 1 + rate * self.smoothness
        return max(1 - rate * self.strong_convexity, rate * self.smoothness - 1)

    def quantile_factor(self, levels: ArrayLike) -> FloatArray:
        """Factor on the distance that is exceeded with probability at most each level."""
        d, k = self.dimension, self.directions
        rate = self.learning_rate * self.smoothness / k
        shares = np.asarray(levels, dtype=np.float64) / (2 if self.clip_inactive else self.contributors + 1)
        high = beta_quantile(d, k, shares, upper=True)
        squared = 1 + 2 * rate * high + rate * rate * high
        if self.clip_inactive:
            low = beta_quantile(d, k, shares, upper=False)
            squared = np.minimum(squared, 1 - low + self.lipschitz**2 * high)
        return np.sqrt(squared)

    def mean_square_factor(self) -> float:
        """Factor on the mean squared distance, in expectation over the directions."""
        share = self.directions / self.dimension
        if self.clip_inactive:
            return 1 - (1 - self.lipschitz**2) * share
        rate = self.learning_rate * self.smoothness
        return 1 + 2 * rate / self.dimension + rate * rate / (self.directions * self.dimension)


def beta_quantile(dimension: int, directions: int, levels: ArrayLike, upper: bool) -> FloatArray:
    """Quantile of Beta(K/2, (d-K)/2), the squared length of a unit vector's projection on K directions.

    Parameters
    ----------
    dimension, directions : int
        d >= K >= 1; for K = d the variable is 1.
    levels : array
        Probabilities beyond the quantile, in [0, 1).
    upper : bool
        Which tail.
    """
    level = np.asarray(levels, dtype=np.float64)
    if directions == dimension:
        return np.ones(level.shape)
    a, b = directions / 2, (dimension - directions) / 2
    inverse, tail = (betainccinv, betaincc) if upper else (betaincinv, betainc)
    extreme = 1.0 if upper else 0.0
    x = np.where(level > 0, inverse(a, b, level), extreme)
    x = np.where(np.isnan(x), extreme, x)
    step = 1e-12
    while step < 1:
        short = tail(a, b, x) > level
        if not short.any():
            return x
        x = np.where(short, np.minimum(1.0, x * (1 + step)) if upper else x / (1 + step), x)
        step *= 4
    return np.full(level.shape, extreme)
