"""Laws on the dyadic grid: rounding in convex order, sums, and what is dropped."""

import numpy as np
import pytest

from fedpriv.accounting.dyadic import DyadicLaw, dusted
from fedpriv.accounting.dyadic_blocks import deposit, settle

HALF = 8


def law_of(values, mass, side, centre=0.0, spacing=0.25, two_sided=False):
    raw = deposit(np.asarray(values) - centre, np.asarray(mass), spacing, HALF, two_sided, side)
    mean = float(np.dot(values, mass))
    return DyadicLaw(side, 1, centre, spacing, HALF, *settle(raw, HALF, two_sided, side)), mean


def sum_of(values, mass, other_values, other_mass):
    return np.add.outer(values, other_values).ravel(), np.multiply.outer(mass, other_mass).ravel()


def hinges(values, mass, strikes):
    return np.maximum(values[None, :] - strikes[:, None], 0.0) @ mass


def random_atoms(seed, size=40, scale=3.0):
    rng = np.random.default_rng(seed)
    mass = rng.random(size) + 1e-3
    return np.sort(np.exp(rng.normal(size=size) * scale / 2)), mass / mass.sum()


GRIDS = [
    {"centre": 0.0, "spacing": 2**-6, "two_sided": False},
    {"centre": 1.0, "spacing": 2**-4, "two_sided": True},
    {"centre": 1.0, "spacing": 1.0, "two_sided": True},
]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("seed", range(4))
def test_rounding_keeps_mass_and_mean_and_respects_the_convex_order(seed, grid):
    values, mass = random_atoms(seed)
    strikes = np.quantile(values, np.linspace(0, 1, 60)) * 1.01
    exact = hinges(values, mass, strikes)
    results = {}
    for side in ("upper", "lower"):
        law, mean = law_of(values, mass, side, **grid)
        atoms, weights = law.atoms()
        assert weights.sum() == pytest.approx(1, rel=1e-13)
        assert weights @ atoms == pytest.approx(mean, rel=1e-13)
        results[side] = hinges(atoms, weights, strikes)
    tolerance = 1e-12 * (1 + exact)
    assert (results["lower"] <= exact + tolerance).all()
    assert (results["upper"] >= exact - tolerance).all()
    # The grid is coarse, so the rounding must be visible: a test of nothing would pass too.
    assert (results["upper"] > exact * (1 + 1e-6)).any()


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("seed", range(4))
def test_sums_bracket_the_exact_law_of_the_sum(seed, grid):
    values, mass = random_atoms(seed)
    total, weights = sum_of(values, mass, values, mass)
    three, weights_three = sum_of(total, weights, values, mass)
    strikes = np.quantile(three, np.linspace(0, 1, 60)) * 1.003
    for factor, exact in (
        (2, hinges(total, weights, strikes)),
        (3, hinges(three, weights_three, strikes)),
    ):
        bounds = {}
        for side in ("upper", "lower"):
            law, _ = law_of(values, mass, side, **grid)
            result = law + law if factor == 2 else (law + law) + law
            atoms, atom_mass = result.atoms()
            assert atom_mass.sum() == pytest.approx(1, rel=1e-12)
            assert atom_mass @ atoms == pytest.approx(factor * values @ mass, rel=1e-12)
            bounds[side] = hinges(atoms, atom_mass, strikes)
        assert (bounds["lower"] <= exact + 1e-12 * (1 + exact)).all()
        assert (bounds["upper"] >= exact - 1e-12 * (1 + exact)).all()


def test_sum_of_grid_points_at_equal_spacing_is_exact():
    values, mass = np.arange(5) * 0.25, np.array([0.1, 0.2, 0.3, 0.3, 0.1])
    exact, weights = sum_of(values, mass, values, mass)
    for side in ("upper", "lower"):
        law, _ = law_of(values, mass, side)
        atoms, atom_mass = (law + law).atoms()
        inside = exact < HALF * 0.25
        expected = np.bincount(np.round(exact[inside] / 0.25).astype(int), weights[inside])
        np.testing.assert_allclose(atom_mass[: expected.size], expected, rtol=1e-14)
        np.testing.assert_allclose(atoms[: expected.size], np.arange(expected.size) * 0.25, atol=1e-15)


@pytest.mark.parametrize("grid", GRIDS)
def test_coarsening_and_moving_the_grid_only_widen_the_bracket(grid):
    values, mass = random_atoms(7)
    strikes = np.quantile(values, np.linspace(0, 1, 40)) * 1.01
    for side, sign in (("upper", 1), ("lower", -1)):
        law, _ = law_of(values, mass, side, **grid)
        before = hinges(*law.atoms(), strikes)
        for after in (law.coarsened(), law.coarsened().coarsened(), law.split(1.0, 0.5, True)):
            moved = hinges(*after.atoms(), strikes)
            assert (sign * (moved - before) >= -1e-12 * (1 + before)).all()
            assert after.mass.sum() == pytest.approx(1, rel=1e-13)
    assert law.coarsened().spacing == 2 * law.spacing


def test_dropped_events_are_accounted_for():
    values, mass = np.array([0.5, 1.0, 40.0]), np.array([0.6, 0.399, 0.001])
    law, mean = law_of(values, mass, "upper")
    cut = law.trimmed(0.002, 1.0)
    atoms, weights = cut.atoms()
    assert atoms.max() < 10
    assert cut.dropped_mass == pytest.approx(0.001)
    assert weights.sum() + cut.dropped_mass == pytest.approx(1)
    assert weights @ atoms + cut.dropped_mean == pytest.approx(mean)
    # In a sum of two, each copy may be the one that was cut; the other still contributes its mean.
    twice = cut + cut
    assert twice.dropped_mass == pytest.approx(0.002)
    assert twice.dropped_mean == pytest.approx(cut.dropped_mean + 0.001)
    assert law.trimmed(0.0005, 1.0) is law
    assert law.trimmed(0.002, 0.01) is law


def test_dust_is_dropped_and_counted():
    law, _ = law_of(np.array([0.5, 8.0]), np.array([1.0, 1e-200]), "upper")
    clean = dusted(law)
    assert clean.dropped_mass == pytest.approx(1e-200)
    assert clean.dropped_mean >= 8e-200
    assert dusted(clean) is clean


def test_laws_of_different_grids_do_not_add():
    first, _ = law_of(np.ones(1), np.ones(1), "upper")
    second, _ = law_of(np.ones(1), np.ones(1), "upper", spacing=0.5)
    with pytest.raises(ValueError, match="spacing"):
        first + second
