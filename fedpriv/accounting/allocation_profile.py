"""Privacy profile of random allocation by convex order, from above and from below.

A unit is put into one of b bins uniformly, and a bin adds the unit's contribution of norm at most 1 to one Gaussian
release of standard deviation s. Without the unit (law Q) the likelihood ratio of the b releases is ``S / b``,
``S = X_1 + ... + X_b`` with X_i independent log-normals of mean 1, ``X = exp(Z / s - 1 / (2 s^2))``, and

    remove:  delta(eps) = E_Q (S/b - e^eps)_+          add:  delta(eps) = E_Q (1 - e^eps S/b)_+ .

Both payoffs are convex in every X_i. Contributions that are shorter, or chosen adaptively, give a smaller X_i in
convex order, so the fixed contribution of norm 1 is the worst case; and a law that is larger (smaller) in convex
order gives an upper (lower) bound. `DyadicLaw` builds both by doubling.

This replaces the Fourier computation of Feldman and Shenfeld (arXiv 2601.21636) and has no floor in delta.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from scipy import special

from fedpriv.accounting.dyadic import DyadicLaw, FloatArray, Side, discretize, dusted
from fedpriv.accounting.ratio_law import RatioLaw
from fedpriv.accounting.validators import InvalidArgument, check_integer, check_positive, check_probability

MAX_BINS: Final = 10**7
"""Largest number of bins; rounding errors grow with it and are added to the result."""

_SMALLEST_MULTIPLIER: Final = 0.1
"""Below, epsilon is some 50 or more and the profile of one bin (no amplification) is used."""
_PRICE: Final = 1e-6
"""Fraction of delta that each cut of a tail may cost."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1), 0.5 * _WEIGHTS


@dataclass(frozen=True)
class Resolution:
    """Size of the grid: error falls with the square of both numbers, time grows with the square of ``half``.

    Parameters
    ----------
    half : int
        Points per octave and side, a power of two.
    per_deviation : float
        Points per standard deviation of the sum.
    """

    half: int
    per_deviation: float


FINE: Final = Resolution(1024, 128.0)
STANDARD: Final = Resolution(512, 64.0)
COARSE: Final = Resolution(128, 24.0)


@lru_cache(maxsize=32)
def allocation_law(
    noise_multiplier: float,
    bins: int,
    side: Side = "upper",
    smallest_delta: float = 1e-12,
    resolution: Resolution = STANDARD,
) -> RatioLaw:
    """Law of the likelihood ratio of one epoch of random allocation with independent noise.

    Parameters
    ----------
    noise_multiplier : float
        s, noise standard deviation over the clip norm; for bins kept over k epochs pass ``s / sqrt(k)``.
    bins : int
        b, from 1 to `MAX_BINS`.
    side : {"upper", "lower"}
        Direction of the rounding.
    smallest_delta : float
        Smallest delta the law will be asked about; tails are cut relative to it.
    resolution : Resolution
        Size of the grid.

    Raises
    ------
    InvalidArgument
        When an argument is outside its range.

    Notes
    -----
    Formal guarantees:

    * the lower law never reports more than the truth and the upper law never less, in both directions, for every
      epsilon, and for delta from ``smallest_delta`` on; rounding errors are bounded and charged;
    * adaptive and shorter contributions cost no more than the upper law says;
    * one bin brackets the analytic Gaussian curve;
    * more noise, more bins and a larger delta give a smaller epsilon, beyond the width of the bracket;
    * memory stays far below a gigabyte for s in [0.2, 100], b up to 10^6 and delta down to 1e-12.
    """
    check_positive(noise_multiplier=noise_multiplier, smallest_delta=smallest_delta)
    check_integer(1, bins=bins)
    if bins > MAX_BINS:
        raise InvalidArgument(f"bins must be at most {MAX_BINS}, got {bins}")
    check_probability(smallest_delta=smallest_delta)
    if noise_multiplier < _SMALLEST_MULTIPLIER:
        if side == "lower":
            return _constant_law()
        # One bin dominates any number of them, and no ratio beyond e^700 can be written down.
        bins = 1
        if noise_multiplier < _SMALLEST_MULTIPLIER / 2:
            return _nothing_known()
    builder = _Builder(float(noise_multiplier), int(bins), side, float(smallest_delta), resolution)
    return builder.law()


def _constant_law() -> RatioLaw:
    """The law of a release that tells nothing: a lower bound on anything."""
    return RatioLaw("lower", np.ones(1), np.zeros(1), np.ones(1))


def _nothing_known() -> RatioLaw:
    """An upper law without content: epsilon is infinite below delta = 1."""
    return RatioLaw("upper", np.ones(1), np.zeros(1), np.ones(1), dropped_mass=1.0, dropped_mean=1.0)


