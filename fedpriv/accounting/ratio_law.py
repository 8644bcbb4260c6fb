"""Finite laws of a likelihood ratio, and the privacy profile they imply.

For a pair (P, Q) the law under Q of the ratio ``r = dP/dQ`` determines everything: with payoffs convex in r,

    remove:  delta(eps) = E_Q (r - e^eps)_+ ,          add:  delta(eps) = E_Q (1 - e^eps r)_+ ,

so a law that is larger in convex order gives upper bounds and a smaller one lower bounds (Sommer, Meiser, Mohammadi
2019 and Zhu, Dong, Wang 2022 for dominating pairs). Products of independent ratios describe composition.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fedpriv.accounting.validators import check_delta, check_integer, check_non_negative

FloatArray = NDArray[np.float64]
Side = Literal["upper", "lower"]

_EVALUATION: Final = 1e-9
"""Relative rounding allowance for one evaluation with a Gaussian factor."""


@dataclass(frozen=True, eq=False)
class RatioLaw:
    """Law of a likelihood ratio under Q, up to an event that is dropped and charged.

    Parameters
    ----------
    side : {"upper", "lower"}
        Upper laws give upper bounds on delta and epsilon, lower laws lower bounds.
    ratio, excess, mass : arrays of shape (n,)
        Ratios in increasing order, the same minus 1 without loss of digits, and probabilities under Q.
    dropped_mass, dropped_mean : float
        Probability under Q, and under P, of what the law leaves out. An upper law charges them in full, a lower law
        ignores them.
    rounding : float
        Bound on the relative rounding error of ``mass``.
    common : float
        Standard deviation c of a further independent factor ``exp(c W - c^2 / 2)``, W standard normal: the ratio of
        a Gaussian release with noise multiplier 1/c composed with the rest. 0 for none.

    Notes
    -----
    Formal guarantees: ``delta_*`` are non-increasing in epsilon; ``epsilon_*`` is the exact inverse for the finite
    law; an upper law never reports less than a lower law of the same pair.
    """

    side: Side
    ratio: FloatArray
    excess: FloatArray
    mass: FloatArray
    dropped_mass: float = 0.0
    dropped_mean: float = 0.0
    rounding: float = 0.0
    common: float = 0.0

    def delta_remove(self, epsilon: float) -> float:
        """``E_Q (r - e^epsilon)_+``: the unit is present in the first law of the pair."""
        check_non_negative(epsilon=epsilon)
        if self.common > 0:
            value = self._with_factor(epsilon)[0]
        else:
            with np.errstate(over="ignore"):
                value = float(self.mass @ np.maximum(self.excess - np.expm1(epsilon), 0.0))
        return self._closed(value, self.dropped_mean)

    def delta_add(self, epsilon: float) -> float:
        """``E_Q (1 - e^epsilon r)_+``: the unit is present in the second law of the pair."""
        check_non_negative(epsilon=epsilon)
        if self.common > 0:
            value = self._with_factor(epsilon)[1]
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                payoff = np.maximum(-self.excess - np.expm1(epsilon) * self.ratio, 0.0)
            value = float(self.mass @ np.where(self.ratio == 0, 1.0, payoff))
        return self._closed(value, self.dropped_mass)

    def delta(self, epsilon: float) -> float:
        """The larger of the two directions."""
        return max(self.delta_remove(epsilon), self.delta_add(epsilon))

    def epsilon_remove(self, delta: float) -> float:
        """Smallest epsilon >= 0 with ``delta_remove(epsilon) <= delta``."""
        target = self._open(delta, self.dropped_mean)
        if target <= 0:
            return math.inf
        if self.common > 0:
            start = replace(self, common=0.0).epsilon_remove(delta)
            return _solve(lambda e: self._with_factor(e)[0], target, _finite(start), self.side)
        above = np.cumsum(self.mass[::-1])[::-1]
        excess_above = np.cumsum((self.mass * self.excess)[::-1])[::-1]
        # delta at e^eps = ratio[j] counts the atoms above j; it decreases in j and ends at 0.
        at_atoms = excess_above - self.excess * above
        j = int(np.argmax(at_atoms <= target))
        return _log1p_floored((excess_above[j] - target) / above[j])

    def epsilon_add(self, delta: float) -> float:
        """Smallest epsilon >= 0 with ``delta_add(epsilon) <= delta``."""
        target = self._open(delta, self.dropped_mass)
        if target <= 0:
            return math.inf
        if self.common > 0:
            start = replace(self, common=0.0).epsilon_add(delta)
            return _solve(lambda e: self._with_factor(e)[1], target, _finite(start), self.side)
        below = np.cumsum(self.mass)
        excess_below = np.cumsum(self.mass * self.excess)
        mean_below = np.cumsum(self.mass * self.ratio)
        # delta at e^eps = 1 / ratio[j] counts the atoms below j; it grows with j.
        at_atoms = np.zeros(self.ratio.size)
        # Ratios near 1 are told apart by their excess, ratios near 0 by themselves.
        near_one = (self.excess[1:] * below[:-1] - excess_below[:-1]) / self.ratio[1:]
        near_zero = below[:-1] - mean_below[:-1] / self.ratio[1:]
        at_atoms[1:] = np.where(self.ratio[1:] < 0.5, near_zero, near_one)
        j = self.ratio.size - 1 - int(np.argmax((at_atoms <= target)[::-1]))
        if mean_below[j] <= 0:
            return math.inf if below[j] > target else 0.0
        return _log1p_floored((-excess_below[j] - target) / mean_below[j])

    def epsilon(self, delta: float) -> float:
        """The larger of the two directions at ``delta`` in [0, 1)."""
        check_delta(delta=delta)
        return max(self.epsilon_remove(delta), self.epsilon_add(delta))

    def times_gaussian(self, deviation: float) -> "RatioLaw":
        """The pair composed with a Gaussian release of noise multiplier ``1 / deviation``."""
        check_non_negative(deviation=deviation)
        return replace(self, common=math.hypot(self.common, deviation))

    def log_ratio(self) -> FloatArray:
        """Logarithms of the ratios, without loss of digits near 1; minus infinity for 0."""
        with np.errstate(divide="ignore"):
            return np.where(self.excess > -0.5, np.log1p(self.excess), np.log(self.ratio))

    def diluted(self, used: int, total: int) -> "RatioLaw":
        """The average of ``used`` bins of this law's mean ratio and ``total - used`` bins of ratio 1."""
        check_integer(1, used=used, total=total)
        share = used / total
        excess = share * self.excess
        return replace(self, ratio=1 + excess, excess=excess) if used < total else self

    def _with_factor(self, epsilon: float) -> tuple[float, float]:
        """Both deltas with the Gaussian factor, integrated in closed form per atom (Black and Scholes 1973)."""
        c = self.common
        distance = self.log_ratio()
        up = (distance - epsilon) / c
        call = self.ratio * special.ndtr(up + c / 2) - math.exp(epsilon) * special.ndtr(up - c / 2)
        down = (-distance - epsilon) / c
        put = special.ndtr(down + c / 2) - math.exp(epsilon) * self.ratio * special.ndtr(down - c / 2)
        return float(self.mass @ np.maximum(call, 0.0)), float(self.mass @ np.maximum(put, 0.0))

    def _slack(self) -> float:
        return self.rounding + (_EVALUATION if self.common > 0 else 1e-11)

    def _closed(self, value: float, dropped: float) -> float:
        if self.side == "upper":
            return min(1.0, value * (1 + self._slack()) + dropped)
        return max(0.0, value * (1 - self._slack()))

    def _open(self, delta: float, dropped: float) -> float:
        if self.side == "upper":
            return (delta - dropped) / (1 + self._slack())
        return delta / (1 - self._slack())


