"""Amplification by iteration against exact one-dimensional chains and reference values."""

import json
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from one_dimensional_chains import ProjectedLine, gaussian_sampled_divergence

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.amplification_by_iteration import (
    AMPLIFIED,
    COMPOSITION,
    HYPOTHESES,
    AmplificationByIteration,
    calibrate_amplification_by_iteration,
)
from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.events import PoissonGaussian, event_from_json
from fedpriv.accounting.gaussian import gaussian_delta
from fedpriv.accounting.validators import InvalidArgument

ORDERS = np.array([1.1, 2.0, 4.0, 8.0, 16.0, 32.0])


def _rdp(event, orders=ORDERS):
    return event.curves(orders).remove.rdp


# Published numbers and an independent high-precision recomputation

RELEASE_VECTORS = [
    # alpha, rounds, c, sensitivity, noise, diameter, rdp
    (2.0, 10, 1.1, 0.2, 0.4, 1.0, 2.5),
    (2.0, 50, 1.1, 0.2, 0.4, 1.0, 6.5972094126319805),
    (2.0, 1000, 1.1, 0.2, 0.4, 1.0, 6.5972094126319805),
    (8.0, 200, 1.02, 0.02, 0.05, 0.2, 28.478623906118415),
    (2.0, 200, 1.0, 0.01, 0.05, 0.2, 3.1999999999999997),
]


@pytest.mark.parametrize(("alpha", "rounds", "c", "sensitivity", "noise", "diameter", "rdp"), RELEASE_VECTORS)
def test_reference_values(alpha, rounds, c, sensitivity, noise, diameter, rdp):
    event = AmplificationByIteration(rounds, c, sensitivity, noise, diameter)
    assert _rdp(event, np.array([alpha]))[0] == pytest.approx(rdp, rel=1e-12)


def test_recomputation_in_high_precision():
    rounds, c, sensitivity, noise, diameter, alpha = 300, "1.07", "0.013", "0.041", "0.31", 3
    with mpmath.workdps(40):
        c, s, nu, d = (mpmath.mpf(v) for v in (c, sensitivity, noise, diameter))
        w = [mpmath.mpf(0)]
        for _ in range(rounds):
            w.append(c * w[-1] + s)
        candidates = [rounds * alpha * s**2 / (2 * nu**2)]
        for j in range(1, rounds + 1):
            z = min(d, w[rounds - j])
            energy = z**2 * c ** (2 * j) * (c**2 - 1) / (c ** (2 * j) - 1)
            a, b = j * alpha * s**2 / (2 * nu**2), alpha * energy / (2 * nu**2)
            candidates.append((mpmath.sqrt(a) + mpmath.sqrt(b)) ** 2)
        expected = float(min(candidates))
    event = AmplificationByIteration(rounds, 1.07, 0.013, 0.041, 0.31)
    assert _rdp(event, np.array([3.0]))[0] == pytest.approx(expected, rel=1e-12)
    assert expected < candidates[0] * 0.99


# Ground truth: exact laws of one-dimensional chains


def _random_chain(seed):
    """A projected chain with a smooth c-Lipschitz step and a contribution of norm at most the sensitivity."""
    rng = np.random.default_rng(seed)
    c = float(rng.choice([1.0, 1.02, 1.1, 1.3, 2.0]))
    noise, diameter = rng.uniform(0.05, 0.4), rng.uniform(0.1, 2.0)
    sensitivity = rng.uniform(0.04, 0.6) * noise
    q = [1.0, 0.5, 1.0, 0.25, 0.1, 0.02][seed % 6]
    rounds = int(rng.choice([1, 2, 3, 5, 10, 30, 80]))
    frequency, phase = rng.uniform(0.5, 8.0), rng.uniform(0, 2 * np.pi)
    step, contribution = [
        (lambda x: c * x, lambda x: np.full_like(x, sensitivity)),
        (
            lambda x: x + (c - 1) * np.sin(frequency * x + phase) / frequency,
            lambda x: sensitivity * np.cos(3 * frequency * x),
        ),
        (
            lambda x: x + (c - 1) * np.tanh(frequency * x) / frequency,
            lambda x: sensitivity * np.tanh(5 * x + 0.3),
        ),
    ][int(rng.integers(3))]
    line = ProjectedLine(diameter, panels=max(10, int(3 * diameter / noise)), nodes=10)
    with_unit = [(q, lambda x: step(x) + contribution(x))] + ([(1 - q, step)] if q < 1 else [])
    start = rng.uniform(-diameter / 2, diameter / 2)

    def law(mixture):
        return line.run(start, [line.kernel(mixture, noise)] * (rounds - 1), (mixture, noise))

    event = AmplificationByIteration(rounds, c, sensitivity, noise, diameter, sampling_rate=q)
    return line, law(with_unit), law([(1.0, step)]), event


