"""Rényi curves of random allocation with independent noise, both directions."""

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from fedpriv.accounting.allocation_profile import allocation_law
from fedpriv.accounting.allocation_renyi import (
    add_divergence,
    add_divergence_bound,
    allocation_curves,
    log_moments,
    remove_divergence,
)
from fedpriv.accounting.curves import DEFAULT_ORDERS, gaussian_curve
from fedpriv.accounting.validators import InvalidArgument

VECTORS = json.loads((Path(__file__).parent / "vectors_allocation.json").read_text())


@pytest.mark.parametrize("row", VECTORS["allocation_renyi_independent"], ids=lambda row: str(row["bins"]))
def test_vectors(row):
    orders = np.array([float(order) for order in row["rdp_remove"]])
    computed = remove_divergence(row["sigma"] / row["epochs_fixed_bin"] ** 0.5, row["bins"], orders)
    np.testing.assert_allclose(computed, list(row["rdp_remove"].values()), rtol=1e-11)


@pytest.mark.parametrize("bins", [2, 3, 5])
def test_moments_match_brute_force_over_bins(bins):
    g = 0.37
    logs = log_moments(g, bins, 5)
    for n in range(2, 6):
        total = sum(
            math.exp(g * sum(bins_of.count(i) * (bins_of.count(i) - 1) / 2 for i in set(bins_of)))
            for bins_of in itertools.product(range(bins), repeat=n)
        )
        assert logs[n] == pytest.approx(math.log(total / bins**n), rel=1e-12)


@pytest.mark.parametrize(
    ("s", "bins", "order"), [(100.0, 10**6, 2), (100.0, 10**6, 5), (20.0, 1000, 9), (0.3, 37, 6)]
)
def test_no_digit_is_lost(s, bins, order):
    """The coefficient of x^n in (sum_k exp(k(k-1)/(2 s^2)) x^k / k!)^b by series arithmetic in 60 digits."""
    with mpmath.workdps(60):
        single = [
            mpmath.exp(mpmath.mpf(k) * (k - 1) / 2 / mpmath.mpf(s) ** 2) / mpmath.factorial(k)
            for k in range(order + 1)
        ]

        def times(a, b):
            return [mpmath.fsum(a[i] * b[k - i] for i in range(k + 1)) for k in range(order + 1)]

        power = [mpmath.mpf(1)] + [mpmath.mpf(0)] * order
        for bit in bin(bins)[2:]:
            power = times(power, power)
            if bit == "1":
                power = times(power, single)
        exact = mpmath.log(power[order] * mpmath.factorial(order) / mpmath.mpf(bins) ** order) / (order - 1)
        computed = remove_divergence(s, bins, np.array([float(order)]))[0]
        assert computed == pytest.approx(float(exact), rel=1e-10)


def test_large_moments_agree_with_small_ones():
    """The plain and the logarithmic branch meet: orders computed together equal those computed alone."""
    together = log_moments(0.7, 300, 400)
    for largest in (3, 17, 60, 150):
        np.testing.assert_allclose(log_moments(0.7, 300, largest), together[: largest + 1], rtol=1e-11)
    assert (np.diff(together, 2) > -1e-9).all()
    # All in one bin is one of the terms.
    n = np.arange(2, 401)
    assert (together[2:] >= n * (n - 1) * 0.35 - (n - 1) * math.log(300) - 1e-9).all()


def add_by_quadrature(s, bins, m):
    """E (S/b)^-m over a few independent normals."""
    z = np.linspace(-11, 9, 401)
    weight = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    x = np.exp(z / s - 0.5 / s**2)
    total, mass = x, weight
    for _ in range(bins - 1):
        total, mass = np.add.outer(total, x).ravel(), np.multiply.outer(mass, weight).ravel()
    return math.log(mass @ (total / bins) ** -m) / m


