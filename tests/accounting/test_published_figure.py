"""The curves that the DPSGD-DC picture labels "as published" are the published ones."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accounting" / "figures_hidden_state.py"


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures_hidden_state", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("DPSGD-DC (as published)", [0.34375, 0.6875, 1.684375, 1.684375, 1.684375]),
        ("composition, linear rule (as published)", [0.34375, 0.6875, 1.71875, 3.4375, 6.875]),
        ("Feldman et al. 2018 (as published)", [1.375, 2.75, 6.875, 13.75, 27.5]),
        ("Altschuler, Talwar 2022, convex (as published)", [0.34375, 0.6875, 0.6875, 0.6875, 0.6875]),
        ("Kong, Ribero 2024 (as published, value)", [2.26857] * 5),
    ],
)
def test_published_values(figures, name, values):
    curves = figures.published_curves(np.array([10, 20, 50, 100, 200]))
    np.testing.assert_allclose(curves[name], values, rtol=1e-12)


def test_ours_lies_between_the_exact_chain_and_the_published_curve(figures):
    rounds = np.array([1, 5, 20, 60, 150])
    composed, ours = figures.our_curves(rounds)
    exact = figures.exact_chain(150)[rounds - 1]
    published = figures.published_curves(rounds)["DPSGD-DC (as published)"]
    assert (exact < ours).all() and (ours <= composed).all() and (ours < published).all()


def test_the_linear_rule_falls_below_the_exact_divergence(figures):
    exact, rule, ours = figures.unprojected(np.array([1, 3, 8]), 32, 0.25, 1.0)
    assert (rule < 0.4 * exact).all()
    np.testing.assert_array_less(exact, ours * (1 + 1e-9))
    assert exact[0] == pytest.approx(14.568986465940863, rel=1e-9)
