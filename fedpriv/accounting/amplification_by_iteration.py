"""Hidden state: only the last iterate of projected noisy gradient descent is released (DPSGD-DC).

One round in parameter space is ``theta <- Proj[phi(theta) + noise]``: Proj onto a convex set of diameter D,
the noiseless step without the unit c-Lipschitz, the unit's contribution at most Delta (the *sensitivity*),
present independently with probability q each round, and noise of standard deviation nu per coordinate. For
every number j of last rounds and every split beta of the noise variance

    RDP(alpha) <= j S_alpha(q, sqrt(beta) nu / Delta) + alpha E(j, z_j) / (2 (1 - beta)),

where S_alpha(q, .) is the sampled Gaussian, z_j = min(D, forward distance after T - j rounds) and E(j, z)
the least energy of shifts that bring a distance z to 0 in j rounds (`fedpriv.accounting.shifts`). With q =
1 the best split has a closed form: ``(alpha / 2) (sqrt(sum Delta^2/nu^2) + sqrt(E))^2``.

Why it holds. Let W run with the unit and W' without it, on the same noise, both projected. Removing: let W~
start at W'_{T-j}, follow the maps without the unit, add the unit's contribution *computed at W*, and be
shifted toward W so that it meets W in the last round. Given the past of W~, its next step and that of W'
differ by a contribution, paid by one part of the noise, and a shift, paid by the other; W is averaged out
by quasi-convexity, and steps add up. Adding: W~ starts at W_{T-j} and is shifted toward W'; the step is
compared with one that has the contribution, and D(N || mixture) <= D(mixture || N) for Gaussians. Sources:
Feldman, Mironov, Talwar, Thakurta 2018 (arXiv 1808.06651); Altschuler, Talwar 2022 (arXiv 2205.13710); the
double clipping of Liang et al. 2025 (arXiv 2502.17772), whose Theorem 3.4 is the case j = 1, z = D with a
linear rule in place of S_alpha, which is no upper bound for alpha > 1.

Each step is dominated by a (sampled) Gaussian for every hockey-stick divergence, not only in Rényi
divergence, so the bound also has a privacy-loss distribution: j sampled Gaussians and one Gaussian of
squared shift E / (1 - beta).

Grid and lattice noise. Rounding adds a drift to the distances and to the shift recursion. Lattice noise
pays for contributions (they are lattice vectors) but cannot absorb a real shift: shifts are paid by a
separate continuous ``release_noise_std``, and without one only composition is offered.

Formal guarantees
-----------------
* The bound dominates the exact divergence of the last iterate, both directions, for every order.
* It is never above plain composition, and equals it when every window is worse (one round, a large diameter).
* It is non-decreasing in rounds, diameter, sensitivity, Lipschitz constant, drift and sampling rate, and
  non-increasing in the noise; with constant parameters it is constant in rounds once the best window is
  inside.
* The failure mass is added to the delta of the amplified bound, and composition is reported without it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from fedpriv.accounting.curves import DEFAULT_ORDERS, DirectionalCurves, FloatArray, RdpCurve
from fedpriv.accounting.events import (
    BOTH,
    PLD_DISCRETIZATION,
    PoissonGaussian,
    PrivacyEvent,
    register_event,
)
from fedpriv.accounting.noise_split import best_split, sampled_rdp
from fedpriv.accounting.shifts import forward_distances, least_shift_energies
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_delta,
    check_integer,
    check_non_negative,
    check_positive,
    check_probability,
)
from fedpriv.accounting.vocabulary import Adjacency

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from fedpriv.accounting.calibration import Calibration

AMPLIFIED: Final = "amplification_by_iteration"
COMPOSITION: Final = "composition"

HYPOTHESES: Final[tuple[str, ...]] = (
    "only the final model is released: no round, no metric and no checkpoint chosen with private data",
    "every round is a plain step: no momentum, no adaptive server optimizer, a constant clipping norm",
    "clients take plain SGD steps in a fixed data order or on full batches",
    "the Lipschitz constant of the step follows from a proof, not from data",
    "learning rates are known and fixed in advance",
    "the model is projected onto the ball after every round",
    "cohorts are full or self-sampled, and hidden from whoever sees the release",
    "the noise that absorbs shifts is continuous",
)
"""What must hold of a run before the amplified bound may be claimed; if one is only assumed, compose."""

PerRound = float | tuple[float, ...]
"""A constant, or one value for each round."""

NOMINAL_DELTA: Final = 1e-6
"""The window of a privacy-loss distribution is chosen for this delta; any window is valid at any delta."""


@register_event
@dataclass(frozen=True)
class AmplificationByIteration(PrivacyEvent):
    """A whole run of which only the last iterate is released. All lengths are distances between models.

    Parameters
    ----------
    rounds : int
        T >= 0.
    update_lipschitz : float or tuple of float
        c > 0: Lipschitz constant of one noiseless round without the unit.
    sensitivity : float or tuple of float
        Delta >= 0: largest distance by which the unit moves one round, under the ledger's adjacency.
    noise_std : float or tuple of float
        nu >= 0 per coordinate. The noise that pays for contributions; where ``release_noise_std`` is None
        it is continuous and pays for the shifts as well.
    diameter : float
        D > 0 of the set that the model is projected to after each round: *twice* the radius of a ball.
    sampling_rate : float
        q in [0, 1]: the unit takes part independently each round, hidden from the view. Below 1 under
        add_or_remove only, and then sensitivity / noise_std must be the same in all rounds.
    drift : float
        Largest increase of a distance per round that does not shrink with the distance (rounding), >= 0.
    largest_move : float or None
        Sure bound on how much the others' updates can move two models apart in one round, if there is one.
    release_noise_std : float or None
        Standard deviation per coordinate of separate continuous noise that pays for the shifts (the other
        noise is then taken to be on a lattice). 0 means that there is none: composition only.
    failure_mass : float
        Probability that the run leaves these constants (a Poisson cohort above its quantile), in [0, 1).

    Raises
    ------
    InvalidArgument
        When an argument is out of range or a schedule does not have one value for each round.
    """

    rounds: int
    update_lipschitz: PerRound
    sensitivity: PerRound
    noise_std: PerRound
    diameter: float
    sampling_rate: float = 1.0
    drift: float = 0.0
    largest_move: float | None = None
    release_noise_std: PerRound | None = None
    failure_mass: float = 0.0

    kind = "amplification_by_iteration"
    adjacencies = BOTH
    loss_bound = AMPLIFIED
    assumptions = HYPOTHESES

    def __post_init__(self) -> None:
        check_integer(0, rounds=self.rounds)
        for value in _values(self, "update_lipschitz"):
            check_positive(update_lipschitz=value)
        for name in ("sensitivity", "noise_std", "release_noise_std"):
            for value in _values(self, name):
                check_non_negative(**{name: value})
        check_positive(diameter=self.diameter)
        check_probability(sampling_rate=self.sampling_rate)
        check_non_negative(drift=self.drift)
        if self.largest_move is not None:
            check_non_negative(largest_move=self.largest_move)
        check_delta(failure_mass=self.failure_mass)
        if self.sampling_rate < 1:
            object.__setattr__(self, "adjacencies", frozenset({"add_or_remove"}))
            if np.ptp(self.run.shift_ratios) > 1e-12 * np.max(self.run.shift_ratios, initial=0.0):
                raise InvalidArgument(
                    "sensitivity / noise_std must be the same in all rounds when sampling_rate < 1, "
                    f"got {self.sensitivity!r} and {self.noise_std!r}"
                )

    @property
    def run(self) -> "HiddenRun":
        """Per-round arrays and windows of the run."""
        return _run_of(self)

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """The smaller of both bounds at every order; composition alone where there is a failure mass."""
        composed = self.composition_curve(orders)
        if self.failure_mass > 0 or not self.run.amplifies:
            return DirectionalCurves.symmetric(composed)
        amplified = self.amplified_curve(orders, None)
        values = np.minimum(composed.rdp, amplified.rdp)
        smaller = RdpCurve(orders, values, interpolable=self.sampling_rate == 1)
        return DirectionalCurves.symmetric(smaller)

    def bounds(self, orders: FloatArray, delta: float) -> dict[str, DirectionalCurves]:
        """``composition`` and, with continuous noise, ``amplification_by_iteration``, optimised at delta."""
        composed = self.composition_curve(orders)
        found = {COMPOSITION: DirectionalCurves.symmetric(composed)}
        if self.run.amplifies and delta > self.failure_mass:
            rival = composed.to_epsilon(delta).epsilon
            amplified = self.amplified_curve(orders, delta - self.failure_mass, rival)
            found[AMPLIFIED] = DirectionalCurves.symmetric(amplified)
        return found

    def gaussian_equivalent(self) -> float | None:
        """Squared shift of the Gaussian that dominates the run (q = 1 and no failure mass)."""
        run = self.run
        if self.rounds == 0 or self.sampling_rate == 0 or not run.shift_ratios.any():
            return 0.0
        if self.sampling_rate < 1 or self.failure_mass > 0:
            return None
        return run.least_shift_squared

    def pld(self, discretization: float = PLD_DISCRETIZATION) -> "PrivacyLossDistribution | None":
        """Dominating distribution: of composition, or of the best window at a nominal delta."""
        if self.gaussian_equivalent() == 0:
            return PoissonGaussian(0.0, 1.0).pld(discretization)
        from fedpriv.accounting.amplification_losses import dominating_distribution

        return dominating_distribution(self, discretization)

    def composition_curve(self, orders: FloatArray) -> RdpCurve:
        """Plain composition of all rounds."""
        if self.gaussian_equivalent() == 0:
            return RdpCurve(orders, np.zeros(orders.shape))
        run = self.run
        if self.sampling_rate == 1:
            with np.errstate(over="ignore"):
                return RdpCurve(orders, orders / 2 * run.payments[-1])
        return RdpCurve(orders, self.rounds * sampled_rdp(self.sampling_rate, run.multiplier, orders))

    def amplified_curve(
        self, orders: FloatArray, delta: float | None = None, rival: float = math.inf
    ) -> RdpCurve:
        """The amplified curve alone, for a run with continuous noise.

        Parameters
        ----------
        orders : array of shape (n,)
            Orders > 1.
        delta : float, optional
            Where q < 1: refine the split of the noise near the order that this delta picks.
        rival : float
            Epsilon of another bound at this delta; far above it nothing is refined.
        """
        run, q = self.run, self.sampling_rate
        if self.gaussian_equivalent() == 0:
            return RdpCurve(orders, np.zeros(orders.shape), self.failure_mass)
        if q == 1:
            rdp = orders / 2 * run.best_amplified
        elif run.separate:
            windows = np.arange(1, self.rounds + 1)
            each = sampled_rdp(q, run.multiplier, orders)
            with np.errstate(invalid="ignore"):
                rdp = np.array(
                    [np.min(windows * s + a / 2 * run.energies) for a, s in zip(orders, each, strict=True)]
                )
        else:
            rdp = best_split(q, run.multiplier, run.energies, orders, delta, rival).rdp
        return RdpCurve(orders, rdp, self.failure_mass, interpolable=q == 1)

    def window(self) -> int:
        """Number j of last rounds in the best amplified bound (at a nominal delta where q < 1)."""
        run = self.run
        if self.sampling_rate == 1 or run.separate:
            return int(np.argmin(run.totals)) + 1
        return best_split(
            self.sampling_rate, run.multiplier, run.energies, DEFAULT_ORDERS, NOMINAL_DELTA
        ).best.window


class HiddenRun:
    """Per-round arrays of an event and what follows from them, for every window of last rounds."""

    def __init__(self, event: AmplificationByIteration) -> None:
        self.rounds = int(event.rounds)
        self.factors = self._series(event.update_lipschitz)
        self.contributions = self._series(event.sensitivity)
        self.stds = self._series(event.noise_std)
        self.separate = event.release_noise_std is not None
        self.shift_stds = (
            self.stds if event.release_noise_std is None else self._series(event.release_noise_std)
        )
        self.drifts = self._series(event.drift)
        self.moves = None if event.largest_move is None else self._series(event.largest_move)
        self.diameter = float(event.diameter)
        with np.errstate(divide="ignore"):
            ratios = np.divide(
                self.contributions, self.stds, out=np.zeros(self.rounds), where=self.contributions > 0
            )
        self.shift_ratios: FloatArray = ratios
        self.amplifies = self.rounds > 0 and bool((self.shift_stds > 0).all() and (self.stds > 0).all())

    def _series(self, value: PerRound) -> FloatArray:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (self.rounds,))

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity, where it is the same in all rounds."""
        largest = float(np.max(self.shift_ratios))
        return 0.0 if math.isinf(largest) else 1 / largest

    @cached_property
    def payments(self) -> FloatArray:
        """Sum of squared contributions over noise, in the last 1, 2, ..., T rounds."""
        with np.errstate(over="ignore"):
            return np.cumsum(np.square(self.shift_ratios[::-1]))

    @cached_property
    def energies(self) -> FloatArray:
        """Least shift energy of the last 1, 2, ..., T rounds."""
        distances = forward_distances(
            self.factors, self.drifts, self.contributions, self.diameter, self.moves
        )
        return least_shift_energies(self.factors, self.drifts, self.shift_stds, distances[-2::-1])

    @cached_property
    def totals(self) -> FloatArray:
        """Squared shift of the dominating Gaussian at q = 1, per window, at the best split."""
        if self.separate:
            return self.payments + self.energies
        return np.square(np.sqrt(self.payments) + np.sqrt(self.energies))

    @property
    def best_amplified(self) -> float:
        return float(np.min(self.totals))

    @property
    def least_shift_squared(self) -> float:
        """The better of composition and amplification, at q = 1."""
        composed = float(self.payments[-1])
        return min(composed, self.best_amplified) if self.amplifies else composed


