"""Zeroth-order fine-tuning with hidden state: what each view learns.

    w+ = Proj_R[ w - (eta/K) sum_k g_k u_k + (eta/sqrt K) sum_k N(0, beta sigma^2) u_k
                   + (eta/sqrt d) N(0, (1 - beta) sigma^2 I_d) ]

on the ball of radius R, with K orthonormal directions, g_k the average of n two-point quotients clipped to
Delta, and s the sensitivity of g_k to one unit: Delta/n (add_or_remove) or 2 Delta/n (replace_one).

* ``server`` sees the K noised averages: one Gaussian with squared shift s^2 / (beta sigma^2) a round.
* ``participants`` see every w: squared shift s^2 / (sigma^2 (beta + (1 - beta) K/d)) a round.
* ``release`` sees the last w only. Let W run with the unit, W' without, and W~ start from W'_{T-j}, follow
  the maps of W on the same noise and be shifted toward W, so that it meets W at the end except with a small
  failure mass. Each of the j steps of W~ differs from those of W' by a contribution, paid by the noise
  along the directions, and a shift, paid by the isotropic noise. The other direction exchanges W and W'.

Three bounds for the release, smallest epsilon at the target delta wins: plain *composition* (what
participants see); the *quantile* bound, where a Beta quantile bounds the distance in every step; and the
*mean-square* bound, where the distance contracts in mean square for j1 steps without shifts (and before),
is bounded once by Markov's inequality, and is shifted away in j2 further steps. The last one needs no lower
limit on K.

A part kappa of the isotropic noise may pay for contributions too; the best one has a closed form. With
lattice noise along the directions the sum of both noises is not Gaussian, so no credit is taken
(``lattice_noise``).

Sources: Chien, Chen, Li 2025 (arXiv 2506.00158) for the algorithm and the coupling; the quantiles, the
mean-square bound, the shifts (`fedpriv.accounting.shifts`) and kappa go beyond it.

Formal guarantees
-----------------
* Every bound holds for both directions of the adjacency that the sensitivity is for, with its failure mass
  inside the delta of its curve.
* The failure mass never exceeds the part of delta that it was chosen for, and every step that may fail is
  counted.
* Epsilon is non-decreasing in rounds, radius, sensitivity, smoothness and drift, and non-increasing in the
  noise; the hidden-state bounds stay finite for any number of rounds.
* With K = d nothing is random and the quantile bound is that of `amplification_by_iteration` without its
  split.
* Without a smoothness constant (or without isotropic noise) only composition is offered.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fedpriv.accounting.curves import DirectionalCurves, FloatArray, RdpCurve, gaussian_curve
from fedpriv.accounting.events import BOTH, PLD_DISCRETIZATION, Gaussian, PrivacyEvent, register_event
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_integer,
    check_non_negative,
    check_positive,
    check_probability,
)
from fedpriv.accounting.vocabulary import Adjacency
from fedpriv.accounting.zeroth_order_contraction import ZerothOrderStep

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from fedpriv.accounting.calibration import Calibration

COMPOSITION: Final = "composition"
QUANTILE: Final = "zeroth_order_quantile"
MEAN_SQUARE: Final = "zeroth_order_mean_square"

HYPOTHESES: Final[tuple[str, ...]] = (
    "only the final model is released: no round, no metric and no checkpoint chosen with private data",
    "directions are orthonormal, uniform, and drawn independently of models and data",
    "every round is a plain step: no momentum, no adaptive optimizer, a constant clip and learning rate",
    "every client answers every round, and averages divide by a fixed number",
    "losses are smooth with a proven constant on the ball enlarged by the perturbation",
    "the isotropic noise is continuous, and the model is projected onto the ball after every round",
)
"""What must hold of a run before a hidden-state bound may be claimed; if one is only assumed, compose."""

_MASS_SHARES: Final = (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Parts of delta that are tried as failure mass."""


