"""Coupled distances and least shift energies (guarantees of `fedpriv.accounting.shifts`)."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedpriv.accounting.shifts import constant_shift_energies, forward_distances, least_shift_energies


def _planned_distances(shifts, factors, drifts, start):
    distances, z = [], start
    for c, e, a in zip(factors, drifts, shifts, strict=True):
        z = c * z + e - a
        distances.append(z)
    return np.array(distances)


def _energy_by_programming(factors, drifts, stds, start):
    """Independent minimum: sequential quadratic programming on the shifts themselves."""
    result = minimize(
        lambda a: np.sum((a / stds) ** 2),
        np.full(factors.size, 0.1) + drifts,
        constraints=[
            {"type": "ineq", "fun": lambda a: _planned_distances(a, factors, drifts, start)[:-1]},
            {"type": "eq", "fun": lambda a: _planned_distances(a, factors, drifts, start)[-1]},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert result.success
    return result.fun


@pytest.mark.parametrize("seed", range(25))
def test_energies_are_the_minimum_for_every_window(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 7))
    factors, stds = rng.uniform(0.5, 1.6, size), rng.uniform(0.3, 2.0, size)
    drifts = rng.uniform(0, 0.3, size) * (rng.random(size) < 0.7)
    distances = rng.uniform(0, 1, size) * (rng.random(size) < 0.8)
    if seed % 3 == 0:
        factors, drifts, stds = np.full(size, factors[0]), np.full(size, 0.1), np.full(size, stds[0])
    energies = least_shift_energies(factors, drifts, stds, distances)
    for j in range(1, size + 1):
        expected = _energy_by_programming(factors[-j:], drifts[-j:], stds[-j:], distances[j - 1])
        assert energies[j - 1] == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_closed_form_without_drift():
    c, z, nu, j = 1.1, 0.7, 0.3, np.arange(1, 41)
    energies = least_shift_energies(np.full(40, c), np.zeros(40), np.full(40, nu), np.full(40, z))
    expected = z**2 * c ** (2 * j) * (c**2 - 1) / (c ** (2 * j) - 1) / nu**2
    np.testing.assert_allclose(energies, expected, rtol=1e-12)
    flat = least_shift_energies(np.ones(40), np.zeros(40), np.full(40, nu), np.full(40, z))
    np.testing.assert_allclose(flat, z**2 / j / nu**2, rtol=1e-12)


def test_the_straight_line_is_infeasible_when_a_planned_distance_would_be_negative():
    # z = 0, c = 1.2, a drift of 0.1: Cauchy-Schwarz asks for large shifts first, when there is nothing to
    # shift.
    c, e, j = 1.2, 0.1, 6
    weights = c ** np.arange(j - 1, -1, -1)
    total = e * weights.sum()
    naive = total**2 / np.sum(weights**2)
    z = 0.0
    for a in total * weights / np.sum(weights**2):
        z = max(0.0, c * z + e - a)
    assert z > 0.01  # the naive plan does not bring the runs together
    energies = least_shift_energies(np.full(j, c), np.full(j, e), np.ones(j), np.zeros(j))
    assert energies[-1] == pytest.approx(j * e**2)  # shift the drift away as it comes
    assert energies[-1] > naive * 1.01


def test_energies_are_monotone():
    rng = np.random.default_rng(1)
    factors, drifts = rng.uniform(0.8, 1.3, 30), rng.uniform(0, 0.05, 30)
    stds, distances = rng.uniform(0.5, 2, 30), rng.uniform(0, 1, 30)
    base = least_shift_energies(factors, drifts, stds, distances)
    slack = 1 + 1e-12
    assert (least_shift_energies(factors * 1.01, drifts, stds, distances) * slack >= base).all()
    assert (least_shift_energies(factors, drifts * 1.5, stds, distances) * slack >= base).all()
    assert (least_shift_energies(factors, drifts, stds, distances + 0.1) * slack >= base).all()
    assert (least_shift_energies(factors, drifts, stds * 1.1, distances) <= base * slack).all()


def test_huge_products_of_factors_do_not_overflow():
    energies = least_shift_energies(np.full(5000, 1.5), np.zeros(5000), np.ones(5000), np.ones(5000))
    assert energies[-1] == pytest.approx(1.5**2 - 1)
    with_drift = least_shift_energies(np.full(5000, 1.5), np.full(5000, 1e-3), np.ones(5000), np.ones(5000))
    assert np.isinf(with_drift[-1]) and np.isfinite(with_drift[:500]).all()
    shrinking = least_shift_energies(np.full(5000, 0.5), np.zeros(5000), np.ones(5000), np.ones(5000))
    assert shrinking[-1] == 0
    assert least_shift_energies(np.zeros(3), np.zeros(3), np.ones(3), np.ones(3))[-1] < 1e-90


def test_forward_distances_bound_coupled_runs():
    rng = np.random.default_rng(2)
    factors, drifts = rng.uniform(0.9, 1.4, 40), rng.uniform(0, 0.02, 40)
    contributions, moves = rng.uniform(0, 0.1, 40), np.full(40, 0.15)
    bound = forward_distances(factors, drifts, contributions, 3.0, moves)
    assert bound[0] == 0 and bound[-1] <= 3.0
    for _ in range(50):
        z = 0.0
        for t in range(40):
            grown = min(factors[t] * z * rng.random() ** 0.1 + drifts[t] * rng.random(), z + moves[t])
            z = min(3.0, grown + contributions[t] * rng.random() ** 0.1)
            assert z <= bound[t + 1] + 1e-12
    # Each of the three limits is active somewhere.
    free = forward_distances(factors, drifts, contributions, np.inf)
    assert (free >= bound).all() and free[-1] > 3.0
    assert (forward_distances(factors, drifts, contributions, np.inf, moves) <= free).all()


@pytest.mark.parametrize("seed", range(30))
def test_constant_coefficients_agree_with_the_general_recursions(seed):
    rng = np.random.default_rng(seed)
    size, c = int(rng.integers(1, 60)), float(rng.choice([0.5, 0.9, 1.0, 1.01, 1.3]))
    drift, contribution, move = rng.choice([0.0, 1e-3, 0.2], 3)
    move = float(rng.choice([move, np.inf]))
    series = [np.full(size, v) for v in (c, drift, contribution, move)]
    closed = forward_distances(*series[:3], 5.0, series[3])
    z, expected = 0.0, [0.0]
    for _ in range(size):
        z = min(5.0, min(c * z + drift, z + move) + contribution)
        expected.append(z)
    np.testing.assert_allclose(closed, expected, rtol=1e-11, atol=1e-15)
    distances, stds = rng.uniform(0, 1, size) * rng.choice([0.0, 0.01, 1.0]), np.full(size, 0.7)
    constant = least_shift_energies(series[0], series[1], stds, distances)
    barely_varying = series[0] * (1 + 1e-15 * (np.arange(size) % 2))
    general = least_shift_energies(barely_varying, series[1], stds, distances)
    np.testing.assert_allclose(constant, general, rtol=1e-9, atol=1e-15)
    j = np.arange(1, size + 1)
    np.testing.assert_allclose(
        constant_shift_energies(c, drift, 0.7, j, distances), general, rtol=1e-9, atol=1e-15
    )
