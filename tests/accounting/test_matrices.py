"""Strategy matrices: definitions, inverses, Gram matrices, errors of prefix sums."""

import json
import math

import numpy as np
import pytest

from fedpriv.accounting.matrices import (
    MATRIX_KINDS,
    StrategyMatrix,
    bandmf,
    bisr,
    blt,
    bsr,
    identity,
    make_matrix,
    toeplitz,
    toeplitz_matrix,
)
from fedpriv.accounting.matrix_gram import first_bin_mean, gram, gram_bands, gram_lags
from fedpriv.accounting.validators import InvalidArgument

FAMILIES = [kind for kind in MATRIX_KINDS if kind != "toeplitz"]


def matrices(bins=12, epochs=3):
    return [make_matrix(kind, bins, epochs, band=4, buffers=2) for kind in FAMILIES] + [
        toeplitz((1.0, 0.5, 0.25), bins * epochs)
    ]


@pytest.mark.parametrize("matrix", matrices(), ids=lambda m: m.kind)
def test_definition_and_inverse(matrix):
    dense = matrix.dense()
    assert (dense >= 0).all()
    assert (np.triu(dense, 1) == 0).all()
    np.testing.assert_allclose(dense @ toeplitz_matrix(matrix.inverse_column()), np.eye(36), atol=1e-12)
    for offset in range(36):
        assert np.ptp(np.diag(dense, -offset)) == 0
    if matrix.kind != "toeplitz":
        assert np.linalg.norm(matrix.column()) == pytest.approx(1, rel=1e-12)
    if matrix.band is not None:
        assert (matrix.column()[matrix.band :] == 0).all()


def test_square_root_and_its_inverse_are_powers_of_the_prefix_sum_matrix():
    rounds = 20
    prefix = np.tril(np.ones((rounds, rounds)))
    root = bsr(rounds, rounds).dense()
    np.testing.assert_allclose(root @ root, prefix * root[0, 0] ** 2, atol=1e-12)
    inverse_root = bisr(rounds, rounds)
    np.testing.assert_allclose(inverse_root.dense(), root, atol=1e-12)
    # Cut to a band: the first coefficients 1, 1/2, 3/8 and 1, -1/2, -1/8.
    assert np.array(bsr(rounds, 3).coefficients) / bsr(rounds, 3).coefficients[0] == pytest.approx(
        [1, 0.5, 0.375]
    )
    cut = bisr(rounds, 3)
    assert np.array(cut.coefficients) / cut.coefficients[0] == pytest.approx([1, -0.5, -0.125])
    assert (cut.inverse_column()[3:] == 0).all()


def test_blt_definition_and_streamed_inverse():
    matrix = StrategyMatrix("blt", 30, (0.8,), (0.9, 0.4), (0.2, 0.1))
    t = np.arange(1, 30)
    np.testing.assert_allclose(
        matrix.column()[1:], 0.8 * (0.2 * 0.9 ** (t - 1) + 0.1 * 0.4 ** (t - 1)), rtol=1e-12
    )
    noise = np.random.default_rng(0).normal(size=30)
    state, out = np.zeros(2), []
    for z in noise:
        out.append(z / 0.8 - np.dot(matrix.weights, state))
        state = np.array(matrix.decays) * state + out[-1]
    np.testing.assert_allclose(matrix.dense() @ out, noise, atol=1e-10)


@pytest.mark.parametrize("matrix", [bsr(25, 4), bandmf(25, 5)], ids=lambda m: m.kind)
def test_banded_inverse_streams_with_the_last_outputs(matrix):
    noise = np.random.default_rng(1).normal(size=25)
    out: list[float] = []
    c = matrix.coefficients
    for z in noise:
        past = sum(c[j] * out[-j] for j in range(1, len(c)) if j <= len(out))
        out.append((z - past) / c[0])
    np.testing.assert_allclose(matrix.dense() @ out, noise, atol=1e-11)
    assert matrix.memory == len(c) - 1


@pytest.mark.parametrize("matrix", matrices(), ids=lambda m: m.kind)
def test_errors_of_prefix_sums(matrix):
    product = np.tril(np.ones((36, 36))) @ np.linalg.inv(matrix.dense())
    variances = (product**2).sum(axis=1)
    assert matrix.prefix_rmse() == pytest.approx(math.sqrt(variances.mean()), rel=1e-10)
    assert matrix.prefix_max_error() == pytest.approx(math.sqrt(variances.max()), rel=1e-10)


