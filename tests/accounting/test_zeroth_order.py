"""Zeroth-order hidden state: simulated steps and couplings, exact chains, recomputation, guarantees."""

import json
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from one_dimensional_chains import ProjectedLine
from scipy.optimize import minimize_scalar

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.amplification_by_iteration import AmplificationByIteration
from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.events import event_from_json
from fedpriv.accounting.shifts import constant_shift_energies
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.accounting.zeroth_order import (
    COMPOSITION,
    HYPOTHESES,
    MEAN_SQUARE,
    QUANTILE,
    ZerothOrderHiddenState,
    calibrate_zeroth_order,
    zeroth_order_event,
)
from fedpriv.accounting.zeroth_order_contraction import ZerothOrderStep, beta_quantile
from fedpriv.accounting.zeroth_order_search import ReleaseSearch

ORDERS = np.array([1.1, 2.0, 4.0, 8.0, 16.0])

SETTINGS = {
    "rounds": 10_000,
    "dimension": 10_000,
    "directions": 200,
    "learning_rate": 200.0,
    "noise_std": 0.02,
    "direction_share": 0.5,
    "clip": 1.0,
    "contributors": 1000,
    "radius": 1.0,
    "adjacency": "add_or_remove",
    "smoothness": 1.0,
    "strong_convexity": 0.5,
    "lipschitz": 1.0,
}


def _event(**changes):
    return zeroth_order_event(**{**SETTINGS, **changes})


def _epsilons(event, delta=1e-6):
    return {k: v.to_epsilon(delta).epsilon for k, v in event.bounds(DEFAULT_ORDERS, delta).items()}


def _frames(rng, count, d, k):
    """Uniform orthonormal frames, shape (count, d, k)."""
    q, r = np.linalg.qr(rng.normal(size=(count, d, k)))
    return q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]


# One step, simulated


@pytest.mark.parametrize(("d", "k"), [(12, 3), (40, 1), (30, 25)])
@pytest.mark.parametrize("convexity", [0.3, 0.0, None])
def test_exact_steps_stay_below_quantile_and_mean_square(d, k, convexity):
    rng = np.random.default_rng(d + k)
    eta, smoothness, level, draws = 1.3 * k, 1.0, 0.05, 8000
    step = ZerothOrderStep(d, k, eta, smoothness, convexity, 1, True)
    lowest = -smoothness if convexity is None else convexity
    frames = _frames(rng, draws, d, k)
    worst_mean = 0.0
    for spectrum in (
        np.full(d, smoothness),
        np.full(d, lowest),
        rng.uniform(lowest, smoothness, d),
        np.where(rng.random(d) < 0.5, lowest, smoothness),
    ):
        basis = _frames(rng, 1, d, d)[0]
        hessian = (basis * spectrum) @ basis.T
        delta = rng.normal(size=d)
        delta /= np.linalg.norm(delta)
        inner = np.einsum("ndk,d->nk", frames, hessian @ delta)
        after = delta - eta / k * np.einsum("ndk,nk->nd", frames, inner)
        squared = np.sum(after**2, axis=1)
        exceeding = np.mean(np.sqrt(squared) > step.quantile_factor(level))
        assert exceeding <= level + 4 * math.sqrt(level / draws)
        mean, error = squared.mean(), squared.std() / math.sqrt(draws)
        assert mean <= step.mean_square_factor() + 4 * error
        worst_mean = max(worst_mean, mean + 4 * error + 1e-12)
    assert worst_mean >= step.mean_square_factor()  # attained by one of the extreme spectra


