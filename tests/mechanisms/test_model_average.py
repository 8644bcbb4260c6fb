"""Models of a ball as integers: exact averages, no wrap, counts of silos that did not train."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.accounting import InvalidArgument
from fedpriv.mechanisms import Ball
from fedpriv.mechanisms.model_average import MOST_RECORDS, ModelGrid


@pytest.mark.parametrize(("weighted", "precision"), [(False, 1e-7), (True, 1e-6)])
@pytest.mark.parametrize("clients", [2, 3, 10, 1000])
def test_the_average_is_that_of_the_models(weighted: bool, precision: float, clients: int) -> None:
    grid = ModelGrid.choose(10.0, clients, weighted=weighted)
    draw = np.random.default_rng(clients)
    models = [Ball(10.0).project(draw.normal(size=50) * 3) for _ in range(clients)]
    weights = draw.integers(1, 60_000, size=clients).tolist() if weighted else [1] * clients
    total = sum(
        (grid.encode(m, w) for m, w in zip(models, weights, strict=True)), np.zeros(53, dtype=np.int64)
    )
    found = grid.decode(total, clients)
    assert found.weight == sum(weights) and found.offset is not None
    expected = np.average(models, axis=0, weights=weights)
    assert np.max(np.abs(found.offset - expected)) < precision * clients


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clients", [2, 3, 7, 100])
def test_the_sum_of_the_largest_values_does_not_wrap(weighted: bool, clients: int) -> None:
    grid = ModelGrid.choose(2.5, clients, weighted=weighted)
    weight = MOST_RECORDS if weighted else 1
    corner = grid.encode(np.array([2.5, 0.0]), weight)
    bits = grid.modulus_bits(clients)
    assert bits == (62 if weighted else 32)
    total = int(corner[0]) * clients
    assert total <= grid.magnitude(clients) < 2 ** (bits - 1)
    wrapped = (total + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    assert wrapped == total


def test_abstaining_silos_do_not_move_the_average() -> None:
    grid = ModelGrid.choose(1.0, 3, weighted=False)
    total = grid.encode(np.array([0.5, -0.25]), 1)
    total = total + grid.abstention(2, out_of_budget=True) + grid.abstention(2, out_of_budget=False)
    found = grid.decode(total, 3)
    assert (found.weight, found.out_of_budget, found.without_data) == (1, 1, 1)
    assert found.offset == pytest.approx([0.5, -0.25], abs=1e-8)
    nobody = grid.decode(3 * grid.abstention(2, out_of_budget=True), 3)
    assert nobody.offset is None and nobody.out_of_budget == 3


@pytest.mark.parametrize("counts", [[4, 0, 0], [-1, 4, 0], [2, 0, 0], [3, 1, 0], [0, -1, 1], [0, 0, 4]])
def test_counts_that_no_three_silos_send_are_refused(counts: list[int]) -> None:
    grid = ModelGrid.choose(1.0, 3, weighted=False)
    with pytest.raises(InvalidArgument, match="counts"):
        grid.decode(np.array([0, 0, *counts]), 3)


def test_bad_arguments() -> None:
    with pytest.raises(InvalidArgument, match="weight"):
        ModelGrid(1.0, 100, 1).encode(np.zeros(2), 2)
    with pytest.raises(InvalidArgument, match="norm exceeds"):
        ModelGrid(1.0, 100, 1).encode(np.ones(2), 1)
    with pytest.raises(InvalidArgument, match="precisely"):
        ModelGrid.choose(1.0, 10**7, weighted=False)
    with pytest.raises(InvalidArgument, match="wrap"):
        ModelGrid(1.0, 2**30, 2**24).modulus_bits(10**6)
