"""Likelihood-ratio laws: inversion, Gaussian factors, composition, hand-over to the library."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting.allocation_profile import allocation_law
from fedpriv.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedpriv.accounting.ratio_law import RatioLaw
from fedpriv.accounting.ratio_products import compose_ratio_law, to_pld


def law_of(ratio, mass, side="upper", **kwargs):
    ratio, mass = np.asarray(ratio, dtype=float), np.asarray(mass, dtype=float)
    return RatioLaw(side, ratio, ratio - 1, mass, **kwargs)


# Randomised response with e^eps = 3: ratios 1/3, 3 with Q-masses 3/4, 1/4.
RESPONSE = law_of([1 / 3, 3.0], [0.75, 0.25])


def test_two_atoms_by_hand():
    assert RESPONSE.delta_remove(0.0) == pytest.approx(0.5)
    assert RESPONSE.delta_add(0.0) == pytest.approx(0.5)
    assert RESPONSE.delta_remove(math.log(2)) == pytest.approx(0.25)
    assert RESPONSE.delta_add(math.log(2)) == pytest.approx(0.25)
    assert RESPONSE.epsilon(1e-12) == pytest.approx(math.log(3))
    assert RESPONSE.epsilon(0.25) == pytest.approx(math.log(2))
    assert RESPONSE.epsilon(0.51) == 0


def test_infinite_losses():
    zero = law_of([0.0, 4 / 3], [0.25, 0.75])
    assert zero.epsilon_add(0.2) == math.inf
    assert zero.epsilon_add(0.26) == 0
    assert zero.delta_add(50.0) == pytest.approx(0.25)
    dropped = law_of([1 / 3, 3.0], [0.75, 0.25], dropped_mass=0.01, dropped_mean=0.02)
    assert dropped.epsilon_remove(0.02) == math.inf
    assert dropped.epsilon_add(0.02) < math.inf
    assert dropped.delta_remove(2.0) == pytest.approx(0.02)
    # A lower law owes nothing for what it leaves out.
    assert law_of([1 / 3, 3.0], [0.75, 0.25], side="lower", dropped_mean=0.02).delta_remove(2.0) == 0


@settings(max_examples=60, deadline=None)
@given(
    logs=st.lists(st.floats(-30, 30), min_size=2, max_size=8, unique=True),
    weights=st.lists(st.floats(0.01, 1), min_size=8, max_size=8),
    log_delta=st.floats(-20, -0.5),
    side=st.sampled_from(["upper", "lower"]),
)
def test_epsilon_inverts_delta(logs, weights, log_delta, side):
    ratio = np.exp(np.sort(logs))
    mass = np.array(weights[: ratio.size])
    mass /= mass.sum() * max(1.0, (mass / mass.sum()) @ ratio)
    law, delta = law_of(ratio, mass, side), math.exp(log_delta)
    for name in ("remove", "add"):
        epsilon = getattr(law, f"epsilon_{name}")(delta)
        delta_of = getattr(law, f"delta_{name}")
        if math.isinf(epsilon):
            continue
        assert delta_of(epsilon) <= delta * (1 + 1e-6) + 1e-15
        if epsilon > 1e-6:
            assert delta_of(epsilon * (1 - 1e-6)) >= delta * (1 - 1e-3)
        assert delta_of(epsilon) >= delta_of(epsilon + 0.5)


@pytest.mark.parametrize(("s", "deviation"), [(1.0, 0.5), (0.4, 1.0), (5.0, 0.01)])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_gaussian_factor_composes_exactly(s, deviation, delta):
    z = 1 / math.hypot(1 / s, deviation)
    exact = gaussian_epsilon(z, delta)
    lower, upper = (
        allocation_law(s, 1, side, delta).times_gaussian(deviation) for side in ("lower", "upper")
    )
    for name in ("epsilon_remove", "epsilon_add"):
        assert getattr(lower, name)(delta) <= exact * (1 + 1e-9)
        assert getattr(upper, name)(delta) >= exact * (1 - 1e-9)
        assert getattr(upper, name)(delta) <= getattr(lower, name)(delta) * (1 + 1e-3)
    assert lower.delta_remove(exact) <= gaussian_delta(z, exact) <= upper.delta_remove(exact)


def test_gaussian_factor_can_only_add_loss():
    law = allocation_law(1.0, 50, "upper", 1e-6)
    values = [law.times_gaussian(c).epsilon(1e-6) for c in (0.0, 1e-4, 0.01, 0.1, 1.0)]
    assert values[0] == law.epsilon(1e-6)
    assert values[1] == pytest.approx(values[0], rel=1e-5)
    assert all(a < b for a, b in itertools.pairwise(values[1:]))


@pytest.mark.parametrize(("s", "count", "delta"), [(3.0, 10, 1e-6), (10.0, 100, 1e-12), (1.0, 7, 1e-9)])
def test_composed_gaussians_bracket_the_analytic_curve(s, count, delta):
    exact = gaussian_epsilon(s / math.sqrt(count), delta)
    for name in ("epsilon_remove", "epsilon_add"):
        lower, upper = (
            getattr(compose_ratio_law(allocation_law(s, 1, side, delta / count), count, delta), name)(delta)
            for side in ("lower", "upper")
        )
        assert lower <= exact <= upper
        assert upper <= lower * (1 + 2e-4)


def test_composition_of_a_small_law_matches_enumeration():
    """Five randomised responses: the ratio is 3^(2 i - 5), binomially."""
    successes = np.arange(6)
    ratio = 3.0 ** (2 * successes - 5)
    mass = np.array([math.comb(5, i) * 0.25**i * 0.75 ** (5 - i) for i in successes])
    exact = law_of(ratio, mass)
    lower, upper = (
        compose_ratio_law(law_of(RESPONSE.ratio, RESPONSE.mass, side), 5, 1e-6) for side in ("lower", "upper")
    )
    for epsilon in (0.0, 0.7, 2.0, 3.5, 5.0):
        for name in ("delta_remove", "delta_add"):
            truth = getattr(exact, name)(epsilon)
            assert getattr(lower, name)(epsilon) <= truth <= getattr(upper, name)(epsilon)
            assert getattr(upper, name)(epsilon) <= getattr(lower, name)(epsilon) + 0.01


@pytest.mark.parametrize(("s", "bins", "count", "delta"), [(1.0, 100, 12, 1e-5), (0.5, 500, 3, 1e-7)])
def test_composition_brackets_the_library(s, bins, count, delta):
    lower, upper = (
        compose_ratio_law(allocation_law(s, bins, side, delta / count), count, delta)
        for side in ("lower", "upper")
    )
    pld = to_pld(allocation_law(s, bins, "upper", delta / count), 1e-4).self_compose(count)
    library = pld.get_epsilon_for_delta(delta)
    assert lower.epsilon(delta) <= library <= upper.epsilon(delta) * (1 + 1e-3)
    assert upper.epsilon(delta) <= lower.epsilon(delta) * (1 + 5e-4)


def test_hand_over_dominates_and_is_tight():
    law = allocation_law(0.7, 200, "upper", 1e-10)
    pld = to_pld(law, 1e-3)
    for epsilon in (0.0, 0.1, 0.5, 1.5):
        remove = pld._pmf_remove.get_delta_for_epsilon(epsilon)
        add = pld._pmf_add.get_delta_for_epsilon(epsilon)
        assert law.delta_remove(epsilon) * (1 - 1e-9) <= remove <= law.delta_remove(epsilon) * 1.001 + 1e-9
        assert law.delta_add(epsilon) * (1 - 1e-9) <= add <= law.delta_add(epsilon) * 1.001 + 1e-9
    with pytest.raises(ValueError, match="upper"):
        to_pld(allocation_law(0.7, 20, "lower", 1e-6), 1e-3)


def test_dropped_events_compose():
    law = law_of([1 / 3, 3.0], [0.74, 0.25], dropped_mass=0.01, dropped_mean=0.002)
    composed = compose_ratio_law(law, 4, 1e-3)
    assert composed.dropped_mass >= 0.04 * (1 - 1e-12)
    assert composed.dropped_mean >= 0.008 * (1 - 1e-12)
    assert composed.epsilon_add(0.03) == math.inf


def test_losses_beyond_floating_point_are_refused():
    with pytest.raises(OverflowError, match="600"):
        compose_ratio_law(allocation_law(0.2, 10, "upper", 1e-9), 50, 1e-9)


def test_dilution_mixes_with_the_constant_one():
    law = allocation_law(0.8, 5, "lower", 1e-6).diluted(5, 10)
    assert law.mass @ law.ratio == pytest.approx(1, abs=1e-5)
    # Half of the bins reveal nothing: less loss than five bins, at most that of ten.
    assert 0 < law.epsilon(1e-6) <= allocation_law(0.8, 10, "upper", 1e-6).epsilon(1e-6)
