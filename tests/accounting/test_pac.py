"""PAC budgets: the binary channel against high precision, its inverse, posteriors, budgets, membership bounds."""

import math

import mpmath
import numpy as np
import pytest

from fedpriv.accounting.pac import (
    ENTROPY_SHARE,
    PacBudget,
    SubsetPosterior,
    binary_channel_information,
    binary_channel_noise_std,
    binary_entropy,
    check_balanced,
    membership_success,
    mutual_information_for_success,
    noise_std_from_log_odds,
    pure_dp_epsilon_with_equal_posterior,
)
from fedpriv.accounting.pac import _information_over_weight as information_over_weight
from fedpriv.accounting.validators import InvalidArgument


def _information_in_high_precision(log_odds, sigma, digits=40):
    """I(q, sigma) / q by adaptive quadrature of the defining integral, split at its kink."""
    with mpmath.workdps(digits):
        odds, s = mpmath.mpf(log_odds), mpmath.mpf(sigma)
        q = 1 / (1 + mpmath.exp(-odds))
        p = 1 - q

        def integrand(y):
            up, down = mpmath.exp(-((y - 1) ** 2) / (2 * s * s)), mpmath.exp(-((y + 1) ** 2) / (2 * s * s))
            mixture = q * up + p * down
            return (up * mpmath.log(up / mixture) + p / q * down * mpmath.log(down / mixture)) / s

        kink = -s * s / 2 * odds
        points = [c + k * s for c in (-1, 1) for k in (-14, -4, 0, 4, 14)] + [
            kink + k * s for k in (-2, 0, 2)
        ]
        points = sorted({x for x in points if -1 - 14 * s <= x <= 1 + 14 * s})
        return float(mpmath.quad(integrand, points) / mpmath.sqrt(2 * mpmath.pi))


# The channel


@pytest.mark.parametrize(
    ("weight", "sigma", "nats"),
    [
        (0.5, 1, 0.33683082035),
        (0.3, 1, 0.29185751791),
        (0.1, 2, 0.04274226951),
        (0.5, 5, 0.01961017319),
        (0.5, 0.5, 0.63272019374),
    ],
)
def test_reference_information(weight, sigma, nats):
    assert binary_channel_information(weight, sigma) == pytest.approx(nats, rel=1e-9)


@pytest.mark.parametrize(
    ("log_odds", "sigma", "digits"),
    [
        (0.0, 0.05, 40),
        (0.0, 0.3, 40),
        (0.0, 1e4, 40),
        (-3.0, 0.2, 40),
        (-13.8, 0.15, 40),
        (-13.8, 0.5, 40),
        (-13.8, 1e3, 40),
        (-44.0, 0.2, 50),
        (-45.9, 0.18, 50),
        (-46.1, 0.18, 50),
        (-46.1, 50.0, 50),
        (-100.0, 0.14, 100),
    ],
)
def test_information_in_high_precision(log_odds, sigma, digits):
    expected = _information_in_high_precision(log_odds, sigma, digits)
    assert information_over_weight(log_odds, sigma) == pytest.approx(expected, rel=1e-11)


def test_information_is_symmetric_monotone_and_bounded():
    for weight in (0.5, 0.2, 1e-3, 1e-6):
        assert binary_channel_information(weight, 0.7) == pytest.approx(
            binary_channel_information(1 - weight, 0.7), rel=1e-9
        )
        noises = np.geomspace(0.05, 1e4, 60)
        nats = np.array([binary_channel_information(weight, s) for s in noises])
        assert (np.diff(nats) <= 1e-15).all()
        assert (nats <= 2 * weight * (1 - weight) / noises**2 * (1 + 1e-12)).all()
        assert (nats <= binary_entropy(weight) * (1 + 1e-12)).all()
        assert nats[-1] == pytest.approx(2 * weight * (1 - weight) / noises[-1] ** 2, rel=1e-6)
    assert binary_channel_information(0.3, 0.0) == binary_entropy(0.3)
    assert binary_channel_information(0.0, 1.0) == binary_channel_information(1.0, 0.0) == 0


