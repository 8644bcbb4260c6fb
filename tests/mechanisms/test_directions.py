"""Directions: unit length, orthonormal where claimed, uniform, the same in any order of blocks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import directions as module
from fedpriv.mechanisms.directions import LARGE, Directions, best_kind, kind_of_law

SEED = bytes(range(16))


def matrix(directions: Directions) -> np.ndarray:
    return np.stack([directions.direction(k) for k in range(directions.count)]).astype(np.float64)


@pytest.mark.parametrize(("d", "k"), [(1, 1), (3, 3), (650, 16), (70_000, 4)])
def test_orthonormal_where_claimed(d: int, k: int) -> None:
    directions = Directions(SEED, d, k)
    assert directions.kind == "orthonormal"
    found = matrix(directions)
    assert np.abs(found @ found.T - np.eye(k)).max() < 1e-6


def test_independent_directions_have_unit_length_and_do_not_claim_more() -> None:
    directions = Directions(SEED, 500, 8, "independent")
    found = matrix(directions)
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    assert np.abs(found @ found.T - np.eye(8)).max() > 1e-3


@pytest.mark.parametrize("d", [1, 63, 64, 1000, 2 * module.BLOCK + 5])
def test_signs_have_unit_length_and_fair_coins(d: int) -> None:
    directions = Directions(SEED, d, 3, "signs")
    found = matrix(directions)
    assert np.allclose(np.abs(found), 1 / np.sqrt(d), rtol=1e-6)
    assert directions.norms == ()
    assert abs(np.sign(found).sum()) <= 6 * np.sqrt(3 * d) + 1
    if d >= 1000:
        assert np.abs(found @ found.T - np.eye(3)).max() < 6 / np.sqrt(d)
        tail = np.sign(found[:, 1:]) * np.sign(found[:, :-1])
        assert np.abs(tail.mean(axis=1)).max() < 6 / np.sqrt(d)


def test_norms_of_somebody_else_are_taken_and_checked() -> None:
    own = Directions(SEED, 500, 2, "independent")
    assert np.array_equal(Directions(SEED, 500, 2, "independent", own.norms).direction(1), own.direction(1))
    doubled = Directions(SEED, 500, 2, "independent", [2 * norm for norm in own.norms])
    assert np.allclose(doubled.direction(0), own.direction(0) / 2)
    assert Directions(SEED, 500, 2).norms == ()
    for wrong in ([1.0], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(InvalidArgument, match="norms: 2 positive"):
            Directions(SEED, 500, 2, "independent", wrong)


def test_blocks_made_in_threads_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    d = module.THREADED_BLOCKS * module.BLOCK + 3
    monkeypatch.setattr(module, "_num_cpus", lambda: 3)
    threaded = Directions(SEED, d, 1)
    found, combined = threaded.direction(0), threaded.combine([0.5])
    norm = threaded.norms
    monkeypatch.setattr(module, "_num_cpus", lambda: 1)
    alone = Directions(SEED, d, 1)
    assert np.array_equal(found, alone.direction(0))
    assert np.array_equal(combined, alone.combine([0.5]))
    assert norm == alone.norms
    next(iter(threaded.blocks(0)))  # whoever stops early leaves no thread behind


@pytest.mark.parametrize(
    ("law", "dimension", "may_amplify", "kind"),
    [
        ("auto", LARGE, False, "orthonormal"),
        ("auto", LARGE + 1, False, "signs"),
        ("auto", LARGE + 1, True, "orthonormal"),
        ("uniform", LARGE + 1, False, "orthonormal"),
        ("signs", 10, True, "signs"),
    ],
)
def test_signs_are_taken_where_nothing_is_lost(
    law: Any, dimension: int, may_amplify: bool, kind: str
) -> None:
    assert kind_of_law(law, dimension, 1, may_amplify=may_amplify) == kind


def test_an_unknown_law_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"law.*'gaussian'"):
        kind_of_law("gaussian", 10, 1, may_amplify=False)  # type: ignore[arg-type]


def test_best_kind_follows_size() -> None:
    assert best_kind(10**9, 1) == "orthonormal"
    assert best_kind(4, 5) == "independent"
    assert best_kind(module.DENSE_LIMIT // 16, 16) == "orthonormal"
    assert best_kind(module.DENSE_LIMIT // 16 + 1, 16) == "independent"


def test_one_direction_equals_its_blocks_across_the_block_size() -> None:
    d = module.BLOCK + 17
    directions = Directions(SEED, d, 1)
    offsets, sizes = zip(*((start, block.size) for start, block in directions.blocks(0)), strict=True)
    assert offsets == (0, module.BLOCK)
    assert sizes == (module.BLOCK, 17)
    assert np.array_equal(directions.direction(0), Directions(SEED, d, 1).direction(0))


def test_seeds_directions_and_blocks_are_independent_streams() -> None:
    d = 2 * module.BLOCK
    first = Directions(SEED, d, 2, "independent")
    other = Directions(bytes(16), d, 2, "independent")
    vectors = [first.direction(0), first.direction(1), other.direction(0)]
    halves = [part for vector in vectors for part in np.split(vector, 2)]
    correlation = np.corrcoef(np.stack(halves)) - np.eye(6)
    assert np.abs(correlation).max() < 6 / np.sqrt(module.BLOCK)


def test_haar_law_of_small_stiefel_frames() -> None:
    """Every coordinate of a uniform unit vector in R^3 is uniform on [-1, 1] (Archimedes); so is q_2's."""
    frames = np.stack([matrix(Directions(i.to_bytes(16, "little"), 3, 2)) for i in range(4000)])
    for k in range(2):
        for j in range(3):
            assert stats.kstest(frames[:, k, j], stats.uniform(-1, 2).cdf).pvalue > 1e-5
    normal = np.cross(frames[:, 0], frames[:, 1])
    assert stats.kstest(normal[:, 0], stats.uniform(-1, 2).cdf).pvalue > 1e-5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(6, 40), st.integers(0, 2**32))
