"""From training settings to the hidden-state event: constants against simulated rounds and binomials."""

import math

import numpy as np
import pytest

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.dpsgd_dc import (
    cohort_quantile,
    dpsgd_dc_event,
    linear_model_smoothness,
    pseudo_gradient_lipschitz,
)
from fedpriv.accounting.validators import InvalidArgument

SETTINGS = {
    "rounds": 50,
    "learning_rate": 0.2,
    "smoothness": 1.0,
    "clipping_norm": 2.0,
    "noise_multiplier": 4.0,
    "radius": 0.5,
    "cohort": 8,
    "adjacency": "add_or_remove",
}


def test_constants_of_a_full_participation_run():
    event = dpsgd_dc_event(**SETTINGS)
    assert event.update_lipschitz == pytest.approx(1.2)
    assert event.sensitivity == pytest.approx(0.2 * 2 / 8)
    assert event.noise_std == pytest.approx(0.2 * 4 * 2 / 8)
    assert event.diameter == 1.0  # twice the radius
    assert event.largest_move == pytest.approx(2 * 0.2 * 2)
    assert event.drift == 0 and event.failure_mass == 0 and event.sampling_rate == 1
    replaced = dpsgd_dc_event(**{**SETTINGS, "adjacency": "replace_one"})
    assert replaced.sensitivity == pytest.approx(2 * event.sensitivity)
    assert replaced.noise_std == event.noise_std


def _clip(vector, norm):
    return vector * min(1.0, norm / max(np.linalg.norm(vector), 1e-300))


def _round(theta, matrices, offsets, eta, clip, cohort, step=0.0):
    """Noiseless DPSGD-DC round on quadratic losses: gradient A theta + b, clipped, truncated to the grid."""
    total = np.zeros_like(theta)
    for matrix, offset in zip(matrices, offsets, strict=True):
        g = _clip(matrix @ theta + offset, clip)
        total += np.trunc(g / step) * step if step else g
    return theta - eta * total / cohort


@pytest.mark.parametrize("step", [0.0, 0.3])
def test_one_round_never_moves_two_models_apart_by_more_than_the_constants(step):
    rng = np.random.default_rng(3)
    d, clients, eta, clip, smoothness = 3, 6, 0.4, 0.8, 1.5
    event = dpsgd_dc_event(
        **{
            **SETTINGS,
            "learning_rate": eta,
            "clipping_norm": clip,
            "smoothness": smoothness,
            "cohort": clients,
        },
        grid_step=step,
        dimension=d,
    )
    worst = 0.0
    for _ in range(1200):
        matrices = []
        for _ in range(clients):
            a = rng.normal(size=(d, d))
            a = a + a.T
            matrices.append(a * smoothness / np.linalg.norm(a, 2))
        offsets = rng.normal(size=(clients, d)) * rng.choice([0.01, 0.3, 2.0])
        x, y = rng.normal(size=(2, d)) * rng.choice([0.02, 0.2, 2.0])
        before = np.linalg.norm(x - y)
        after = np.linalg.norm(
            _round(x, matrices, offsets, eta, clip, clients, step)
            - _round(y, matrices, offsets, eta, clip, clients, step)
        )
        assert after <= event.update_lipschitz * before + event.drift + 1e-12
        assert after <= before + event.largest_move + 1e-12
        worst = max(worst, (after - event.update_lipschitz * before) / max(event.drift, 1e-9))
    if step:
        assert worst > 0  # the drift is needed


def test_convex_losses_need_twice_the_drift_under_truncation():
    # Convex, unclipped, one coordinate: the exact step is non-expansive, truncation errors of opposite sign
    # add up.
    eta, step = 2.0, 1.0
    event = dpsgd_dc_event(
        **{**SETTINGS, "learning_rate": eta, "smoothness": 1.0, "clipping_norm": 100.0, "cohort": 1},
        grid_step=step,
        dimension=1,
        convex_and_never_clipped=True,
    )
    assert event.update_lipschitz == 1
    x, y = (
        0.999,
        -0.999,
    )  # gradients of theta^2/2, truncated to 0: the models stay where the exact step swaps them
    after = abs((x - eta * np.trunc(x)) - (y - eta * np.trunc(y)))
    assert after <= abs(x - y) + event.drift
    # Exact step minus truncated step, worst pair: errors of size eta * step each, with opposite signs.
    gap = abs((x - eta * np.trunc(x) - (x - eta * x)) - (y - eta * np.trunc(y) - (y - eta * y)))
    assert eta * step < gap <= event.drift == 2 * eta * step


def test_convexity_helps_only_below_the_critical_rate():
    flat = dpsgd_dc_event(**SETTINGS, convex_and_never_clipped=True)
    assert flat.update_lipschitz == 1
    steep = dpsgd_dc_event(**{**SETTINGS, "learning_rate": 2.5}, convex_and_never_clipped=True)
    assert steep.update_lipschitz == pytest.approx(3.5)
    with pytest.raises(InvalidArgument, match="convex_and_never_clipped"):
        dpsgd_dc_event(**SETTINGS, convex_and_never_clipped=True, local_steps=2, local_learning_rate=0.1)


def test_a_clipped_gradient_of_a_convex_loss_can_expand():
    # Why clipping forbids c = 1: a gradient step with clipped gradients moves two points apart.
    matrix = np.array([[1.0, 0.0], [0.0, 0.0001]])
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(20_000):
        x, y = rng.normal(size=(2, 2)) * np.array([1.0, 30.0])
        before = np.linalg.norm(x - y)
        move = _clip(matrix @ x, 0.02) - _clip(matrix @ y, 0.02)
        worst = max(worst, np.linalg.norm((x - y) - 1.9 * move) / before)
    assert 1 + 1e-6 < worst <= 1 + 1.9


