"""From the settings of a DPSGD-DC run (clip, cohort, rates, smoothness, radius) to its hidden-state event.

A round is ``theta <- Proj_R[theta - eta (1/m) (sum_i clip_C(g_i(theta)) + noise)]`` with a fixed divisor m.
Then, in distances between models,

* sensitivity ``eta C / m`` (add_or_remove) or ``2 eta C / m`` (replace_one);
* noise ``eta z C / m`` per coordinate, z the noise multiplier on the clip;
* Lipschitz constant ``1 + eta L |cohort| / m``: clipping is a projection, hence an L-Lipschitz g_i stays
  L-Lipschitz. A Poisson cohort may exceed m: its binomial quantile is used, and what is beyond goes into
  the failure mass;
* a pseudo-gradient ``(theta - theta_E) / eta_l`` of E local steps on an L-smooth loss is
  ``((1 + eta_l L)^E - 1) / eta_l``-Lipschitz;
* convex losses: a gradient step is non-expansive for ``eta |cohort| / m <= 2 / L`` only if no clip is ever
  active (a clipped gradient need not be monotone);
* both runs move by at most ``eta C |cohort| / m``, so their distance grows by at most twice that;
* rounding to a grid adds at most ``eta step sqrt(d) |cohort| / m`` to a distance. Truncation has errors
  twice as large as rounding to nearest, but it never widens a pair of opposite signs, so ``|trunc(x) -
  trunc(y)| <= |x - y| + step`` either way. That argument spends the Lipschitz constant of each g_i; where
  the exact step is non-expansive as a whole (convex case) the two errors add up and the drift doubles.

Source of the algorithm: Liang et al. 2025 (arXiv 2502.17772); the constants are derived above.

Formal guarantees
-----------------
* The event's Lipschitz constant, drift and largest move bound one round of the algorithm for every pair of
  models.
* The cohort exceeds its quantile in some round with probability at most the failure mass.
* The argument is ``radius``; the event's ``diameter`` is twice that.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import betainc

from fedpriv.accounting.amplification_by_iteration import AmplificationByIteration
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_delta,
    check_integer,
    check_non_negative,
    check_positive,
    check_probability,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency


def pseudo_gradient_lipschitz(smoothness: float, local_learning_rate: float, local_steps: int) -> float:
    """Lipschitz constant of ``(theta - theta_E) / eta_l`` after E steps of size eta_l on an L-smooth loss.

    ``((1 + eta_l L)^E - 1) / eta_l``; L itself for one step.

    Parameters
    ----------
    smoothness : float
        L >= 0 of every local loss (of every mini-batch loss, taken in a fixed order).
    local_learning_rate : float
        eta_l > 0.
    local_steps : int
        E >= 1.
    """
    check_non_negative(smoothness=smoothness)
    check_positive(local_learning_rate=local_learning_rate)
    check_integer(1, local_steps=local_steps)
    growth = local_steps * math.log1p(local_learning_rate * smoothness)
    return math.expm1(growth) / local_learning_rate if growth < 700 else math.inf


def linear_model_smoothness(feature_norm: float, loss: str) -> float:
    """Smoothness of a linear model whose features are clipped to a public norm.

    Parameters
    ----------
    feature_norm : float
        Public bound on the L2 norm of a feature vector (with the constant feature of a bias), >= 0.
    loss : {"logistic", "softmax"}
        norm^2 / 4 for the logistic loss, norm^2 / 2 for the softmax cross-entropy.
    """
    check_non_negative(feature_norm=feature_norm)
    check_choice(("logistic", "softmax"), loss=loss)
    return feature_norm**2 / (4 if loss == "logistic" else 2)


def cohort_quantile(members: int, sampling_rate: float, exceedance: float) -> int:
    """Smallest k that a Binomial(members, rate) cohort exceeds with probability at most ``exceedance``."""
    check_integer(0, members=members)
    check_probability(sampling_rate=sampling_rate)
    check_delta(exceedance=exceedance)
    low, high = -1, members
    while high - low > 1:
        middle = (low + high) // 2
        tail = betainc(middle + 1, members - middle, sampling_rate) if middle >= 0 else 1.0
        low, high = (low, middle) if tail <= exceedance else (middle, high)
    return high


def dpsgd_dc_event(
    *,
    rounds: int,
    learning_rate: float | Sequence[float],
    smoothness: float,
    clipping_norm: float,
    noise_multiplier: float,
    radius: float,
    cohort: float,
    adjacency: Adjacency,
    sampling_rate: float = 1.0,
    num_clients: int | None = None,
    failure_mass: float = 0.0,
    local_steps: int = 1,
    local_learning_rate: float | None = None,
    convex_and_never_clipped: bool = False,
    grid_step: float = 0.0,
    dimension: int | None = None,
    release_noise_std: float | None = None,
) -> AmplificationByIteration:
    """Hidden-state event of a DPSGD-DC run.

    Parameters
    ----------
    rounds : int
        T >= 0.
    learning_rate : float or sequence of float
        Server learning rate eta > 0, or one for each round.
    smoothness : float
        L >= 0 of every client's loss, from a proof.
    clipping_norm : float
        C > 0, on the whole update of a client.
    noise_multiplier : float
        Noise standard deviation of the *sum* of clipped updates over C, > 0.
    radius : float
        R > 0 of the ball that the model is projected to.
    cohort : float
        m > 0: the fixed number that divides the sum.
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation. replace_one needs ``sampling_rate=1``.
    sampling_rate : float
        q in (0, 1] with which each client samples itself; 1 for full participation and for cohorts that the
        view may see.
    num_clients : int, optional
        Clients in the federation. Needed for ``sampling_rate < 1``; otherwise the number of clients that
        contribute to a round (default: ``cohort``).
    failure_mass : float
        Part of delta that pays for large Poisson cohorts, in (0, 1) when ``sampling_rate < 1``.
    local_steps, local_learning_rate : int, float
        E and eta_l when clients send the pseudo-gradient ``(theta - theta_E) / eta_l``; by default they
        send a gradient.
    convex_and_never_clipped : bool
        True only if all losses are convex, C-Lipschitz and L-smooth and clients send gradients: then the
        step is non-expansive where ``eta |cohort| / m <= 2 / L``.
    grid_step, dimension : float, int
        Step of the grid and number of coordinates d when clipped updates are rounded toward zero or to
        nearest.
    release_noise_std : float, optional
        Standard deviation, in model space, of continuous noise that the server adds to every iterate on top
        of distributed lattice noise; 0 for lattice noise alone. By default the noise is continuous and
        central.

    Raises
    ------
    InvalidArgument
        When an argument is out of range or missing; the message names it.
    """
    check_integer(0, rounds=rounds)
    rates = np.atleast_1d(np.asarray(learning_rate, dtype=np.float64))
    for rate in rates.tolist():
        check_positive(learning_rate=rate)
    check_non_negative(smoothness=smoothness, grid_step=grid_step)
    check_positive(
        clipping_norm=clipping_norm, noise_multiplier=noise_multiplier, radius=radius, cohort=cohort
    )
    check_choice(ADJACENCIES, adjacency=adjacency)
    check_integer(1, local_steps=local_steps)
    if not 0 < sampling_rate <= 1:
        raise InvalidArgument(f"sampling_rate must be in (0, 1], got {sampling_rate!r}")
    if sampling_rate < 1 and adjacency == "replace_one":
        raise InvalidArgument(
            "sampling_rate must be 1 under replace_one: Poisson cohorts go with add_or_remove"
        )

    others, largest = _cohort_sizes(rounds, cohort, sampling_rate, num_clients, failure_mass)
    lipschitz = smoothness
    if local_steps > 1 or local_learning_rate is not None:
        if local_learning_rate is None:
            raise InvalidArgument(
                f"local_learning_rate must be given with local_steps = {local_steps}, got None"
            )
        lipschitz = pseudo_gradient_lipschitz(smoothness, local_learning_rate, local_steps)
    factors = 1 + rates * lipschitz * largest / cohort
    drift = 0.0
    if grid_step > 0:
        if dimension is None:
            raise InvalidArgument("dimension must be given with a positive grid_step, got None")
        check_integer(1, dimension=dimension)
        drift = float(rates.max()) * grid_step * math.sqrt(dimension) * largest / cohort
    if convex_and_never_clipped:
        if local_steps > 1 or local_learning_rate is not None:
            raise InvalidArgument(
                "convex_and_never_clipped must be False when clients take local steps, got True"
            )
        contracting = rates * smoothness * largest / cohort <= 2
        factors = np.where(contracting, 1.0, factors)
        if contracting.any():
            drift *= 2
    unit = 1 if adjacency == "add_or_remove" else 2
    sensitivity = unit * rates * clipping_norm / cohort
    return AmplificationByIteration(
        rounds=int(rounds),
        update_lipschitz=_per_round(factors),
        sensitivity=_per_round(sensitivity),
        noise_std=_per_round(rates * noise_multiplier * clipping_norm / cohort),
        diameter=2 * radius,
        sampling_rate=sampling_rate,
        drift=drift,
        largest_move=2 * float(rates.max()) * clipping_norm * others / cohort,
        release_noise_std=release_noise_std,
        failure_mass=failure_mass if sampling_rate < 1 else 0.0,
    )


def _cohort_sizes(
    rounds: int, cohort: float, rate: float, num_clients: int | None, failure_mass: float
) -> tuple[float, float]:
    """Largest number of other members, and the number that enters the Lipschitz constant."""
    if rate == 1:
        members = float(cohort)
        if num_clients is not None:
            check_integer(1, num_clients=num_clients)
            members = float(num_clients)
        return members, members
    if num_clients is None:
        raise InvalidArgument("num_clients must be given with sampling_rate < 1, got None")
    check_integer(1, num_clients=num_clients)
    if not 0 < failure_mass < 1:
        raise InvalidArgument(f"failure_mass must be in (0, 1) with sampling_rate < 1, got {failure_mass!r}")
    others = float(cohort_quantile(num_clients - 1, rate, failure_mass / max(rounds, 1)))
    return others, others


def _per_round(values: np.ndarray) -> float | tuple[float, ...]:
    return float(values[0]) if values.size == 1 else tuple(values.tolist())
