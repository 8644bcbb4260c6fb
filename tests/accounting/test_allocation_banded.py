"""Rényi moments under correlated noise: the dynamic programme against brute force over bins."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedpriv.accounting.allocation_banded import CyclicGram, banded_log_moments, largest_exact_order
from fedpriv.accounting.allocation_gram import exact_remove_curve, matrix_curves
from fedpriv.accounting.allocation_renyi import log_moments
from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.matrices import bandmf, bisr, blt, bsr, toeplitz
from fedpriv.accounting.matrix_gram import gram
from fedpriv.accounting.validators import InvalidArgument

VECTORS = json.loads((Path(__file__).parent / "vectors_allocation.json").read_text())


def brute_force(matrix, order):
    """log of the average of exp(sum over pairs of G) over all assignments of ``order`` draws to bins."""
    bins = matrix.shape[0]
    draws = np.array(list(itertools.product(range(bins), repeat=order)))
    exponent = sum(matrix[draws[:, r], draws[:, s]] for r in range(order) for s in range(r + 1, order))
    return math.log(np.exp(exponent).mean())


def dense(bands):
    p, b = bands.shape
    matrix = np.zeros((b, b))
    for d in range(p):
        for i in range(b):
            matrix[i, (i + d) % b] = matrix[(i + d) % b, i] = bands[d, i]
    return matrix


@pytest.mark.parametrize(("band", "bins"), [(2, 3), (2, 4), (2, 6), (3, 5), (3, 7), (4, 7)])
def test_brute_force_over_bins(band, bins):
    rng = np.random.default_rng(10 * band + bins)
    bands = rng.random((band, bins))
    bands[0] += 0.5
    logs = banded_log_moments(CyclicGram(bands), 5)
    assert logs[0] == logs[1] == 0
    for order in range(2, 6):
        assert logs[order] == pytest.approx(brute_force(dense(bands), order), rel=1e-12)


def test_vectors():
    row = VECTORS["allocation_renyi_banded"]
    bands = np.array([[row["gram_diagonal"]] * row["bins"], [row["gram_cyclic_offdiagonal"]] * row["bins"]])
    logs = banded_log_moments(CyclicGram(bands / row["sigma"] ** 2), 8)
    for order, expected in row["rdp_remove"].items():
        assert logs[int(order)] / (int(order) - 1) == pytest.approx(expected, rel=1e-12)


def test_no_correlation_is_independent_noise():
    bands = np.zeros((2, 50))
    bands[0] = 0.3
    np.testing.assert_allclose(
        banded_log_moments(CyclicGram(bands), 20), log_moments(0.3, 50, 20), rtol=1e-11
    )
    # Nor is a digit lost when there is next to nothing to see.
    np.testing.assert_allclose(
        banded_log_moments(CyclicGram(bands * 1e-9), 6)[2:], log_moments(0.3e-9, 50, 6)[2:], rtol=1e-11
    )


def test_required_orders_are_exact():
    assert largest_exact_order(2, 100, 1.0) == 32
    assert largest_exact_order(3, 100, 1.0) >= 12
    assert largest_exact_order(4, 100, 1.0) >= 12
    assert largest_exact_order(4, 6, 1.0) == 0
    # Very little noise: fewer orders, never an overflow.
    largest = largest_exact_order(2, 100, 25.0)
    assert 2 <= largest < 32
    bands = np.full((2, 100), 12.5)
    bands[0] = 25.0
    assert np.isfinite(banded_log_moments(CyclicGram(bands), largest)).all()
    with pytest.raises(InvalidArgument, match="largest"):
        banded_log_moments(CyclicGram(bands), largest + 8)


@pytest.mark.parametrize(
    "matrix", [bsr(6, 2), toeplitz((1.0, 0.4, 0.1), 12), bisr(6, 2), blt(6, 2, 1)], ids=str
)
def test_curves_dominate_brute_force_and_equal_it_for_narrow_bands(matrix):
    exact = gram(matrix, 6) / 1.3**2
    orders = np.array([2.0, 3.0, 4.0, 5.0])
    truth = np.array([brute_force(exact, int(order)) / (order - 1) for order in orders])
    curve = exact_remove_curve(matrix, 6, 1.3, orders).rdp
    assert (curve >= truth * (1 - 1e-12)).all()
    assert (matrix_curves(matrix, 6, 1.3, orders).remove.rdp >= truth * (1 - 1e-12)).all()
    if matrix.band == 2 or matrix.band == 3:
        np.testing.assert_allclose(curve, truth, rtol=1e-11)
    else:
        assert (curve <= truth * 2.5).all()


def test_add_direction_dominates_quadrature():
    """b = 2 with correlated noise: E_Q r^-(alpha-1) over two normals."""
    matrix = toeplitz((1.0, 0.5), 2)
    entries = gram(matrix, 2) / 0.9**2
    z = np.linspace(-9, 9, 601)
    weight = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    factor = np.linalg.cholesky(entries)
    first = np.exp(factor[0, 0] * z - entries[0, 0] / 2)[:, None]
    second = np.exp(factor[1, 0] * z[:, None] + factor[1, 1] * z[None, :] - entries[1, 1] / 2)
    ratio = (first + second) / 2
    orders = np.array([1.5, 2.0, 4.0, 8.0])
    bound = matrix_curves(matrix, 2, 0.9, orders).add.rdp
    for order, value in zip(orders, bound, strict=True):
        truth = math.log(weight @ ratio ** (1 - order) @ weight) / (order - 1)
        assert truth <= value <= 2 * truth


def test_more_correlation_and_less_noise_cost_more():
    orders = DEFAULT_ORDERS

    def epsilon(matrix, noise):
        return matrix_curves(matrix, 20, noise, orders).to_epsilon(1e-6).epsilon

    by_noise = [epsilon(bandmf(20, 2), noise) for noise in (0.7, 1.5, 5.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_band = [epsilon(bsr(20, band), 2.0) for band in (1, 2, 3, 8)]
    assert by_band == sorted(by_band)


@pytest.mark.parametrize(
    ("bands", "largest", "message"),
    [
        (np.array([[1.0] * 4, [-0.1] * 4]), 3, "entries >= 0"),
        (np.array([[1.0] * 4, [np.nan] * 4]), 3, "entries >= 0"),
        (np.ones((1, 4)), 3, "band"),
        (np.ones((3, 4)), 3, "bins"),
        (np.ones((2, 4)), 1, "largest"),
    ],
)
def test_bad_arguments_are_named(bands, largest, message):
    with pytest.raises(InvalidArgument, match=message):
        banded_log_moments(CyclicGram(bands), largest)
