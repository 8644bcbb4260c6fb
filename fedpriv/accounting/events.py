"""Privacy events: what one release costs, as frozen values that can be hashed, grouped and stored.

An event describes one release relative to the *true* sensitivity of one unit under the adjacency of the
ledger; the mechanism that made it knows that sensitivity, so no event ever doubles or halves anything
itself. Every event says for which adjacencies its mathematics holds, and an accountant refuses it under any
other.

Other families (hidden state, random allocation, ...) define their events in their own modules with
`register_event`; `event_from_json` imports those modules when it meets their kind.
"""

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from fedpriv.accounting.curves import (
    DirectionalCurves,
    FloatArray,
    gaussian_curve,
    infinite_curve,
    zero_curve,
)
from fedpriv.accounting.sampled_gaussian import (
    PLD_DISCRETIZATION,
    fixed_size_gaussian_curve,
    gaussian_pld,
    poisson_gaussian_curve,
)
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_integer,
    check_non_negative,
    check_probability,
)
from fedpriv.accounting.vocabulary import ADJACENCIES

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

BOTH: Final[frozenset[str]] = frozenset(ADJACENCIES)


@dataclass(frozen=True)
class PrivacyEvent(ABC):
    """One release, or one run whose bound does not split into releases.

    Subclasses are frozen dataclasses of numbers, strings and booleans: equal events are grouped, and
    `to_json` is derived from the fields.
    """

    kind: ClassVar[str]
    """Name in ledgers and JSON, unique per class."""
    adjacencies: ClassVar[frozenset[str]]
    """Adjacencies under which `curves` and `pld` are valid."""
    uses_delta: ClassVar[bool] = False
    """True when `bounds` spends delta as failure mass; the accountant divides it among such events."""
    loss_bound: ClassVar[str | None] = None
    """Name of the bound behind `pld` and `gaussian_equivalent` where it is not plain composition."""
    assumptions: ClassVar[tuple[str, ...]] = ()
    """Sentences that must be true of the run for the bound to hold; shown wherever epsilon is shown."""

    @abstractmethod
    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """Rényi curves of the two directions on the given orders (infinite where nothing is known)."""

    def bounds(self, orders: FloatArray, delta: float) -> dict[str, DirectionalCurves]:
        """All valid bounds by name; the accountant converts each and keeps the smallest epsilon.

        Events whose curves are optimised for a target delta, or carry a failure mass, override this.

        Parameters
        ----------
        orders : array of shape (n,)
            Orders > 1.
        delta : float
            The part of delta that this event may spend.
        """
        return {"rdp": self.curves(orders)}

    def pld(self, discretization: float = PLD_DISCRETIZATION) -> "PrivacyLossDistribution | None":
        """Pessimistic privacy-loss distribution on a grid of the given step; None where none is known."""
        return None

    def gaussian_equivalent(self) -> float | None:
        """``1 / z^2`` when the event is exactly a Gaussian with multiplier z (0: no release), None otherwise.

        Gaussian releases compose exactly into one, by adding these numbers.
        """
        return None

    def gaussian_bounds(self, delta: float) -> dict[str, tuple[float, float]]:
        """Bounds by name that are Gaussians up to a failure mass: name -> (``1 / z^2``, failure mass).

        The event's outcome is within total variation ``failure mass`` of a law that a Gaussian pair
        dominates for every epsilon (not only in Rényi divergence), in both directions. Optimised at
        ``delta``, the part that the event may spend. By default the `gaussian_equivalent`, unnamed and
        without a mass.
        """
        equivalent = self.gaussian_equivalent()
        return {} if equivalent is None else {"": (equivalent, 0.0)}

    def parts(self) -> tuple[tuple["PrivacyEvent", int], ...]:
        """What an accountant composes: the event itself, or the events and counts that it is made of."""
        return ((self, 1),)

    def to_json(self) -> dict[str, Any]:
        """JSON object with the kind and the fields; `event_from_json` reads it back."""
        return {"kind": self.kind, **asdict(self)}


_REGISTRY: dict[str, type[PrivacyEvent]] = {}

_MODULES: Final[tuple[str, ...]] = (
    "fedpriv.accounting.dp_events",
    "fedpriv.accounting.amplification_by_iteration",
    "fedpriv.accounting.zeroth_order",
    "fedpriv.accounting.allocation_events",
    "fedpriv.accounting.local_steps",
)
"""Modules whose import registers further events; imported only when an unknown kind is met."""