@pytest.mark.parametrize("seed", range(36))
def test_dominates_exact_chains_in_both_directions(seed):
    line, present, absent, event = _random_chain(seed)
    assert line.total_mass(present) == pytest.approx(1, abs=1e-9)
    bounds = _rdp(event)
    for alpha, bound in zip(ORDERS, bounds, strict=True):
        exact = max(line.divergence(present, absent, alpha), line.divergence(absent, present, alpha))
        assert exact <= bound * (1 + 1e-6)


def test_some_chain_nearly_attains_the_bound():
    # No projection in reach and nothing to forget: the last iterate carries everything.
    line = ProjectedLine(20.0, panels=60)
    push = [(1.0, lambda x: x + 0.3)]
    kernels = [line.kernel(push, 1.0)] * 4
    present = line.run(0.0, kernels, (push, 1.0))
    stay = [(1.0, lambda x: x)]
    absent = line.run(0.0, [line.kernel(stay, 1.0)] * 4, (stay, 1.0))
    bound = _rdp(AmplificationByIteration(5, 1.0, 0.3, 1.0, 20.0), np.array([4.0]))[0]
    assert bound * 0.997 < line.divergence(present, absent, 4.0) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(("c", "q"), [(1.0, 1.0), (1.1, 1.0), (1.02, 0.25)])
def test_amplified_bound_dominates_where_it_is_the_smaller_one(c, q):
    # Many rounds on a short interval: the window decides.
    rounds, sensitivity, noise, diameter = 300, 0.05, 0.2, 0.2
    line = ProjectedLine(diameter, panels=8)
    with_unit = [(q, lambda x: c * x + sensitivity), (1 - q, lambda x: c * x)]
    without = [(1.0, lambda x: c * x)]
    present = line.run(0.0, [line.kernel(with_unit, noise)] * (rounds - 1), (with_unit, noise))
    absent = line.run(0.0, [line.kernel(without, noise)] * (rounds - 1), (without, noise))
    event = AmplificationByIteration(rounds, c, sensitivity, noise, diameter, sampling_rate=q)
    amplified = event.amplified_curve(ORDERS).rdp
    assert (amplified < event.composition_curve(ORDERS).rdp * 0.7).all()
    for alpha, bound in zip(ORDERS, amplified, strict=True):
        exact = max(line.divergence(present, absent, alpha), line.divergence(absent, present, alpha))
        assert 0.003 * bound < exact <= bound


def test_linear_rule_for_sampling_is_refuted_by_a_chain():
    # One unprojected round at q = 1/4, z = 1: the published closed form charges q alpha / 2 = 4 at order 32.
    exact = gaussian_sampled_divergence(0.25, 1.0, 32)
    assert exact == pytest.approx(14.568986465940863, rel=1e-6)
    ours = _rdp(AmplificationByIteration(1, 1.0, 1.0, 1.0, 120.0, sampling_rate=0.25), np.array([32.0]))[0]
    published = 0.25 * 32 / 2
    assert published < exact / 3
    assert exact * (1 - 1e-9) <= ours <= exact * (1 + 1e-6)


