"""Rényi curves and their conversion to (epsilon, delta).

A curve is the Rényi divergence of one release (or of a whole run) as a function of the order alpha > 1,
together with a failure mass ``delta_0`` that adds to delta (approximate Rényi DP). Under adaptive
composition curves add: epsilons per order, failure masses as they are.

Sources: Mironov 2017 (arXiv 1702.07476) for Rényi DP and its composition; Canonne, Kamath, Steinke 2020
(arXiv 2004.00010, proposition 12) for the conversion; Bretagnolle and Huber 1979 for ``TV^2 <= 1 -
exp(-KL)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpriv.accounting.validators import (
    InvalidArgument,
    check_delta,
    check_integer,
    check_non_negative,
)

FloatArray = NDArray[np.float64]

DEFAULT_ORDERS: Final[FloatArray] = np.array(
    [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024], dtype=np.float64
)
"""The default orders of ``dp_accounting`` 0.6 (1.1 to 1024), repeated here because importing them is slow."""
DEFAULT_ORDERS.setflags(write=False)


@dataclass(frozen=True)
class ConvertedEpsilon:
    """An epsilon obtained from a curve.

    Parameters
    ----------
    epsilon : float
        The smallest epsilon over the orders; infinite when no order gives a finite one.
    order : float or None
        The order that gave it; None when epsilon is infinite or no order was needed.
    note : str
        Empty, or a sentence the reader of a report should see.
    """

    epsilon: float
    order: float | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class RdpCurve:
    """Rényi divergence as a function of the order.

    Parameters
    ----------
    orders : array of shape (n,)
        Orders alpha > 1, strictly increasing.
    rdp : array of shape (n,)
        Upper bounds on the divergence in nats, one per order; may be infinite.
    delta_0 : float
        Failure mass in [0, 1): the bound holds except on an event of this probability (or for a law at this
        total variation distance), so it is spent from delta before the conversion.
    interpolable : bool
        False when ``delta_0`` or a window was chosen separately per order: then the values do not belong to
        one mechanism and nothing between two orders follows from them.

    Raises
    ------
    InvalidArgument
        When shapes differ, orders are not increasing or not above 1, or a value is negative or NaN.
    """

    orders: FloatArray
    rdp: FloatArray
    delta_0: float = 0.0
    interpolable: bool = True

    def __post_init__(self) -> None:
        orders = _frozen(self.orders)
        rdp = _frozen(self.rdp)
        check_delta(delta_0=self.delta_0)
        if orders.ndim != 1 or orders.size == 0 or orders.shape != rdp.shape:
            raise InvalidArgument(
                "orders and rdp must be non-empty one-dimensional arrays of one length, "
                f"got shapes {orders.shape} and {rdp.shape}"
            )
        if not (np.isfinite(orders).all() and (orders > 1).all() and (np.diff(orders) > 0).all()):
            raise InvalidArgument(
                f"orders must be finite, > 1 and strictly increasing, got {orders.tolist()}"
            )
        if not (rdp >= 0).all():
            raise InvalidArgument(f"rdp must be >= 0 and not NaN at every order, got {rdp.tolist()}")
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "rdp", rdp)

    def __add__(self, other: "RdpCurve") -> "RdpCurve":
        """Compose adaptively with another curve on the same orders.

        Raises
        ------
        InvalidArgument
            When the orders differ or the failure masses add up to 1 or more.
        """
        if not np.array_equal(self.orders, other.orders):
            raise InvalidArgument(
                "curves add on equal orders only, got "
                f"{self.orders.size} and {other.orders.size} orders that differ"
            )
        return RdpCurve(
            self.orders,
            self.rdp + other.rdp,
            _capped(self.delta_0 + other.delta_0),
            self.interpolable and other.interpolable,
        )

    def scaled(self, count: int) -> "RdpCurve":
        """Compose ``count`` times with itself (0 gives the zero curve)."""
        check_integer(0, count=count)
        if count == 0:
            return zero_curve(self.orders)
        return RdpCurve(self.orders, count * self.rdp, _capped(count * self.delta_0), self.interpolable)

    def at(self, orders: ArrayLike) -> "RdpCurve":
        """Move the curve to other orders without ever claiming less than it proves.

        ``(alpha - 1) * RDP(alpha)`` is convex in alpha and 0 at alpha = 1, so the chord between two known
        orders is an upper bound, and below the first known order a_1 the chord from 1 gives ``RDP(alpha) <=
        RDP(a_1)``. Above the last order nothing is known: the value is infinite. A curve that is not
        interpolable keeps its values at its own orders and is infinite elsewhere.

        Parameters
        ----------
        orders : array of shape (m,)
            New orders, > 1, strictly increasing.

        Returns
        -------
        RdpCurve
            On the new orders, with the same ``delta_0``.
        """
        new = np.asarray(orders, dtype=np.float64)
        if np.array_equal(new, self.orders):
            return self
        right = np.searchsorted(self.orders, new, side="left")
        inside = right < self.orders.size
        right = np.minimum(right, self.orders.size - 1)
        exact = self.orders[right] == new
        values = np.full(new.shape, math.inf)
        values[exact] = self.rdp[right[exact]]
        if self.interpolable:
            grid = np.concatenate(([1.0], self.orders))
            moments = np.concatenate(([0.0], (self.orders - 1) * self.rdp))
            between = inside & ~exact
            low, high = right[between], right[between] + 1
            weight = (new[between] - grid[low]) / (grid[high] - grid[low])
            chord = (1 - weight) * moments[low] + weight * moments[high]
            values[between] = chord / (new[between] - 1)
        return RdpCurve(new, values, self.delta_0, self.interpolable)

    def to_epsilon(self, delta: float) -> ConvertedEpsilon:
        """Convert to epsilon at ``delta``.

        ``min over alpha of RDP(alpha) + log(1 - 1/alpha) - log(delta' alpha) / (alpha - 1)`` with
        ``delta' = delta - delta_0``, floored at 0. An order whose divergence is below ``-log(1 -
        delta'^2)`` gives 0, because then the total variation distance is below ``delta'``.

        Parameters
        ----------
        delta : float
            In [0, 1). 0 gives infinity, unless the curve is zero.

        Raises
        ------
        InvalidArgument
            When delta is outside [0, 1), or not above a positive failure mass.
        """
        check_delta(delta=delta)
        if self.delta_0 > 0 and delta <= self.delta_0:
            raise InvalidArgument(
                f"delta must be above the failure mass delta_0 = {self.delta_0:g} of the bound, got {delta!r}"
            )
        epsilon, index = epsilon_of_arrays(self.orders, self.rdp, delta - self.delta_0)
        if index is None:
            return ConvertedEpsilon(epsilon)
        return ConvertedEpsilon(epsilon, float(self.orders[index]), _edge_note(self.orders, index))

    def to_delta(self, epsilon: float) -> float:
        """Smallest delta that the curve proves at ``epsilon`` >= 0, at most 1 (inverse of `to_epsilon`)."""
        check_non_negative(epsilon=epsilon)
        log_ratio, log_order, below = _order_constants(self.orders.tobytes())
        with np.errstate(over="ignore", invalid="ignore"):
            log_delta = (self.rdp - epsilon + log_ratio) * below - log_order
            by_divergence = 0.5 * np.log(
                -np.expm1(-self.rdp), where=self.rdp > 0, out=np.full_like(self.rdp, -math.inf)
            )
        best = float(np.minimum(log_delta, by_divergence).min())
        return min(1.0, self.delta_0 + (math.exp(best) if best < 0 else 1.0))


@dataclass(frozen=True, eq=False)
class DirectionalCurves:
    """The two directions of a neighbouring relation: one curve each.

    Under add_or_remove, ``remove`` bounds D(with the unit || without it) and ``add`` the reverse. Under
    replace_one both usually hold the same curve. Directions are composed and converted separately and the
    larger *epsilon* is taken at the end; the maximum per order would be valid too, but larger than
    necessary.

    Parameters
    ----------
    remove, add : RdpCurve
        On the same orders.
    """

    remove: RdpCurve
    add: RdpCurve

    @classmethod
    def symmetric(cls, curve: RdpCurve) -> "DirectionalCurves":
        """One curve that bounds both directions."""
        return cls(curve, curve)

    def __add__(self, other: "DirectionalCurves") -> "DirectionalCurves":
        """Compose adaptively, direction by direction."""
        remove = self.remove + other.remove
        if self.remove is self.add and other.remove is other.add:
            return DirectionalCurves(remove, remove)
        return DirectionalCurves(remove, self.add + other.add)

    def scaled(self, count: int) -> "DirectionalCurves":
        """Compose ``count`` times, direction by direction."""
        remove = self.remove.scaled(count)
        return DirectionalCurves(remove, remove if self.add is self.remove else self.add.scaled(count))

    def to_epsilon(self, delta: float) -> ConvertedEpsilon:
        """Convert each direction at ``delta`` and return the larger epsilon (with its order and note)."""
        remove = self.remove.to_epsilon(delta)
        if self.add is self.remove:
            return remove
        add = self.add.to_epsilon(delta)
        return add if add.epsilon > remove.epsilon else remove

    def to_delta(self, epsilon: float) -> float:
        """Smallest delta that both directions prove at ``epsilon``."""
        return max(self.remove.to_delta(epsilon), self.add.to_delta(epsilon))


def zero_curve(orders: ArrayLike) -> RdpCurve:
    """Curve of a release that depends on nobody: 0 at every order."""
    array = np.asarray(orders, dtype=np.float64)
    return RdpCurve(array, np.zeros(array.shape))


def infinite_curve(orders: ArrayLike) -> RdpCurve:
    """Curve of a release without any guarantee: infinite at every order."""
    array = np.asarray(orders, dtype=np.float64)
    return RdpCurve(array, np.full(array.shape, math.inf))


def gaussian_curve(noise_multiplier: float, orders: ArrayLike) -> RdpCurve:
    """Curve of the Gaussian mechanism: ``RDP(alpha) = alpha / (2 noise_multiplier^2)`` (exact; Mironov 2017).

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation over the true L2 sensitivity, >= 0; 0 gives the infinite curve.
    orders : array of shape (n,)
        Orders > 1.
    """
    check_non_negative(noise_multiplier=noise_multiplier)
    array = np.asarray(orders, dtype=np.float64)
    if noise_multiplier == 0:
        return infinite_curve(array)
    with np.errstate(over="ignore"):
        return RdpCurve(array, array / (2 * noise_multiplier) / noise_multiplier)


def check_orders(orders: Sequence[float] | FloatArray) -> FloatArray:
    """Return orders as a read-only array; they must be finite, > 1 and strictly increasing."""
    return zero_curve(orders).orders


def epsilon_of_arrays(orders: FloatArray, rdp: FloatArray, delta: float) -> tuple[float, int | None]:
    """Epsilon and the index of its order, without the checks of `RdpCurve` (for loops over rounds).

    Parameters
    ----------
    orders, rdp : arrays of shape (n,)
        A curve without failure mass.
    delta : float
        In [0, 1), what is left after failure masses.
    """
    if not rdp.any():
        return 0.0, None
    if delta <= 0:
        return math.inf, None
    log_ratio, log_order, below = _order_constants(orders.tobytes())
    candidates = rdp + log_ratio - (math.log(delta) + log_order) / below
    index = int(candidates.argmin())
    epsilon = float(candidates[index])
    if delta > 1e-8 and rdp[0] < -math.log1p(-delta * delta):
        return 0.0, None
    if math.isinf(epsilon):
        return math.inf, None
    return max(0.0, epsilon), index


def is_edge(orders: FloatArray, order: float) -> bool:
    """Whether the order is the first or the last of the grid."""
    return order == orders[0] or order == orders[-1]


def _edge_note(orders: FloatArray, index: int) -> str:
    if index not in (0, orders.size - 1):
        return ""
    end = "first" if index == 0 else "last"
    return (
        f"the best order {orders[index]:g} is the {end} of the grid: other orders may give a smaller epsilon"
    )


@lru_cache(maxsize=64)
def _order_constants(orders: bytes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``log(1 - 1/alpha)``, ``log(alpha)`` and ``alpha - 1`` of the conversion, once per grid."""
    alpha = np.frombuffer(orders, dtype=np.float64)
    return np.log1p(-1 / alpha), np.log(alpha), alpha - 1


def _capped(delta_0: float) -> float:
    if delta_0 >= 1:
        raise InvalidArgument(f"the composed failure mass delta_0 must stay below 1, got {delta_0:g}")
    return delta_0


def _frozen(values: Any) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array
