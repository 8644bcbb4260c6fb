"""Subsets are balanced, coins are fair, unanimity is free, and no more is told than the budget."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting.pac import check_balanced
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import SecureSource, SeededSource
from fedpriv.mechanisms.sign_release import (
    SignRelease,
    balanced_subsets,
    fair_coin,
    subset_signs,
    uniform_below,
)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.integers(1, 20), st.binary(max_size=32))
def test_every_record_is_in_exactly_half_of_the_subsets(records: int, pairs: int, seed: bytes) -> None:
    members = balanced_subsets(records, 2 * pairs, seed)
    check_balanced(members.astype(int))
    assert set(members.sum(axis=1)) <= {records // 2, records - records // 2}
    assert np.array_equal(members, balanced_subsets(records, 2 * pairs, seed))


def test_subsets_differ_by_seed_and_look_random() -> None:
    first, second = balanced_subsets(400, 100, b"a"), balanced_subsets(400, 100, b"b")
    assert not np.array_equal(first, second)
    together = first[:, 0] == first[:, 1]
    assert 30 < together.sum() < 70


def test_signs_are_those_of_the_means_and_zero_is_positive() -> None:
    members = np.array([[True, True, False], [False, False, True], [True, False, True]])
    assert subset_signs(np.array([1.0, -3.0, 0.0]), members).tolist() == [-1, 1, 1]
    with pytest.raises(InvalidArgument, match="quotients"):
        subset_signs(np.array([np.nan, 0.0, 0.0]), members)


def test_coins_and_indices_are_uniform() -> None:
    source = SeededSource(5)
    coins = np.array([fair_coin(source) for _ in range(20_000)])
    assert set(coins.tolist()) == {-1, 1}
    assert abs(coins.sum()) < 6 * math.sqrt(20_000)
    counts = np.bincount([uniform_below(6, source) for _ in range(12_000)], minlength=6)
    assert ((counts - 2000) ** 2 / 2000).sum() < 45
    assert len(counts) == 6


def test_unanimity_costs_nothing_and_releases_the_common_sign() -> None:
    for variant, nats in (("zpl", 0.0), ("mi", 0.5)):
        release = SignRelease.start(variant, 8, nats, 3, SecureSource())  # type: ignore[arg-type]
        for sign in (1, -1, 1, 1):  # one more than planned
            assert release.release(np.full(8, sign), SecureSource()) == sign
            assert release.unanimous is True
        assert release.budget.used == 0.0
        assert np.ptp(release.posterior.log_weights) == 0.0


def test_zpl_moves_no_posterior_and_its_bits_are_coins() -> None:
    release, source = SignRelease.start("zpl", 4, 0.0, 1, SecureSource()), SecureSource()
    signs = np.array([1, 1, 1, -1])
    bits = np.array([release.release(signs, source) for _ in range(4000)])
    assert abs(bits.sum()) < 6 * math.sqrt(4000)
    assert release.unanimous is False
    assert np.ptp(release.posterior.log_weights) == 0.0
    assert release.budget.used == 0.0


def test_mi_spends_its_budget_and_no_more() -> None:
    rng = np.random.default_rng(0)
    release, source = SignRelease.start("mi", 16, 0.3, 50, SecureSource()), SecureSource()
    for _ in range(60):
        release.release(rng.choice([-1, 1], size=16), source)
    assert release.budget.used == pytest.approx(0.3, rel=1e-6)
    assert release.budget.used <= 0.3 * (1 + 1e-12)
    assert np.ptp(release.posterior.log_weights) > 0


def test_mi_with_a_large_budget_tells_the_secret_sign() -> None:
    hits = 0
    for _ in range(60):
        release, source = SignRelease.start("mi", 2, 0.69, 1, SecureSource()), SecureSource()
        signs = np.array([1, -1])
        hits += release.release(signs, source) == signs[release.secret]
    assert hits >= 50


def test_a_failed_objective_is_a_coin_that_costs_nothing() -> None:
    release = SignRelease.start("mi", 4, 0.3, 5, SecureSource())
    source = SecureSource()
    assert {release.release(None, source) for _ in range(60)} == {-1, 1}
    assert (release.budget.used, release.budget.round, release.unanimous) == (0.0, 0, None)


def test_state_comes_back_from_its_json_form() -> None:
    import json

    release, source = SignRelease.start("mi", 6, 0.4, 9, SecureSource()), SecureSource()
    for _ in range(3):
        release.release(np.array([1, 1, -1, -1, 1, -1]), source)
    again = SignRelease.from_json(json.loads(json.dumps(release.to_json())))
    assert again.secret == release.secret
    assert np.array_equal(again.posterior.log_weights, release.posterior.log_weights)
    assert again.budget == release.budget


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("other", 4, 0.0, 3), "variant"),
        (("zpl", 4, 0.1, 3), "nats"),
        (("mi", 4, 0.0, 3), "nats"),
        (("mi", 4, -1.0, 3), "nats"),
        (("mi", 1, 0.1, 3), "num_subsets"),
        (("mi", 4, 0.1, 0), "rounds"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        SignRelease.start(*arguments, SecureSource())
    with pytest.raises(InvalidArgument, match="num_subsets: 3 is odd"):
        balanced_subsets(10, 3, b"")