EventType = TypeVar("EventType", bound=type[PrivacyEvent])


def register_event(cls: EventType) -> EventType:
    """Class decorator: make `event_from_json` know the class by its ``kind``.

    Raises
    ------
    InvalidArgument
        When another class has the same kind.
    """
    known = _REGISTRY.get(cls.kind)
    if known is not None and known.__qualname__ != cls.__qualname__:
        raise InvalidArgument(f"kind must be unique per event class, got {cls.kind!r} twice ({known}, {cls})")
    _REGISTRY[cls.kind] = cls
    return cls


def event_from_json(data: Mapping[str, Any]) -> PrivacyEvent:
    """Rebuild an event from `PrivacyEvent.to_json`.

    Raises
    ------
    InvalidArgument
        When the kind is unknown or the fields are not those of its class.
    """
    kind = data.get("kind")
    for module in _MODULES:
        if kind in _REGISTRY:
            break
        importlib.import_module(module)
    cls = _REGISTRY.get(str(kind))
    if cls is None:
        raise InvalidArgument(f"kind must be one of {', '.join(sorted(_REGISTRY))}, got {kind!r}")
    arguments = {name: value for name, value in data.items() if name != "kind"}
    names = [field.name for field in fields(cls) if field.init]
    if set(arguments) - set(names):
        raise InvalidArgument(f"fields of event {kind!r} must be among {names}, got {sorted(arguments)}")
    try:
        return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in arguments.items()})
    except TypeError as error:
        raise InvalidArgument(f"fields of event {kind!r} must be {names}, got {sorted(arguments)}") from error


@register_event
@dataclass(frozen=True)
class NoRelease(PrivacyEvent):
    """Nothing that depends on private data is released: epsilon 0."""

    kind = "no_release"
    adjacencies = BOTH

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """Zero at every order."""
        return DirectionalCurves.symmetric(zero_curve(orders))

    def gaussian_equivalent(self) -> float | None:
        """0: adds nothing."""
        return 0.0


@register_event
@dataclass(frozen=True)
class NonPrivate(PrivacyEvent):
    """A release without any guarantee: epsilon is infinite.

    Parameters
    ----------
    reason : str
        Why, in words for the report.
    """

    reason: str = "released without noise"

    kind = "non_private"
    adjacencies = BOTH

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """Infinite at every order."""
        return DirectionalCurves.symmetric(infinite_curve(orders))


@register_event
@dataclass(frozen=True)
class Gaussian(PrivacyEvent):
    """One Gaussian release that every unit takes part in, or whose cohort the view can see.

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation over the true L2 sensitivity *under the ledger's adjacency* (a sum of
        contributions clipped to C has sensitivity C under add_or_remove and 2 C under replace_one). 0 means
        infinite epsilon.

    Notes
    -----
    Formal guarantees: RDP(alpha) = alpha / (2 z^2) exactly (Mironov 2017); (epsilon, delta) exactly by the
    analytic Gaussian curve (Balle and Wang 2018), which the accountant uses for compositions of Gaussians.
    """

    noise_multiplier: float

    kind = "gaussian"
    adjacencies = BOTH

    def __post_init__(self) -> None:
        check_non_negative(noise_multiplier=self.noise_multiplier)

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """``alpha / (2 z^2)`` in both directions."""
        return DirectionalCurves.symmetric(gaussian_curve(self.noise_multiplier, orders))

    def pld(self, discretization: float = PLD_DISCRETIZATION) -> "PrivacyLossDistribution | None":
        """From ``dp_accounting`` (pessimistic, connect-the-dots)."""
        return gaussian_pld(1.0, self.noise_multiplier, discretization)

    def gaussian_equivalent(self) -> float | None:
        """``1 / z^2``."""
        return _shift_squared(self.noise_multiplier)


