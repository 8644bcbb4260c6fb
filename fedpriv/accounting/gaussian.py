"""The Gaussian mechanism exactly: the analytic (epsilon, delta) curve of Balle and Wang 2018 (arXiv
1805.06530).

With noise multiplier z (noise standard deviation over true L2 sensitivity) the privacy loss is normal with
mean ``1/(2 z^2)`` and variance ``1/z^2``, hence

    delta(epsilon) = Phi(1/(2z) - epsilon z) - e^epsilon Phi(-1/(2z) - epsilon z).

Composition of Gaussian releases with multipliers z_1, z_2, ... is exactly one release with
``1/z^2 = sum 1/z_i^2`` (adaptive inputs included), so everything here also serves compositions.

Formal guarantees
-----------------
* `gaussian_delta` is the exact privacy profile; it is non-increasing in both arguments.
* `gaussian_epsilon` and `gaussian_noise_multiplier` return the safe end of their final bracket: the profile
  at the returned value is at most the requested delta.
* Epsilon is 0 exactly when delta is at least the total variation distance ``erf(1 / (2 sqrt(2) z))``.
"""

import math

from fedpriv.accounting.solvers import bisect_decreasing
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_delta,
    check_non_negative,
    check_positive,
)


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Exact delta of one Gaussian release at ``epsilon``.

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation over the true L2 sensitivity, >= 0 (0 means no noise: delta is 1).
    epsilon : float
        In nats, >= 0.

    Returns
    -------
    float
        In [0, 1]. Relative accuracy about 1e-10 (it loses digits with the noise multiplier).
    """
    check_non_negative(noise_multiplier=noise_multiplier, epsilon=epsilon)
    if noise_multiplier == 0:
        return 1.0
    return _delta(noise_multiplier, epsilon)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release at ``delta`` (rounded up by less than 1e-12 relatively).

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation over the true L2 sensitivity, >= 0; 0 gives infinity.
    delta : float
        In [0, 1); 0 gives infinity.

    Raises
    ------
    InvalidArgument
        When an argument is out of range; the message names it.

    Examples
    --------
    >>> round(gaussian_epsilon(noise_multiplier=2.0, delta=1e-5), 4)
    1.9931
    """
    check_non_negative(noise_multiplier=noise_multiplier)
    check_delta(delta=delta)
    if noise_multiplier == 0 or delta == 0:
        return math.inf
    if _delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    return bisect_decreasing(lambda epsilon: _delta(noise_multiplier, epsilon), delta, start=1.0)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Smallest noise multiplier with which one Gaussian release is (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon : float
        Target in nats, > 0.
    delta : float
        Target in (0, 1): with delta = 0 no Gaussian noise is enough.

    Raises
    ------
    InvalidArgument
        When an argument is out of range; the message names it.
    """
    check_positive(epsilon=epsilon)
    check_delta(delta=delta)
    if delta == 0:
        raise InvalidArgument("delta must be in (0, 1): no Gaussian noise gives pure epsilon-DP, got 0")
    return bisect_decreasing(lambda noise_multiplier: _delta(noise_multiplier, epsilon), delta, start=1.0)


def _delta(z: float, epsilon: float) -> float:
    """The profile; ``erfcx`` form in the tail, where the two normal probabilities nearly cancel."""
    from scipy.special import erfcx, ndtr  # here, because a client that only exchanges keys never needs it

    low = epsilon * z - 1 / (2 * z)
    high = epsilon * z + 1 / (2 * z)
    if math.isinf(high):
        return 1.0 if low < 0 else 0.0
    scaled_high = erfcx(high / math.sqrt(2))
    if low >= 0:
        # e^epsilon phi(high) = phi(low): both terms carry the factor exp(-low^2 / 2).
        return float(0.5 * math.exp(-low * low / 2) * (erfcx(low / math.sqrt(2)) - scaled_high))
    return float(max(0.0, ndtr(-low) - 0.5 * math.exp(-low * low / 2) * scaled_high))
