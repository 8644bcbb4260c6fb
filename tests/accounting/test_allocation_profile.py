"""The two-sided privacy profile of random allocation, against quadrature, simulation and published values."""

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from fedpriv.accounting.allocation_profile import COARSE, FINE, Resolution, allocation_law
from fedpriv.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedpriv.accounting.validators import InvalidArgument

Z = np.linspace(-9, 9, 1201)
NORMAL = np.exp(-0.5 * Z**2) / math.sqrt(2 * math.pi) * (Z[1] - Z[0])


def lognormal(s, norm=1.0):
    """X = dP/dQ of one bin with a contribution of the given norm, on the nodes of the quadrature."""
    return np.exp(norm * Z / s - 0.5 * (norm / s) ** 2)


def call(strike, s):
    """E (X - strike)_+ for a log-normal X of mean 1 (Black and Scholes)."""
    safe = np.maximum(strike, 1e-300)
    upper = (0.5 / s - s * np.log(safe)) if np.ndim(strike) else 0.5 / s - s * math.log(safe)
    value = special.ndtr(upper) - safe * special.ndtr(upper - 1 / s)
    return np.where(strike <= 0, 1 - strike, value)


def two_bins(s, epsilon):
    """Exact deltas for b = 2: one bin by quadrature, the other in closed form."""
    # The call turns within a small step of z when s is small: many nodes.
    z = np.linspace(-12, 12, 400_001)
    weight = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    x, t = np.exp(z / s - 0.5 / s**2), math.exp(epsilon)
    remove = weight @ call(2 * t - x, s) / 2
    strike = 2 / t - x
    put = np.where(strike > 0, call(strike, s) - 1 + strike, 0.0)
    return remove, weight @ put * t / 2


def three_bins(s, epsilon):
    """Exact deltas for b = 3: two bins by quadrature, the third in closed form."""
    z = np.linspace(-9.5, 9.5, 951)
    weight = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    x, t = np.exp(z / s - 0.5 / s**2), math.exp(epsilon)
    pair, weights = np.add.outer(x, x).ravel(), np.multiply.outer(weight, weight).ravel()
    remove = weights @ call(3 * t - pair, s) / 3
    strike = 3 / t - pair
    return remove, weights @ np.where(strike > 0, call(strike, s) - 1 + strike, 0.0) * t / 3


@pytest.mark.parametrize(("s", "delta"), [(0.2, 1e-12), (0.5, 1e-6), (1.0, 1e-9), (3.0, 1e-5), (100.0, 1e-8)])
def test_one_bin_brackets_the_analytic_gaussian(s, delta):
    exact = gaussian_epsilon(s, delta)
    lower, upper = (allocation_law(s, 1, side, delta) for side in ("lower", "upper"))
    for direction in ("epsilon_remove", "epsilon_add"):
        low, high = getattr(lower, direction)(delta), getattr(upper, direction)(delta)
        assert low <= exact * (1 + 1e-12)
        assert high >= exact * (1 - 1e-12)
        assert high <= low * (1 + 5e-4)


@pytest.mark.parametrize(
    ("s", "bins", "exact"),
    [(0.4, 2, two_bins), (1.0, 2, two_bins), (3.0, 2, two_bins), (1.0, 3, three_bins), (3.0, 3, three_bins)],
)
def test_few_bins_bracket_quadrature(s, bins, exact):
    for epsilon in (0.0, 0.3 / s, 2.0 / s):
        remove, add = exact(s, epsilon)
        smallest = max(min(remove, add), 1e-13)
        lower, upper = (allocation_law(s, bins, side, smallest) for side in ("lower", "upper"))
        for truth, direction in ((remove, "delta_remove"), (add, "delta_add")):
            low, high = getattr(lower, direction)(epsilon), getattr(upper, direction)(epsilon)
            if truth > 1e-12:
                assert low * (1 - 1e-8) <= truth <= high * (1 + 1e-8)
                assert high <= low * 1.01 + 1e-15