def test_combine_is_the_weighted_sum(k: int, d: int, seed: int) -> None:
    directions = Directions(seed.to_bytes(16, "little"), d, k)
    weights = np.random.default_rng(seed).normal(size=k)
    assert np.allclose(directions.combine(weights), weights @ matrix(directions), atol=1e-12)
    assert np.linalg.norm(directions.combine(weights)) == pytest.approx(np.linalg.norm(weights), rel=1e-5)


def test_known_values_pin_the_expansion() -> None:
    """Server and clients of different machines and versions must expand a seed alike."""
    expected = np.random.Generator(
        np.random.Philox(key=int.from_bytes(SEED, "little"), counter=[0, 0, 0, 0])
    ).standard_normal(5, dtype=np.float32)
    found = Directions(SEED, 5, 1).direction(0)
    assert np.allclose(found, expected / np.linalg.norm(expected.astype(np.float64)), rtol=1e-6)
    raw = np.random.Philox(key=1, counter=[0, 0, 2, 3]).random_raw(1)
    assert raw[0] != np.random.Philox(key=1, counter=[0, 0, 3, 2]).random_raw(1)[0]


def test_fingerprint_tells_expansions_apart() -> None:
    assert Directions(SEED, 300, 2).fingerprint() == Directions(SEED, 300, 2).fingerprint()
    assert Directions(SEED, 300, 2).fingerprint() != Directions(bytes(16), 300, 2).fingerprint()
    assert len(Directions(SEED, 3, 1).fingerprint()) == 8


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((b"short", 3, 1), "seed"),
        (("0" * 16, 3, 1), "seed"),
        ((SEED, 0, 1), "dimension"),
        ((SEED, 3, 0), "count"),
        ((SEED, 3, 4, "orthonormal"), "count: 4 orthonormal"),
        ((SEED, 3, 1, "gaussian"), "kind"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        Directions(*arguments)


def test_bad_places_are_named() -> None:
    directions = Directions(SEED, 3, 2)
    with pytest.raises(InvalidArgument, match="index: 2"):
        directions.direction(2)
    with pytest.raises(InvalidArgument, match="coefficients"):
        directions.combine([1.0])
