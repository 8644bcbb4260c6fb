"""Conditional composition of random allocation: round by round, given what was released before.

Given the releases of the rounds before n, round n is a mixture of Gaussians whose weights are the posterior of the
unit's bin. If, except on an event of probability at most delta_n, those weights lie below fixed ones, the run is
dominated by the composition of the fixed mixtures, at the price ``sum delta_n`` in delta (Choquette-Choo et al. 2023,
arXiv 2310.15526; Feldman and Shenfeld, arXiv 2601.21636). Deterministic: no Monte Carlo.

* Independent noise: the posterior of the current bin is ``1 / ((b - n + 1) + sum_{i<n} X_i)`` with log-normal X_i, and
  the lower tail of the sum is bounded by Chernoff with the exact Laplace transform. With the unit present the sum is
  stochastically larger, so one event serves both directions.
* Correlated noise: for a threshold v on the mean of round n, A the bins with mean at least v, the event is
  ``sum_A e^{L_i} > K sum_{not A} e^{L_j}``. The right sum is at least ``exp(sum w_j L_j + H(w))`` for any probability
  vector w (Gibbs), the left one is split among its terms, and what remains are tails of one-dimensional normals. The
  event is bounded separately under Q, for the add direction, and under P, bin by bin, for the remove direction.

By the comparison in `allocation_gram` the pair with a fixed contribution of norm 1 dominates adaptive ones, so the
posterior may be computed for it.
"""

import math
from typing import Final

import numpy as np
from scipy import special

from fedpriv.accounting.allocation_events import RandomAllocation
from fedpriv.accounting.matrix_gram import first_bin_mean
from fedpriv.accounting.ratio_law import FloatArray
from fedpriv.accounting.validators import check_delta

FAILURE_SHARE: Final = 0.1
"""Part of delta that pays for the events."""
_GROUPS: Final = 8
_LARGEST_WORK: Final = 2_000_000
_TEMPERATURES: Final = (0.0, 0.3, 0.6, 1.0)


def conditional_epsilon(event: RandomAllocation, delta: float) -> float | None:
    """Epsilon of a run by conditional composition; None where it is not offered.

    Parameters
    ----------
    event : RandomAllocation
        Redrawn bins, or kept bins with one epoch or correlated noise. With correlated noise (and with bins kept over
        epochs) at most ``bins^2 * epochs = 2,000,000``.
    delta : float
        In (0, 1).

    Notes
    -----
    Formal guarantees: an upper bound in both directions, for adaptive contributions; never below the profile's lower
    value.
    """
    check_delta(delta=delta)
    if event.bins == 1 or event.noise_multiplier == 0 or delta == 0:
        return None
    epochs = event.epochs if event.redraw else 1
    spent = FAILURE_SHARE * delta
    if event.matrix is None and (event.redraw or event.epochs == 1):
        rates = sampling_rates(event.noise_multiplier, event.bins, spent / epochs)
        levels, weights = np.ones(1), rates[:, None]
        return _mixture_epsilon(levels, weights, event.noise_multiplier, epochs, delta, spent)
    rounds = event.bins * (1 if event.redraw else event.epochs)
    if event.bins * rounds > _LARGEST_WORK:
        return None
    means = _round_means(event)
    levels, weights = mixture_weights(means, event.noise_multiplier, spent / epochs)
    return _mixture_epsilon(levels, weights, event.noise_multiplier, epochs, delta, spent)


def sampling_rates(noise_multiplier: float, bins: int, failure: float) -> FloatArray:
    """Sampling rates q_1..q_b that bound the posterior of the current bin, except with probability ``failure``.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over the clip norm.
    bins : int
        b.
    failure : float
        Sum of the failure probabilities, divided equally over the rounds.
    """
    n = np.arange(1, bins + 1)
    t = np.geomspace(1e-4, 1e5, 400)
    log_laplace = _log_laplace(noise_multiplier, t)
    log_delta = math.log(failure / bins)
    # P(sum of n - 1 < a) <= exp(t a) E exp(-t X)^(n-1) for every t: the largest a with that at most delta_n.
    sums = np.zeros(bins)
    for start in range(0, bins, 4096):
        part = n[start : start + 4096, None] - 1
        sums[start : start + 4096] = ((log_delta - part * log_laplace[None, :]) / t[None, :]).max(axis=1)
    return 1 / ((bins - n + 1) + np.maximum(sums, 0.0))


