"""What goes wrong elsewhere: small inputs with the right answer, one test each (delta 1e-5 unless stated)."""

import math

import numpy as np
import pytest

from fedpriv.accounting import (
    Accountant,
    FixedSizeGaussian,
    Gaussian,
    InvalidArgument,
    PoissonGaussian,
    vote_sensitivity,
)
from fedpriv.accounting.curves import DEFAULT_ORDERS

DELTA = 1e-5


def test_replace_one_doubles_the_sensitivity_of_a_clipped_sum():
    """One release, C = 1, noise 1: 4.73 elsewhere."""
    result = Accountant("replace_one").compose(Gaussian(1 / 2)).epsilon(DELTA)
    assert result.epsilon == pytest.approx(9.997, abs=5e-4)
    assert result.rdp_epsilon == pytest.approx(10.73, abs=0.01)
    assert result.bound == "analytic"


def test_a_cohort_the_server_draws_is_no_secret_from_it():
    """q = .05, z = 1, one round, delta 1e-6: 1.47 only for a view that cannot see the cohort."""
    server = Accountant("add_or_remove").compose(Gaussian(1.0)).epsilon(1e-6)
    others = Accountant("add_or_remove").compose(PoissonGaussian(0.05, 1.0)).epsilon(1e-6)
    assert server.epsilon == pytest.approx(4.9, abs=0.05)
    assert others.epsilon == pytest.approx(1.47, abs=0.01)


def test_fixed_size_and_poisson_pair_with_one_adjacency_each():
    with pytest.raises(InvalidArgument, match=r"must be replace_one .*the accountant's is add_or_remove"):
        Accountant("add_or_remove").compose(FixedSizeGaussian(1000, 50, 0.5))
    with pytest.raises(InvalidArgument, match=r"must be add_or_remove .*the accountant's is replace_one"):
        Accountant("replace_one").compose(PoissonGaussian(0.05, 1.0))
    # Order 4 at q = .05: what Poisson claims is far below what a fixed-size cohort costs.
    poisson = PoissonGaussian(0.05, 1.0).curves(np.array([4.0])).remove.rdp[0]
    fixed = FixedSizeGaussian(1000, 50, 0.5).curves(np.array([4.0])).remove.rdp[0]
    assert poisson == pytest.approx(0.011, abs=5e-4)
    assert fixed > 10 * poisson


def test_two_statistics_of_one_cohort_share_one_coin():
    """Clip count and update at z = 1 each, q = .01, order 2: one event at z = .707, not a sum of two."""
    order = np.array([2.0])
    together = PoissonGaussian(0.01, (1.0**-2 + 1.0**-2) ** -0.5).curves(order).remove.rdp[0]
    as_if_independent = 2 * PoissonGaussian(0.01, 1.0).curves(order).remove.rdp[0]
    assert together == pytest.approx(6.4e-4, abs=1e-5)
    assert as_if_independent == pytest.approx(3.4e-4, abs=1e-5)


def test_zero_because_delta_exceeds_the_total_variation():
    """q = .00105, z = 1, one round, delta 1e-3."""
    result = Accountant("add_or_remove").compose(PoissonGaussian(0.00105, 1.0)).epsilon(1e-3)
    total_variation = 0.00105 * math.erf(1 / (2 * math.sqrt(2)))
    assert total_variation < 1e-3
    assert result.epsilon == 0.0
    assert result.bound == "pld"
    below = Accountant("add_or_remove").compose(PoissonGaussian(0.00105, 1.0)).epsilon(0.99 * total_variation)
    assert below.epsilon > 0.0


def test_delta_below_the_resolution_of_distributions_falls_back_with_a_note():
    """z = 4, q = 1/3000, 10,000 rounds, delta 1.13e-18: exception, infinity or .067 (CLT) elsewhere."""
    result = Accountant("add_or_remove").compose(PoissonGaussian(1 / 3000, 4.0), 10_000).epsilon(1.13e-18)
    assert result.epsilon == pytest.approx(0.149, abs=1e-3)
    assert result.bound == "rdp"
    assert result.pld_epsilon is None
    assert any("delta = 1.13e-18" in note and "Rényi" in note for note in result.notes)


