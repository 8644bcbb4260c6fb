"""Privacy-loss distribution of the last iterate: the dominating pairs of its steps, composed.

Each of the last j steps of the coupling in `fedpriv.accounting.amplification_by_iteration` compares a
contribution and a shift with nothing, on two independent parts of the noise. Both depend on a hidden state
of which only their norms are bounded, and hockey-stick divergences are convex in the first argument, so a
step is dominated by a sampled Gaussian and a Gaussian at the largest norms, in both directions, and
adaptive composition keeps the domination (Zhu, Dong, Wang 2022, arXiv 2106.08567).

Formal guarantees
-----------------
* The distribution dominates the last iterate for every epsilon; a failure mass, and a bound on the rounding
  errors of the library's transforms, are added to every delta.
* With q = 1 it is that of one Gaussian, the one of `AmplificationByIteration.gaussian_equivalent`.
"""

from typing import Any

import numpy as np

from fedpriv.accounting.amplification_by_iteration import NOMINAL_DELTA, AmplificationByIteration
from fedpriv.accounting.curves import DEFAULT_ORDERS, RdpCurve
from fedpriv.accounting.events import Gaussian, PoissonGaussian
from fedpriv.accounting.noise_split import best_split, sampled_rdp


def dominating_distribution(event: AmplificationByIteration, step: float) -> Any:
    """Privacy-loss distribution of the better of composition and amplification.

    Parameters
    ----------
    event : AmplificationByIteration
        A run that is not free.
    step : float
        Grid step in nats.

    Returns
    -------
    dp_accounting PrivacyLossDistribution or None
        None when a round has no noise.
    """
    run, q = event.run, event.sampling_rate
    if (run.stds == 0).any():
        return None
    if q == 1:
        amplified = run.amplifies and run.best_amplified < run.payments[-1]
        shift = run.best_amplified if amplified else float(run.payments[-1])
        return _with_failure(Gaussian(shift**-0.5).pld(step), event.failure_mass if amplified else 0.0, step)
    each, window, shift = PoissonGaussian(q, run.multiplier), event.rounds, 0.0
    order = _order_of_amplified(event)
    if order is not None and run.separate:
        costs = np.arange(1, event.rounds + 1) * sampled_rdp(q, run.multiplier, np.array([order]))
        window = int(np.argmin(costs + order / 2 * run.energies)) + 1
        shift = float(run.energies[window - 1])
    elif order is not None:
        split = best_split(q, run.multiplier, run.energies, DEFAULT_ORDERS, NOMINAL_DELTA).best
        each, window = PoissonGaussian(q, split.multiplier), split.window
        shift = float(run.energies[window - 1]) / (1 - split.share)
    total: Any = each.pld(step)
    total = total.self_compose(window)
    if shift > 0:
        total = total.compose(Gaussian(shift**-0.5).pld(step))
    rounding = window * float(np.finfo(np.float64).eps)
    return _with_failure(total, rounding + (event.failure_mass if order is not None else 0.0), step)


def _order_of_amplified(event: AmplificationByIteration) -> float | None:
    """Best order of the amplified curve at the nominal delta; None when composition is better there."""
    if not event.run.amplifies:
        return None
    composed = event.composition_curve(DEFAULT_ORDERS).to_epsilon(NOMINAL_DELTA)
    curve = event.amplified_curve(DEFAULT_ORDERS, NOMINAL_DELTA)
    best = RdpCurve(curve.orders, curve.rdp).to_epsilon(NOMINAL_DELTA)
    return best.order if best.epsilon < composed.epsilon else None


def _with_failure(distribution: Any, failure_mass: float, step: float) -> Any:
    """Compose with a mechanism that fails openly with the given probability."""
    if failure_mass == 0:
        return distribution
    from dp_accounting.pld import common, privacy_loss_distribution

    failing = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.0, failure_mass), value_discretization_interval=step
    )
    return distribution.compose(failing)