@pytest.mark.parametrize("clip", [1e9, 0.5, 0.05])
def test_clipped_steps_stay_below_the_clipped_factors(clip):
    rng = np.random.default_rng(7)
    d, k, n, eta, smoothness, level, draws = 20, 4, 3, 6.0, 1.0, 0.05, 6000
    step = ZerothOrderStep(d, k, eta, smoothness, 0.5, n, False)
    frames = _frames(rng, draws, d, k)
    for trial in range(4):
        hessians, slopes = [], rng.normal(size=(n, d)) * rng.choice([0.1, 1.0])
        for _ in range(n):
            basis = _frames(rng, 1, d, d)[0]
            spectrum = rng.choice([-1.0, 1.0], d) if trial else np.full(d, -1.0)
            hessians.append((basis * spectrum) @ basis.T * smoothness)
        x, y = rng.normal(size=(2, d)) * rng.choice([0.05, 1.0])

        def averages(point, hessians=hessians, slopes=slopes):
            # Exact quotients of quadratics: the finite-difference error vanishes.
            return np.mean(
                [
                    np.clip(np.einsum("ndk,d->nk", frames, h @ point + b), -clip, clip)
                    for h, b in zip(hessians, slopes, strict=True)
                ],
                axis=0,
            )

        after = (x - y) - eta / k * np.einsum("ndk,nk->nd", frames, averages(x) - averages(y))
        ratio = np.linalg.norm(after, axis=1) / np.linalg.norm(x - y)
        assert np.mean(ratio > step.quantile_factor(level)) <= level + 4 * math.sqrt(level / draws)
        spread = np.std(ratio**2) / math.sqrt(draws)
        assert np.mean(ratio**2) <= step.mean_square_factor() + 4 * spread


def test_active_clipping_breaks_the_contraction():
    # The exact-step factor is wrong once the clip acts: a clipped pair need not come closer.
    d = k = 2
    exact = ZerothOrderStep(d, k, 2.0, 1.0, 1.0, 1, True)
    assert exact.quantile_factor(0.1) == pytest.approx(0.0, abs=1e-9)  # c = 0: one exact step merges the pair
    x, y = np.array([5.0, 0.3]), np.array([9.0, -0.3])
    after = (x - np.clip(x, -1, 1)) - (y - np.clip(y, -1, 1))
    assert np.linalg.norm(after) > 0.9 * np.linalg.norm(x - y)
    clipped = ZerothOrderStep(d, k, 2.0, 1.0, 1.0, 1, False)
    assert np.linalg.norm(after) <= clipped.quantile_factor(0.1) * np.linalg.norm(x - y)


@pytest.mark.parametrize(("d", "k"), [(10, 1), (100, 7), (50_000, 50), (1_000_000, 64)])
@pytest.mark.parametrize("level", [0.3, 1e-3, 1e-9, 1e-13])
def test_beta_quantiles_are_safe_and_tight(d, k, level):
    with mpmath.workdps(30):
        a, b = mpmath.mpf(k) / 2, mpmath.mpf(d - k) / 2
        high = mpmath.mpf(float(beta_quantile(d, k, level, upper=True)))
        low = mpmath.mpf(float(beta_quantile(d, k, level, upper=False)))
        above = mpmath.betainc(a, b, high, 1, regularized=True)
        below = mpmath.betainc(a, b, 0, low, regularized=True)
    assert level * (1 - 1e-5) <= float(above) <= level * (1 + 1e-8)
    assert level * (1 - 1e-5) <= float(below) <= level * (1 + 1e-8)


def test_all_directions_leave_nothing_to_chance():
    step = ZerothOrderStep(5, 5, 2.0, 1.0, 0.5, 1, True)
    assert step.quantile_factor(1e-12) == pytest.approx(max(1 - 0.2, 0.4 - 1))
    assert step.mean_square_factor() == pytest.approx(0.8**2)
    assert beta_quantile(5, 5, 1e-3, upper=False) == 1


# What each view pays per round


@pytest.mark.parametrize(("k", "share"), [(1, 0.5), (4, 0.3), (4, 0.0), (6, 0.9)])
def test_view_multipliers_follow_from_the_update(k, share):
    d, sigma, eta, s = 6, 0.7, 1.3, 0.2
    event = _event(
        dimension=d,
        directions=k,
        noise_std=sigma,
        direction_share=share,
        learning_rate=eta,
        clip=s,
        contributors=1,
    )
    # Server: K averages, noise of variance K beta sigma^2 each, sensitivity s in every coordinate.
    if share > 0:
        shift = s * math.sqrt(k) / math.sqrt(k * share * sigma**2)
        assert event.server_noise_multiplier == pytest.approx(1 / shift)
    else:
        assert event.server_noise_multiplier == 0
    # Participants: the update's covariance against the largest change of its mean.
    frame = _frames(np.random.default_rng(0), 1, d, k)[0]
    covariance = eta**2 * sigma**2 * (share / k * frame @ frame.T + (1 - share) / d * np.eye(d))
    change = eta / k * frame @ np.full(k, s)
    squared = change @ np.linalg.solve(covariance, change)
    assert event.participants_noise_multiplier == pytest.approx(squared**-0.5)
    expected = event.rounds * ORDERS / 2 * squared
    np.testing.assert_allclose(event.curves(ORDERS).remove.rdp, expected, rtol=1e-9)