def test_no_central_limit_epsilon():
    """z = 1.1, q = 256/60000, 14,062 rounds: the central limit says 2.324, which is not a bound."""
    result = Accountant("add_or_remove").compose(PoissonGaussian(256 / 60000, 1.1), 14_062).epsilon(DELTA)
    assert result.pld_epsilon == pytest.approx(2.382, abs=1e-3)
    assert result.rdp_epsilon == pytest.approx(2.597, abs=1e-3)
    assert result.epsilon == result.pld_epsilon


def test_the_grid_of_orders_is_extended():
    """z = 10, orders {2, 4, 8}: 1.254 elsewhere, exactly .341."""
    accountant = Accountant("add_or_remove", orders=[2, 4, 8]).compose(Gaussian(10.0))
    result = accountant.epsilon(DELTA)
    assert result.epsilon == pytest.approx(0.341, abs=5e-4)
    assert result.rdp_epsilon < 0.39
    assert accountant.orders[0] < result.order < accountant.orders[-1]
    assert not result.notes


def test_the_sampler_that_ran_decides():
    """N = 1000, m = 100, 100 rounds, z = 1."""
    poisson = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.0), 100)
    plain = Accountant("add_or_remove").compose(Gaussian(1.0), 100)
    fixed = Accountant("replace_one").compose(FixedSizeGaussian(1000, 100, 0.5), 100)
    assert poisson.rdp_epsilon(DELTA) == pytest.approx(7.90, abs=5e-3)
    assert plain.rdp_epsilon(DELTA) == pytest.approx(96.1, abs=0.05)
    assert fixed.rdp_epsilon(DELTA) > 10 * poisson.rdp_epsilon(DELTA)


def test_a_run_resumed_halfway_costs_what_it_would_have():
    """q = .1, z = 1, killed at round 50 of 100: 7.90 at the end, not the cost of 50."""
    first = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.0), 50)
    resumed = Accountant.from_json(first.to_json())
    for _ in range(50):
        resumed.compose(PoissonGaussian(0.1, 1.0))
    assert resumed.rdp_epsilon(DELTA) == pytest.approx(7.90, abs=5e-3)


def test_vote_then_training():
    """z = 5 on one-hot ballots, then 200 rounds at q = .1, z = 1.2: 7.953 or 8.996 elsewhere."""
    assert vote_sensitivity(1, 12, "add_or_remove") == 1.0
    training = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.2), 200)
    assert training.rdp_epsilon(DELTA) == pytest.approx(7.953, abs=1e-3)
    result = training.compose(Gaussian(5.0)).epsilon(DELTA)
    assert result.rdp_epsilon == pytest.approx(8.021, abs=1e-3)
    assert result.pld_epsilon == pytest.approx(7.279, abs=1e-3)


def test_the_divisor_does_not_enter_but_unequal_weights_would():
    """9000 and 1000 examples, noise for equal weights (z = 1): 4.377 reported, 8.79 true at a weight of
    .9."""
    reported = Accountant("add_or_remove").compose(Gaussian(1.0)).epsilon(DELTA).epsilon
    true = Accountant("add_or_remove").compose(Gaussian(0.5 / 0.9)).epsilon(DELTA).epsilon
    assert reported == pytest.approx(4.377, abs=1e-3)
    assert true == pytest.approx(8.79, abs=0.02)


def test_too_few_answers_without_a_floor_on_noise():
    """10 expected, 4 answer, mean over 4 with noise for 10: the true cost is 13.2."""
    true = Accountant("add_or_remove").compose(Gaussian(0.4)).epsilon(DELTA).epsilon
    assert true == pytest.approx(13.2, abs=0.05)


def test_every_default_order_of_a_sampled_round_is_usable():
    curve = PoissonGaussian(0.1, 1.2).curves(DEFAULT_ORDERS).remove
    assert np.isfinite(curve.rdp).all()
    assert (np.diff(curve.rdp) >= 0).all()