def test_radius_in_place_of_diameter_is_refuted_by_a_chain():
    # Two runs at opposite walls are a diameter apart. With the radius the "bound" falls below the truth.
    rounds, sensitivity, noise, radius = 400, 0.5, 0.5, 1.0
    line = ProjectedLine(2 * radius, panels=24)

    def law(push):
        mixture = [(1.0, lambda x: x + push)]
        return line.run(0.0, [line.kernel(mixture, noise)] * (rounds - 1), (mixture, noise))

    # Neighbours under replace_one: one unit pushes up, the other down.
    exact = line.divergence(law(sensitivity / 2), law(-sensitivity / 2), 2.0)
    right = _rdp(AmplificationByIteration(rounds, 1.0, sensitivity, noise, 2 * radius), np.array([2.0]))[0]
    assert exact <= right
    assert right <= 2 * exact * 4


# The privacy-loss distribution of the bound


@pytest.mark.parametrize("q", [1.0, 0.25])
def test_distribution_dominates_the_exact_profile(q):
    rounds, c, sensitivity, noise, diameter = 200, 1.02, 0.05, 0.2, 0.2
    line = ProjectedLine(diameter, panels=8)
    with_unit = [(q, lambda x: c * x + sensitivity), (1 - q, lambda x: c * x)]
    without = [(1.0, lambda x: c * x)]
    present = line.run(0.0, [line.kernel(with_unit, noise)] * (rounds - 1), (with_unit, noise))
    absent = line.run(0.0, [line.kernel(without, noise)] * (rounds - 1), (without, noise))
    event = AmplificationByIteration(rounds, c, sensitivity, noise, diameter, sampling_rate=q)
    loss = event.pld(1e-3)
    for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0):
        exact = max(line.hockey_stick(present, absent, epsilon), line.hockey_stick(absent, present, epsilon))
        assert exact <= loss.get_delta_for_epsilon(epsilon) * (1 + 1e-9)
    if q == 1:
        z = event.gaussian_equivalent() ** -0.5
        assert loss.get_delta_for_epsilon(1.0) == pytest.approx(gaussian_delta(z, 1.0), rel=1e-2)
    # Tighter than the Rényi conversion, never a different story.
    answer = Accountant("add_or_remove").compose(event).epsilon(1e-5)
    assert 0.7 * answer.rdp_epsilon < answer.pld_epsilon < answer.rdp_epsilon


def test_sampled_distribution_approaches_the_closed_form():
    # q just below 1: the composed grid distribution must be the Gaussian of the best split and window.
    exact = replace(BASE, rounds=500)
    nearly = replace(exact, sampling_rate=1 - 1e-9)
    multiplier = exact.gaussian_equivalent() ** -0.5
    loss = nearly.pld(1e-2)
    for epsilon in (8.0, 14.0):
        expected = gaussian_delta(multiplier, epsilon)
        assert expected * (1 - 1e-6) <= loss.get_delta_for_epsilon(epsilon) <= expected * 1.05
    separate = replace(exact, release_noise_std=0.1)
    loss = replace(separate, sampling_rate=1 - 1e-9).pld(1e-2)
    expected = gaussian_delta(separate.gaussian_equivalent() ** -0.5, 8.0)
    assert expected * (1 - 1e-6) <= loss.get_delta_for_epsilon(8.0) <= expected * 1.05


def test_failure_mass_enters_delta():
    event = AmplificationByIteration(500, 1.05, 0.01, 0.05, 0.1, failure_mass=1e-7)
    sure = replace(event, failure_mass=0.0)
    amplified = event.bounds(DEFAULT_ORDERS, 1e-6)[AMPLIFIED]
    assert amplified.remove.delta_0 == 1e-7
    assert event.bounds(DEFAULT_ORDERS, 1e-6)[COMPOSITION].remove.delta_0 == 0
    assert amplified.to_epsilon(1e-6).epsilon > sure.curves(DEFAULT_ORDERS).to_epsilon(1e-6).epsilon
    assert amplified.to_epsilon(1e-6).epsilon == pytest.approx(
        sure.curves(DEFAULT_ORDERS).to_epsilon(9e-7).epsilon, rel=1e-12
    )
    assert AMPLIFIED not in event.bounds(DEFAULT_ORDERS, 1e-7)
    np.testing.assert_allclose(event.curves(ORDERS).remove.rdp, event.composition_curve(ORDERS).rdp)
    assert event.gaussian_equivalent() is None
    loss, exact = event.pld(1e-3), sure.pld(1e-3)
    assert loss.get_delta_for_epsilon(3.0) == pytest.approx(exact.get_delta_for_epsilon(3.0) + 1e-7, rel=0.05)
    assert loss.get_delta_for_epsilon(200.0) >= 1e-7


