"""Sampled Gaussians against exact divergences by quadrature and high precision."""

import itertools
import math
import time

import mpmath
import numpy as np
import pytest
from scipy.special import logsumexp

from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.sampled_gaussian import (
    fixed_size_gaussian_curve,
    gaussian_pld,
    poisson_gaussian_curve,
)


def renyi_of_mixtures(first, second, sigma, alpha):
    """D_alpha between Gaussian mixtures [(weight, mean), ...] of one sigma, by trapezoid in log space."""
    means = [m for _, m in first + second]
    reach = (12 + 3 * alpha) * sigma + 3 * alpha
    x = np.linspace(min(means) - reach, max(means) + reach, 40_001)

    def log_density(mixture):
        parts = [math.log(w) - (x - m) ** 2 / (2 * sigma**2) for w, m in mixture if w > 0]
        return logsumexp(parts, axis=0) - math.log(sigma * math.sqrt(2 * math.pi))

    p, q = log_density(first), log_density(second)
    return (logsumexp(alpha * p + (1 - alpha) * q) + math.log(x[1] - x[0])) / (alpha - 1)


def poisson_by_mpmath(q, z, alpha):
    with mpmath.workdps(50):
        q, z = mpmath.mpf(q), mpmath.mpf(z)
        total = mpmath.fsum(
            mpmath.binomial(alpha, k) * (1 - q) ** (alpha - k) * q**k * mpmath.exp((k * k - k) / (2 * z * z))
            for k in range(alpha + 1)
        )
        return float(mpmath.log(total) / (alpha - 1))


@pytest.mark.parametrize(("q", "z"), [(1e-6, 1.0), (1e-4, 0.7), (1 / 3000, 4.0), (0.01, 10.0), (0.1, 1.2)])
def test_poisson_integer_orders_are_exact_and_never_below(q, z):
    orders = [2, 3, 5, 8, 20, 63, 128, 256]
    got = poisson_gaussian_curve(q, z, orders).rdp
    exact = np.array([poisson_by_mpmath(q, z, a) for a in orders])
    assert (got >= exact * (1 - 1e-15)).all()
    np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("q", "z"), [(0.001, 0.7), (0.1, 1.0), (0.5, 0.5), (0.25, 2.0)])
@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.9, 2.5, 3.7])
def test_poisson_fractional_orders_are_finite_upper_bounds_in_both_directions(q, z, alpha):
    value = poisson_gaussian_curve(q, z, DEFAULT_ORDERS).at([alpha]).rdp[0]
    with_unit, without = [(1 - q, 0.0), (q, 1.0)], [(1.0, 0.0)]
    assert value >= renyi_of_mixtures(with_unit, without, z, alpha) * (1 - 1e-9)
    assert value >= renyi_of_mixtures(without, with_unit, z, alpha) * (1 - 1e-9)
    assert value <= poisson_gaussian_curve(q, z, [float(math.ceil(alpha))]).rdp[0]


def test_poisson_stored_value_exceeds_the_linear_rule():
    value = poisson_gaussian_curve(0.25, 1.0, [32.0]).rdp[0]
    assert value == pytest.approx(14.568986465940863, rel=1e-12)
    assert value > 0.25 * 32 / 2


def test_sampled_curves_never_exceed_the_curve_without_sampling():
    for q, z in [(0.9, 0.3), (0.999, 5.0)]:
        unsampled = DEFAULT_ORDERS / (2 * z**2) * (1 + 1e-14)
        assert (poisson_gaussian_curve(q, z, DEFAULT_ORDERS).rdp <= unsampled).all()
        assert (fixed_size_gaussian_curve(1000, 999, z, DEFAULT_ORDERS).rdp <= unsampled).all()


def neighbours_without_replacement(others, sample_size):
    """Exact laws of a fixed-size cohort's sum on {-1, +1} data with the target at +1 and at -1."""
    laws = []
    for target in (1.0, -1.0):
        data = [target, *others]
        sums = [sum(cohort) for cohort in itertools.combinations(data, sample_size)]
        laws.append([(sums.count(s) / len(sums), s) for s in sorted(set(sums))])
    return laws