def test_pseudo_gradient_constant():
    assert pseudo_gradient_lipschitz(0.7, 0.1, 1) == pytest.approx(0.7)
    assert pseudo_gradient_lipschitz(0.7, 0.1, 5) == pytest.approx((1.07**5 - 1) / 0.1)
    assert math.isinf(pseudo_gradient_lipschitz(10.0, 10.0, 10_000))
    # Ground truth: the concave quadratic -L theta^2 / 2 attains it.
    smoothness, rate, steps = 0.7, 0.1, 5
    x, y = 1.0, 0.4
    ends = []
    for theta in (x, y):
        for _ in range(steps):
            theta += rate * smoothness * theta
        ends.append(theta)
    quotient = abs((x - ends[0]) - (y - ends[1])) / rate / abs(x - y)
    assert quotient == pytest.approx(pseudo_gradient_lipschitz(smoothness, rate, steps))
    event = dpsgd_dc_event(**SETTINGS, local_steps=5, local_learning_rate=0.1)
    assert event.update_lipschitz == pytest.approx(1 + 0.2 * pseudo_gradient_lipschitz(1.0, 0.1, 5))


def test_smoothness_of_linear_models():
    rng = np.random.default_rng(0)
    norm, classes, d = 1.7, 4, 3
    attained = 0.0
    for _ in range(500):
        x = _clip(rng.normal(size=d) * 5, norm)
        logits = rng.normal(size=classes) * rng.choice([0.1, 1, 3])
        p = np.exp(logits) / np.exp(logits).sum()
        hessian = np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
        attained = max(attained, np.linalg.eigvalsh(hessian)[-1])
    assert attained <= linear_model_smoothness(norm, "softmax") == pytest.approx(norm**2 / 2)
    two = np.array([0.5, 0.5, 0.0, 0.0])
    x = np.array([norm, 0, 0])
    worst = np.linalg.eigvalsh(np.kron(np.diag(two) - np.outer(two, two), np.outer(x, x)))[-1]
    assert worst == pytest.approx(linear_model_smoothness(norm, "softmax"))
    assert linear_model_smoothness(norm, "logistic") == pytest.approx(norm**2 / 4)


@pytest.mark.parametrize(
    ("members", "rate", "mass"), [(0, 0.3, 0.01), (1, 0.3, 0.5), (40, 0.1, 1e-4), (999, 0.02, 1e-9)]
)
def test_cohort_quantile_is_exact(members, rate, mass):
    k = cohort_quantile(members, rate, mass)
    terms = [math.comb(members, i) * rate**i * (1 - rate) ** (members - i) for i in range(members + 1)]
    assert math.fsum(terms[k + 1 :]) <= mass
    if k > 0:
        assert math.fsum(terms[k:]) > mass


def test_poisson_run_uses_the_quantile_of_the_others():
    poisson = {**SETTINGS, "sampling_rate": 0.1, "num_clients": 80, "failure_mass": 1e-6}
    event = dpsgd_dc_event(**poisson)
    others = cohort_quantile(79, 0.1, 1e-6 / 50)
    assert others > 8
    assert event.update_lipschitz == pytest.approx(1 + 0.2 * others / 8)
    assert event.failure_mass == 1e-6 and event.sampling_rate == 0.1
    assert event.largest_move == pytest.approx(2 * 0.2 * 2 * others / 8)
    assert 0 < Accountant("add_or_remove").compose(event).epsilon(1e-5, use_pld=False).epsilon < math.inf


def test_learning_rate_schedule():
    rates = np.linspace(0.4, 0.1, 50).tolist()
    event = dpsgd_dc_event(**{**SETTINGS, "learning_rate": rates})
    np.testing.assert_allclose(event.update_lipschitz, 1 + np.array(rates))
    np.testing.assert_allclose(np.array(event.noise_std) / event.sensitivity, 4.0)
    constant = dpsgd_dc_event(**{**SETTINGS, "learning_rate": [0.2] * 50})
    order = np.array([2.0])
    expected = dpsgd_dc_event(**SETTINGS).curves(order).remove.rdp
    np.testing.assert_allclose(constant.curves(order).remove.rdp, expected, rtol=1e-12)


def test_release_noise_is_passed_on():
    event = dpsgd_dc_event(**SETTINGS, grid_step=1e-3, dimension=100, release_noise_std=0.05)
    assert event.release_noise_std == 0.05
    assert event.drift == pytest.approx(0.2 * 1e-3 * 10)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rounds": 1.5}, "rounds"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"smoothness": -1.0}, "smoothness"),
        ({"clipping_norm": 0.0}, "clipping_norm"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"radius": -1.0}, "radius"),
        ({"cohort": 0}, "cohort"),
        ({"adjacency": "both"}, "adjacency"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 0.5, "adjacency": "replace_one"}, "sampling_rate"),
        ({"sampling_rate": 0.5}, "num_clients"),
        ({"sampling_rate": 0.5, "num_clients": 10}, "failure_mass"),
        ({"local_steps": 3}, "local_learning_rate"),
        ({"grid_step": 0.1}, "dimension"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(InvalidArgument, match=name):
        dpsgd_dc_event(**{**SETTINGS, **change})