# Monotonicity, saturation, equality

BASE = AmplificationByIteration(120, 1.05, 0.03, 0.1, 0.3)
SAMPLED = replace(BASE, rounds=400, sampling_rate=0.3)


@pytest.mark.parametrize("base", [BASE, SAMPLED, replace(BASE, release_noise_std=0.08, drift=0.001)])
def test_monotone_in_every_parameter(base):
    reference = _rdp(base)
    for change in (
        {"rounds": base.rounds + 1},
        {"update_lipschitz": base.update_lipschitz + 0.01},
        {"sensitivity": base.sensitivity * 1.1},
        {"diameter": base.diameter * 1.2},
        {"drift": base.drift + 0.002},
    ):
        assert (_rdp(replace(base, **change)) >= reference * (1 - 1e-9)).all(), change
    assert (_rdp(replace(base, noise_std=base.noise_std * 1.1)) <= reference).all()
    if base.release_noise_std:
        assert (_rdp(replace(base, release_noise_std=0.1)) <= reference).all()
    if base.sampling_rate < 1:
        assert (_rdp(replace(base, sampling_rate=0.4)) >= reference).all()


@pytest.mark.parametrize("base", [BASE, SAMPLED])
def test_constant_in_rounds_once_the_window_is_inside(base):
    assert base.window() < base.rounds / 3
    long, longer = _rdp(replace(base, rounds=2000)), _rdp(replace(base, rounds=5000))
    np.testing.assert_allclose(long, longer, rtol=1e-9)
    assert (_rdp(replace(base, rounds=3)) < longer).all()
    assert (_rdp(replace(base, rounds=3)) == replace(base, rounds=3).composition_curve(ORDERS).rdp).all()


def test_one_round_and_a_large_diameter_are_plain_composition():
    one = AmplificationByIteration(1, 1.3, 0.2, 0.5, 1.0)
    np.testing.assert_allclose(_rdp(one), ORDERS * 0.08, rtol=1e-12)
    wide = AmplificationByIteration(20, 1.3, 0.2, 0.5, 1e6)
    np.testing.assert_allclose(_rdp(wide), 20 * ORDERS * 0.08, rtol=1e-12)
    sampled = AmplificationByIteration(4, 1.3, 0.2, 0.5, 1e6, sampling_rate=0.1)
    expected = 4 * PoissonGaussian(0.1, 2.5).curves(ORDERS).remove.rdp
    np.testing.assert_allclose(_rdp(sampled), expected, rtol=1e-12)


@pytest.mark.parametrize("base", [BASE, SAMPLED, replace(BASE, rounds=4)])
def test_never_above_composition(base):
    assert (_rdp(base) <= base.composition_curve(ORDERS).rdp).all()


def test_numerical_split_approaches_the_closed_form():
    # q just below 1 is almost q = 1, where the best split is known exactly.
    exact = replace(BASE, rounds=500).curves(DEFAULT_ORDERS).to_epsilon(1e-5).epsilon
    nearly = replace(BASE, rounds=500, sampling_rate=1 - 1e-9)
    numerical = nearly.bounds(DEFAULT_ORDERS, 1e-5)[AMPLIFIED].to_epsilon(1e-5).epsilon
    assert numerical == pytest.approx(exact, rel=2e-4)


def test_best_window_beats_its_neighbours():
    run = BASE.run
    j = BASE.window()
    by_hand = [(math.sqrt(run.payments[i - 1]) + math.sqrt(run.energies[i - 1])) ** 2 for i in range(1, 121)]
    assert j == int(np.argmin(by_hand)) + 1
    assert 1 < j < 120


# Schedules, release noise


