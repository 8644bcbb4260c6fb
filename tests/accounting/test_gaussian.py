"""The analytic Gaussian curve against stored values, high precision and itself."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.accounting.curves import DEFAULT_ORDERS, gaussian_curve
from fedpriv.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from fedpriv.accounting.validators import InvalidArgument

EXACT_EPSILON = [  # sensitivity sqrt(10): ten votes under add_or_remove, five under replace_one
    (103, 0.09388833219915317, 0.1047),
    (46, 0.22648038147152558, 0.2504),
    (24, 0.46008681580043576, 0.5055),
    (12.5, 0.9384698395265941, 1.0254),
    (4.7, 2.7821595711965945, 3.016),
]
EXACT_SIGMA = [(0.1, 97.239), (0.25, 42.013), (0.5, 22.237), (1, 11.797), (3, 4.397)]


def delta_by_mpmath(noise_multiplier, epsilon):
    with mpmath.workdps(60):
        z, e = mpmath.mpf(noise_multiplier), mpmath.mpf(epsilon)
        return mpmath.ncdf(1 / (2 * z) - e * z) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * z) - e * z)


@pytest.mark.parametrize(("sigma", "epsilon", "rdp_epsilon"), EXACT_EPSILON)
def test_stored_epsilons(sigma, epsilon, rdp_epsilon):
    noise_multiplier = sigma / math.sqrt(10)
    assert gaussian_epsilon(noise_multiplier, 1e-5) == pytest.approx(epsilon, rel=1e-10)
    # The stored Rényi values are minima over all real orders; the default grid is slightly above.
    every_order = gaussian_curve(noise_multiplier, np.arange(1.01, 300, 0.01)).to_epsilon(1e-5).epsilon
    assert every_order == pytest.approx(rdp_epsilon, abs=3e-4)
    by_rdp = gaussian_curve(noise_multiplier, DEFAULT_ORDERS).to_epsilon(1e-5).epsilon
    assert every_order <= by_rdp <= every_order * 1.003


@pytest.mark.parametrize(("epsilon", "sigma"), EXACT_SIGMA)
def test_stored_noise(epsilon, sigma):
    assert gaussian_noise_multiplier(epsilon, 1e-5) * math.sqrt(10) == pytest.approx(sigma, abs=6e-4)


@given(st.floats(0.02, 1e4), st.floats(0, 60))
def test_delta_matches_high_precision(noise_multiplier, epsilon):
    expected = delta_by_mpmath(noise_multiplier, epsilon)
    got = gaussian_delta(noise_multiplier, epsilon)
    if expected > 1e-290:
        assert got == pytest.approx(float(expected), rel=1e-9)
    else:
        assert got <= 1e-280


@given(st.floats(0.02, 1e4), st.floats(1e-15, 0.9))
def test_epsilon_is_the_safe_end(noise_multiplier, delta):
    epsilon = gaussian_epsilon(noise_multiplier, delta)
    assert delta_by_mpmath(noise_multiplier, epsilon) <= delta * (1 + 1e-9)
    if epsilon > 0:
        assert delta_by_mpmath(noise_multiplier, epsilon * (1 - 1e-6)) > delta


@given(st.floats(1e-3, 100), st.floats(1e-15, 0.5))
def test_noise_round_trip(epsilon, delta):
    noise_multiplier = gaussian_noise_multiplier(epsilon, delta)
    assert gaussian_epsilon(noise_multiplier, delta) == pytest.approx(epsilon, rel=1e-9)
    assert delta_by_mpmath(noise_multiplier, epsilon) <= delta * (1 + 1e-9)


@given(st.floats(0.05, 1e3), st.floats(1e-12, 0.5), st.floats(1.001, 3))
def test_monotone(noise_multiplier, delta, factor):
    assert gaussian_epsilon(noise_multiplier * factor, delta) <= gaussian_epsilon(noise_multiplier, delta)
    more = min(0.99, delta * factor)
    assert gaussian_epsilon(noise_multiplier, more) <= gaussian_epsilon(noise_multiplier, delta)


def test_zero_exactly_from_the_total_variation_distance_on():
    noise_multiplier = 3.0
    total_variation = math.erf(1 / (2 * math.sqrt(2) * noise_multiplier))
    assert gaussian_delta(noise_multiplier, 0.0) == pytest.approx(total_variation, rel=1e-12)
    assert gaussian_epsilon(noise_multiplier, total_variation * (1 + 1e-12)) == 0.0
    assert gaussian_epsilon(noise_multiplier, total_variation * (1 - 1e-9)) > 0.0


def test_degenerate_inputs():
    assert gaussian_epsilon(0.0, 1e-5) == math.inf
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_delta(0.0, 5.0) == 1.0
    assert gaussian_delta(1e-320, 1.0) == 1.0
    assert gaussian_delta(1.0, 1e9) == 0.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: gaussian_epsilon(-1.0, 1e-5), "noise_multiplier"),
        (lambda: gaussian_epsilon(math.nan, 1e-5), "noise_multiplier"),
        (lambda: gaussian_epsilon(1.0, 1.0), "delta"),
        (lambda: gaussian_delta(1.0, -0.1), "epsilon"),
        (lambda: gaussian_delta(1.0, math.nan), "epsilon"),
        (lambda: gaussian_noise_multiplier(0.0, 1e-5), "epsilon"),
        (lambda: gaussian_noise_multiplier(-1.0, 1e-5), "epsilon"),
        (lambda: gaussian_noise_multiplier(1.0, 0.0), "delta"),
    ],
)
def test_rejections(call, name):
    with pytest.raises(InvalidArgument, match=f"{name} must be"):
        call()