@pytest.mark.parametrize(("s", "bins", "epsilon"), [(1.0, 20, 0.8), (0.5, 100, 0.5), (2.0, 50, 0.1)])
def test_bracket_agrees_with_simulation(s, bins, epsilon):
    rng = np.random.default_rng(bins)
    sums_present, sums_absent = [], []
    for _ in range(20):
        x = np.exp(rng.normal(size=(10_000, bins)) / s - 0.5 / s**2)
        sums_absent.append(x.mean(axis=1))
        # With the unit the noise of its bin is shifted by 1/s.
        x[:, 0] *= math.exp(1 / s**2)
        sums_present.append(x.mean(axis=1))
    present, absent = np.concatenate(sums_present), np.concatenate(sums_absent)
    samples = {
        "delta_remove": np.maximum(1 - math.exp(epsilon) / present, 0.0),
        "delta_add": np.maximum(1 - math.exp(epsilon) * absent, 0.0),
    }
    for direction, values in samples.items():
        error = 5 * values.std() / math.sqrt(values.size)
        assert values.mean() > 2 * error, "the simulation must see something"
        lower = getattr(allocation_law(s, bins, "lower", 1e-6), direction)(epsilon)
        upper = getattr(allocation_law(s, bins, "upper", 1e-6), direction)(epsilon)
        assert lower <= values.mean() + error
        assert upper >= values.mean() - error


def test_adaptive_contributions_cost_no_more():
    """b = 2: the second contribution depends on what the first round released."""
    s = 0.8
    x = lognormal(s)
    for epsilon in (0.2, 1.0):
        t = math.exp(epsilon)
        upper = allocation_law(s, 2, "upper", 1e-9)
        for norm_of in (lambda z: (z > 0.3) * 1.0, lambda z: np.clip(0.2 + z, 0, 1), lambda z: 0.5 + 0 * z):
            norms = np.round(norm_of(Z), 1)
            remove = add = 0.0
            for norm in np.unique(norms):
                chosen = np.isclose(norms, norm)
                second = lognormal(s, norm) if norm > 0 else np.ones(Z.size)
                mean = np.add.outer(x[chosen], second) / 2
                remove += NORMAL[chosen] @ np.maximum(mean - t, 0) @ NORMAL
                add += NORMAL[chosen] @ np.maximum(1 - t * mean, 0) @ NORMAL
            assert remove <= upper.delta_remove(epsilon)
            assert add <= upper.delta_add(epsilon)


def vectors():
    path = Path(__file__).parent / "vectors_allocation.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize("row", vectors()["allocation_pld_one_epoch"], ids=str)
def test_published_values(row):
    s, bins, delta = row["sigma"], row["bins"], row["delta"]
    lower, upper = (allocation_law(s, bins, side, delta, FINE) for side in ("lower", "upper"))
    # The published values are rounded to five digits and lie on a grid of 1e-4 in the loss.
    for name, direction in (("epsilon_remove", "epsilon_remove"), ("epsilon_add", "epsilon_add")):
        low, high = getattr(lower, direction)(delta), getattr(upper, direction)(delta)
        assert low - 1e-5 <= row[name] <= high + 1e-4
        assert high <= low * (1 + 1e-4)


@pytest.mark.parametrize(
    ("bins", "s", "delta", "low", "high"),
    [
        (100, 1.0, 1e-5, 0.62071, 0.62141),
        (1000, 0.5, 1e-6, 4.10535, 4.10710),
        (1000, 0.7, 1e-6, 0.95523, 0.95675),
        (1000, 0.3, 1e-6, 13.8725, 13.8805),
        (8, 0.2, 1e-12, 44.969, 44.974),
        (10**6, 1.0, 1e-12, 0.0075437, 0.0075547),
        (10**6, 100.0, 1e-9, 3.362e-5, 3.366e-5),
    ],
)
def test_bracket_lies_inside_an_independent_one(bins, s, delta, low, high):
    lower, upper = (allocation_law(s, bins, side, delta).epsilon(delta) for side in ("lower", "upper"))
    assert low <= lower <= upper <= high