def test_information_agrees_with_simulation():
    rng = np.random.default_rng(0)
    weight, sigma, draws = 0.2, 0.8, 400_000
    signs = np.where(rng.random(draws) < weight, 1.0, -1.0)
    y = signs + sigma * rng.normal(size=draws)
    up, down = np.exp(-0.5 * ((y - 1) / sigma) ** 2), np.exp(-0.5 * ((y + 1) / sigma) ** 2)
    loss = np.log(np.where(signs > 0, up, down) / (weight * up + (1 - weight) * down))
    assert binary_channel_information(weight, sigma) == pytest.approx(
        loss.mean(), abs=4 * loss.std() / math.sqrt(draws)
    )


def test_binary_entropy():
    for weight in (1e-300, 1e-9, 0.1, 0.5, 0.9):
        with mpmath.workdps(330):
            q = mpmath.mpf(weight)
            expected = float(-q * mpmath.log(q) - (1 - q) * mpmath.log(1 - q))
        assert binary_entropy(weight) == pytest.approx(expected, rel=1e-12)
    assert binary_entropy(0.0) == binary_entropy(1.0) == 0


# Its inverse


@pytest.mark.parametrize(
    ("nats", "sigma"), [(1e-4, 70.70714), (1e-3, 22.3495), (0.01, 7.035738), (0.1, 2.124073), (0.33, 1.01538)]
)
def test_reference_noise(nats, sigma):
    assert binary_channel_noise_std(0.5, nats) == pytest.approx(sigma, rel=5e-7)


@pytest.mark.parametrize("weight", [1e-6, 1e-3, 0.1, 0.5, 0.9, 1 - 1e-6])
@pytest.mark.parametrize("share", [1e-8, 1e-7, 1e-4, 0.1, 0.9, 0.999])
def test_noise_spends_at_most_the_target_and_hardly_less(weight, share):
    # Targets in [1e-8, 0.999 h]: absolute ones at the small end, parts of the entropy at the large one.
    entropy = binary_entropy(weight)
    target = share if share < 1e-3 and share < 0.9 * entropy else share * entropy
    sigma = binary_channel_noise_std(weight, target)
    spent = binary_channel_information(weight, sigma)
    assert target * (1 - 1e-8) <= spent <= target * (1 + 1e-13)
    assert binary_channel_information(weight, sigma * (1 - 1e-6)) > target * (1 - 1e-13)


def test_a_tiny_target_is_not_overspent():
    # An absolute tolerance of 1e-6 spends five times this one.
    sigma = binary_channel_noise_std(0.5, 1e-7)
    assert _information_in_high_precision(0.0, sigma) * 0.5 <= 1e-7 * (1 + 1e-11)
    assert sigma == pytest.approx(math.sqrt(0.5 / 1e-7), rel=1e-6)


def test_targets_above_the_entropy_release_almost_all_of_it():
    sigma = binary_channel_noise_std(0.3, 5.0)
    assert binary_channel_information(0.3, sigma) == pytest.approx(
        ENTROPY_SHARE * binary_entropy(0.3), rel=1e-8
    )
    assert math.isinf(binary_channel_noise_std(0.3, 0.0))


def test_extreme_posteriors_keep_their_noise():
    for log_odds in (-50.0, -400.0, -700.0, -1e6, 1e6):
        sigma = noise_std_from_log_odds(log_odds, 0.01)
        assert 0.01 < sigma < 0.5
        if abs(log_odds) <= 700:
            spent = information_over_weight(-abs(log_odds), sigma)
            assert spent <= ENTROPY_SHARE * (1 - -abs(log_odds))  # h(q)/q is 1 - log q to rounding
    # Beyond the cap the noise is that of the cap: it then spends less than its share of the entropy.
    capped = noise_std_from_log_odds(-700.0, 0.01)
    for log_odds in (-705.0, -800.0, -1500.0):
        assert information_over_weight(log_odds, capped) <= ENTROPY_SHARE * (1 - log_odds)
    # A budget that binds: tiny, but relative to the tiny weight.
    assert noise_std_from_log_odds(-40.0, 1e-20) > noise_std_from_log_odds(-40.0, 1e-17)


# Membership


@pytest.mark.parametrize(
    ("nats", "success"),
    [(1e-4, 0.50707), (1e-3, 0.52236), (0.01, 0.57059), (0.11, 0.73011), (0.33, 0.88189), (0.68, 0.9982)],
)
def test_reference_membership(nats, success):
    assert membership_success(nats) == pytest.approx(success, abs=6e-6)