@pytest.mark.parametrize(
    ("others", "sample_size"),
    [
        ([-1.0], 1),
        ([-1.0, -1.0, -1.0], 1),
        ([0.0, 0.0, 0.0], 1),
        ([-1.0] * 5, 2),
        ([1.0, -1.0, 0.0], 2),
        ([-1.0] * 9, 1),
    ],
)
@pytest.mark.parametrize("noise_std", [1.0, 2.0, 4.0])
def test_fixed_size_dominates_brute_force_under_replace_one(others, sample_size, noise_std):
    """Contributions clipped to 1, every cohort enumerated: noise multiplier is noise_std / 2."""
    orders = [1.5, 2.0, 3.0, 6.0, 12.0]
    bound = fixed_size_gaussian_curve(len(others) + 1, sample_size, noise_std / 2, orders).rdp
    plus, minus = neighbours_without_replacement(others, sample_size)
    for alpha, value in zip(orders, bound, strict=True):
        assert value >= renyi_of_mixtures(plus, minus, noise_std, alpha) * (1 - 1e-9)
        assert value >= renyi_of_mixtures(minus, plus, noise_std, alpha) * (1 - 1e-9)


def test_fixed_size_at_sensitivity_one_clip_would_be_wrong():
    """The library trap: fed with noise_std / C it claims less than an exact pair of laws costs."""
    plus, minus = neighbours_without_replacement([-1.0] * 3, 1)
    exact = renyi_of_mixtures(plus, minus, 1.0, 6.0)
    assert fixed_size_gaussian_curve(4, 1, 1.0, [6.0]).rdp[0] < exact
    assert fixed_size_gaussian_curve(4, 1, 0.5, [6.0]).rdp[0] >= exact


def exact_delta_of_sampled_gaussian(q, z, epsilon, direction):
    """Closed form of the hockey-stick divergence of one sampled release."""
    e = math.exp(epsilon)
    cdf = lambda t: 0.5 * math.erfc(-t / math.sqrt(2))  # noqa: E731
    if direction == "remove":
        # The loss grows with x: it exceeds epsilon above x0.
        x0 = z * z * math.log((e - (1 - q)) / q) + 0.5
        return (1 - q) * cdf(-x0 / z) + q * cdf(-(x0 - 1) / z) - e * cdf(-x0 / z)
    if 1 / e <= 1 - q:
        return 0.0
    x0 = z * z * math.log((1 / e - (1 - q)) / q) + 0.5
    return cdf(x0 / z) - e * ((1 - q) * cdf(x0 / z) + q * cdf((x0 - 1) / z))


@pytest.mark.parametrize(("q", "z"), [(0.1, 1.0), (0.5, 0.8), (0.01, 2.0), (0.9, 0.6)])
def test_pld_of_one_release_is_the_larger_direction_and_never_below(q, z):
    loss = gaussian_pld(q, z, 1e-3)
    for epsilon in (0.0, 0.05, 0.3, 1.0):
        exact = max(exact_delta_of_sampled_gaussian(q, z, epsilon, d) for d in ("remove", "add"))
        got = loss.get_delta_for_epsilon(epsilon)
        assert got >= exact - 1e-15
        assert got == pytest.approx(exact, rel=1e-4, abs=1e-12)


def test_curves_are_cached():
    poisson_gaussian_curve(0.0123, 1.37, DEFAULT_ORDERS)
    start = time.perf_counter()
    for _ in range(100):
        poisson_gaussian_curve(0.0123, 1.37, DEFAULT_ORDERS)
    assert (time.perf_counter() - start) / 100 < 2e-3


def test_library_warnings_about_failed_orders_do_not_reach_the_user(caplog):
    poisson_gaussian_curve(0.1, 1.001, DEFAULT_ORDERS)
    assert not [record for record in caplog.records if "failed to converge" in record.getMessage()]
