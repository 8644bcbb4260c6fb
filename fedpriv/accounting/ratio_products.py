"""Composition of likelihood-ratio laws, and their hand-over to ``dp_accounting``.

The ratio of a composition of independent releases is the product of their ratios. On a geometric grid ``e^(j h)``
products stay on the grid, so k-fold composition is done by doubling with direct convolutions of non-negative numbers:
unlike Fourier methods there is no floor below which delta is lost in rounding noise. The grid is coarsened as the
loss spreads, by mean-preserving splits for upper laws ("connect the dots", Doroshenko et al. 2022,
arXiv 2207.04380) and by conditional means for lower laws.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fedpriv.accounting.ratio_law import FloatArray, RatioLaw, Side
from fedpriv.accounting.validators import check_integer, check_positive

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_PRICE: Final = 1e-6
_STEP: Final = 1 / 128
_LARGEST_GRID: Final = 16384
_LARGEST_LOSS: Final = 600.0
_NEGLIGIBLE: Final = 1e-20


@dataclass(frozen=True, eq=False)
class _GridLaw:
    """Masses at ratios ``e^((first + j) h)``; ``moment / mass`` in [1, e^h) places an atom inside its cell (lower)."""

    side: Side
    step: float
    first: int
    mass: FloatArray
    moment: FloatArray
    dropped_mass: float
    dropped_mean: float

    def logs(self) -> FloatArray:
        return (self.first + np.arange(self.mass.size, dtype=np.float64)) * self.step


def compose_ratio_law(law: RatioLaw, count: int, smallest_delta: float = 1e-12) -> RatioLaw:
    """Law of the ratio of ``count`` independent repetitions, rounded on the same side as ``law``.

    Parameters
    ----------
    law : RatioLaw
        One release, without a Gaussian factor.
    count : int
        Number of repetitions, >= 1.
    smallest_delta : float
        Smallest delta the result will be asked about; tails are cut relative to it.

    Raises
    ------
    OverflowError
        When losses that matter exceed 600 nats: ratios would leave the range of floating-point numbers.

    Notes
    -----
    Formal guarantees: the result bounds the profile of the composition from the same side as ``law`` bounds that of
    one release, also under adaptive composition (both payoffs are convex in each ratio).
    """
    check_integer(1, count=count)
    check_positive(smallest_delta=smallest_delta)
    if law.common > 0:
        raise ValueError("multiply by the Gaussian factor after composing")
    if count == 1:
        return law
    price = _PRICE * smallest_delta
    spread = _spread(law)
    rounding = law.rounding
    result, done = _on_grid(law, _step_for(law, spread, 1, price, count), price, count), 1
    for bit in bin(count)[3:]:
        result = _trimmed(_product(result, result), price, 2 * done / count)
        done, rounding = 2 * done, 2 * rounding + _product_error(result)
        while result.step < _STEP * spread * math.sqrt(done) / 2 or result.mass.size > _LARGEST_GRID:
            result = _coarsened(result)
        if bit == "1":
            single = _on_grid(law, result.step, price, count)
            result = _trimmed(_product(result, single), price, (done + 1) / count)
            done, rounding = done + 1, rounding + law.rounding + _product_error(result)
    used = result.mass > 0
    logs = result.logs()[used] + np.log(result.moment[used] / result.mass[used])
    return RatioLaw(
        law.side,
        np.exp(logs),
        np.expm1(logs),
        result.mass[used],
        result.dropped_mass,
        result.dropped_mean,
        rounding,
    )


def to_pld(law: RatioLaw, discretization: float) -> "PrivacyLossDistribution":
    """Pessimistic privacy-loss distribution of an upper law for ``dp_accounting``.

    Atoms are split in the ratio onto the grid of losses (connect the dots), which keeps both probability measures;
    dropped events become infinite losses.

    Parameters
    ----------
    law : RatioLaw
        An upper law without a Gaussian factor.
    discretization : float
        Grid step of the losses in nats.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    check_positive(discretization=discretization)
    if law.side != "upper" or law.common > 0:
        raise ValueError("only an upper law without a Gaussian factor dominates the mechanism")
    grid = _split(law, discretization)
    scale = 1 + law.rounding + 1e-11
    low, without = grid.first, scale * grid.mass
    with np.errstate(under="ignore"):
        present = without * np.exp(grid.logs())
    pmfs = []
    for probabilities, dropped, flipped in (
        (present, grid.dropped_mean, False),
        (without, grid.dropped_mass, True),
    ):
        values = probabilities[::-1] if flipped else probabilities
        start = -(low + values.size - 1) if flipped else low
        # Losses too negative to matter are raised to the first one kept; that only adds to delta.
        cut = int(np.searchsorted(np.cumsum(values), _NEGLIGIBLE * float(values.sum())))
        kept = values[cut:].copy()
        kept[0] += values[:cut].sum()
        pmfs.append(pld_pmf.DensePLDPmf(discretization, start + cut, kept, min(1.0, dropped), True))
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def _spread(law: RatioLaw) -> float:
    """Typical size of the loss: the smaller of the two root mean squares."""
    used = law.ratio > 0
    log = law.log_ratio()[used]
    q = law.mass[used]
    return math.sqrt(min(float(q @ log**2), float((q * law.ratio[used]) @ log**2)))


def _step_for(law: RatioLaw, spread: float, count: int, price: float, total: int) -> float:
    low, high = _useful_range(law, price, total)
    return max(_STEP * spread * math.sqrt(count), (math.log(high) - math.log(low)) / _LARGEST_GRID)