class _Builder:
    """One run of the doubling."""

    def __init__(self, s: float, bins: int, side: Side, delta: float, resolution: Resolution) -> None:
        self.s, self.bins, self.side, self.delta = s, bins, side, delta
        self.half = resolution.half
        self.step = 1 / resolution.per_deviation
        self.deviation = math.sqrt(math.expm1(s**-2))
        self.price = _PRICE * delta
        # All b terms are at most x when the sum is: the sum is above `low` except with probability 0.01 delta.
        log_probability = math.log(0.01 * delta) / bins
        quantile = (
            special.ndtri_exp(log_probability)
            if log_probability < -0.7
            else -special.ndtri(-math.expm1(log_probability))
        )
        self.low = self._value(float(quantile))

    def _value(self, z: float) -> float:
        return math.exp(z / self.s - 0.5 / self.s**2)

    def law(self) -> RatioLaw:
        left = float(special.ndtr(self._quantile(0.125)))
        centred = self._centred_pays(1) and left <= self.price / self.bins
        law = self._single(1.0 if centred else 0.0, self._finest(1, centred), centred)
        error = 1e-12
        for bit in bin(self.bins)[3:]:
            law = self._tidied(law + law)
            error = 2 * error + self._convolution_error(law)
            if bit == "1":
                two_sided = law.origin > 0
                single = self._single(1.0 if two_sided else 0.0, law.spacing, two_sided)
                law = self._tidied(law + single)
                error = error + 1e-12 + self._convolution_error(law)
        values, mass = law.atoms()
        return RatioLaw(
            self.side,
            values / self.bins,
            (values - self.bins) / self.bins,
            mass,
            law.dropped_mass,
            law.dropped_mean,
            error,
        )

    def _convolution_error(self, law: DyadicLaw) -> float:
        return (2 * self.half + 4 * law.mass.shape[0] + 20) * np.finfo(float).eps

    def _quantile(self, x: float) -> float:
        return self.s * math.log(x) + 0.5 / self.s

    def _finest(self, count: int, centred: bool) -> float:
        """Largest useful spacing of block 0, as a power of two."""
        spacing = self.step * self.deviation * math.sqrt(count)
        if not centred:
            spacing = min(spacing, 4 * self.step * self.low / math.sqrt(self.bins / count))
        return 2.0 ** math.floor(math.log2(spacing))

    def _centred_pays(self, count: int) -> bool:
        """Whether a grid that is dense around 0 is too coarse around the mean."""
        return count * 2 / self.half > self.step * self.deviation * math.sqrt(count)

    def _single(self, centre: float, spacing: float, two_sided: bool) -> DyadicLaw:
        top_z = max(
            1 / self.s - special.ndtri(self.price),
            -special.ndtri(self.price / self.bins),
        )
        reach = max(self._value(top_z) - centre, 2 * spacing)
        blocks = max(1, 1 + math.ceil(math.log2(reach / (self.half * spacing))))
        law = discretize(self._cells, self.side, centre, spacing, self.half, blocks, two_sided, self._outside)
        return dusted(law)

    def _outside(self, low: float, high: float) -> tuple[float, float]:
        z = self._quantile(high)
        mass, mean = special.ndtr(-z), special.ndtr(1 / self.s - z)
        if low > 0:
            z = self._quantile(low)
            mass, mean = mass + special.ndtr(z), mean + special.ndtr(z - 1 / self.s)
        return float(mass), float(mean)

    def _cells(self, left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mass and relative first moment of the log-normal law on cells."""
        s = self.s
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = s * np.abs(s * np.log(np.maximum(left, 1e-300)) + 0.5 / s) + s + 1
            wide = (left <= 0) | ((right - left) * steep > 0.25 * left)
        mass, moment = np.zeros(left.shape), np.zeros(left.shape)
        a, width = left[~wide], (right - left)[~wide]
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            x = a + node * width
            z = s * np.log(x) + 0.5 / s
            density = np.exp(-0.5 * z * z) * (weight * s / math.sqrt(2 * math.pi)) * (width / x)
            mass[~wide] += density
            moment[~wide] += node * density
        rest = wide & (right > 0)
        a, b = left[rest], right[rest]
        with np.errstate(divide="ignore"):
            z_a = np.where(a > 0, s * np.log(np.maximum(a, 1e-300)) + 0.5 / s, -np.inf)
        z_b = s * np.log(b) + 0.5 / s
        m = _interval(z_a, z_b)
        p = _interval(z_a - 1 / s, z_b - 1 / s)
        mass[rest] = m
        moment[rest] = np.clip((p - a * m) / (b - a), 0.0, m)
        return mass, moment

    def _tidied(self, law: DyadicLaw) -> DyadicLaw:
        """Cut tails that cost nothing, coarsen what is finer than needed, and move the dense part to the mean."""
        law = dusted(law)
        law = law.trimmed(self.price * law.count / self.bins, self.price)
        two_sided = law.origin > 0
        if (
            not two_sided
            and self._centred_pays(law.count)
            and self._left_mass(law) <= self.price * (law.count / self.bins)
        ):
            law = law.split(float(law.count), self._finest(law.count, True), True)
            law = dusted(law).trimmed(self.price * law.count / self.bins, self.price)
            two_sided = True
        while law.spacing * 2 <= self._finest(law.count, two_sided):
            law = law.coarsened()
        return law

    def _left_mass(self, law: DyadicLaw) -> float:
        values, mass = law.atoms()
        return float(mass[values < law.count / 8].sum())


def _interval(low: FloatArray, high: FloatArray) -> FloatArray:
    """Normal probability of [low, high], from the tail that loses no digits."""
    flip = low > 0
    return special.ndtr(np.where(flip, -low, high)) - special.ndtr(np.where(flip, -high, low))