def test_noise_energy_does_not_depend_on_share_or_directions():
    d, sigma, eta = 8, 0.3, 2.0
    for k in (1, 3, 8):
        for share in (0.0, 0.4, 1.0):
            frame = _frames(np.random.default_rng(k), 1, d, k)[0]
            covariance = eta**2 * sigma**2 * (share / k * frame @ frame.T + (1 - share) / d * np.eye(d))
            assert np.trace(covariance) == pytest.approx(eta**2 * sigma**2)


def test_lattice_noise_gets_no_credit_from_the_isotropic_part():
    event = _event(dimension=10, directions=5, lattice_noise=True)
    assert event.participants_noise_multiplier == event.server_noise_multiplier
    continuous = replace(event, lattice_noise=False)
    assert continuous.participants_noise_multiplier > event.participants_noise_multiplier
    assert _epsilons(continuous)[QUANTILE] < _epsilons(event)[QUANTILE]


# Ground truth: exact chains with d = K = 1, simulated couplings for d > K


@pytest.mark.parametrize(("share", "convexity", "sign"), [(0.5, 0.4, 1), (0.2, 0.0, 1), (0.5, None, -1)])
def test_dominates_exact_one_dimensional_chains(share, convexity, sign):
    rounds, eta, sigma, s, radius, smoothness = 400, 0.6, 0.25, 0.04, 0.4, 0.7
    curvature = -smoothness if sign < 0 else (convexity or 0.0)
    event = ZerothOrderHiddenState(
        rounds, 1, 1, eta, sigma, share, s, 10.0, radius, smoothness, convexity, True, 1
    )
    line = ProjectedLine(2 * radius, panels=10)
    noise = eta * sigma  # both parts point along the only direction

    def law(push):
        mixture = [(1.0, lambda x: x - eta * (curvature * x + push))]
        return line.run(0.0, [line.kernel(mixture, noise)] * (rounds - 1), (mixture, noise))

    present, absent = law(s), law(0.0)
    bounds = event.bounds(ORDERS, 1e-6)
    assert bounds[QUANTILE].remove.delta_0 == 0  # K = d: nothing can fail
    if sign > 0:
        assert (bounds[QUANTILE].remove.rdp < 0.7 * bounds[COMPOSITION].remove.rdp).all()
    for alpha, bound in zip(ORDERS, bounds[QUANTILE].remove.rdp, strict=True):
        exact = max(line.divergence(present, absent, alpha), line.divergence(absent, present, alpha))
        assert 0.002 * bound < exact <= bound


def _plan(factor, drift, steps, start):
    """Shifts a_0..a_{j-1} of least energy: max(lambda w_i, e), lambda by bisection."""
    weights = factor ** np.arange(steps - 1, -1, -1.0)
    total = factor**steps * start + drift * weights.sum()
    low, high = 0.0, total / np.sum(weights**2) * 2 + 1
    for _ in range(200):
        middle = (low + high) / 2
        plan = np.maximum(middle * weights, drift if factor > 1 else 0.0)
        low, high = (middle, high) if plan @ weights < total else (low, middle)
    return np.maximum(high * weights, drift if factor > 1 else 0.0)


def _coupled_runs(rng, step, runs, free, shifted, plan, start, noise_std, radius, push):
    """Simulate W and W~ on the same noise and directions; return the final distances, shifts at most the plan."""
    d, k, eta = step.dimension, step.directions, step.learning_rate
    spectrum = np.linspace(step.strong_convexity, step.smoothness, d)

    def project(points):
        norms = np.linalg.norm(points, axis=1, keepdims=True)
        return points * np.minimum(1.0, radius / np.maximum(norms, 1e-300))

    direction = rng.normal(size=(runs, d))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    w, other = project(direction * start / 2), project(-direction * start / 2)
    for t in range(free + shifted):
        frames = _frames(rng, runs, d, k)
        noise = rng.normal(size=(runs, d)) * noise_std

        def moved(points, frames=frames):
            slopes = np.einsum("ndk,nd->nk", frames, points * spectrum) + push
            return points - eta / k * np.einsum("ndk,nk->nd", frames, slopes)

        mine, theirs = moved(w), moved(other)
        if t >= free:
            gap = mine - theirs
            length = np.linalg.norm(gap, axis=1, keepdims=True)
            theirs = theirs + gap * np.minimum(1.0, plan[t - free] / np.maximum(length, 1e-300))
        w, other = project(mine + noise), project(theirs + noise)
    return np.linalg.norm(w - other, axis=1)