@settings(max_examples=20, deadline=None)
@given(
    s=st.floats(0.25, 60),
    bins=st.integers(1, 3000),
    log_delta=st.floats(-27, -3),
)
def test_lower_never_exceeds_upper(s, bins, log_delta):
    delta = math.exp(log_delta)
    resolution = Resolution(32, 12.0)
    lower, upper = (allocation_law(s, bins, side, delta, resolution) for side in ("lower", "upper"))
    for direction in ("epsilon_remove", "epsilon_add"):
        assert getattr(lower, direction)(delta) <= getattr(upper, direction)(delta)
    for epsilon in (0.0, 0.1, 2.0):
        assert lower.delta_remove(epsilon) <= upper.delta_remove(epsilon)
        assert lower.delta_add(epsilon) <= upper.delta_add(epsilon)
        assert lower.delta(epsilon) <= gaussian_delta(s, epsilon) * (1 + 1e-9) + 1e-15


def test_finer_grids_give_nested_brackets():
    widths = []
    for resolution in (COARSE, Resolution(256, 48.0), Resolution(512, 96.0)):
        lower, upper = (
            allocation_law(1.0, 300, side, 1e-7, resolution).epsilon(1e-7) for side in ("lower", "upper")
        )
        widths.append(upper - lower)
    assert widths[0] > 3 * widths[1] > 9 * widths[2] > 0


def test_monotone_in_noise_bins_and_delta():
    def bracket(s, bins, delta):
        return tuple(allocation_law(s, bins, side, delta).epsilon(delta) for side in ("lower", "upper"))

    by_noise = [bracket(s, 40, 1e-7) for s in (0.3, 0.5, 0.9, 1.7, 5.0, 20.0)]
    by_bins = [bracket(0.8, bins, 1e-7) for bins in (1, 2, 3, 7, 20, 101, 1000, 40_000)]
    by_delta = [bracket(0.8, 30, delta) for delta in (1e-12, 1e-9, 1e-6, 1e-3, 0.1)]
    for brackets in (by_noise, by_bins, by_delta):
        for (_, high), (low, _) in zip(brackets[1:], brackets[:-1], strict=True):
            assert high < low


def test_extremes_of_the_required_range():
    tracemalloc.start()
    try:
        for s, bins, delta in ((0.2, 10**6, 1e-12), (100.0, 1, 1e-12), (100.0, 10**6, 1e-12), (0.2, 1, 0.1)):
            lower, upper = (
                allocation_law(s, bins, side, delta, COARSE).epsilon(delta) for side in ("lower", "upper")
            )
            assert 0 < lower < upper <= lower * 1.01
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


def test_delta_above_the_total_variation_costs_nothing():
    upper = allocation_law(5.0, 100, "upper", 0.1)
    lower = allocation_law(5.0, 100, "lower", 0.1)
    distance = upper.delta(0.0)
    assert lower.delta(0.0) < distance < 0.05
    assert upper.epsilon(distance * 1.01) == 0
    assert lower.epsilon(lower.delta(0.0) * 0.99) > 0


def test_tiny_noise_is_covered_without_overflow():
    assert allocation_law(0.06, 50, "upper", 1e-6).epsilon(1e-6) == pytest.approx(
        gaussian_epsilon(0.06, 1e-6), rel=1e-4
    )
    assert allocation_law(0.01, 50, "upper", 1e-6).epsilon(1e-6) == math.inf
    assert allocation_law(0.01, 50, "lower", 1e-6).epsilon(1e-6) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": 0.0, "bins": 3}, "noise_multiplier"),
        ({"noise_multiplier": math.nan, "bins": 3}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "bins": 0}, "bins"),
        ({"noise_multiplier": 1.0, "bins": 2.5}, "bins"),
        ({"noise_multiplier": 1.0, "bins": 10**8}, "bins"),
        ({"noise_multiplier": 1.0, "bins": 3, "smallest_delta": 0.0}, "smallest_delta"),
        ({"noise_multiplier": 1.0, "bins": 3, "smallest_delta": 2.0}, "smallest_delta"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        allocation_law(**arguments)