@pytest.mark.parametrize("nats", [0.0, 1e-14, 1e-9, 1e-5, 0.003, 0.2, 0.5, 0.69])
def test_membership_solves_its_equation(nats):
    success = membership_success(nats)
    with mpmath.workdps(40):
        p = mpmath.mpf(success)
        divergence = p * mpmath.log(2 * p) + ((1 - p) * mpmath.log(2 * (1 - p)) if p < 1 else 0)
    # A double next to 1/2 carries the advantage to 1e-16 only.
    slack = 4 * (2 * success - 1) * 2e-16
    assert nats - slack <= float(divergence) <= nats * (1 + 1e-8) + slack
    assert mutual_information_for_success(success) == pytest.approx(nats, rel=1e-6, abs=1e-15)


def test_membership_is_monotone_and_saturates():
    grid = np.linspace(0, 0.75, 200)
    assert (np.diff([membership_success(v) for v in grid]) >= 0).all()
    assert membership_success(0.0) == 0.5
    assert membership_success(math.log(2)) == membership_success(3.0) == 1
    assert mutual_information_for_success(1.0) == pytest.approx(math.log(2))


def test_membership_bound_holds_for_the_best_guesser():
    # One noisy sign of a secret among two complementary subsets: the best guess is the released sign.
    for sigma in (0.3, 1.0, 4.0):
        exact = 0.5 * math.erfc(-1 / sigma / math.sqrt(2))
        assert exact <= membership_success(binary_channel_information(0.5, sigma))


def test_comparison_with_pure_dp():
    for nats in (1e-6, 0.01, 0.33):
        epsilon = pure_dp_epsilon_with_equal_posterior(nats)
        assert math.exp(epsilon) / (1 + math.exp(epsilon)) == pytest.approx(
            membership_success(nats), rel=1e-12
        )
    assert pure_dp_epsilon_with_equal_posterior(0.33) == pytest.approx(math.log(0.88189 / 0.11811), rel=1e-3)
    assert math.isinf(pure_dp_epsilon_with_equal_posterior(1.0))
    assert pure_dp_epsilon_with_equal_posterior(0.0) == 0


# Budget and posterior


def test_budget_is_spread_and_never_exceeded():
    rng = np.random.default_rng(1)
    budget, granted = PacBudget(0.33, 1000), []
    for _ in range(1000):
        log_odds = rng.choice([0.0, 3.0, -30.0, math.inf])
        nats = budget.allowance(log_odds)
        if math.isinf(log_odds):
            assert nats == 0  # unanimity is free
        budget.charge(nats)
        granted.append(nats)
    assert math.fsum(granted) <= 0.33 * (1 + 1e-12)
    assert max(granted[-100:]) > 2 * granted[0]  # what unanimous rounds saved goes to later ones
    assert budget.allowance(0.0) == 0
    with pytest.raises(InvalidArgument, match="round"):
        budget.charge(0.0)


def test_budget_of_contested_rounds_is_an_equal_split():
    budget = PacBudget(0.2, 10)
    for _ in range(10):
        assert budget.allowance(0.0) == pytest.approx(0.02)
        budget.charge(budget.allowance(0.0))
    restored = PacBudget(0.2, 10, used=0.15, round=8)
    assert restored.allowance(0.0) == pytest.approx(0.025)
    assert PacBudget(50.0, 10).allowance(0.0) == pytest.approx(ENTROPY_SHARE * math.log(2))
    assert PacBudget(50.0, 10).allowance(-13.8) < 2e-5
    assert PacBudget(0.0, 3).allowance(0.0) == 0
    with pytest.raises(InvalidArgument, match="nats"):
        restored.charge(0.06)


def test_posterior_is_bayes_rule_and_uses_the_real_value():
    rng = np.random.default_rng(3)
    subsets, sigma = 6, 1.3
    posterior, plain = SubsetPosterior.uniform(subsets), np.full(subsets, 1 / subsets)
    for _ in range(20):
        signs = rng.choice([-1, 1], subsets)
        if abs(signs.sum()) == subsets:
            continue
        expected = np.log(plain[signs > 0].sum()) - np.log(plain[signs < 0].sum())
        assert posterior.log_odds(signs) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        released = signs[2] + sigma * rng.normal()
        plain = plain * np.exp(-0.5 * ((released - signs) / sigma) ** 2)
        plain /= plain.sum()
        posterior.update(signs, released, sigma)
    weights = np.exp(posterior.log_weights)
    np.testing.assert_allclose(weights / weights.sum(), plain, rtol=1e-9)
    # The sign alone would say less: two values of one sign move the posterior differently.
    near, far = SubsetPosterior.uniform(2), SubsetPosterior.uniform(2)
    near.update([1, -1], 0.1, sigma)
    far.update([1, -1], 3.0, sigma)
    assert far.log_odds([1, -1]) > near.log_odds([1, -1]) > 0