def test_schedule_equals_the_constant_it_repeats_and_lies_between_its_extremes():
    t = 60
    repeated = replace(
        BASE, rounds=t, update_lipschitz=(1.05,) * t, sensitivity=(0.03,) * t, noise_std=(0.1,) * t
    )
    np.testing.assert_allclose(_rdp(repeated), _rdp(replace(BASE, rounds=t)), rtol=1e-12)
    rates = np.linspace(2.0, 0.5, t)
    decaying = replace(
        BASE,
        rounds=t,
        update_lipschitz=tuple(1 + 0.05 * rates),
        sensitivity=tuple(0.03 * rates),
        noise_std=tuple(0.1 * rates),
    )
    assert (
        _rdp(decaying) > _rdp(replace(BASE, rounds=t, update_lipschitz=1.0, sensitivity=0.015, noise_std=0.2))
    ).all()
    assert (
        _rdp(decaying) < _rdp(replace(BASE, rounds=t, update_lipschitz=1.1, sensitivity=0.06, noise_std=0.05))
    ).all()


def test_schedule_dominates_its_exact_chain():
    rounds, diameter = 40, 0.3
    factors, pushes, noises = (
        np.linspace(1.2, 1.0, rounds),
        np.linspace(0.1, 0.02, rounds),
        np.linspace(0.3, 0.1, rounds),
    )
    line = ProjectedLine(diameter, panels=10)

    def law(push):
        mixtures = [[(1.0, lambda x, t=t: factors[t] * x + push * pushes[t])] for t in range(rounds)]
        kernels = [line.kernel(mixtures[t], noises[t]) for t in range(1, rounds)]
        return line.run(0.0, kernels, (mixtures[0], noises[0]))

    present, absent = law(1.0), law(0.0)
    event = AmplificationByIteration(rounds, tuple(factors), tuple(pushes), tuple(noises), diameter)
    for alpha, bound in zip(ORDERS, _rdp(event), strict=True):
        exact = max(line.divergence(present, absent, alpha), line.divergence(absent, present, alpha))
        assert 0.003 * bound < exact <= bound


@pytest.mark.parametrize("q", [1.0, 0.3])
def test_lattice_noise_with_release_noise_dominates_its_exact_chain(q):
    """Truncated gradients, discrete Gaussian noise on the grid, continuous noise at the end, projection."""
    rounds, diameter, step, eta, slope = 40, 1.2, 0.25, 0.2, 1.0
    lattice_std, release_std = 1.5, 0.12
    ks = np.arange(-14, 15)
    weights = np.exp(-0.5 * (ks / lattice_std) ** 2)
    weights /= weights.sum()
    thresholds = step * np.arange(-10, 11) / slope
    line = ProjectedLine(diameter, panels=24, nodes=8, edges=thresholds)

    def mixture(units):
        return [
            (float(w), lambda x, k=k: x + eta * step * (np.trunc(slope * x / step) + k + units))
            for k, w in zip(ks, weights, strict=True)
        ]

    absent_steps = mixture(0)
    present_steps = [(q * w, m) for w, m in mixture(1)] + [((1 - q) * w, m) for w, m in absent_steps]
    present = line.run(
        0.0, [line.kernel(present_steps, release_std)] * (rounds - 1), (present_steps, release_std)
    )
    absent = line.run(
        0.0, [line.kernel(absent_steps, release_std)] * (rounds - 1), (absent_steps, release_std)
    )
    event = AmplificationByIteration(
        rounds,
        update_lipschitz=1 + eta * slope,
        sensitivity=eta * step,
        noise_std=eta * step * lattice_std,
        diameter=diameter,
        sampling_rate=q,
        drift=eta * step,
        release_noise_std=release_std,
    )
    amplified = event.amplified_curve(ORDERS, None).rdp
    for alpha, bound in zip(ORDERS, amplified, strict=True):
        exact = max(line.divergence(present, absent, alpha), line.divergence(absent, present, alpha))
        assert exact <= bound
    # The drift is charged: without it the same event would be cheaper.
    assert (replace(event, drift=0.0).amplified_curve(ORDERS, None).rdp < amplified).all()