@pytest.mark.parametrize(
    ("s", "bins", "m"), [(1.0, 2, 0.5), (1.0, 2, 3.0), (0.6, 2, 1.7), (2.0, 2, 6.0), (5.0, 2, 20.0)]
)
def test_add_direction_matches_quadrature(s, bins, m):
    exact = add_by_quadrature(s, bins, m)
    computed = add_divergence(s, bins, np.array([1 + m]))[0]
    assert exact * (1 - 1e-9) <= computed <= exact * (1 + 1e-7)


@pytest.mark.parametrize(("s", "bins"), [(1.0, 1000), (0.3, 50), (40.0, 10**5), (0.5, 2)])
def test_add_direction_is_below_am_gm_and_above_the_mean_square(s, bins):
    orders = np.array([1.1, 1.5, 2.0, 3.0, 7.0, 20.0, 64.0, 256.0])
    exact, bound = add_divergence(s, bins, orders), add_divergence_bound(s, bins, orders)
    assert (exact <= bound * (1 + 1e-12)).all()
    assert (np.diff(exact) >= -1e-12 * exact[:-1]).all()
    assert (np.diff((orders - 1) * exact) > 0).all()
    # Jensen on the square: E r^-1 >= 1 + E(1-r)^2 - E(1-r)^3 ..., to first order in 1/b for mild noise.
    if s == 40.0:
        np.testing.assert_allclose(exact, orders / (2 * bins * s**2), rtol=0.01)


def test_one_bin_is_gaussian_and_bins_never_hurt():
    orders = DEFAULT_ORDERS
    gaussian = gaussian_curve(0.8, orders).rdp
    single = allocation_curves(0.8, 1, orders)
    np.testing.assert_array_equal(single.remove.rdp, gaussian)
    np.testing.assert_array_equal(single.add.rdp, gaussian)
    previous = single
    for bins in (2, 5, 30, 1000):
        curves = allocation_curves(0.8, bins, orders)
        for direction in ("remove", "add"):
            values, before = getattr(curves, direction).rdp, getattr(previous, direction).rdp
            assert (values <= before * (1 + 1e-9)).all()
        previous = curves


def test_fractional_orders_follow_the_chord():
    two, three = remove_divergence(0.9, 40, np.array([2.0, 3.0]))
    between = remove_divergence(0.9, 40, np.array([2.5]))[0]
    assert between == pytest.approx((0.5 * two + 0.5 * 2 * three) / 1.5)
    assert remove_divergence(0.9, 40, np.array([1.3]))[0] == pytest.approx(two)


@pytest.mark.parametrize(("s", "bins", "delta"), [(1.0, 100, 1e-5), (0.4, 30, 1e-8), (3.0, 1000, 1e-6)])
def test_renyi_dominates_the_profile(s, bins, delta):
    curves = allocation_curves(s, bins, DEFAULT_ORDERS)
    lower = allocation_law(s, bins, "lower", delta)
    assert curves.remove.to_epsilon(delta).epsilon >= lower.epsilon_remove(delta)
    assert curves.add.to_epsilon(delta).epsilon >= lower.epsilon_add(delta)
    # Nor is it absurdly loose.
    assert curves.to_epsilon(delta).epsilon <= 6 * lower.epsilon(delta)


def test_all_orders_to_256_for_ten_thousand_bins_is_one_pass():
    orders = np.arange(2.0, 257.0)
    values = remove_divergence(1.0, 10_000, orders)
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all()
    # All in one bin is the largest term at high orders.
    assert values[-1] == pytest.approx(256 / 2 - 256 / 255 * math.log(10_000), rel=1e-3)


def test_bad_arguments_are_named():
    orders = np.array([2.0])
    for function in (remove_divergence, add_divergence):
        with pytest.raises(InvalidArgument, match="noise_multiplier"):
            function(0.0, 3, orders)
        with pytest.raises(InvalidArgument, match="bins"):
            function(1.0, 0, orders)
