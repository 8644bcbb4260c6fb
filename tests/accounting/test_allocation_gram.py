"""Correlated noise reduced to independent noise: the true mechanism lies inside the bracket, by quadrature."""

import itertools
import math

import numpy as np
import pytest

from fedpriv.accounting.allocation_events import RandomAllocation
from fedpriv.accounting.allocation_gram import cores, reductions
from fedpriv.accounting.matrices import bandmf, bisr, blt, bsr, identity, toeplitz
from fedpriv.accounting.matrix_gram import gram


def true_deltas(entries, epsilons, nodes=161):
    """Deltas of the average of correlated log-normals of mean 1, over up to three normals."""
    bins = entries.shape[0]
    z = np.linspace(-8, 8, nodes)
    weight = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    factor = np.linalg.cholesky(entries + 1e-14 * np.eye(bins))
    grids = np.meshgrid(*[z] * bins, indexing="ij")
    weights = weight
    for _ in range(bins - 1):
        weights = np.multiply.outer(weights, weight)
    ratio = np.zeros_like(weights)
    for i in range(bins):
        ratio += np.exp(sum(factor[i, j] * grids[j] for j in range(i + 1)) - entries[i, i] / 2) / bins
    return [
        (
            float((weights * np.maximum(ratio - math.exp(e), 0)).sum()),
            float((weights * np.maximum(1 - math.exp(e) * ratio, 0)).sum()),
        )
        for e in epsilons
    ]


@pytest.mark.parametrize(
    ("matrix", "bins", "epochs"),
    [
        (toeplitz((1.0, 0.5), 2), 2, 1),
        (toeplitz((1.0, 0.8, 0.5, 0.2), 8), 2, 4),
        (bsr(3, 2), 3, 1),
        (bisr(6, 2), 3, 2),
        (blt(3, 2, 1), 3, 2),
        (bandmf(3, 3), 3, 1),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_every_reduction_brackets_the_true_mechanism(matrix, bins, epochs):
    sigma = 1.1 * math.sqrt(epochs)
    event = RandomAllocation(bins, sigma, epochs, matrix=matrix)
    epsilons = (0.05, 0.5, 1.2)
    truth = true_deltas(gram(matrix, bins) / sigma**2, epsilons)
    for epsilon, (remove, add) in zip(epsilons, truth, strict=True):
        assert remove > 1e-4, "the quadrature must see something"
        for reduction in event.reductions():
            upper = event.upper_law(1e-6, reduction)
            assert upper.delta_remove(epsilon) >= remove * (1 - 1e-3)
            assert upper.delta_add(epsilon) >= add * (1 - 1e-3)
        for lower in event.lower_laws(1e-6):
            assert lower.delta_remove(epsilon) <= remove * (1 + 1e-3)
            assert lower.delta_add(epsilon) <= add * (1 + 1e-3)


def test_independent_noise_needs_no_reduction():
    event = RandomAllocation(10, 2.0, 4)
    (only,) = event.reductions()
    assert (only.spacing, only.bins, only.squared_norm, only.common) == (1, 10, 4.0, 0.0)
    as_matrix = reductions(identity(40), 10)
    assert as_matrix[0].bins == 10
    assert as_matrix[0].squared_norm == pytest.approx(4.0)
    assert as_matrix[0].common == 0


def test_banded_matrices_reach_zero_correlation_at_their_band():
    for band, bins in ((2, 7), (3, 7), (4, 100)):
        found = reductions(bsr(bins, band), bins)
        by_spacing = {r.spacing: r for r in found}
        assert by_spacing[band].common == 0
        # floor(b / p): residues modulo p would be wrong when p does not divide b.
        assert by_spacing[band].bins == bins // band
        assert by_spacing[band].squared_norm == pytest.approx(1.0)
        assert found[-1].bins == 1
        entries = gram(bsr(bins, band), bins)
        for start in range(bins):
            group = (start + band * np.arange(bins // band)) % bins
            off = entries[np.ix_(group, group)] - np.diag(np.diag(entries)[group])
            assert np.abs(off).max() < 1e-12


def test_reductions_bound_the_gram_matrix_entrywise():
    for matrix, bins in ((blt(30, 2, 2), 30), (bisr(60, 5), 30), (bandmf(60, 8), 30)):
        entries = gram(matrix, bins)
        distance = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
        distance = np.minimum(distance, bins - distance)
        for reduction in reductions(matrix, bins):
            assert np.diag(entries).max() <= reduction.squared_norm + reduction.common + 1e-12
            far = entries[(distance >= reduction.spacing) & (distance > 0)]
            if reduction.bins > 1:
                assert far.max() <= reduction.common + 1e-12


def test_cores_use_the_smallest_norm_of_the_bins_that_are_kept():
    matrix = bandmf(60, 8)
    norms = np.diag(gram(matrix, 20))
    for core in cores(matrix, 20):
        assert core.squared_norm == pytest.approx(norms[: core.bins].min(), rel=1e-10)


def test_bracket_tightens_as_noise_decorrelates():
    ratios = []
    for coefficient in (0.5, 0.1, 0.01, 0.001):
        event = RandomAllocation(40, 1.5, matrix=toeplitz((1.0, coefficient), 40))
        upper = event.upper_law(1e-6).epsilon(1e-6)
        lower = max(law.epsilon(1e-6) for law in event.lower_laws(1e-6))
        ratios.append(upper / lower)
    assert all(a > b >= 1 for a, b in itertools.pairwise(ratios))
    assert ratios[-1] < 1.05