def _useful_range(law: RatioLaw, price: float, total: int) -> tuple[float, float]:
    """Ratios outside cost at most ``price`` after ``total`` repetitions."""
    present = law.mass * law.ratio
    above_q, above_p = np.cumsum(law.mass[::-1])[::-1], np.cumsum(present[::-1])[::-1]
    below = np.cumsum(law.mass)
    high = int(np.argmax((above_p <= price / total) & (above_q <= price / total)))
    low = int(np.argmax((below > price / total) & (law.ratio > 0)))
    if high == 0:
        high = law.ratio.size - 1
    return float(law.ratio[low]), float(law.ratio[max(high, low + 1) if low + 1 < law.ratio.size else low])


def _on_grid(law: RatioLaw, step: float, price: float, total: int) -> _GridLaw:
    if law.side == "upper":
        return _trimmed(_split(law, step), price, 1 / total)
    used = law.ratio > 0
    log, mass = law.log_ratio()[used], law.mass[used]
    index = np.floor(log / step)
    first = int(index[0])
    place = (index - first).astype(np.int64)
    return _trimmed(
        _GridLaw(
            "lower",
            step,
            first,
            np.bincount(place, mass).astype(np.float64),
            np.bincount(place, mass * np.exp(log - index * step)).astype(np.float64),
            0.0,
            0.0,
        ),
        price,
        1 / total,
    )


def _split(law: RatioLaw, step: float) -> _GridLaw:
    """Mean-preserving split of every atom onto the two nearest grid ratios."""
    used = law.ratio > 0
    log, mass = law.log_ratio()[used], law.mass[used]
    index = np.floor(log / step)
    right = mass * np.clip(np.expm1(log - index * step) / math.expm1(step), 0.0, 1.0)
    first = int(index[0])
    place = (index - first).astype(np.int64)
    size = int(place[-1]) + 2
    grid = np.zeros(size)
    grid += np.bincount(place, mass - right, size)
    grid += np.bincount(place + 1, right, size)
    zero = float(law.mass[~used].sum())
    return _GridLaw("upper", step, first, grid, grid, law.dropped_mass + zero, law.dropped_mean)


def _product(law: _GridLaw, other: _GridLaw) -> _GridLaw:
    mass = np.convolve(law.mass, other.mass)
    first = law.first + other.first
    if (first + mass.size) * law.step > _LARGEST_LOSS:
        raise OverflowError(f"privacy losses above {_LARGEST_LOSS:g} nats are not represented")
    dropped = law.dropped_mass + other.dropped_mass, law.dropped_mean + other.dropped_mean
    if law.side == "upper":
        return _GridLaw("upper", law.step, first, mass, mass, *dropped)
    moment = np.convolve(law.moment, other.moment)
    growth = math.exp(law.step)
    over = moment >= mass * growth
    mass, moment = np.append(np.where(over, 0.0, mass), 0.0), np.append(np.where(over, 0.0, moment), 0.0)
    mass[1:] += np.where(over, np.convolve(law.mass, other.mass), 0.0)
    moment[1:] += np.where(over, np.convolve(law.moment, other.moment) / growth, 0.0)
    return _GridLaw("lower", law.step, first, mass, moment, *dropped)


def _coarsened(law: _GridLaw) -> _GridLaw:
    """Double the step."""
    pad = law.first % 2
    mass = np.concatenate([np.zeros(pad), law.mass, np.zeros(2)])
    moment = np.concatenate([np.zeros(pad), law.moment, np.zeros(2)])
    mass, moment = mass[: mass.size // 2 * 2], moment[: moment.size // 2 * 2]
    even, odd = mass[0::2].copy(), mass[1::2]
    growth = math.exp(law.step)
    first = (law.first - pad) // 2
    if law.side == "upper":
        even += odd * (growth / (growth + 1))
        even[1:] += odd[:-1] / (growth + 1)
        return replace(law, step=2 * law.step, first=first, mass=even, moment=even)
    return replace(
        law, step=2 * law.step, first=first, mass=even + odd, moment=moment[0::2] + moment[1::2] * growth
    )


def _trimmed(law: _GridLaw, price: float, share: float) -> _GridLaw:
    """Cut both ends at the price of ``price`` in the whole run (``share`` is the part of the run done so far)."""
    present = law.moment * np.exp(law.logs())
    above_q, above_p = np.cumsum(law.mass[::-1])[::-1], np.cumsum(present[::-1])[::-1]
    below_q, below_p = np.cumsum(law.mass), np.cumsum(present)
    allowed = price * share
    high = law.mass.size - int(np.sum((above_p <= allowed) & (above_q <= allowed)))
    low = int(np.sum((below_q <= allowed) & (below_p <= allowed)))
    high = max(high, low + 1)
    dropped_mass = law.dropped_mass + float(law.mass[:low].sum() + law.mass[high:].sum())
    dropped_mean = law.dropped_mean + float(present[:low].sum() + present[high:].sum())
    mass, moment = law.mass[low:high].copy(), law.moment[low:high].copy()
    dust = mass < 1e-150
    mass[dust] = 0.0
    moment[dust] = 0.0
    return replace(
        law,
        first=law.first + low,
        mass=mass,
        moment=moment,
        dropped_mass=dropped_mass,
        # Dust is below 1e-150 in mass and lies inside the grid, so its mean is below this too.
        dropped_mean=dropped_mean + float((present[low:high] * dust).sum()),
    )


def _product_error(law: _GridLaw) -> float:
    return (law.mass.size + 20) * float(np.finfo(float).eps)