def _log1p_floored(excess: float) -> float:
    return math.log1p(excess) if excess > 0 else 0.0


def _solve(delta_of: Callable[[float], float], target: float, start: float, side: Side) -> float:
    """Epsilon at which a decreasing delta meets the target; the end of the last bracket that is safe for the side.

    Illinois iteration on log delta from a bracket around ``start``, to a relative 1e-9.
    """
    value = delta_of(0.0)
    if value <= target:
        return 0.0
    low, f_low = 0.0, math.log(value / target)
    step = max(0.01, 0.05 * start)
    high = max(start, 1e-12)
    f_high = _log_ratio(delta_of(high), target)
    while f_high > 0:
        low, f_low = high, f_high
        high, step = high + step, 3 * step
        if high > 700:
            return math.inf
        f_high = _log_ratio(delta_of(high), target)
    for _ in range(100):
        if high - low <= 1e-9 * high:
            break
        weight = f_low / (f_low - f_high)
        middle = low + (high - low) * min(max(weight, 1e-3), 1 - 1e-3)
        # The guess is moved a little beyond the root in turn, so that both ends close in.
        nudge = 2e-10 * high
        middle += nudge if f_low > -f_high else -nudge
        if not low < middle < high:
            middle = 0.5 * (low + high)
        f_middle = _log_ratio(delta_of(middle), target)
        if f_middle > 0:
            low, f_low = middle, f_middle
            f_high /= 2
        else:
            high, f_high = middle, f_middle
            f_low /= 2
    return high if side == "upper" else low


def _finite(start: float) -> float:
    return start if math.isfinite(start) else 1.0


def _log_ratio(value: float, target: float) -> float:
    """Bounded logarithm, so that a vanishing delta does not spoil the interpolation."""
    return math.log(value / target) if value > target * 1e-40 else -92.0