def mixture_weights(
    means: FloatArray, noise_multiplier: float, failure: float
) -> tuple[FloatArray, FloatArray]:
    """Levels of the mean and, per round, upper bounds on the posterior weight at or above each level.

    Parameters
    ----------
    means : array of shape (rounds, bins)
        Mean of each round for each bin, >= 0, clip norm 1.
    noise_multiplier : float
        Standard deviation of the noise.
    failure : float
        Sum of the failure probabilities, divided equally over rounds and levels.

    Returns
    -------
    levels : array of shape (m,)
        Increasing positive means; a bin's mean is rounded up to the next level.
    weights : array of shape (rounds, m)
        Weight bounds, non-increasing along the levels.
    """
    levels = _levels(means)
    rounds, bins = means.shape
    share = failure / (rounds * levels.size)
    scaled = means / noise_multiplier
    gram = np.zeros((bins, bins))
    weights = np.ones((rounds, levels.size))
    lower_edges = np.concatenate([[0.0], levels[:-1]])
    for n in range(rounds):
        for m, edge in enumerate(lower_edges):
            # Means above the level below this one are rounded up to this level or higher.
            chosen = means[n] > edge * (1 + 1e-12)
            if not chosen.any():
                weights[n, m] = 0.0
            elif not chosen.all():
                weights[n, m] = _weight_bound(gram, chosen, share)
        gram += np.outer(scaled[n], scaled[n])
    return levels, np.minimum.accumulate(weights, axis=1)


def _weight_bound(gram: FloatArray, chosen: np.ndarray, failure: float) -> float:
    """Bound W with P[posterior of the chosen bins > W] <= failure, under Q and under P."""
    norms = np.diag(gram)
    best = math.inf
    bins = norms.size
    rest = ~chosen
    count = int(chosen.sum())
    for temperature in _TEMPERATURES:
        # Under Q the mean of L_j is -G_jj / 2; with the unit in bin i it is that plus G_ij.
        starts = -0.5 * norms[None, :] + np.concatenate([np.zeros((1, bins)), gram])
        logits = np.where(rest[None, :], temperature * starts, -np.inf)
        w = np.exp(logits - logits.max(axis=1, keepdims=True))
        w /= w.sum(axis=1, keepdims=True)
        entropy = special.entr(w).sum(axis=1)
        mixed = w @ gram
        square = np.einsum("ij,ij->i", mixed, w)
        # D_i = L_i - sum_j w_j L_j for the chosen i, with w per hypothesis.
        mean = starts[:, chosen] - np.einsum("ij,ij->i", w, starts)[:, None]
        variance = norms[None, chosen] - 2 * mixed[:, chosen] + square[:, None]
        deviation = np.sqrt(np.maximum(variance, 0.0)) + 1e-12
        offset = math.log(count) - entropy[:, None] + mean
        best = min(best, _threshold(offset, deviation, failure))
    odds = math.exp(min(best, 700.0))
    return odds / (1 + odds)


def _threshold(offset: FloatArray, deviation: FloatArray, failure: float) -> float:
    """Smallest log K for which the union of tails is at most ``failure`` under Q (row 0) and P (mean of the rest)."""

    def tail(x: float) -> float:
        probabilities = special.ndtr((offset - x) / deviation).sum(axis=1)
        return max(float(probabilities[0]), float(probabilities[1:].mean()))

    high = float((offset + 40 * deviation).max())
    low = float((offset - 10 * deviation).min()) - 1
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if tail(middle) > failure else (low, middle)
        if high - low < 1e-6:
            break
    return high