@register_event
@dataclass(frozen=True)
class PoissonGaussian(PrivacyEvent):
    """One sum over a Poisson-sampled, secret cohort, with Gaussian noise that does not depend on the cohort.

    Every unit takes part independently with probability ``sampling_rate``, the view cannot see who did, the
    noise has the same variance whoever took part, and a round never ends in a way that depends on the
    cohort. Otherwise charge `Gaussian` instead. Statistics taken from one cohort share one coin: describe
    them by one event with noise multiplier ``(z_1^-2 + z_2^-2)^(-1/2)``.

    Parameters
    ----------
    sampling_rate : float
        q in [0, 1]; 0 gives a zero curve, 1 the plain Gaussian.
    noise_multiplier : float
        Noise standard deviation over the clip norm (the sensitivity under add_or_remove), >= 0.

    Notes
    -----
    Formal guarantees: the curve is S_alpha(q, z) of Mironov, Talwar, Zhang 2019 (arXiv 1908.10530), which
    bounds both directions, as computed by ``dp_accounting``; where the library overshoots or fails at a
    fractional order, the convexity of ``(alpha - 1) RDP(alpha)`` is used instead, in particular RDP(alpha)
    <= RDP(2) below order 2.
    """

    sampling_rate: float
    noise_multiplier: float

    kind = "poisson_gaussian"
    adjacencies = frozenset({"add_or_remove"})
    assumptions = (
        "the view cannot see who takes part in a round",
        "the noise does not depend on who takes part, and no round is skipped because of it",
    )

    def __post_init__(self) -> None:
        check_probability(sampling_rate=self.sampling_rate)
        check_non_negative(noise_multiplier=self.noise_multiplier)

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """The sampled Gaussian bound, cached per (rate, multiplier, orders)."""
        return DirectionalCurves.symmetric(
            poisson_gaussian_curve(self.sampling_rate, self.noise_multiplier, orders)
        )

    def pld(self, discretization: float = PLD_DISCRETIZATION) -> "PrivacyLossDistribution | None":
        """From ``dp_accounting``, both directions (pessimistic, connect-the-dots)."""
        return gaussian_pld(self.sampling_rate, self.noise_multiplier, discretization)

    def gaussian_equivalent(self) -> float | None:
        """The plain Gaussian when everyone takes part, nothing when nobody does."""
        if self.sampling_rate == 0:
            return 0.0
        return _shift_squared(self.noise_multiplier) if self.sampling_rate == 1 else None


@register_event
@dataclass(frozen=True)
class FixedSizeGaussian(PrivacyEvent):
    """One sum over a secret cohort of fixed size, drawn uniformly without replacement, with Gaussian noise.

    Parameters
    ----------
    population_size : int
        Number of units, >= 1.
    sample_size : int
        Units in the cohort, between 0 and the population size.
    noise_multiplier : float
        Noise standard deviation over ``2 C``, C the clip norm: the sensitivity under replace_one.

    Notes
    -----
    Formal guarantees: theorem 27 of Wang, Balle, Kasiviswanathan 2019 (arXiv 1808.00087) at integer orders,
    as computed by ``dp_accounting``, whose noise multiplier is relative to the replace-one sensitivity; the
    convex chord between them. Replace_one only: under add_or_remove another unit takes the free place, and
    the bound is false.
    """

    population_size: int
    sample_size: int
    noise_multiplier: float

    kind = "fixed_size_gaussian"
    adjacencies = frozenset({"replace_one"})
    assumptions = (
        "the view cannot see who takes part in a round",
        "the noise does not depend on who takes part, and no round is skipped because of it",
    )

    def __post_init__(self) -> None:
        check_integer(1, population_size=self.population_size)
        check_integer(0, sample_size=self.sample_size)
        if self.sample_size > self.population_size:
            raise InvalidArgument(
                f"sample_size must be at most population_size = {self.population_size}, "
                f"got {self.sample_size}"
            )
        check_non_negative(noise_multiplier=self.noise_multiplier)

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """The bound for sampling without replacement, cached."""
        return DirectionalCurves.symmetric(
            fixed_size_gaussian_curve(self.population_size, self.sample_size, self.noise_multiplier, orders)
        )

    def pld(self, discretization: float = PLD_DISCRETIZATION) -> "PrivacyLossDistribution | None":
        """None, unless everyone is drawn (then the plain Gaussian) or nobody."""
        if self.sample_size in (0, self.population_size):
            return gaussian_pld(float(self.sample_size > 0), self.noise_multiplier, discretization)
        return None

    def gaussian_equivalent(self) -> float | None:
        """The plain Gaussian when everyone is drawn, nothing when nobody is."""
        if self.sample_size == 0:
            return 0.0
        return _shift_squared(self.noise_multiplier) if self.sample_size == self.population_size else None


def _shift_squared(noise_multiplier: float) -> float:
    return math.inf if noise_multiplier == 0 else 1 / noise_multiplier / noise_multiplier
