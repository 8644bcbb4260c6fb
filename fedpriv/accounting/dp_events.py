"""Reading ``dp_accounting`` event trees, so that other people's mechanisms compose with ours.

The library's noise multipliers are relative to the norm bound C of one contribution, whatever the
neighbouring relation; replacing one contribution moves a sum by up to 2 C. So everything read under
replace_one is halved here, which the library's Rényi accountant does not do.

Formal guarantees
-----------------
* A tree is either translated into events whose composition costs at least what the tree's mechanism costs, or
  refused with the name of the part that has no translation.
* Several Gaussians under one Poisson or fixed-size sample share one coin: they become one event with noise
  multiplier ``(sum z_i^-2)^(-1/2)``.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.accounting.curves import DirectionalCurves, FloatArray, RdpCurve, infinite_curve
from fedpriv.accounting.events import (
    BOTH,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    PrivacyEvent,
    register_event,
)
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_integer,
    check_non_negative,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency

if TYPE_CHECKING:
    import dp_accounting


@register_event
@dataclass(frozen=True)
class Laplace(PrivacyEvent):
    """One release with Laplace noise on every coordinate.

    Parameters
    ----------
    noise_multiplier : float
        Scale of the noise over the true L1 sensitivity under the ledger's adjacency, >= 0; 0 means infinite.

    Notes
    -----
    Formal guarantee: Mironov 2017 (arXiv 1702.07476), proposition 6, for one coordinate. The curve is
    convex in the shift and 0 at 0, hence superadditive: putting the whole shift on one coordinate is the
    worst case.
    """

    noise_multiplier: float

    kind = "laplace"
    adjacencies = BOTH

    def __post_init__(self) -> None:
        check_non_negative(noise_multiplier=self.noise_multiplier)

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """``log(a/(2a-1) e^((a-1)t) + (a-1)/(2a-1) e^(-a t)) / (a-1)`` with t = 1 / noise_multiplier."""
        if self.noise_multiplier == 0:
            return DirectionalCurves.symmetric(infinite_curve(orders))
        t = 1 / self.noise_multiplier
        # t + log(1 + (a-1)(e^((1-2a)t) - 1)/(2a-1)) / (a-1): nothing overflows, little cancels.
        share = (orders - 1) / (2 * orders - 1)
        values = t + np.log1p(share * np.expm1((1 - 2 * orders) * t)) / (orders - 1)
        # For small t the difference loses digits; a t^2 / 2 bounds it there.
        values = np.minimum(values + 1e-15 * t, orders * t * t / 2)
        return DirectionalCurves.symmetric(RdpCurve(orders, values))


@register_event
@dataclass(frozen=True)
class ZeroConcentrated(PrivacyEvent):
    """A mechanism of which only (xi, rho)-zCDP is known: RDP(alpha) <= xi + rho alpha (arXiv 1605.02065).

    Parameters
    ----------
    rho, xi : float
        >= 0, as proven under the ledger's adjacency.
    """

    rho: float
    xi: float = 0.0

    kind = "zero_concentrated"
    adjacencies = BOTH

    def __post_init__(self) -> None:
        check_non_negative(rho=self.rho, xi=self.xi)

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """``xi + rho alpha``."""
        return DirectionalCurves.symmetric(RdpCurve(orders, self.xi + self.rho * orders))


def events_from_dp_event(
    event: "dp_accounting.DpEvent", adjacency: Adjacency
) -> list[tuple[PrivacyEvent, int]]:
    """Translate an event tree into events and counts for `Accountant.compose`.

    Reads NoOp, NonPrivate, Gaussian, Laplace, zCDP, SelfComposed, Composed, and Poisson or fixed-size
    samples of Gaussians.

    Parameters
    ----------
    event : dp_accounting.DpEvent
        The tree.
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation of the accountant that will compose the result.

    Returns
    -------
    list of (PrivacyEvent, int)
        Equal events are grouped.

    Raises
    ------
    InvalidArgument
        When a part has no translation, or does not hold under the adjacency; the message names it.
    """
    check_choice(ADJACENCIES, adjacency=adjacency)
    found: dict[PrivacyEvent, int] = {}
    for item, count in _walk(event, adjacency, 1):
        found[item] = found.get(item, 0) + count
    return list(found.items())


def _walk(event: Any, adjacency: Adjacency, count: int) -> list[tuple[PrivacyEvent, int]]:
    # By class name, so that reading events does not import the library before the caller has.
    name = type(event).__name__
    scale = 2.0 if adjacency == "replace_one" else 1.0
    if count == 0 or name == "NoOpDpEvent":
        return []
    if name == "NonPrivateDpEvent":
        return [(NonPrivate("a NonPrivateDpEvent"), count)]
    if name == "GaussianDpEvent":
        return [(Gaussian(event.noise_multiplier / scale), count)]
    if name == "LaplaceDpEvent":
        return [(Laplace(event.noise_multiplier / scale), count)]
    if name == "ZCDpEvent":
        return [(ZeroConcentrated(event.rho, event.xi), count)]
    if name == "SelfComposedDpEvent":
        check_integer(0, count=event.count)
        return _walk(event.event, adjacency, count * event.count)
    if name == "ComposedDpEvent":
        return [pair for part in event.events for pair in _walk(part, adjacency, count)]
    if name == "PoissonSampledDpEvent":
        if adjacency != "add_or_remove":
            raise InvalidArgument(f"adjacency must be add_or_remove for {event!r}, got {adjacency}")
        shift = _shift_squared(event.event, name)
        return _sampled(shift, count, lambda z: PoissonGaussian(event.sampling_probability, z))
    if name == "SampledWithoutReplacementDpEvent":
        if adjacency != "replace_one":
            raise InvalidArgument(f"adjacency must be replace_one for {event!r}, got {adjacency}")
        shift = _shift_squared(event.event, name) * scale * scale
        population, sample = event.source_dataset_size, event.sample_size
        return _sampled(shift, count, lambda z: FixedSizeGaussian(population, sample, z))
    raise InvalidArgument(f"event must be built of parts that have a translation, got {event!r}")


def _sampled(shift_squared: float, count: int, make: Any) -> list[tuple[PrivacyEvent, int]]:
    if shift_squared == 0:
        return []
    return [(make(0.0 if math.isinf(shift_squared) else shift_squared**-0.5), count)]


def _shift_squared(event: Any, outer: str) -> float:
    """Sum of ``1 / z^2`` over the Gaussians below a sampling node."""
    name = type(event).__name__
    if name == "NoOpDpEvent":
        return 0.0
    if name == "NonPrivateDpEvent":
        return math.inf
    if name == "GaussianDpEvent":
        check_non_negative(noise_multiplier=event.noise_multiplier)
        return math.inf if event.noise_multiplier == 0 else event.noise_multiplier**-2
    if name == "SelfComposedDpEvent":
        check_integer(0, count=event.count)
        return event.count * _shift_squared(event.event, outer) if event.count else 0.0
    if name == "ComposedDpEvent":
        return math.fsum(_shift_squared(part, outer) for part in event.events)
    raise InvalidArgument(f"event below {outer} must be built of Gaussian events, got {event!r}")