def test_quantile_coupling_meets_except_with_its_failure_mass():
    rng = np.random.default_rng(11)
    step = ZerothOrderStep(8, 4, 5.0, 1.0, 0.2, 1, True)
    mass, steps, radius, runs = 0.2, 8, 1.0, 4000
    factor = float(step.quantile_factor(mass / steps))
    plan = _plan(factor, 0.0, steps, 2 * radius)
    energy = constant_shift_energies(factor, 0.0, 1.0, steps, 2 * radius)
    assert np.sum(plan**2) == pytest.approx(float(energy), rel=1e-9)
    apart = _coupled_runs(rng, step, runs, 0, steps, plan, 2 * radius, 0.01, radius, 0.01)
    assert np.mean(apart > 1e-9) <= mass
    # A plan for a smaller factor fails far more often than its mass.
    small = _plan(math.sqrt(step.mean_square_factor()) * 0.93, 0.0, steps, 2 * radius)
    assert (
        np.mean(_coupled_runs(rng, step, runs, 0, steps, small, 2 * radius, 0.01, radius, 0.01) > 1e-9) > mass
    )


def test_mean_square_coupling_meets_except_with_its_failure_mass():
    rng = np.random.default_rng(12)
    step = ZerothOrderStep(10, 1, 1.6, 1.0, 0.6, 1, True)
    markov, tail, free, shifted, radius, runs = 0.1, 0.1, 30, 2, 1.0, 4000
    distance = step.mean_square_factor() ** (free / 2) * 2 * radius
    factor = float(step.quantile_factor(tail / shifted))
    plan = _plan(factor, 0.0, shifted, distance / math.sqrt(markov))
    apart = _coupled_runs(rng, step, runs, free, shifted, plan, 2 * radius, 0.01, radius, 0.01)
    assert np.mean(apart > 1e-9) <= markov + tail
    # Without the Markov factor the plan is too short.
    short = _plan(float(step.quantile_factor(0.9)), 0.0, shifted, distance * 0.3)
    apart = _coupled_runs(rng, step, runs, free, shifted, short, 2 * radius, 0.01, radius, 0.01)
    assert np.mean(apart > 1e-9) > markov + tail


def test_plan_with_drift_has_the_energy_of_the_module():
    for factor, start in ((1.02, 0.5), (1.1, 0.0), (0.9, 0.3)):
        plan = _plan(factor, 0.02, 12, start)
        energy = constant_shift_energies(factor, 0.02, 0.5, 12, start)
        assert np.sum(plan**2) / 0.25 == pytest.approx(float(energy), rel=1e-9)


# The search


class _Recorder:
    """Stands in for the step and records every failure level with the number of steps it is used for."""

    def __init__(self, step):
        self.step, self.levels = step, []

    def quantile_factor(self, levels):
        self.levels.append(np.asarray(levels))
        return self.step.quantile_factor(levels)

    def mean_square_factor(self):
        return self.step.mean_square_factor()


def test_every_failing_step_is_counted():
    event, mass = _event(rounds=300), 1e-7
    search = ReleaseSearch(event)
    search._step = recorder = _Recorder(event.step)
    search.quantile(mass)
    windows, forward = recorder.levels[0].ravel(), recorder.levels[1].ravel()
    counts = np.rint(mass / windows)
    assert (counts * windows <= mass * (1 + 1e-12)).all() and counts[0] == 1 and counts[-1] == 300
    assert forward.item() * 300 <= mass * (1 + 1e-12)
    recorder.levels.clear()
    search.mean_square(mass)
    for shifted, levels in zip((1, 2, 3, 4, 6, 8, 12), recorder.levels, strict=False):
        markov = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98]) * mass
        assert (levels.ravel() * shifted + markov <= mass * (1 + 1e-12)).all()


