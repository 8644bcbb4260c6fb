"""Rényi divergence of random allocation with independent noise.

One unit sits in one of b bins, uniformly; the bin's release is its contribution (norm at most 1) plus Gaussian noise
of standard deviation s. P is the law with the unit, Q without it; under Q the ratio is ``S / b``, S a sum of b
independent log-normals of mean 1.

* Remove, integer orders: ``E_Q (S/b)^n`` for all n at once. With M_m(n) the n-th moment of ``S_m / m``,

      M_{m+l}(n) = sum_k Binomial(n, m/(m+l))(k) M_m(k) M_l(n-k),      M_1(n) = exp(n (n-1) / (2 s^2)),

  which is the polynomial power of Feldman and Shenfeld (arXiv 2601.21636, section 4) with normalised coefficients.
  ``log M`` is carried, and ``M - 1`` is a sum of non-negative terms: no digit is lost when the divergence is tiny.
* Add, any order alpha = 1 + m: ``E_Q (S/b)^(-m) = 1/Gamma(m) int exp(m u) phi(e^u / b)^b du`` with phi the Laplace
  transform of a log-normal: exact, by two one-dimensional trapezoid rules that converge exponentially. Where the
  quadrature does not reach, the AM-GM bound of the same paper, ``((alpha-1)/b + 1) / (2 s^2)``.

Adaptive contributions are covered: both payoffs are convex in every X_i, and a shorter contribution gives a smaller
X_i in convex order.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from scipy import special

from fedpriv.accounting.curves import DirectionalCurves, RdpCurve, gaussian_curve
from fedpriv.accounting.ratio_law import FloatArray
from fedpriv.accounting.validators import check_integer, check_positive

_NEVER: Final = -1e300
"""Logarithm of zero that can be subtracted from itself."""
_QUADRATURE: Final = 1e-9
"""Relative allowance for quadrature and rounding."""
_CUT: Final = 45.0
"""An integrand that has fallen by e^-45 from its maximum at both ends is integrated in full."""
_LARGEST_ORDER: Final = 1024
_ALWAYS: Final = 256


@lru_cache(maxsize=256)
def log_moments(inverse_variance: float, bins: int, largest: int) -> FloatArray:
    """``log E_Q (S/b)^n`` for n = 0..largest.

    Parameters
    ----------
    inverse_variance : float
        ``1 / s^2``: squared contribution per bin over the noise variance.
    bins : int
        b, >= 1.
    largest : int
        Largest moment, >= 2.
    """
    n = np.arange(largest + 1, dtype=np.float64)
    single = 0.5 * n * (n - 1) * inverse_variance
    result, done = single, 1
    for bit in bin(bins)[3:]:
        result, done = _mean_of_two(result, done, result, done), 2 * done
        if bit == "1":
            result, done = _mean_of_two(result, done, single, 1), done + 1
    result.setflags(write=False)
    return result


def remove_divergence(noise_multiplier: float, bins: int, orders: FloatArray) -> FloatArray:
    """Rényi divergence of P from Q at the given orders.

    Exact at integer orders up to 1024; between them the chord of the convex ``(alpha - 1) D(alpha)``. Infinite above,
    and above 256 from the order on where the divergence exceeds some 30 nats.
    """
    check_positive(noise_multiplier=noise_multiplier)
    check_integer(1, bins=bins)
    # All units in one bin: D(alpha) >= alpha / (2 s^2) - alpha log(b) / (alpha - 1).
    useful = 16 + 2 * noise_multiplier**2 * (30 + 2 * math.log(bins))
    reachable = orders[orders <= min(_LARGEST_ORDER, max(_ALWAYS, useful))]
    largest = max(2, math.ceil(reachable.max(initial=2.0)))
    logs = log_moments(float(noise_multiplier) ** -2, int(bins), largest)
    integers = np.arange(2, largest + 1, dtype=np.float64)
    return RdpCurve(integers, logs[2:] / (integers - 1)).at(orders).rdp


def add_divergence(noise_multiplier: float, bins: int, orders: FloatArray) -> FloatArray:
    """Rényi divergence of Q from P at the given orders (any real orders above 1)."""
    check_positive(noise_multiplier=noise_multiplier)
    check_integer(1, bins=bins)
    bound = add_divergence_bound(noise_multiplier, bins, orders)
    if bins == 1:
        return bound
    exponents = orders - 1
    # The quadrature follows the left tail of each summand to about exponent / (bins * s) deviations.
    inside = exponents <= min(512.0, 40 * bins * noise_multiplier)
    result = bound.copy()
    result[inside] = np.fmin(bound[inside], _add_quadrature(noise_multiplier, bins, exponents[inside]))
    # The divergence is non-decreasing in the order: a larger order bounds every smaller one.
    return np.minimum.accumulate(result[::-1])[::-1]


def add_divergence_bound(noise_multiplier: float, bins: int, orders: FloatArray) -> FloatArray:
    """AM-GM bound on the divergence of Q from P: ``((alpha - 1) / b + 1) / (2 s^2)``."""
    return ((orders - 1) / bins + 1) * (0.5 / noise_multiplier**2)


def allocation_curves(noise_multiplier: float, bins: int, orders: FloatArray) -> DirectionalCurves:
    """Both directions of one epoch of random allocation with independent noise.

    Parameters
    ----------
    noise_multiplier : float
        s, noise standard deviation over the clip norm, > 0; for bins kept over k epochs ``s / sqrt(k)``.
    bins : int
        b >= 1; 1 is the Gaussian mechanism.
    orders : array of shape (n,)
        Orders > 1.

    Notes
    -----
    Formal guarantees: exact (up to rounding) for a unit that contributes with norm 1 in its bin, hence an upper bound
    for shorter or adaptive contributions; one bin gives the Gaussian curve in both directions.
    """
    if bins == 1:
        return DirectionalCurves.symmetric(gaussian_curve(noise_multiplier, orders))
    # More bins than one can only help, in both directions.
    gaussian = gaussian_curve(noise_multiplier, orders).rdp
    remove = np.minimum(remove_divergence(noise_multiplier, bins, orders), gaussian)
    add = np.minimum(add_divergence(noise_multiplier, bins, orders), gaussian)
    return DirectionalCurves(RdpCurve(orders, remove), RdpCurve(orders, add))


def log_expm1(values: FloatArray) -> FloatArray:
    """``log(e^x - 1)`` for x >= 0, without overflow; 0 gives -1e300."""
    with np.errstate(divide="ignore"):
        return np.where(values > 0, values + np.log(-np.expm1(-values)), _NEVER)


def segment_logsumexp(values: FloatArray, starts: np.ndarray, counts: np.ndarray) -> FloatArray:
    """Logarithm of the sum of exponentials over consecutive segments."""
    peak = np.maximum.reduceat(values, starts)
    return peak + np.log(np.add.reduceat(np.exp(values - np.repeat(peak, counts)), starts))


def _mean_of_two(first: FloatArray, m: int, second: FloatArray, count: int) -> FloatArray:
    """Log moments of the mean of ``m + count`` variables from those of two independent partial means."""
    size = first.size
    rows = _triangle(size)
    share, rest = math.log(m / (m + count)), math.log(count / (m + count))
    # While moments and binomial weights are ordinary numbers, sums need no logarithms.
    plain = min(int(np.searchsorted(first + second, 600.0)), 1000, size)
    result = np.zeros(size)
    end = rows.starts[plain] if plain < size else rows.n.size
    n, k = rows.n[:end], rows.k[:end]
    weight = _weights(size, share, rest)
    with np.errstate(under="ignore"):
        a, b = np.expm1(first[:plain])[k], np.expm1(second[:plain])[n - k]
        terms = np.exp(weight[:end]) * (a + b + a * b)
        result[:plain] = np.log1p(np.add.reduceat(terms, rows.starts[:plain]))
    if plain < size:
        n, k = rows.n[end:], rows.k[end:]
        terms = np.maximum(weight[end:] + log_expm1(first[k] + second[n - k]), _NEVER)
        starts = rows.starts[plain:] - end
        result[plain:] = np.logaddexp(0.0, segment_logsumexp(terms, starts, rows.counts[plain:]))
    return result


@dataclass(frozen=True, eq=False)
class _Triangle:
    n: np.ndarray
    k: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    log_binomial: FloatArray


@lru_cache(maxsize=4)
def _triangle(size: int) -> _Triangle:
    n, k = np.tril_indices(size)
    counts = np.arange(1, size + 1)
    factorials = special.gammaln(np.arange(size) + 1.0)
    return _Triangle(
        n, k, np.cumsum(counts) - counts, counts, factorials[n] - factorials[k] - factorials[n - k]
    )


@lru_cache(maxsize=1)
def _weights(size: int, share: float, rest: float) -> FloatArray:
    """Logarithms of binomial probabilities, row by row."""
    rows = _triangle(size)
    return rows.log_binomial + rows.k * share + (rows.n - rows.k) * rest


def _add_quadrature(s: float, bins: int, exponents: FloatArray) -> FloatArray:
    """``log E (S/b)^(-m) / m`` by quadrature; NaN where the integrand is not contained in the range."""
    if exponents.size == 0:
        return exponents
    m_max = float(exponents.max())
    step = min(0.1, 0.6 / math.sqrt(m_max + 1))
    # From below the integrand grows like exp((m + 2) u) once t is below the scale of the heavy tail; to the right
    # it is followed until it has died out.
    low, high = -24.0 - min(2 / s**2, 100.0), max(4.0, math.log(m_max + 1) + 4)
    while high < 400 and bins * -_log_laplace(s, np.array([math.exp(high) / bins]), m_max, bins)[0] < (
        m_max * high + 2 * _CUT
    ):
        high += 2.0
    if high >= 400:
        return np.full(exponents.shape, math.nan)
    u = np.arange(low, high + step, step)
    logs = _log_excess(s, np.exp(u), bins, m_max)
    table = exponents[:, None] * u[None, :] + logs[None, :]
    peak = table.max(axis=1)
    contained = (peak - table[:, 0] > _CUT) & (peak - table[:, -1] > _CUT)
    total = peak + np.log(np.exp(table - peak[:, None]).sum(axis=1) * step) - special.gammaln(exponents)
    result = np.logaddexp(0.0, total + math.log1p(_QUADRATURE)) / exponents
    return np.where(contained, result, math.nan)


def _nodes(s: float, m: float, bins: int) -> FloatArray:
    """Trapezoid nodes for expectations over Z: the strip of analyticity has half-width ``pi s / 2``."""
    step = min(0.4, 0.2 * s)
    left = -13.0 - 1.5 * m / (bins * s) - 1 / s
    return np.arange(left, 13.0 + step, step)


def _log_laplace(s: float, t: FloatArray, m: float, bins: int) -> FloatArray:
    """``log E exp(-t X)``."""
    z = _nodes(s, m, bins)
    with np.errstate(over="ignore"):
        x = np.exp(z / s - 0.5 / s**2)
        exponent = -0.5 * z**2 - t[:, None] * x[None, :]
    peak = exponent.max(axis=1)
    step = z[1] - z[0]
    return peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1) * (step / math.sqrt(2 * math.pi)))


def _log_excess(s: float, v: FloatArray, bins: int, m: float) -> FloatArray:
    """``log( phi(v/b)^b - e^-v )``: the integrand beyond that of the constant 1, which is non-negative."""
    t = v / bins
    result = np.empty(v.shape)
    small = t < 0.5
    z = _nodes(s, m, bins)
    weight = np.exp(-0.5 * z**2) * ((z[1] - z[0]) / math.sqrt(2 * math.pi))
    with np.errstate(over="ignore"):
        y = t[small][:, None] * np.expm1(z / s - 0.5 / s**2)[None, :]
    # phi(t) e^t - 1 = E (e^-y - 1 + y), whose terms are non-negative.
    with np.errstate(over="ignore", invalid="ignore"):
        series = y * y * (0.5 - y * (1 / 6 - y * (1 / 24 - y * (1 / 120 - y / 720))))
        gap = np.where(np.abs(y) < 5e-3, series, np.expm1(-y) + y)
    growth = bins * np.log1p((gap * weight).sum(axis=1))
    result[small] = log_expm1(growth) - v[small]
    log_power = bins * _log_laplace(s, t[~small], m, bins)
    with np.errstate(divide="ignore"):
        result[~small] = log_power + np.log(-np.expm1(np.minimum(-v[~small] - log_power, -1e-300)))
    return result
