"""PACZero under the sharpest attacks: what is promised holds, and each planted fault is found by the same test."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.finetune.pac_attack import (
    Attack,
    Forgetful,
    HalvedNoise,
    LeaningCoin,
    NoNoise,
    attack,
    transcripts,
    two_sample_p,
)
from fedpriv.accounting.pac import membership_success
from fedpriv.mechanisms import SeededSource
from fedpriv.mechanisms import sign_release as module
from fedpriv.mechanisms.sign_release import SignRelease, balanced_subsets, subset_signs

NATS, BOUND = 0.33, membership_success(0.33)


def ask_record(kind: type[SignRelease]) -> Attack:
    return attack(kind, NATS, 2, 3, 150, "record", SeededSource(1, kind.__name__))


def ask_halves(kind: type[SignRelease]) -> Attack:
    return attack(kind, 2.0, 16, 6, 100, "halves", SeededSource(2, kind.__name__))


def test_the_best_attack_stays_below_the_bound_and_comes_close() -> None:
    found = ask_record(SignRelease)
    assert not found.refutes(NATS, BOUND)
    # the attack is no weak one: it gets what the budget allows, and most of the success
    assert found.information == pytest.approx(NATS, abs=4 * found.error)
    assert found.wins / found.runs > 0.75


@pytest.mark.parametrize("kind", [HalvedNoise, NoNoise])
def test_too_little_noise_is_found(kind: type[SignRelease]) -> None:
    found = ask_record(kind)
    assert found.refutes(NATS, BOUND)
    assert found.success(0.998)[0] > BOUND


def test_an_adaptive_attacker_gets_no_more_than_the_budget() -> None:
    found = ask_halves(SignRelease)
    assert not found.refutes(2.0, 1.0)
    assert found.information == pytest.approx(2.0, abs=4 * found.error)


def test_a_posterior_that_is_not_updated_is_found() -> None:
    assert ask_halves(Forgetful).refutes(2.0, 1.0)


def test_zpl_transcripts_have_one_law_whatever_the_secret() -> None:
    found, holds = transcripts(SignRelease, 4, 2000, 6, SeededSource(3))
    assert two_sample_p(found, holds) > 1e-3
    assert len(set(found.tolist())) > 4  # the subsets differ in most rounds
    assert 0.4 < holds.mean() < 0.6


def test_a_coin_that_leans_to_the_secret_is_found() -> None:
    assert two_sample_p(*transcripts(LeaningCoin, 4, 2000, 6, SeededSource(3))) < 1e-6


def test_zpl_never_reads_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal coins give equal transcripts for every secret: an exact proof of independence for these records."""
    rng = np.random.default_rng(0)
    members = balanced_subsets(10, 8, b"")
    rounds = [subset_signs(rng.normal(size=10), members) for _ in range(30)]

    def transcript(secret: int) -> tuple[list[int], float]:
        monkeypatch.setattr(module, "uniform_below", lambda bound, source: secret)
        silo, coins = SignRelease.start("zpl", 8, 0.0, 30, SeededSource(0)), SeededSource(1)
        bits = [silo.release(signs, coins) for signs in rounds]
        return bits, float(coins.words(1)[0])  # as many coins were tossed, too

    found = [transcript(secret) for secret in range(8)]
    assert all(one == found[0] for one in found)
    assert {silo_sign for signs in rounds for silo_sign in np.unique(signs)} == {-1, 1}


def test_what_an_attack_shows() -> None:
    assert Attack(99, 100, 0.1, 0.01).refutes(0.5, 0.8)
    assert Attack(50, 100, 0.6, 0.01).refutes(0.5, 0.8)
    assert not Attack(80, 100, 0.5, 0.01).refutes(0.5, 0.8)
    low, high = Attack(50, 100, 0.0, 0.0).success()
    assert low < 0.5 < high
    assert math.isclose(low, 1 - high)
