"""The privacy event of random allocation (balls in bins), with independent or correlated noise."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedpriv.accounting.allocation_gram import Core, Reduction, cores, matrix_curves, reductions
from fedpriv.accounting.allocation_profile import COARSE, STANDARD, Resolution, allocation_law
from fedpriv.accounting.allocation_renyi import allocation_curves
from fedpriv.accounting.curves import DirectionalCurves, FloatArray, gaussian_curve
from fedpriv.accounting.events import PrivacyEvent, register_event
from fedpriv.accounting.matrices import StrategyMatrix
from fedpriv.accounting.matrix_gram import gram_lags
from fedpriv.accounting.ratio_law import RatioLaw, Side
from fedpriv.accounting.ratio_products import compose_ratio_law, to_pld
from fedpriv.accounting.sampled_gaussian import PLD_DISCRETIZATION
from fedpriv.accounting.validators import InvalidArgument, check_integer, check_non_negative

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_PLD_DELTA = 1e-12
"""Tails of distributions for composition are cut at a millionth of this."""


@register_event
@dataclass(frozen=True)
class RandomAllocation(PrivacyEvent):
    """A run of epochs in which every unit takes part once per epoch, in a secret, uniformly drawn round.

    An epoch has ``bins`` rounds. Each unit draws its round uniformly and independently, and contributes a vector of
    norm at most the clip norm there (a unit that is away contributes zero; it never moves to another round). The
    noise on the rounds is that of a matrix mechanism ``C X + Z``.

    Parameters
    ----------
    bins : int
        b >= 1, rounds per epoch.
    noise_multiplier : float
        Standard deviation of Z over the clip norm, >= 0; 0 means infinite epsilon.
    epochs : int
        k >= 1.
    redraw : bool
        False: every unit keeps its bin over all epochs. True: it draws again each epoch; then the noise must start
        afresh each epoch.
    matrix : StrategyMatrix or None
        C; None for independent noise. Of ``bins * epochs`` rows when bins are kept, of ``bins`` rows (one epoch, after
        which the noise state is reset) when they are redrawn.

    Notes
    -----
    Formal guarantees:

    * every bound covers adaptive contributions of norm at most the clip norm, under zero-out neighbours;
    * kept bins and independent noise cost as much as one epoch with noise ``z / sqrt(epochs)``;
    * redrawn bins cost the composition of the epochs, and are refused with noise correlated across epochs;
    * one bin is the Gaussian mechanism;
    * no bound exceeds that of a release without amplification.
    """

    bins: int
    noise_multiplier: float
    epochs: int = 1
    redraw: bool = False
    matrix: StrategyMatrix | None = None

    kind = "random_allocation"
    adjacencies = frozenset({"add_or_remove"})
    assumptions = (
        "the view cannot see in which round a unit takes part",
        "rounds are drawn uniformly and independently of the data, and a restart keeps the draw",
        "the noise does not depend on who takes part, and no round is skipped because of it",
    )

    def __post_init__(self) -> None:
        check_integer(1, bins=self.bins, epochs=self.epochs)
        check_non_negative(noise_multiplier=self.noise_multiplier)
        if not isinstance(self.redraw, bool):
            raise InvalidArgument(f"redraw must be True or False, got {self.redraw!r}")
        if isinstance(self.matrix, dict):
            object.__setattr__(self, "matrix", StrategyMatrix.from_json(self.matrix))
        if self.matrix is None:
            return
        if not isinstance(self.matrix, StrategyMatrix):
            raise InvalidArgument(f"matrix must be a StrategyMatrix or None, got {self.matrix!r}")
        if self.redraw and self.matrix.rounds != self.bins:
            raise InvalidArgument(
                f"redraw needs noise that starts afresh each epoch: the matrix must have bins = {self.bins} rounds, "
                f"got {self.matrix.rounds}. Redrawn bins with noise correlated across epochs cost more than the "
                "composition of the epochs"
            )
        if not self.redraw and self.matrix.rounds != self.bins * self.epochs:
            raise InvalidArgument(
                f"matrix must have bins * epochs = {self.bins * self.epochs} rounds, got {self.matrix.rounds}"
            )

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """Rényi curves of both directions (`allocation_renyi`, `allocation_gram`)."""
        if self.noise_multiplier == 0:
            return DirectionalCurves.symmetric(gaussian_curve(0.0, orders))
        if self.matrix is None:
            curves = _independent_curves(self._kept_multiplier(), self.bins, orders.tobytes())
        else:
            curves = matrix_curves(self.matrix, self.bins, self.noise_multiplier, orders)
        return curves.scaled(self.epochs) if self.redraw else curves

    def reductions(self) -> tuple[Reduction, ...]:
        """Ways to bound the event by independent noise (clip norm 1); with independent noise just the event itself."""
        if self.matrix is not None:
            return reductions(self.matrix, self.bins)
        kept = 1 if self.redraw else self.epochs
        return (Reduction(1, self.bins, float(kept), 0.0),)

    def upper_law(
        self, delta: float, reduction: Reduction | None = None, resolution: Resolution = STANDARD
    ) -> RatioLaw:
        """Law of the likelihood ratio whose profile is an upper bound.

        Parameters
        ----------
        delta : float
            Smallest delta it will be asked about.
        reduction : Reduction, optional
            One of `reductions`; the best at ``delta`` by default.
        resolution : Resolution
            Size of the grid.

        Raises
        ------
        OverflowError
            When losses above 600 nats matter.
        """
        chosen = reduction or self.best_reduction(delta)
        law = self._law(
            "upper", self.noise_multiplier / chosen.squared_norm**0.5, chosen.bins, delta, resolution
        )
        repeats = self.epochs if self.redraw else 1
        return law.times_gaussian(math.sqrt(repeats * chosen.common) / self.noise_multiplier)

    def lower_laws(self, delta: float, resolution: Resolution = STANDARD) -> Iterator[RatioLaw]:
        """Laws whose profiles are lower bounds for a unit that always contributes the same vector of norm 1."""
        if self.matrix is None:
            parts: tuple[Core, ...] = (Core(self.bins, 1.0 if self.redraw else float(self.epochs)),)
        else:
            parts = cores(self.matrix, self.bins)
        for core in parts:
            s = self.noise_multiplier / core.squared_norm**0.5
            yield self._law("lower", s, core.bins, delta, resolution)

    def best_reduction(self, delta: float) -> Reduction:
        """The reduction with the smallest epsilon at ``delta`` (remove direction, on a coarse grid)."""
        choices = self.reductions()
        if len(choices) == 1:
            return choices[0]
        return _best_reduction(self, float(delta))

    def pld(self, discretization: float = PLD_DISCRETIZATION) -> "PrivacyLossDistribution | None":
        """Pessimistic distribution of the best reduction; None without noise or with losses above 600 nats."""
        if self.noise_multiplier == 0:
            return None
        return _event_pld(self, float(discretization))

    def gaussian_equivalent(self) -> float | None:
        """With one bin there is nothing secret: a Gaussian release."""
        if self.noise_multiplier == 0:
            return math.inf
        if self.bins > 1:
            return None
        square = float(self.epochs if self.matrix is None else gram_lags(self.matrix, 1)[0])
        if self.matrix is not None and self.redraw:
            square *= self.epochs
        return square / self.noise_multiplier**2

    def _kept_multiplier(self) -> float:
        return self.noise_multiplier / (1.0 if self.redraw else math.sqrt(self.epochs))

    def _law(self, side: Side, s: float, bins: int, delta: float, resolution: Resolution) -> RatioLaw:
        repeats = self.epochs if self.redraw else 1
        law = allocation_law(s, bins, side, delta / repeats, resolution)
        if side == "lower":
            law = law.diluted(bins, self.bins)
        return compose_ratio_law(law, repeats, delta)


@lru_cache(maxsize=64)
def _independent_curves(noise_multiplier: float, bins: int, orders: bytes) -> DirectionalCurves:
    """Cached: a ledger asks for the curves of the same event after every round."""
    return allocation_curves(noise_multiplier, bins, np.frombuffer(orders))


@lru_cache(maxsize=256)
def _best_reduction(event: RandomAllocation, delta: float) -> Reduction:
    def cost(reduction: Reduction) -> float:
        try:
            return event.upper_law(delta, reduction, COARSE).epsilon_remove(delta)
        except OverflowError:
            return math.inf

    return min(event.reductions(), key=cost)


@lru_cache(maxsize=16)
def _event_pld(event: RandomAllocation, discretization: float) -> "PrivacyLossDistribution | None":
    from dp_accounting.pld import privacy_loss_distribution

    reduction = event.best_reduction(1e-6)
    repeats = event.epochs if event.redraw else 1
    try:
        law = event._law(
            "upper",
            event.noise_multiplier / reduction.squared_norm**0.5,
            reduction.bins,
            _PLD_DELTA,
            STANDARD,
        )
    except OverflowError:
        return None
    if law.dropped_mean >= 1:
        return None
    distribution = to_pld(law, discretization)
    if reduction.common > 0:
        z = event.noise_multiplier / math.sqrt(repeats * reduction.common)
        distribution = distribution.compose(
            privacy_loss_distribution.from_gaussian_mechanism(z, value_discretization_interval=discretization)
        )
    return distribution