def _levels(means: FloatArray) -> FloatArray:
    """A few levels that cover all positive means; exact when there are few different ones."""
    values = np.unique(np.round(means[means > 0], 12))
    values = values[values > 1e-6 * values[-1]]
    if values.size > 8:
        values = values[-1] * np.geomspace(1e-2, 1.0, 8)
    # Rounding may have lowered the largest one.
    values[-1] = max(values[-1], float(means.max()))
    return values * (1 + 1e-11)


def _round_means(event: RandomAllocation) -> FloatArray:
    if event.matrix is None:
        return np.tile(np.eye(event.bins), (event.epochs, 1))
    mean = first_bin_mean(event.matrix, event.bins)
    result = np.zeros((mean.size, event.bins))
    for i in range(event.bins):
        result[i:, i] = mean[: mean.size - i]
    return result


def _mixture_epsilon(
    levels: FloatArray, weights: FloatArray, noise_multiplier: float, epochs: int, delta: float, spent: float
) -> float | None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    # Rounds of similar weight are merged, each level at its largest.
    order = np.argsort(weights @ levels)
    spread = np.array_split(order, min(_GROUPS, order.size))
    losses = np.array(
        [_loss_variance(levels, weights[part].max(axis=0), noise_multiplier) for part in spread]
    )
    total = epochs * sum(part.size * float(loss) for part, loss in zip(spread, losses, strict=True))
    width = total + 20 * math.sqrt(total)
    step = max(
        min(math.sqrt(max(float(losses.min()), 1e-12)) / 12, 1e-3 * max(1.0, width / 20)), width / 1e6, 1e-7
    )
    composed = None
    compositions = 0
    for part in spread:
        tails = weights[part].max(axis=0)
        shares = tails - np.append(tails[1:], 0.0)
        used = shares > 0
        if not used.any():
            continue
        rest = max(0.0, 1.0 - float(shares[used].sum()))
        if used.sum() == 1:
            # The sampled Gaussian, whose loss the library inverts in closed form.
            distribution = pld.from_gaussian_mechanism(
                noise_multiplier / float(levels[used][0]),
                value_discretization_interval=step,
                sampling_prob=min(1.0, float(shares[used][0])),
            )
        else:
            distribution = pld.from_mixture_gaussian_mechanism(
                noise_multiplier,
                np.concatenate([[0.0], levels[used]]).tolist(),
                np.concatenate([[rest], shares[used]]).tolist(),
                value_discretization_interval=step,
            )
        if part.size * epochs > 1:
            distribution = distribution.self_compose(part.size * epochs)
        composed = distribution if composed is None else composed.compose(distribution)
        compositions += part.size * epochs + 16
    if composed is None:
        return 0.0
    # The library's Fourier rounding errors reach delta as if they were probability.
    left = delta - spent - compositions * float(np.finfo(float).eps)
    if left <= 0:
        return None
    epsilon = float(composed.get_epsilon_for_delta(left))
    return epsilon if math.isfinite(epsilon) else None


def _loss_variance(levels: FloatArray, tails: FloatArray, noise_multiplier: float) -> float:
    """Rough variance of the loss of a mixture (its Rényi divergence of order 2), for the choice of the grid."""
    shares = tails - np.append(tails[1:], 0.0)
    scaled = levels / noise_multiplier
    moment = shares @ np.expm1(np.minimum(np.outer(scaled, scaled), 50.0)) @ shares
    return math.log1p(float(moment))


def _log_laplace(s: float, t: FloatArray) -> FloatArray:
    """``log E exp(-t X)``, X log-normal of mean 1, by a trapezoid rule that converges exponentially."""
    step = min(0.4, 0.2 * s)
    z = np.arange(-13.0 - 1 / s, 13.0 + step, step)
    with np.errstate(over="ignore"):
        exponent = -0.5 * z**2 - t[:, None] * np.exp(z / s - 0.5 / s**2)[None, :]
    values = special.logsumexp(exponent, axis=1) + math.log(step / math.sqrt(2 * math.pi))
    return values + 1e-12
