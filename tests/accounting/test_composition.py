"""Privacy-loss distributions of whole runs: two-sided checks and the limits of the grid."""

import itertools

import numpy as np
import pytest

from fedpriv.accounting.composition import compose_losses
from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, NonPrivate, NoRelease, PoissonGaussian
from fedpriv.accounting.gaussian import gaussian_delta, gaussian_epsilon


def test_gaussians_merge_exactly():
    loss = compose_losses({Gaussian(3.0): 4, Gaussian(1.5): 2, PoissonGaussian(1.0, 2.0): 1, NoRelease(): 9})
    merged = (4 / 9 + 2 / 2.25 + 1 / 4) ** -0.5
    assert loss.name == "analytic"
    assert loss.epsilon(1e-6)[0] == pytest.approx(gaussian_epsilon(merged, 1e-6), rel=1e-12)
    assert loss.delta(1.0) == pytest.approx(gaussian_delta(merged, 1.0), rel=1e-9)


def test_nothing_released():
    loss = compose_losses({})
    assert loss.epsilon(0.0) == (0.0, "")
    assert loss.delta(0.0) == 0.0
    assert compose_losses({PoissonGaussian(0.0, 1.0): 5}).epsilon(0.0)[0] == 0.0


def test_none_where_an_event_has_no_distribution():
    assert compose_losses({Gaussian(1.0): 1, FixedSizeGaussian(10, 2, 1.0): 1}) is None
    assert compose_losses({NonPrivate(): 1}) is None


def exact_two_rounds(q, z, epsilon):
    """delta of two sampled releases by two-dimensional quadrature, remove direction."""
    x = np.linspace(-9 * z, 9 * z + 1, 3001)
    dx = x[1] - x[0]
    base = np.exp(-(x**2) / (2 * z * z)) / (z * np.sqrt(2 * np.pi))
    ratio = 1 - q + q * np.exp((2 * x - 1) / (2 * z * z))
    excess = np.maximum(ratio[:, None] * ratio[None, :] - np.exp(epsilon), 0)
    return float((base[:, None] * base[None, :] * excess).sum() * dx * dx)


@pytest.mark.parametrize(("q", "z"), [(0.2, 1.0), (0.05, 0.6)])
def test_two_sampled_rounds_by_quadrature(q, z):
    loss = compose_losses({PoissonGaussian(q, z): 2})
    for epsilon in (0.1, 0.5, 2.0):
        exact = exact_two_rounds(q, z, epsilon)
        assert loss.delta(epsilon) >= exact * (1 - 1e-6)
        assert loss.delta(epsilon) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("q", "z", "rounds"),
    [(256 / 60000, 1.1, 14_062), (0.1, 1.2, 200), (1 / 3000, 4.0, 10_000), (0.5, 0.5, 100)],
)
def test_within_a_per_mille_of_an_optimistic_estimate(q, z, rounds):
    from dp_accounting.pld import privacy_loss_distribution as pld

    loss = compose_losses({PoissonGaussian(q, z): rounds})
    upper, _ = loss.epsilon(1e-5)
    step = {1.1: 1e-4, 4.0: 4e-6}.get(z, 1e-3)
    below = pld.from_gaussian_mechanism(
        z,
        sampling_prob=q,
        pessimistic_estimate=False,
        value_discretization_interval=step,
        use_connect_dots=False,
    ).self_compose(rounds)
    lower = below.get_epsilon_for_delta(1e-5)
    assert lower <= upper
    fine = pld.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=step / 4)
    assert upper <= fine.self_compose(rounds).get_epsilon_for_delta(1e-5) * 1.001


@pytest.mark.parametrize(("z", "rounds"), [(10.0, 1_000), (300.0, 100_000)])
def test_rounding_of_the_fourier_transform_never_becomes_privacy(z, rounds):
    """A sampling rate just below 1 takes the grid path; the plain Gaussian is nearly its exact answer.

    The library alone reports 0.46 too little at z = 300, 100,000 rounds, delta 1e-13.
    """
    loss = compose_losses({PoissonGaussian(1 - 1e-9, z): rounds})
    assert loss.name == "pld"
    answered = []
    for delta in (1e-6, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13):
        epsilon, reason = loss.epsilon(delta)
        if epsilon is None:
            assert "Rényi" in reason
            continue
        exact = gaussian_epsilon(z / rounds**0.5, delta)
        assert exact * (1 - 1e-6) <= epsilon <= exact * 1.01
        answered.append(delta)
    assert {1e-6, 1e-9, 1e-10} <= set(answered)
    assert 1e-13 not in answered or rounds == 1_000


def test_order_of_composition_does_not_matter():
    events = [Gaussian(4.0), PoissonGaussian(0.1, 1.5), PoissonGaussian(0.3, 3.0)]
    values = [
        compose_losses({event: 3 for event in permutation}).epsilon(1e-6)[0]
        for permutation in itertools.permutations(events)
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-6)