@register_event
@dataclass(frozen=True)
class ZerothOrderHiddenState(PrivacyEvent):
    """A whole zeroth-order run of which only the last model is released.

    Parameters
    ----------
    rounds : int
        T >= 0.
    dimension, directions : int
        d >= K >= 1.
    learning_rate : float
        eta > 0.
    noise_std : float
        sigma >= 0: the noise on each *averaged* quotient has variance K beta sigma^2.
    direction_share : float
        beta in [0, 1]: share of the noise energy along the directions.
    sensitivity : float
        s >= 0 of an averaged quotient to one unit, under the ledger's adjacency.
    clip : float
        Delta > 0 on every quotient.
    radius : float
        R > 0 of the ball.
    smoothness : float or None
        M >= 0 of every loss on radius R + xi; None when there is none: composition only.
    strong_convexity : float or None
        mu >= 0 of the average loss *without the unit* (0: convex); None without convexity.
    clip_inactive : bool
        True if the losses are Delta-Lipschitz on radius R + xi, so that no quotient is ever clipped.
    contributors : int
        n >= 1 quotients in an average.
    drift : float
        e >= 0: increase of a distance per round from finite differences, rounding and floating point.
    lattice_noise : bool
        True when the noise along the directions is on a grid.

    Raises
    ------
    InvalidArgument
        When an argument is out of range.
    """

    rounds: int
    dimension: int
    directions: int
    learning_rate: float
    noise_std: float
    direction_share: float
    sensitivity: float
    clip: float
    radius: float
    smoothness: float | None = None
    strong_convexity: float | None = None
    clip_inactive: bool = False
    contributors: int = 1
    drift: float = 0.0
    lattice_noise: bool = False

    kind = "zeroth_order"
    adjacencies = BOTH
    uses_delta = True
    assumptions = HYPOTHESES

    def __post_init__(self) -> None:
        check_integer(0, rounds=self.rounds)
        check_integer(1, directions=self.directions, contributors=self.contributors)
        check_integer(1, dimension=self.dimension)
        if self.directions > self.dimension:
            raise InvalidArgument(
                f"directions must be at most dimension = {self.dimension}, got {self.directions}"
            )
        check_positive(learning_rate=self.learning_rate, clip=self.clip, radius=self.radius)
        check_non_negative(noise_std=self.noise_std, sensitivity=self.sensitivity, drift=self.drift)
        check_probability(direction_share=self.direction_share)
        if self.smoothness is not None:
            check_non_negative(smoothness=self.smoothness)
        if self.strong_convexity is not None:
            check_non_negative(strong_convexity=self.strong_convexity)
            if self.smoothness is not None and self.strong_convexity > self.smoothness:
                raise InvalidArgument(
                    f"strong_convexity must be at most smoothness = {self.smoothness}, "
                    f"got {self.strong_convexity}"
                )

    @property
    def step(self) -> ZerothOrderStep:
        """Constants of one noiseless step."""
        if self.smoothness is None:
            raise InvalidArgument("smoothness must be known for a hidden-state bound, got None")
        return ZerothOrderStep(
            self.dimension,
            self.directions,
            self.learning_rate,
            self.smoothness,
            self.strong_convexity,
            self.contributors,
            self.clip_inactive,
        )

    @property
    def server_noise_multiplier(self) -> float:
        """Noise multiplier of one round for who sees the K noised averages; 0 (no guarantee) for beta = 0."""
        return _multiplier(self.sensitivity, self.noise_std**2 * self.direction_share)

    @property
    def participants_noise_multiplier(self) -> float:
        """Noise multiplier of one round for who sees every model."""
        return _multiplier(self.sensitivity, self.noise_std**2 * (self.direction_share + self._shared_noise))

    @property
    def amplifies(self) -> bool:
        """Whether a hidden-state bound can be stated at all."""
        isotropic = self.noise_std > 0 and self.direction_share < 1
        pays = self.direction_share > 0 or self._shared_noise > 0
        return self.rounds > 0 and self.smoothness is not None and isotropic and pays and self.sensitivity > 0

    @property
    def _shared_noise(self) -> float:
        """Isotropic noise along the directions, relative to sigma^2, that may pay for contributions."""
        return 0.0 if self.lattice_noise else (1 - self.direction_share) * self.directions / self.dimension

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """Plain composition: needs no delta."""
        if self.rounds == 0 or self.sensitivity == 0:
            return DirectionalCurves.symmetric(RdpCurve(orders, np.zeros(orders.shape)))
        curve = gaussian_curve(self.participants_noise_multiplier, orders)
        return DirectionalCurves.symmetric(curve.scaled(self.rounds))

    def bounds(self, orders: FloatArray, delta: float) -> dict[str, DirectionalCurves]:
        """``composition`` and both hidden-state bounds, each with the failure mass that is best at delta."""
        found = {COMPOSITION: self.curves(orders)}
        if not self.amplifies or delta <= 0:
            return found
        from fedpriv.accounting.zeroth_order_search import ReleaseSearch

        search = ReleaseSearch(self)
        masses = np.array(_MASS_SHARES) * delta
        # Nothing can fail when K = d: then the whole of delta is left for the conversion.
        certain = self.directions == self.dimension
        candidates = {
            QUANTILE: (np.zeros(1) if certain else masses, search.quantile),
            MEAN_SQUARE: (masses, search.mean_square),
        }
        for name, (tried, least_shifts) in candidates.items():
            curves = [
                RdpCurve(orders, orders / 2 * shift, float(mass))
                for mass, shift in zip(tried, least_shifts(tried), strict=True)
                if np.isfinite(shift)
            ]
            if curves:
                best = min(curves, key=lambda curve: curve.to_epsilon(delta).epsilon)
                found[name] = DirectionalCurves.symmetric(best)
        return found

    def gaussian_equivalent(self) -> float | None:
        """Squared shift of composition, a Gaussian that dominates the release without any failure mass."""
        if self.rounds == 0 or self.sensitivity == 0:
            return 0.0
        multiplier = self.participants_noise_multiplier
        return self.rounds / multiplier**2 if multiplier > 0 else math.inf

    def pld(self, discretization: float = PLD_DISCRETIZATION) -> "PrivacyLossDistribution | None":
        """Distribution of composition."""
        shift_squared = self.gaussian_equivalent()
        if not shift_squared or math.isinf(shift_squared):
            return None
        return Gaussian(shift_squared**-0.5).pld(discretization)