def test_failure_mass_is_spent_from_delta():
    event = _event()
    for delta in (1e-5, 1e-9):
        bounds = event.bounds(DEFAULT_ORDERS, delta)
        assert bounds[COMPOSITION].remove.delta_0 == 0
        for name in (QUANTILE, MEAN_SQUARE):
            assert 0 < bounds[name].remove.delta_0 < delta
    answer = Accountant("add_or_remove").compose(event).epsilon(1e-6)
    epsilons = _epsilons(event)
    assert answer.rdp_epsilon == pytest.approx(min(epsilons.values()), rel=1e-3)
    assert answer.bound == min(epsilons, key=epsilons.get) == MEAN_SQUARE
    with pytest.raises(InvalidArgument, match="delta"):
        event.bounds(DEFAULT_ORDERS, 1e-6)[QUANTILE].to_epsilon(1e-9)


def test_two_runs_share_delta():
    event = _event()
    twice = Accountant("add_or_remove").compose(event, 2).epsilon(1e-6, use_pld=False)
    once = Accountant("add_or_remove").compose(event).epsilon(1e-6, use_pld=False)
    assert once.epsilon < twice.epsilon < 2.5 * once.epsilon


def test_best_part_of_the_isotropic_noise():
    search = ReleaseSearch(_event(dimension=400, directions=200, direction_share=0.1))
    x, share = search._shared, search._direction_share
    for steps, energy in ((5, 0.3), (40, 3.0), (3, 1e-6), (1, 1e6), (7, 0.0)):
        paid = steps * search._per_step
        numeric = minimize_scalar(
            lambda kappa, paid=paid, energy=energy: paid / (share + kappa * x) + energy / (1 - kappa),
            bounds=(0, 1 - 1e-9),
            method="bounded",
            options={"xatol": 1e-12},
        ).fun
        ours = search._least_total(np.array([steps]), np.array([[energy]])).item()
        assert ours == pytest.approx(numeric, rel=1e-5)
        assert ours <= numeric * (1 + 1e-9)


def test_recomputation_in_high_precision():
    event = _event(
        rounds=30, dimension=500, directions=40, learning_rate=45.0, lattice_noise=True, radius=0.02
    )
    mass = 1e-7
    with mpmath.workdps(30):
        mp = mpmath.mpf
        eta, k, d = mp(45), mp(40), mp(500)
        mu = mp("0.5") * 999 / 1000
        c = max(1 - eta * mu / k, eta / k - 1)
        s, sigma, share = mp(1) / 1000, mp("0.02"), mp("0.5")
        iso = eta * sigma * mpmath.sqrt(share / d)
        kick, move = eta * s / mpmath.sqrt(k), 2 * eta / mpmath.sqrt(k)

        def quantile(level, upper):
            start = mp(float(beta_quantile(500, 40, float(level), upper)))

            def tail(v):
                ends = (v, 1) if upper else (0, v)
                return mpmath.betainc(k / 2, (d - k) / 2, *ends, regularized=True)

            return mpmath.findroot(lambda v: tail(v) / level - 1, start)

        def factor(level):
            high, low = quantile(level / 2, True), quantile(level / 2, False)
            cross = 1 + 2 * eta / k * high + (eta / k) ** 2 * high
            return mpmath.sqrt(min(cross, 1 - low + c**2 * high))

        best = mp("inf")
        run = factor(mp(mass) / 30)
        w = [mp(0)]
        for _ in range(30):
            w.append(min(mp("0.04"), min(run * w[-1] + kick, w[-1] + move)))
        for j in range(1, 31):
            for f, z in ((factor(mp(mass) / j), min(mp("0.04"), move * (30 - j))), (run, w[30 - j])):
                weights = [f**i for i in range(j)]
                energy = (f**j * z) ** 2 / sum(v * v for v in weights) / iso**2
                best = min(best, j * s**2 / (share * sigma**2) + energy)
    assert ReleaseSearch(event).quantile(mass).item() == pytest.approx(float(best), rel=1e-7)


def test_all_directions_agree_with_amplification_by_iteration():
    k, eta, sigma, share = 6, 5.0, 0.3, 0.4
    event = _event(
        rounds=30, dimension=k, directions=k, learning_rate=eta, noise_std=sigma, direction_share=share,
        lattice_noise=True, contributors=20, radius=0.1, perturbation=1e-3,
    )  # fmt: skip
    root = math.sqrt(k)
    same = AmplificationByIteration(
        rounds=30,
        update_lipschitz=event.step.lipschitz,
        sensitivity=eta * event.sensitivity / root,
        noise_std=eta * sigma * math.sqrt(share) / root,
        diameter=0.2,
        drift=event.drift,
        largest_move=2 * eta / root - eta * event.sensitivity / root,
        release_noise_std=eta * sigma * math.sqrt(1 - share) / root,
    )
    assert event.drift > 0
    np.testing.assert_allclose(
        event.bounds(ORDERS, 1e-6)[QUANTILE].remove.rdp, same.amplified_curve(ORDERS).rdp, rtol=1e-9
    )