@lru_cache(maxsize=64)
def _run_of(event: AmplificationByIteration) -> HiddenRun:
    return HiddenRun(event)


def _values(event: AmplificationByIteration, name: str) -> tuple[float, ...]:
    """Values of a constant or a schedule, after a check of its length."""
    value = getattr(event, name)
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        return (value,)
    if len(value) != event.rounds:
        raise InvalidArgument(
            f"{name} must have one value for each of the {event.rounds} rounds, got {len(value)}"
        )
    return tuple(value)


def calibrate_amplification_by_iteration(
    event: AmplificationByIteration,
    target_epsilon: float,
    delta: float,
    adjacency: Adjacency,
    use_pld: bool = True,
) -> "Calibration":
    """Smallest noise with which the last iterate meets (target_epsilon, delta).

    Parameters
    ----------
    event : AmplificationByIteration
        The run. Its noises fix the proportions: both are multiplied by one factor.
    target_epsilon : float
        In nats, > 0.
    delta : float
        In (0, 1).
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation that the sensitivity is for.
    use_pld : bool
        False: Rényi bounds only.

    Returns
    -------
    Calibration
        Its ``noise_multiplier`` is the factor on the event's noises (the noise standard deviation itself
        when the event has ``noise_std=1``); ``epsilon.bound`` names the bound that was active.

    Raises
    ------
    InvalidArgument
        When an argument is out of range or no noise reaches the target.
    """
    from fedpriv.accounting.calibration import calibrate_noise_multiplier

    return calibrate_noise_multiplier(
        lambda factor: [(scaled_noise(event, factor), 1)], target_epsilon, delta, adjacency, use_pld=use_pld
    )


def scaled_noise(event: AmplificationByIteration, factor: float) -> AmplificationByIteration:
    """The same run with its noises multiplied by a factor."""

    def times(value: PerRound) -> PerRound:
        return tuple(factor * v for v in value) if isinstance(value, Sequence) else factor * value

    release = None if event.release_noise_std is None else times(event.release_noise_std)
    return replace(event, noise_std=times(event.noise_std), release_noise_std=release)
