"""The accountant: composes events under one adjacency and answers with the smallest valid epsilon.

Formal guarantees
-----------------
* Every reported epsilon is an upper bound for the adaptive composition of the events, provided their
  assumptions hold.
* An event whose mathematics does not cover the accountant's adjacency is refused.
* Rényi and privacy-loss bounds are both valid; the report carries both and names the one that won.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fedpriv.accounting.composition import ComposedLoss, best_gaussian, compose_losses
from fedpriv.accounting.curves import (
    DEFAULT_ORDERS,
    ConvertedEpsilon,
    DirectionalCurves,
    FloatArray,
    check_orders,
    epsilon_of_arrays,
    is_edge,
    zero_curve,
)
from fedpriv.accounting.events import NonPrivate, PrivacyEvent, event_from_json
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_delta,
    check_integer,
    check_non_negative,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, UNITS, Adjacency, Unit

_LARGEST_ORDER: Final = 2.0**16
_SMALLEST_ORDER: Final = 1 + 2.0**-10
_MOST_COMBINATIONS: Final = 256


@dataclass(frozen=True)
class Epsilon:
    """The answer of an accountant.

    Parameters
    ----------
    epsilon : float
        Smallest valid epsilon in nats; infinite when there is no guarantee.
    delta : float
        The delta it holds at.
    bound : str
        What proved it: ``rdp``, ``pld``, ``analytic`` (the exact Gaussian curve), the name of a bound of
        one of the events, or ``none`` when nothing was released or nothing is guaranteed.
    order : float or None
        The best order of the Rényi bound.
    rdp_epsilon : float
        The Rényi bound.
    pld_epsilon : float or None
        The bound by privacy-loss distributions (the analytic one for Gaussians), None where there is none.
    notes : tuple of str
        What a reader should know about the number.
    """

    epsilon: float
    delta: float
    bound: str
    order: float | None = None
    rdp_epsilon: float = math.inf
    pld_epsilon: float | None = None
    notes: tuple[str, ...] = field(default=())


class Accountant:
    """Composes privacy events under one adjacency and unit.

    Parameters
    ----------
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation of the ledger.
    unit : {"client", "record"}
        What is protected.
    orders : array, optional
        Rényi orders to start from; the grid grows by itself while the best order sits at its edge.

    Examples
    --------
    >>> from fedpriv.accounting import Accountant, Gaussian
    >>> round(Accountant("replace_one").compose(Gaussian(0.5)).epsilon(1e-5).epsilon, 3)
    9.997
    """

    def __init__(
        self, adjacency: Adjacency, unit: Unit = "client", orders: FloatArray | Iterable[float] | None = None
    ) -> None:
        check_choice(ADJACENCIES, adjacency=adjacency)
        check_choice(UNITS, unit=unit)
        self.adjacency: Final[Adjacency] = adjacency
        self.unit: Final[Unit] = unit
        self._events: dict[PrivacyEvent, int] = {}
        self._orders = DEFAULT_ORDERS if orders is None else check_orders(list(orders))
        self._curves: dict[PrivacyEvent, DirectionalCurves] = {}
        self._bounds: dict[tuple[PrivacyEvent, float], dict[str, DirectionalCurves]] = {}
        self._reset_totals()

    @property
    def events(self) -> dict[PrivacyEvent, int]:
        """Events composed so far and their counts (a copy)."""
        return dict(self._events)

    @property
    def orders(self) -> FloatArray:
        """The current grid of orders."""
        return self._orders

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of all composed events, each once."""
        return tuple(dict.fromkeys(text for event in self._events for text in event.assumptions))

    def compose(self, event: PrivacyEvent, count: int = 1) -> "Accountant":
        """Add ``count`` (adaptively chosen) releases of one kind and return the accountant.

        Raises
        ------
        InvalidArgument
            When the event does not hold under the accountant's adjacency (the message names both), or the
            count is not an integer >= 0.
        """
        if not isinstance(event, PrivacyEvent):
            raise InvalidArgument(f"event must be a PrivacyEvent, got {event!r}")
        check_integer(0, count=count)
        if self.adjacency not in event.adjacencies:
            allowed = ", ".join(sorted(event.adjacencies))
            raise InvalidArgument(
                f"adjacency must be {allowed} for {event!r}, but the accountant's is {self.adjacency}"
            )
        if count == 0:
            return self
        for part, times in event.parts():
            self._events[part] = self._events.get(part, 0) + times * int(count)
            if _has_one_bound(part):
                self._add_to_totals(part, times * int(count))
        return self

    def merge(self, other: "Accountant") -> "Accountant":
        """Compose everything another accountant holds.

        Raises
        ------
        InvalidArgument
            When adjacency or unit differ; the message names both.
        """
        for name in ("adjacency", "unit"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InvalidArgument(f"{name} must be equal to compose: {mine} and {theirs} do not mix")
        for event, count in other._events.items():
            self.compose(event, count)
        return self

    def copy(self) -> "Accountant":
        """An independent accountant with the same content."""
        other = Accountant(self.adjacency, self.unit, self._orders)
        other._events = dict(self._events)
        other._curves = dict(self._curves)
        other._bounds = dict(self._bounds)
        other._remove, other._add = self._remove.copy(), self._add.copy()
        other._symmetric, other._delta_0 = self._symmetric, self._delta_0
        return other

    def rdp_epsilon(self, delta: float) -> float:
        """The Rényi bound alone, in microseconds per call (the curves are cached)."""
        check_delta(delta=delta)
        return self._converted(delta)[0].epsilon

    def epsilon(self, delta: float, use_pld: bool = True) -> Epsilon:
        """Smallest valid epsilon of everything composed so far.

        Parameters
        ----------
        delta : float
            In [0, 1).
        use_pld : bool
            Also compose privacy-loss distributions where every event has one (about a second).

        Raises
        ------
        InvalidArgument
            When delta is out of range, or is used up by the failure mass of the events.
        """
        check_delta(delta=delta)
        reasons = [event.reason for event in self._events if isinstance(event, NonPrivate)]
        if reasons:
            return Epsilon(
                math.inf, delta, "none", notes=tuple(f"no guarantee: {reason}" for reason in reasons)
            )
        converted, bound = self._converted(delta)
        notes = [converted.note] if converted.note else []
        rdp_epsilon, pld_epsilon = converted.epsilon, None
        loss = compose_losses(self._events) if use_pld else None
        if loss is not None:
            pld_epsilon, reason = loss.epsilon(delta)
            notes += [reason] if reason else []
            if pld_epsilon is not None and pld_epsilon <= rdp_epsilon:
                # Distributions follow the bound that won by Rényi: plain composition keeps no special name.
                winners = bound.split("+")
                named = dict.fromkeys(e.loss_bound for e in self._events if e.loss_bound in winners)
                bound = "+".join(filter(None, named)) or loss.name
        epsilon = rdp_epsilon if pld_epsilon is None else min(pld_epsilon, rdp_epsilon)
        sharper = best_gaussian(self._events, delta, self._share(delta)) if use_pld else None
        if sharper is not None and sharper[1] and sharper[0] < epsilon:
            epsilon = pld_epsilon = sharper[0]
            bound = "+".join(dict.fromkeys(sharper[1]))
        if math.isinf(epsilon) or not any(event.gaussian_equivalent() != 0 for event in self._events):
            bound = "none"
        return Epsilon(epsilon, delta, bound, converted.order, rdp_epsilon, pld_epsilon, tuple(notes))

    def delta(self, epsilon: float, use_pld: bool = True) -> float:
        """Smallest valid delta of everything composed so far, at ``epsilon`` >= 0.

        Events whose bounds are optimised for a target delta contribute their plain Rényi curve.
        """
        check_non_negative(epsilon=epsilon)
        total = DirectionalCurves.symmetric(zero_curve(self._orders))
        for event, count in self._events.items():
            total += event.curves(self._orders).scaled(count)
        delta = total.to_delta(epsilon)
        loss: ComposedLoss | None = compose_losses(self._events) if use_pld else None
        return delta if loss is None else min(delta, loss.delta(epsilon))

    def would_be(
        self, events: Iterable[tuple[PrivacyEvent, int]], delta: float, use_pld: bool = True
    ) -> Epsilon:
        """Epsilon after composing further events, without composing them."""
        trial = self.copy()
        for event, count in events:
            trial.compose(event, count)
        return trial.epsilon(delta, use_pld)

    def to_json(self) -> dict[str, Any]:
        """JSON object with adjacency, unit and grouped events; `from_json` reads it back."""
        return {
            "adjacency": self.adjacency,
            "unit": self.unit,
            "events": [{"event": event.to_json(), "count": count} for event, count in self._events.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Accountant":
        """Rebuild an accountant from `to_json`."""
        accountant = cls(data["adjacency"], data["unit"])
        for item in data["events"]:
            accountant.compose(event_from_json(item["event"]), item["count"])
        return accountant

    # The totals of events with a single curve are kept as plain arrays: a round costs two additions.

    def _reset_totals(self) -> None:
        self._remove = np.zeros(self._orders.shape)
        self._add = np.zeros(self._orders.shape)
        self._symmetric, self._delta_0 = True, 0.0
        self._curves.clear()
        self._bounds.clear()
        for event, count in self._events.items():
            if _has_one_bound(event):
                self._add_to_totals(event, count)

    def _add_to_totals(self, event: PrivacyEvent, count: int) -> None:
        curves = self._curves.get(event)
        if curves is None:
            curves = self._curves[event] = event.curves(self._orders)
        self._remove += count * curves.remove.rdp
        self._add += count * curves.add.rdp
        self._symmetric = self._symmetric and curves.add is curves.remove
        self._delta_0 += count * max(curves.remove.delta_0, curves.add.delta_0)

    def _converted(self, delta: float) -> tuple[ConvertedEpsilon, str]:
        """Convert on the current grid, and extend the grid while the best order sits at its edge."""
        best, bound = self._convert_once(delta)
        while best.order is not None and is_edge(self._orders, best.order):
            longer = _extended(self._orders, best.order)
            if longer is None:
                break
            previous = best
            self._orders = longer
            self._reset_totals()
            best, bound = self._convert_once(delta)
            if best.order == previous.order:
                break
        if best.order is None or not is_edge(self._orders, best.order):
            return best, bound
        note = f"the best order {best.order:g} is at the edge of the grid: others may give a smaller epsilon"
        return ConvertedEpsilon(best.epsilon, best.order, note), bound

    def _convert_once(self, delta: float) -> tuple[ConvertedEpsilon, str]:
        choices = [
            [(name, curves.scaled(count)) for name, curves in self._bounds_of(event, delta).items()]
            for event, count in self._events.items()
            if not _has_one_bound(event)
        ]
        if not choices:
            self._check_spendable(delta, self._delta_0)
            return self._convert_arrays(
                self._remove, self._add, self._symmetric, delta - self._delta_0
            ), "rdp"
        if math.prod(len(names) for names in choices) > _MOST_COMBINATIONS:
            # Too many to try together: keep, for every event, the bound that is best on its own.
            choices = [[min(names, key=lambda c: _epsilon_or_infinity(c[1], delta))] for names in choices]
        best: tuple[ConvertedEpsilon, str] | None = None
        least_mass = math.inf
        for combination in itertools.product(*choices):
            remove, add, mass = self._remove.copy(), self._add.copy(), self._delta_0
            for _, curves in combination:
                remove += curves.remove.rdp
                add += curves.add.rdp
                mass += max(curves.remove.delta_0, curves.add.delta_0)
            least_mass = min(least_mass, mass)
            if mass > 0 and mass >= delta:
                continue
            converted = self._convert_arrays(remove, add, False, delta - mass)
            if best is None or converted.epsilon < best[0].epsilon:
                named = dict.fromkeys(name for name, _ in combination if name != "rdp")
                best = converted, "+".join(named) or "rdp"
        if best is None:
            self._check_spendable(delta, least_mass)
            raise AssertionError("an event offered no bound")
        return best

    def _bounds_of(self, event: PrivacyEvent, delta: float) -> dict[str, DirectionalCurves]:
        key = (event, self._share(delta))
        if key not in self._bounds:
            self._bounds[key] = event.bounds(self._orders, key[1])
        return self._bounds[key]

    def _share(self, delta: float) -> float:
        """The part of delta that one of the events that use it may spend."""
        return delta / max(1, sum(count for event, count in self._events.items() if event.uses_delta))

    def _convert_arrays(
        self, remove: FloatArray, add: FloatArray, symmetric: bool, delta: float
    ) -> ConvertedEpsilon:
        epsilon, index = epsilon_of_arrays(self._orders, remove, delta)
        if not symmetric:
            other, other_index = epsilon_of_arrays(self._orders, add, delta)
            if other > epsilon:
                epsilon, index = other, other_index
        return ConvertedEpsilon(epsilon, None if index is None else float(self._orders[index]))

    @staticmethod
    def _check_spendable(delta: float, mass: float) -> None:
        if mass > 0 and delta <= mass:
            raise InvalidArgument(
                f"delta must be above the failure mass delta_0 = {mass:g} of the events, got {delta!r}"
            )


def _has_one_bound(event: PrivacyEvent) -> bool:
    return type(event).bounds is PrivacyEvent.bounds


def _epsilon_or_infinity(curves: DirectionalCurves, delta: float) -> float:
    try:
        return curves.to_epsilon(delta).epsilon
    except InvalidArgument:
        return math.inf


def _extended(orders: FloatArray, edge: float) -> FloatArray | None:
    """The grid with two more orders beyond the given edge; None when the limits are reached."""
    if edge == orders[-1]:
        if edge >= _LARGEST_ORDER:
            return None
        beyond = [float(round(1.5 * edge)), float(round(2 * edge))] if edge >= 2 else [2.0, 3.0]
        return np.concatenate([orders, np.array(beyond)])
    if edge <= _SMALLEST_ORDER:
        return None
    return np.concatenate([np.array([1 + (edge - 1) / 2, 1 + (edge - 1) * 0.75]), orders])