def test_optimised_matrices_beat_their_starting_points():
    for rounds, band in ((30, 2), (200, 4), (500, 16)):
        best = bandmf(rounds, band)
        assert best.prefix_rmse() <= bsr(rounds, band).prefix_rmse() * (1 + 1e-9)
        # A local optimum: no small step improves it at column norm 1.
        coefficients = np.array(best.coefficients)
        for j in range(1, band):
            for step in (0.02, -0.02):
                moved = coefficients.copy()
                moved[j] = max(0.0, moved[j] + step)
                other = toeplitz(tuple(moved / np.linalg.norm(moved)), rounds)
                assert other.prefix_rmse() >= best.prefix_rmse() * (1 - 1e-9)
    assert bandmf(200, 8).prefix_rmse() < bandmf(200, 4).prefix_rmse() < bandmf(200, 2).prefix_rmse()
    assert bandmf(10, 1).band == 1

    def cost(matrix, bins):
        return matrix.prefix_rmse() * math.sqrt(gram_lags(matrix, bins)[0])

    for bins, epochs in ((16, 1), (64, 4)):
        learnt = cost(blt(bins, epochs, 2), bins)
        assert learnt < cost(identity(bins * epochs), bins)
        assert learnt < cost(bandmf(bins * epochs, 2), bins)
        assert cost(blt(bins, epochs, 4), bins) <= learnt * (1 + 1e-5) < cost(blt(bins, epochs, 1), bins)


@pytest.mark.parametrize("matrix", matrices(), ids=lambda m: m.kind)
@pytest.mark.parametrize("bins", [1, 2, 6, 12, 36])
def test_gram_of_bins(matrix, bins):
    dense = matrix.dense()
    vectors = np.stack([dense[:, i::bins].sum(axis=1) for i in range(bins)])
    exact = vectors @ vectors.T
    np.testing.assert_allclose(first_bin_mean(matrix, bins), vectors[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gram(matrix, bins), exact, rtol=1e-11, atol=1e-13)
    distance = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
    distance = np.minimum(distance, bins - distance)
    lags = gram_lags(matrix, bins)
    for d in range(bins // 2 + 1):
        largest = exact[distance == d].max()
        assert largest <= lags[d] <= largest * (1 + 1e-9) + 1e-12
    band = min(3, bins)
    bands = gram_bands(matrix, bins, band)
    for d in range(band):
        for i in range(bins):
            assert bands[d, i] == pytest.approx(exact[i, (i + d) % bins], rel=1e-10, abs=1e-13)


def test_long_dense_gram_is_rounded_up():
    matrix = bisr(6000, 4)
    lags = gram_lags(matrix, 1000)
    mean = first_bin_mean(matrix, 1000)
    exact = np.array([mean[d:] @ mean[: mean.size - d] for d in (0, 1, 5, 500)])
    assert (lags[[0, 1, 5, 500]] >= exact * (1 - 1e-12)).all()
    np.testing.assert_allclose(lags[[0, 1, 5, 500]], exact, rtol=1e-9, atol=1e-12)


def test_json_round_trip():
    for matrix in matrices():
        data = json.loads(json.dumps(vars(matrix)))
        assert StrategyMatrix.from_json(data) == matrix
        assert hash(StrategyMatrix.from_json(data)) == hash(matrix)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: toeplitz((1.0, -0.1), 5), "entry of the strategy matrix"),
        (lambda: StrategyMatrix("bisr", 5, (1.0, 0.5)), "entry of the strategy matrix"),
        (lambda: toeplitz((0.0, 0.1), 5), "coefficients"),
        (lambda: toeplitz((1.0, math.nan), 5), "coefficients"),
        (lambda: StrategyMatrix("blt", 5, (1.0,), (1.0,), (0.1,)), "decays"),
        (lambda: StrategyMatrix("blt", 5, (1.0,), (0.5,), ()), "decays and weights"),
        (lambda: StrategyMatrix("blt", 5, (1.0,), (0.5,), (-0.1,)), "entry of the strategy matrix"),
        (lambda: StrategyMatrix("dct", 5), "kind"),
        (lambda: make_matrix("toeplitz", 5), "kind"),
        (lambda: bsr(5, 0), "band"),
        (lambda: blt(5, 1, 0), "buffers"),
        (lambda: identity(0), "rounds"),
        (lambda: gram(identity(7), 3), "multiple of bins"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
