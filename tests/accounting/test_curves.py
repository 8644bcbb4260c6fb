"""Rényi curves: composition, moving between orders, conversion to (epsilon, delta)."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.accounting.curves import (
    DEFAULT_ORDERS,
    DirectionalCurves,
    RdpCurve,
    gaussian_curve,
    infinite_curve,
    zero_curve,
)
from fedpriv.accounting.validators import InvalidArgument


def test_default_orders_are_those_of_the_library():
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    np.testing.assert_array_equal(DEFAULT_ORDERS, np.array(DEFAULT_RDP_ORDERS, dtype=float))


def test_gaussian_curve_closed_form():
    curve = gaussian_curve(0.5, [1.5, 2.0, 10.0])
    np.testing.assert_allclose(curve.rdp, [3.0, 4.0, 20.0])
    assert np.isinf(gaussian_curve(0.0, [2.0]).rdp).all()
    assert np.isinf(gaussian_curve(1e-200, [2.0]).rdp).all()


def conversion_by_mpmath(orders, rdp, delta):
    """Proposition 12 of Canonne, Kamath, Steinke 2020 in high precision."""
    with mpmath.workdps(40):
        values = [
            mpmath.mpf(r) + mpmath.log(1 - 1 / mpmath.mpf(a)) - mpmath.log(mpmath.mpf(delta) * a) / (a - 1)
            for a, r in zip(map(mpmath.mpf, orders), rdp, strict=True)
        ]
        return max(0.0, float(min(values)))


@given(
    st.floats(0.2, 50),
    st.floats(1e-14, 1e-3),
    st.integers(1, 500),
)
def test_conversion_matches_high_precision(noise_multiplier, delta, count):
    curve = gaussian_curve(noise_multiplier, DEFAULT_ORDERS).scaled(count)
    expected = conversion_by_mpmath(curve.orders.tolist(), curve.rdp.tolist(), delta)
    assert curve.to_epsilon(delta).epsilon == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(st.floats(0.3, 20), st.floats(1e-12, 0.3))
def test_delta_is_the_inverse_of_epsilon(noise_multiplier, delta):
    curve = gaussian_curve(noise_multiplier, DEFAULT_ORDERS)
    epsilon = curve.to_epsilon(delta).epsilon
    if epsilon > 0:
        assert curve.to_delta(epsilon) == pytest.approx(delta, rel=1e-6)
    else:
        assert curve.to_delta(0.0) <= delta * (1 + 1e-9)


@given(st.floats(0.5, 30), st.floats(1e-9, 0.1), st.floats(1.01, 5))
def test_epsilon_falls_with_delta_and_rises_with_count(noise_multiplier, delta, factor):
    curve = gaussian_curve(noise_multiplier, DEFAULT_ORDERS)
    more = min(delta * factor, 0.9)
    assert curve.to_epsilon(more).epsilon <= curve.to_epsilon(delta).epsilon
    assert curve.scaled(2).to_epsilon(delta).epsilon >= curve.to_epsilon(delta).epsilon


def test_epsilon_zero_only_above_total_variation():
    """A Gaussian with z = 20 has total variation 0.01994: the curve must not claim 0 below it."""
    curve = gaussian_curve(20.0, DEFAULT_ORDERS)
    assert curve.to_epsilon(0.0199).epsilon > 0
    assert curve.to_epsilon(0.05).epsilon == 0.0


def test_degenerate_conversions():
    orders = [2.0, 4.0]
    assert zero_curve(orders).to_epsilon(1e-5).epsilon == 0
    assert zero_curve(orders).to_epsilon(0).epsilon == 0
    assert gaussian_curve(1.0, orders).to_epsilon(0).epsilon == math.inf
    assert infinite_curve(orders).to_epsilon(0.5).epsilon == math.inf
    assert zero_curve(orders).to_delta(0.0) == 0
    assert infinite_curve(orders).to_delta(5.0) == 1
    for delta in (1.0, -0.1, math.nan, 2):
        with pytest.raises(InvalidArgument, match="delta must be"):
            zero_curve(orders).to_epsilon(delta)


def test_failure_mass_is_spent_from_delta():
    plain = gaussian_curve(1.0, DEFAULT_ORDERS)
    failing = RdpCurve(plain.orders, plain.rdp, delta_0=4e-6)
    assert failing.to_epsilon(1e-5).epsilon == pytest.approx(plain.to_epsilon(6e-6).epsilon, rel=1e-12)
    assert failing.to_delta(3.0) == pytest.approx(plain.to_delta(3.0) + 4e-6)
    for delta in (4e-6, 1e-6, 0.0):
        with pytest.raises(InvalidArgument, match=r"delta must be above the failure mass delta_0 = 4e-06"):
            failing.to_epsilon(delta)


def test_failure_masses_add_under_composition():
    curve = RdpCurve(np.array([2.0]), np.array([0.5]), delta_0=1e-6)
    assert (curve + curve).delta_0 == pytest.approx(2e-6)
    assert curve.scaled(5).delta_0 == pytest.approx(5e-6)
    assert (curve + curve).rdp[0] == 1.0
    with pytest.raises(InvalidArgument, match="delta_0 must stay below 1"):
        curve.scaled(10**6)


def test_zero_times_infinity_is_zero():
    assert (infinite_curve([2.0]).scaled(0).rdp == 0).all()


def test_best_order_at_an_edge_is_noted():
    assert "last of the grid" in gaussian_curve(10.0, [2.0, 4.0, 8.0]).to_epsilon(1e-5).note
    assert "first of the grid" in gaussian_curve(0.05, [2.0, 4.0, 8.0]).to_epsilon(1e-5).note
    assert gaussian_curve(1.0, DEFAULT_ORDERS).to_epsilon(1e-5).note == ""


@given(
    st.floats(0.3, 10),
    st.lists(st.floats(1.01, 80), min_size=1, max_size=8, unique=True),
)
def test_moving_orders_is_an_upper_bound(noise_multiplier, new_orders):
    """The Gaussian curve is known at every order; from integers only, no value may fall below the truth."""
    known = gaussian_curve(noise_multiplier, np.arange(2.0, 101.0))
    orders = np.sort(np.array(new_orders))
    moved = known.at(orders)
    truth = gaussian_curve(noise_multiplier, orders)
    assert (moved.rdp >= truth.rdp * (1 - 1e-12)).all()
    inside = orders >= 2
    # The chord of a parabola over a unit interval is at most 1/8 of its second derivative above it.
    gap = (moved.rdp - truth.rdp) * (orders - 1)
    assert (gap[inside] <= 1 / (8 * noise_multiplier**2) + 1e-9).all()


def test_moving_orders_below_the_first_uses_its_value_and_above_the_last_is_infinite():
    known = RdpCurve(np.array([2.0, 3.0]), np.array([0.4, 0.9]))
    moved = known.at([1.2, 2.0, 2.5, 3.0, 3.001])
    np.testing.assert_allclose(moved.rdp[:4], [0.4, 0.4, (0.5 * 0.4 + 0.5 * 1.8) / 1.5, 0.9])
    assert moved.rdp[4] == math.inf


def test_infinite_values_stay_at_their_orders():
    known = RdpCurve(np.array([2.0, 3.0, 4.0]), np.array([0.4, math.inf, 2.0]))
    moved = known.at([2.0, 2.5, 3.0, 3.5, 4.0])
    assert np.isinf(moved.rdp[1:4]).all()
    assert moved.rdp[4] == 2.0


def test_curve_with_per_order_choices_is_not_interpolated():
    known = RdpCurve(np.array([2.0, 3.0]), np.array([0.4, 0.9]), 1e-7, interpolable=False)
    moved = known.at([1.5, 2.0, 2.5, 3.0])
    assert np.isinf(moved.rdp[[0, 2]]).all()
    np.testing.assert_allclose(moved.rdp[[1, 3]], [0.4, 0.9])
    assert not (known + known).interpolable


def test_directions_are_composed_and_converted_separately():
    orders = np.array([2.0, 16.0])
    first = DirectionalCurves(RdpCurve(orders, np.array([0.1, 9.0])), RdpCurve(orders, np.array([5.0, 1.2])))
    delta = 1e-5
    expected = max(
        first.remove.scaled(3).to_epsilon(delta).epsilon, first.add.scaled(3).to_epsilon(delta).epsilon
    )
    assert first.scaled(3).to_epsilon(delta).epsilon == expected
    per_order = (
        RdpCurve(orders, np.maximum(first.remove.rdp, first.add.rdp)).scaled(3).to_epsilon(delta).epsilon
    )
    assert expected < per_order
    assert (first + first).add.rdp.tolist() == [10.0, 2.4]
    assert first.to_delta(8.0) == max(first.remove.to_delta(8.0), first.add.to_delta(8.0))


@pytest.mark.parametrize(
    ("orders", "rdp", "message"),
    [
        ([1.0, 2.0], [0.1, 0.1], "orders must be"),
        ([2.0, 2.0], [0.1, 0.1], "strictly increasing"),
        ([2.0, math.inf], [0.1, 0.1], "finite"),
        ([2.0, 3.0], [0.1, -0.1], "rdp must be >= 0"),
        ([2.0, 3.0], [0.1, math.nan], "not NaN"),
        ([2.0, 3.0], [0.1], "shapes"),
        ([], [], "non-empty"),
    ],
)
def test_bad_curves_are_rejected(orders, rdp, message):
    with pytest.raises(InvalidArgument, match=message):
        RdpCurve(np.array(orders), np.array(rdp))


def test_curves_on_other_orders_do_not_add():
    with pytest.raises(InvalidArgument, match="equal orders"):
        zero_curve([2.0]) + zero_curve([3.0])
    with pytest.raises(InvalidArgument, match="count must be an integer >= 0"):
        zero_curve([2.0]).scaled(-1)
    with pytest.raises(InvalidArgument, match="delta_0 must be"):
        RdpCurve(np.array([2.0]), np.array([1.0]), delta_0=1.0)


def test_curves_cannot_be_changed_afterwards():
    values = np.array([1.0])
    curve = RdpCurve(np.array([2.0]), values)
    values[0] = 0.0
    assert curve.rdp[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        curve.rdp[0] = 0.0