def test_lattice_noise_alone_means_composition():
    event = replace(BASE, rounds=1000, release_noise_std=0.0)
    assert list(event.bounds(DEFAULT_ORDERS, 1e-5)) == [COMPOSITION]
    np.testing.assert_allclose(_rdp(event), 1000 * ORDERS * 0.045, rtol=1e-12)
    separate = replace(BASE, rounds=1000, release_noise_std=0.1)
    j = np.arange(1, 1001)
    by_hand = ORDERS / 2 * np.min(j * 0.09 + separate.run.energies)
    np.testing.assert_allclose(_rdp(separate), by_hand, rtol=1e-12)
    sampled = replace(separate, sampling_rate=0.2)
    assert (_rdp(sampled) < _rdp(separate)).all()


# Calibration and bookkeeping


@pytest.mark.parametrize(("q", "bound"), [(1.0, "amplification_by_iteration"), (0.02, "composition")])
def test_calibration_is_the_smallest_noise_and_names_the_bound(q, bound):
    event = AmplificationByIteration(400, 1.02, 0.01, 1.0, 0.05, sampling_rate=q)
    found = calibrate_amplification_by_iteration(event, 2.0, 1e-5, "add_or_remove", use_pld=False)
    assert found.epsilon.bound == bound
    assert 2.0 * 0.998 < found.epsilon.epsilon <= 2.0
    below = replace(event, noise_std=found.noise_multiplier * 0.999)
    assert Accountant("add_or_remove").compose(below).epsilon(1e-5, use_pld=False).epsilon > 2.0


def test_calibration_with_distributions_needs_less_noise():
    event = AmplificationByIteration(400, 1.02, 0.01, 1.0, 0.05)
    by_renyi = calibrate_amplification_by_iteration(event, 2.0, 1e-5, "replace_one", use_pld=False)
    tighter = calibrate_amplification_by_iteration(event, 2.0, 1e-5, "replace_one")
    assert 0.8 * by_renyi.noise_multiplier < tighter.noise_multiplier < by_renyi.noise_multiplier
    assert tighter.epsilon.epsilon <= 2.0


def test_round_trip_and_grouping():
    event = replace(SAMPLED, noise_std=(0.1,) * 400, sensitivity=(0.03,) * 400, failure_mass=1e-9)
    again = event_from_json(json.loads(json.dumps(event.to_json())))
    assert again == event and hash(again) == hash(event)
    assert again.adjacencies == {"add_or_remove"}
    assert event.assumptions == HYPOTHESES


def test_sampling_is_refused_under_replace_one():
    with pytest.raises(InvalidArgument, match="add_or_remove"):
        Accountant("replace_one").compose(SAMPLED)
    Accountant("replace_one").compose(BASE)


def test_degenerate_runs():
    assert (_rdp(replace(BASE, rounds=0)) == 0).all()
    assert (_rdp(replace(BASE, sensitivity=0.0)) == 0).all()
    assert (_rdp(replace(BASE, sampling_rate=0.0)) == 0).all()
    assert np.isinf(_rdp(replace(BASE, noise_std=0.0))).all()
    for event in (replace(BASE, rounds=0), replace(BASE, sampling_rate=0.0)):
        assert Accountant("add_or_remove").compose(event).epsilon(1e-5).epsilon == 0
    noiseless = Accountant("add_or_remove").compose(replace(BASE, noise_std=0.0))
    assert math.isinf(noiseless.epsilon(1e-5).epsilon)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rounds": -1}, "rounds"),
        ({"update_lipschitz": 0.0}, "update_lipschitz"),
        ({"update_lipschitz": (1.0, 1.0)}, "update_lipschitz"),
        ({"sensitivity": -0.1}, "sensitivity"),
        ({"noise_std": math.nan}, "noise_std"),
        ({"release_noise_std": -1.0}, "release_noise_std"),
        ({"diameter": 0.0}, "diameter"),
        ({"diameter": math.inf}, "diameter"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"drift": -1.0}, "drift"),
        ({"largest_move": -1.0}, "largest_move"),
        ({"failure_mass": 1.0}, "failure_mass"),
        (
            {"sampling_rate": 0.5, "noise_std": tuple(np.linspace(0.1, 0.2, 120).tolist())},
            "sensitivity / noise_std",
        ),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(InvalidArgument, match=name):
        replace(BASE, **change)