def test_one_round_costs_one_round():
    event = _event(rounds=1)
    epsilons = _epsilons(event)
    expected = event.curves(DEFAULT_ORDERS).to_epsilon(1e-6).epsilon
    assert epsilons[COMPOSITION] == expected
    # No shift is needed and nothing can fail but what was set aside for it.
    assert expected <= epsilons[QUANTILE] <= expected * 1.001
    assert expected <= epsilons[MEAN_SQUARE] <= expected * 1.001


# Monotone, saturating, ordered


@pytest.mark.parametrize("name", [QUANTILE, MEAN_SQUARE])
def test_monotone_in_every_parameter(name):
    base = _event(directions=400, learning_rate=400.0, rounds=3000, perturbation=1e-6)
    reference = _epsilons(base)[name]
    for change in (
        {"radius": 3.0},
        {"sensitivity": base.sensitivity * 1.2},
        {"smoothness": 1.6},
        {"drift": base.drift * 30},
        {"strong_convexity": 0.3},
        {"clip_inactive": False},
    ):
        assert _epsilons(replace(base, **change))[name] >= reference * (1 - 1e-9), change
    assert _epsilons(replace(base, noise_std=0.03))[name] < reference


@pytest.mark.parametrize("name", [QUANTILE, MEAN_SQUARE])
def test_saturates_in_rounds(name):
    base = _event(directions=400, learning_rate=400.0)
    values = [_epsilons(replace(base, rounds=t))[name] for t in (10, 100, 1000, 10_000, 100_000)]
    assert (np.diff(values) >= -1e-9 * values[-1]).all()
    assert values[-1] == pytest.approx(values[-2], rel=0.02)
    composed = _epsilons(replace(base, rounds=100_000))[COMPOSITION]
    assert values[-1] < 0.1 * composed


def test_mean_square_needs_fewer_directions_than_the_quantile_bound():
    few = _epsilons(_event(directions=50, learning_rate=50.0))
    assert few[MEAN_SQUARE] < 0.8 * few[COMPOSITION] <= few[QUANTILE]
    many = _epsilons(_event(directions=400, learning_rate=400.0))
    assert many[QUANTILE] < many[MEAN_SQUARE] < 0.2 * many[COMPOSITION]


def test_active_clip_is_valid_but_never_contracts():
    active = _event(lipschitz=None)
    assert not active.clip_inactive
    assert active.step.mean_square_factor() > 1 > _event().step.mean_square_factor()
    epsilons = _epsilons(active)
    assert min(epsilons[QUANTILE], epsilons[MEAN_SQUARE]) >= epsilons[COMPOSITION] * (1 - 1e-6)
    # Small steps on a small ball: worthwhile without any convexity.
    gentle = _event(lipschitz=None, strong_convexity=None, smoothness=1e-4, radius=1e-3)
    assert _epsilons(gentle)[MEAN_SQUARE] < 0.5 * _epsilons(gentle)[COMPOSITION]


def test_convexity_without_the_unit():
    assert _event(contributors=4).strong_convexity == pytest.approx(0.375)
    assert _event(contributors=4, adjacency="replace_one").strong_convexity == 0.5
    assert _event(contributors=4, convexity_from_regulariser=True).strong_convexity == 0.5
    assert (
        _event(contributors=4, adjacency="replace_one").sensitivity
        == 2 * _event(contributors=4).sensitivity
        == 0.5
    )


def test_drift_of_a_step():
    k, eta = 4, 3.0
    scale = eta / 2
    base = {"directions": k, "learning_rate": eta, "smoothness": 0.7}
    assert _event(**base, strong_convexity=None, perturbation=0.01).drift == pytest.approx(scale * 0.7 * 0.01)
    assert _event(**base, strong_convexity=None, grid_step=0.1).drift == pytest.approx(scale * 0.1)
    assert _event(**base, grid_step=0.1).drift == pytest.approx(scale * 0.2)  # the step contracts as a whole
    noisy = _event(**base, strong_convexity=None, perturbation=0.01, loss_error=1e-6)
    assert noisy.drift == pytest.approx(scale * (0.7 * 0.01 + 2e-4))


