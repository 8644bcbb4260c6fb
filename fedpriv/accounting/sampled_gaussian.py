"""Sampled Gaussian mechanisms: what is taken from ``dp_accounting``, and how it is made safe.

Formal guarantees
-----------------
* `poisson_gaussian_curve` is at least the exact divergence of S_alpha(q, z) (Mironov, Talwar, Zhang 2019,
  arXiv 1908.10530) at every order, and at most the curve without sampling.
* `fixed_size_gaussian_curve` is theorem 27 of Wang, Balle, Kasiviswanathan 2019 (arXiv 1808.00087) at integer
  orders and its convex chord between them, and at most the curve without sampling.
* No order fails: where the library returns infinity or overshoots (fractional orders), a convexity bound
  stands in.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike

from fedpriv.accounting.curves import FloatArray, RdpCurve, gaussian_curve, zero_curve
from fedpriv.accounting.validators import check_integer, check_non_negative, check_probability

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

PLD_DISCRETIZATION: Final = 1e-4
"""Default grid step, in nats, of privacy-loss distributions. Distributions compose on equal steps only."""


def poisson_gaussian_curve(sampling_rate: float, noise_multiplier: float, orders: ArrayLike) -> RdpCurve:
    """Curve of the Poisson-sampled Gaussian, S_alpha(q, z), valid in both directions of add_or_remove.

    Cached: a second call with the same arguments costs microseconds, the first about a tenth of a second.

    Parameters
    ----------
    sampling_rate : float
        q in [0, 1].
    noise_multiplier : float
        z, noise standard deviation over the sensitivity of one unit, >= 0.
    orders : array of shape (n,)
        Orders > 1.
    """
    check_probability(sampling_rate=sampling_rate)
    check_non_negative(noise_multiplier=noise_multiplier)
    key = np.asarray(orders, dtype=np.float64).tobytes()
    return _poisson_curve(float(sampling_rate), float(noise_multiplier), key)


def fixed_size_gaussian_curve(
    population_size: int, sample_size: int, noise_multiplier: float, orders: ArrayLike
) -> RdpCurve:
    """Curve of the Gaussian on a cohort of fixed size drawn without replacement, under replace_one. Cached.

    Parameters
    ----------
    population_size, sample_size : int
        ``0 <= sample_size <= population_size``.
    noise_multiplier : float
        Noise standard deviation over ``2 C``, the sensitivity under replace_one, >= 0.
    orders : array of shape (n,)
        Orders > 1.
    """
    check_integer(1, population_size=population_size)
    check_integer(0, sample_size=sample_size)
    check_non_negative(noise_multiplier=noise_multiplier)
    key = np.asarray(orders, dtype=np.float64).tobytes()
    return _fixed_size_curve(int(population_size), int(sample_size), float(noise_multiplier), key)


def gaussian_pld(
    sampling_rate: float, noise_multiplier: float, discretization: float
) -> "PrivacyLossDistribution | None":
    """Pessimistic privacy-loss distribution of the Poisson-sampled Gaussian under add_or_remove.

    None without noise. At q = 1 it is that of the plain Gaussian, the same for both adjacencies.
    """
    if noise_multiplier == 0 and sampling_rate > 0:
        return None
    return _cached_pld(float(sampling_rate), float(noise_multiplier), float(discretization))


@lru_cache(maxsize=512)
def _poisson_curve(q: float, z: float, orders: bytes) -> RdpCurve:
    alpha = np.frombuffer(orders, dtype=np.float64)
    if q == 0:
        return zero_curve(alpha)
    if q == 1 or z == 0:
        return gaussian_curve(z, alpha)
    import dp_accounting

    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    # Order 2 is always asked for, because it bounds the orders below.
    asked = np.union1d(alpha, [2.0])
    with _quiet_library():
        raw = dp_accounting.rdp.RdpAccountant(asked.tolist()).compose(event).rdp
    return _sanitized(asked, raw, z).at(alpha)


@lru_cache(maxsize=512)
def _fixed_size_curve(population: int, sample: int, z: float, orders: bytes) -> RdpCurve:
    alpha = np.frombuffer(orders, dtype=np.float64)
    if sample == 0:
        return zero_curve(alpha)
    if sample == population or z == 0:
        return gaussian_curve(z, alpha)
    import dp_accounting

    event = dp_accounting.SampledWithoutReplacementDpEvent(
        population, sample, dp_accounting.GaussianDpEvent(z)
    )
    # The bound lives on integer orders; the library would recompute both neighbours for every fractional one.
    asked = np.unique(np.concatenate([np.floor(alpha), np.ceil(alpha), [2.0]]))
    asked = asked[asked >= 2]
    with _quiet_library():
        accountant = dp_accounting.rdp.RdpAccountant(
            asked.tolist(), dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        raw = accountant.compose(event).rdp
    # The chords between integers may pass above the curve without sampling.
    chords = _sanitized(asked, raw, z).at(alpha)
    return RdpCurve(alpha, np.minimum(chords.rdp, gaussian_curve(z, alpha).rdp))


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Silence the library's warnings about orders it gives up on: `_sanitized` bounds them otherwise."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _sanitized(orders: FloatArray, raw: FloatArray, z: float) -> RdpCurve:
    """Library values made safe: no NaN, no rounding below the truth, no value above a simple valid bound.

    The library sums terms with binomial coefficients of relative error about machine epsilon times
    ``alpha log(alpha)``: that much is added, so that rounding can never be mistaken for privacy.
    """
    rounding = 2 * np.finfo(np.float64).eps * (8 + orders * np.log(orders)) / (orders - 1)
    values = np.where(np.isnan(raw), np.inf, np.maximum(raw, 0.0)) + rounding
    # Sampling never costs more than no sampling (quasi-convexity), and a larger order bounds every smaller
    # one.
    values = np.minimum(values, gaussian_curve(z, orders).rdp)
    values = np.minimum.accumulate(values[::-1])[::-1]
    # Fractional orders fail or overshoot: the chord of (alpha - 1) RDP(alpha) between integer orders is a
    # bound too.
    integer = orders == np.floor(orders)
    return RdpCurve(orders, np.minimum(values, RdpCurve(orders[integer], values[integer]).at(orders).rdp))


@lru_cache(maxsize=16)
def _cached_pld(q: float, z: float, discretization: float) -> "PrivacyLossDistribution":
    from dp_accounting.pld import privacy_loss_distribution as pld

    if q == 0:
        return pld.identity(value_discretization_interval=discretization)
    return pld.from_gaussian_mechanism(z, value_discretization_interval=discretization, sampling_prob=q)
