"""Composition of privacy-loss distributions at report time.

Events that are exactly Gaussian merge into one Gaussian first (exact); equal events are self-composed once.
When nothing but Gaussians remains, the analytic curve answers and no grid is involved.

The library composes by FFT, whose rounding errors grow with the number of compositions and reach its delta
as if they were probability: 100,000 Gaussians at delta 1e-13 come out 0.46 below the exact epsilon. A bound
on that error is therefore taken off delta (added when asking for delta), and where it is not small against
delta no number is given.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.accounting.events import Gaussian, PrivacyEvent
from fedpriv.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedpriv.accounting.sampled_gaussian import PLD_DISCRETIZATION

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_FFT_ERROR_PER_COMPOSITION = np.finfo(np.float64).eps
"""About ten times the largest error observed against the analytic Gaussian (2e-17 per composition)."""
_LARGEST_GRID = 2_000_000
_MOST_CHOICES = 256


@dataclass(frozen=True)
class ComposedLoss:
    """Privacy-loss distribution of a whole run.

    Parameters
    ----------
    shift_squared : float
        ``1 / z^2`` of the merged Gaussian part.
    distribution : PrivacyLossDistribution or None
        The composed grid distribution, the Gaussian part included; None when the run is exactly Gaussian.
    slack : float
        Rounding error to be taken off delta.
    """

    shift_squared: float
    distribution: "PrivacyLossDistribution | None"
    slack: float

    @property
    def name(self) -> str:
        """``analytic`` for a run of Gaussians, else ``pld``."""
        return "analytic" if self.distribution is None else "pld"

    def epsilon(self, delta: float) -> tuple[float | None, str]:
        """Epsilon at delta, or None and the reason why the grid cannot tell."""
        if self.distribution is None:
            if self.shift_squared == 0:
                return 0.0, ""
            return gaussian_epsilon(self._noise_multiplier(), delta), ""
        if delta <= 2 * self.slack:
            return None, (
                f"delta = {delta:g} is below what the privacy-loss distribution resolves "
                f"({2 * self.slack:.1e}): the Rényi bound is used"
            )
        epsilon = float(self.distribution.get_epsilon_for_delta(delta - self.slack))
        if not math.isfinite(epsilon):
            return (
                None,
                f"delta = {delta:g} is below the tail mass of the privacy-loss distribution: "
                "the Rényi bound is used",
            )
        return epsilon, ""

    def delta(self, epsilon: float) -> float:
        """Delta at epsilon."""
        if self.distribution is None:
            return 0.0 if self.shift_squared == 0 else gaussian_delta(self._noise_multiplier(), epsilon)
        return min(1.0, float(self.distribution.get_delta_for_epsilon(epsilon)) + self.slack)

    def _noise_multiplier(self) -> float:
        return 0.0 if math.isinf(self.shift_squared) else self.shift_squared**-0.5


def compose_losses(events: Mapping[PrivacyEvent, int]) -> ComposedLoss | None:
    """Compose all events exactly; None when one of them has no privacy-loss distribution.

    Parameters
    ----------
    events : mapping of event to count
        What was released, equal events grouped.
    """
    shift_squared, others = 0.0, dict[PrivacyEvent, int]()
    for event, count in events.items():
        equivalent = event.gaussian_equivalent()
        if equivalent is None:
            others[event] = count
        elif count:
            shift_squared += count * equivalent
    if not others or math.isinf(shift_squared):
        return ComposedLoss(shift_squared, None, 0.0)

    parts = dict(others)
    if shift_squared > 0:
        parts[Gaussian(shift_squared**-0.5)] = 1
    step = _discretization(parts)
    composed: Any = None
    for event, count in parts.items():
        distribution: Any = event.pld(step)
        if distribution is None:
            return None
        if count > 1:
            distribution = distribution.self_compose(count)
        composed = distribution if composed is None else composed.compose(distribution)
    slack = _FFT_ERROR_PER_COMPOSITION * (sum(parts.values()) + 16 * len(parts))
    return ComposedLoss(shift_squared, composed, slack)


def best_gaussian(
    events: Mapping[PrivacyEvent, int], delta: float, share: float
) -> tuple[float, tuple[str, ...]] | None:
    """Exact epsilon of the best choice among the events' Gaussian bounds with failure mass.

    Parameters
    ----------
    events : mapping of event to count
        What was released.
    delta : float
        The target; failure masses are taken off it.
    share : float
        The part of delta that one event may spend.

    Returns
    -------
    (float, tuple of str) or None
        Epsilon and the names of the bounds in use; None when an event has no Gaussian bound.
    """
    states: dict[tuple[str, ...], tuple[float, float]] = {(): (0.0, 0.0)}
    for event, count in events.items():
        bounds = event.gaussian_bounds(share)
        states = {
            (*names, *([name] if name else [])): (shift + count * more, mass + count * failing)
            for names, (shift, mass) in states.items()
            for name, (more, failing) in bounds.items()
        }
        if not 0 < len(states) <= _MOST_CHOICES:
            return None
    found = [
        (gaussian_epsilon(0.0 if math.isinf(shift) else shift**-0.5, delta - mass) if shift else 0.0, names)
        for names, (shift, mass) in states.items()
        if mass == 0 or mass < delta
    ]
    return min(found, default=None)


def _discretization(parts: Mapping[PrivacyEvent, int]) -> float:
    """Grid step: a fortieth of the smallest standard deviation of a loss, within reach of memory.

    The variance of a loss is about its Rényi divergence of order 2 for small losses; connect-the-dots
    rounding changes epsilon by about a tenth of (step / deviation)^2 relatively.
    """
    order = np.array([2.0, 3.0])
    variances = {}
    for event in parts:
        curves = event.curves(order)
        variances[event] = max(float(curves.remove.rdp[0]), float(curves.add.rdp[0]))
    finite = [v for v in variances.values() if 0 < v < math.inf]
    if not finite:
        return PLD_DISCRETIZATION
    total = sum(count * variances[event] for event, count in parts.items() if math.isfinite(variances[event]))
    width = total + 20 * math.sqrt(total)
    step = min(math.sqrt(min(finite)) / 40, 1e-3 * max(1.0, width / 20))
    return max(step, width / _LARGEST_GRID, 1e-8)