def test_underflow_never_fakes_unanimity():
    posterior = SubsetPosterior.uniform(4)
    signs = np.array([1, 1, -1, -1])
    for _ in range(5000):
        posterior.update(signs, 1.0, 1.0)
    odds = posterior.log_odds(signs)
    assert odds == pytest.approx(10_000)  # e^-10000 is no floating-point number, but no certainty either
    assert math.isinf(posterior.log_odds([1, 1, 1, 1])) and posterior.log_odds([-1, -1, -1, -1]) == -math.inf
    sigma = noise_std_from_log_odds(odds, 0.01)
    assert sigma > 0 and PacBudget(1.0, 10).allowance(odds) < 1e-290
    posterior.update(signs, -1.0, sigma)
    assert math.isfinite(posterior.log_odds(signs))


def test_a_fair_coin_moves_nothing():
    posterior = SubsetPosterior(np.array([0.0, -1.0, -2.0]))
    before = posterior.to_list()
    posterior.update([1, -1, 1], 1.0, math.inf)
    assert posterior.to_list() == before
    assert SubsetPosterior(posterior.to_list()).to_list() == before


def test_information_accumulates_by_the_chain_rule():
    # Three subsets, adaptive rounds: the realised information about the secret stays below the budget.
    rng = np.random.default_rng(5)
    total, rounds, runs = 0.4, 6, 250
    gains = []
    for _ in range(runs):
        secret = int(rng.integers(4))
        posterior, budget = SubsetPosterior.uniform(4), PacBudget(total, rounds)
        for t in range(rounds):
            signs = np.array([[1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]][t % 3])
            odds = posterior.log_odds(signs)
            nats = budget.allowance(odds)
            sigma = noise_std_from_log_odds(odds, nats)
            budget.charge(nats)
            posterior.update(signs, signs[secret] + sigma * rng.normal(), sigma)
        log_norm = np.logaddexp.reduce(posterior.log_weights)
        gains.append(math.log(4) + posterior.log_weights[secret] - log_norm)
    mean, error = np.mean(gains), np.std(gains) / math.sqrt(runs)
    assert total * 0.8 < mean + 4 * error
    assert mean - 4 * error <= total


def test_balance_of_subsets():
    check_balanced([[1, 0, 1], [0, 1, 0]])
    with pytest.raises(InvalidArgument, match="record 2"):
        check_balanced([[1, 0, 1], [0, 1, 1]])
    with pytest.raises(InvalidArgument, match="subsets"):
        check_balanced([[1, 2], [0, 1]])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: binary_channel_information(1.2, 1.0), "weight"),
        (lambda: binary_channel_information(math.nan, 1.0), "weight"),
        (lambda: binary_channel_information(0.5, -1.0), "noise_std"),
        (lambda: binary_channel_noise_std(0.0, 0.1), "weight"),
        (lambda: binary_channel_noise_std(0.5, -0.1), "mutual_information"),
        (lambda: noise_std_from_log_odds(math.inf, 0.1), "log_odds"),
        (lambda: membership_success(-0.1), "mutual_information"),
        (lambda: membership_success(math.nan), "mutual_information"),
        (lambda: mutual_information_for_success(0.4), "success"),
        (lambda: PacBudget(-1.0, 3), "total"),
        (lambda: PacBudget(1.0, -3), "rounds"),
        (lambda: SubsetPosterior.uniform(1), "subsets"),
        (lambda: SubsetPosterior(np.array([0.0, -math.inf])), "log_weights"),
        (lambda: SubsetPosterior.uniform(2).log_odds([1, 0]), "signs"),
        (lambda: SubsetPosterior.uniform(2).update([1, -1], 0.0, 0.0), "noise_std"),
        (lambda: SubsetPosterior.uniform(2).update([1, -1], math.nan, 1.0), "released"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(InvalidArgument, match=name):
        call()