def test_truncation_needs_the_double_drift_where_the_step_contracts():
    # d = K = 1, loss theta^2/2, eta = 1: the exact step sends every model to 0; truncation keeps both where they are.
    event = _event(dimension=1, directions=1, learning_rate=1.0, strong_convexity=1.0, grid_step=1.0, clip=9.0,
                   lipschitz=9.0, convexity_from_regulariser=True)  # fmt: skip
    x, y = 0.999, -0.999
    after = abs((x - np.trunc(x)) - (y - np.trunc(y)))
    factor = float(event.step.quantile_factor(1e-3))
    assert factor == 0
    assert 1.0 < after <= factor * abs(x - y) + event.drift == 2.0


def test_finite_differences_stay_within_their_drift():
    # Smooth losses with third derivatives: the pair's quotients differ from Hessian products by at most M xi each.
    rng = np.random.default_rng(5)
    d, k, eta, xi, smoothness = 5, 2, 1.0, 0.3, 1.0

    def loss(points):
        return np.sum(np.cos(points), axis=-1) * smoothness

    for _ in range(500):
        frame = _frames(rng, 1, d, k)[0]
        x, y = rng.normal(size=(2, d))
        error = np.zeros(k)
        for point, sign in ((x, 1), (y, -1)):
            quotient = (loss(point + xi * frame.T) - loss(point - xi * frame.T)) / (2 * xi)
            error += sign * (quotient - frame.T @ (-smoothness * np.sin(point)))
        moved = np.linalg.norm(eta / k * frame @ error)
        assert moved <= eta * smoothness * xi / math.sqrt(k)


# Bookkeeping


def test_without_hypotheses_only_composition_is_offered():
    for event in (
        _event(smoothness=None, strong_convexity=None),
        _event(direction_share=1.0),
        _event(direction_share=0.0, lattice_noise=True),
    ):
        assert list(event.bounds(DEFAULT_ORDERS, 1e-6)) == [COMPOSITION]
    assert list(_event().bounds(DEFAULT_ORDERS, 0.0)) == [COMPOSITION]
    assert _event().assumptions == HYPOTHESES
    with pytest.raises(InvalidArgument, match="smoothness"):
        _ = _event(smoothness=None, strong_convexity=None).step


def test_degenerate_runs():
    assert (_event(rounds=0).curves(ORDERS).remove.rdp == 0).all()
    silent = replace(_event(), sensitivity=0.0)
    assert Accountant("add_or_remove").compose(silent).epsilon(1e-6).epsilon == 0
    assert math.isinf(Accountant("add_or_remove").compose(_event(noise_std=0.0)).epsilon(1e-6).epsilon)
    assert math.isinf(Accountant("add_or_remove").compose(_event()).epsilon(0.0).epsilon)


def test_round_trip():
    event = _event(perturbation=1e-3)
    assert event_from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize(("directions", "bound"), [(400, QUANTILE), (100, MEAN_SQUARE), (20, "analytic")])
def test_calibration_is_the_smallest_noise_and_names_the_bound(directions, bound):
    event = _event(directions=directions, learning_rate=float(directions), rounds=5000)
    found = calibrate_zeroth_order(event, 3.0, 1e-6, "add_or_remove")
    assert found.epsilon.bound == bound
    assert 3.0 * 0.999 < found.epsilon.epsilon <= 3.0
    below = replace(event, noise_std=found.noise_multiplier * event.sensitivity * 0.9995)
    assert Accountant("add_or_remove").compose(below).epsilon(1e-6).epsilon > 3.0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rounds": -1}, "rounds"),
        ({"dimension": 0}, "dimension"),
        ({"directions": 20_000}, "directions"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"noise_std": -1.0}, "noise_std"),
        ({"direction_share": 1.2}, "direction_share"),
        ({"clip": 0.0}, "clip"),
        ({"contributors": 0}, "contributors"),
        ({"radius": math.inf}, "radius"),
        ({"adjacency": "zero_out"}, "adjacency"),
        ({"smoothness": -1.0}, "smoothness"),
        ({"strong_convexity": 2.0}, "strong_convexity"),
        ({"lipschitz": -1.0}, "lipschitz"),
        ({"perturbation": -1.0}, "perturbation"),
        ({"grid_step": math.nan}, "grid_step"),
        ({"loss_error": 1e-6}, "perturbation"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(InvalidArgument, match=name):
        _event(**change)