def _multiplier(sensitivity: float, variance: float) -> float:
    if sensitivity == 0:
        return math.inf
    return math.sqrt(variance) / sensitivity


def zeroth_order_event(
    *,
    rounds: int,
    dimension: int,
    directions: int,
    learning_rate: float,
    noise_std: float,
    direction_share: float,
    clip: float,
    contributors: int,
    radius: float,
    adjacency: Adjacency,
    smoothness: float | None = None,
    strong_convexity: float | None = None,
    convexity_from_regulariser: bool = False,
    lipschitz: float | None = None,
    perturbation: float = 0.0,
    grid_step: float = 0.0,
    loss_error: float = 0.0,
    lattice_noise: bool = False,
) -> ZerothOrderHiddenState:
    """Hidden-state event of a zeroth-order run, from its settings.

    Parameters
    ----------
    rounds, dimension, directions, learning_rate, noise_std, direction_share, clip, radius, lattice_noise
        As in `ZerothOrderHiddenState`.
    contributors : int
        n >= 1: the fixed number of units whose clipped quotients are averaged.
    adjacency : {"add_or_remove", "replace_one"}
        Sensitivity clip/n or 2 clip/n. Under add_or_remove the maps without the unit are only
        mu (n-1)/n-strongly convex.
    smoothness : float, optional
        M of every unit's loss on radius R + xi, from a proof.
    strong_convexity : float, optional
        mu >= 0 of every unit's loss (0: convex).
    convexity_from_regulariser : bool
        True when mu comes from a regulariser that is outside the clip and does not depend on units.
    lipschitz : float, optional
        Lipschitz constant of every unit's loss on radius R + xi. The clip is inactive when it is at most
        ``clip``.
    perturbation : float
        xi >= 0 of the two-point quotient.
    grid_step : float
        Step of the grid that quotients are truncated or rounded to, 0 for none.
    loss_error : float
        Largest floating-point error of one loss value.

    Notes
    -----
    Drift per round: finite differences ``eta M xi / sqrt(K)``; floating point ``2 eta err / (xi
    sqrt(K))``; the grid ``eta step / sqrt(K)`` where the argument is made quotient by quotient (no
    convexity, or an active clip), since ``|trunc(x) - trunc(y)| <= |x - y| + step``, and twice that where
    the exact step contracts as a whole, since truncation errors of opposite signs add up there.

    Raises
    ------
    InvalidArgument
        When an argument is out of range; the message names it.
    """
    check_integer(1, contributors=contributors, directions=directions)
    check_positive(clip=clip, learning_rate=learning_rate)
    check_non_negative(perturbation=perturbation, grid_step=grid_step, loss_error=loss_error)
    if adjacency not in BOTH:
        raise InvalidArgument(f"adjacency must be one of {', '.join(sorted(BOTH))}, got {adjacency!r}")
    if lipschitz is not None:
        check_non_negative(lipschitz=lipschitz)
    if loss_error > 0 and perturbation == 0:
        raise InvalidArgument("perturbation must be > 0 when loss_error is, got 0")
    scale = learning_rate / math.sqrt(directions)
    clip_inactive = lipschitz is not None and lipschitz <= clip
    contracts = clip_inactive and strong_convexity is not None
    drift = scale * grid_step * (2 if contracts else 1) + scale * (smoothness or 0.0) * perturbation
    if loss_error > 0:
        drift += scale * 2 * loss_error / perturbation
    convexity = strong_convexity
    if convexity is not None and adjacency == "add_or_remove" and not convexity_from_regulariser:
        convexity *= (contributors - 1) / contributors
    return ZerothOrderHiddenState(
        rounds=rounds,
        dimension=dimension,
        directions=directions,
        learning_rate=learning_rate,
        noise_std=noise_std,
        direction_share=direction_share,
        sensitivity=(1 if adjacency == "add_or_remove" else 2) * clip / contributors,
        clip=clip,
        radius=radius,
        smoothness=smoothness,
        strong_convexity=convexity,
        clip_inactive=clip_inactive,
        contributors=contributors,
        drift=drift,
        lattice_noise=lattice_noise,
    )


def calibrate_zeroth_order(
    event: ZerothOrderHiddenState, target_epsilon: float, delta: float, adjacency: Adjacency
) -> "Calibration":
    """Smallest sigma with which the last model meets (target_epsilon, delta).

    Parameters
    ----------
    event : ZerothOrderHiddenState
        The run; its ``noise_std`` is replaced.
    target_epsilon : float
        In nats, > 0.
    delta : float
        In (0, 1).
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation that the sensitivity is for.

    Returns
    -------
    Calibration
        Its ``noise_multiplier`` is sigma over the sensitivity s; ``epsilon.bound`` names the active bound.

    Raises
    ------
    InvalidArgument
        When an argument is out of range or no noise reaches the target.
    """
    from fedpriv.accounting.calibration import calibrate_noise_multiplier

    check_positive(sensitivity=event.sensitivity)
    return calibrate_noise_multiplier(
        lambda multiplier: [(replace(event, noise_std=multiplier * event.sensitivity), 1)],
        target_epsilon,
        delta,
        adjacency,
    )
