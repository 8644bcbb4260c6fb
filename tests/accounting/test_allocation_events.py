"""The event of random allocation: what it refuses, how it composes, how it travels."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.accounting import Accountant, Gaussian, PoissonGaussian
from fedpriv.accounting.allocation import (
    AllocationEpsilon,
    RandomAllocation,
    allocation_epsilon,
    calibrate_allocation,
    compare_matrices,
)
from fedpriv.accounting.allocation_profile import FINE
from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.events import event_from_json
from fedpriv.accounting.gaussian import gaussian_epsilon
from fedpriv.accounting.matrices import bandmf, blt, bsr, toeplitz
from fedpriv.accounting.validators import InvalidArgument

EVENTS = [
    RandomAllocation(100, 1.0),
    RandomAllocation(100, 3.0, epochs=5),
    RandomAllocation(100, 1.0, epochs=5, redraw=True),
    RandomAllocation(20, 3.0, epochs=2, matrix=bsr(40, 3)),
    RandomAllocation(20, 2.0, epochs=3, redraw=True, matrix=bandmf(20, 2)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: f"{e.bins}-{e.epochs}-{e.matrix and e.matrix.kind}")
def test_json_round_trip_and_grouping(event):
    again = event_from_json(json.loads(json.dumps(event.to_json())))
    assert again == event
    assert hash(again) == hash(event)
    accountant = Accountant("add_or_remove").compose(event).compose(again)
    assert accountant.events == {event: 2}
    with pytest.raises(InvalidArgument, match="replace_one"):
        Accountant("replace_one").compose(event)
    assert any("cannot see" in text for text in accountant.assumptions)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: f"{e.bins}-{e.epochs}-{e.matrix and e.matrix.kind}")
def test_all_bounds_lie_between_the_lower_value_and_no_amplification(event):
    delta = 1e-6
    result = allocation_epsilon(event, delta)
    assert 0 < result.lower <= result.epsilon
    assert result.epsilon <= min(result.candidates.values()) + 1e-12
    assert result.bound in result.candidates
    square = event.reductions()[-1].squared_norm if event.matrix else (1 if event.redraw else event.epochs)
    repeats = event.epochs if event.redraw else 1
    assert result.epsilon <= gaussian_epsilon(event.noise_multiplier / math.sqrt(square * repeats), delta)
    if event.matrix is None:
        assert result.bound == "profile"
        assert result.epsilon <= result.lower * 1.001
    curves = event.curves(DEFAULT_ORDERS)
    assert curves.to_epsilon(delta).epsilon >= result.lower


def test_the_accountant_uses_the_distribution():
    event = RandomAllocation(100, 1.0)
    alone = Accountant("add_or_remove").compose(event).epsilon(1e-5)
    assert alone.bound == "pld"
    result = allocation_epsilon(event, 1e-5, FINE)
    assert result.lower <= alone.epsilon <= result.epsilon * (1 + 1e-3)
    # Equal events compose like redrawn epochs.
    five = Accountant("add_or_remove").compose(event, 5).epsilon(1e-5)
    redrawn = allocation_epsilon(RandomAllocation(100, 1.0, epochs=5, redraw=True), 1e-5)
    assert redrawn.lower <= five.epsilon <= redrawn.epsilon * (1 + 1e-3)
    single = (
        Accountant("add_or_remove").compose(RandomAllocation(100, 1.0, epochs=5, redraw=True)).epsilon(1e-5)
    )
    assert single.epsilon == pytest.approx(five.epsilon, rel=2e-3)
    assert single.rdp_epsilon == pytest.approx(five.rdp_epsilon)


def test_composition_with_a_vote_and_sampled_rounds():
    event, vote, rounds = RandomAllocation(50, 1.5), Gaussian(5.0), PoissonGaussian(0.02, 1.5)
    accountant = Accountant("add_or_remove").compose(vote).compose(event).compose(rounds, 20)
    total = accountant.epsilon(1e-6)
    assert total.bound == "pld"
    parts = [
        Accountant("add_or_remove").compose(e, n).epsilon(1e-6 / 3).epsilon
        for e, n in ((vote, 1), (event, 1), (rounds, 20))
    ]
    assert max(parts[:2]) * 0.9 < total.epsilon < sum(parts)
    correlated = RandomAllocation(20, 3.0, matrix=blt(20, 1, 2))
    with_vote = Accountant("add_or_remove").compose(correlated).compose(vote).epsilon(1e-6)
    assert with_vote.bound == "pld"
    assert with_vote.epsilon > Accountant("add_or_remove").compose(correlated).epsilon(1e-6).epsilon


def test_kept_bins_are_one_epoch_with_less_noise():
    kept, single = RandomAllocation(64, 4.0, epochs=4), RandomAllocation(64, 2.0)
    assert allocation_epsilon(kept, 1e-6).epsilon == pytest.approx(allocation_epsilon(single, 1e-6).epsilon)
    redrawn = allocation_epsilon(RandomAllocation(64, 4.0, epochs=4, redraw=True), 1e-6)
    assert redrawn.epsilon < allocation_epsilon(kept, 1e-6).lower


def test_one_bin_is_gaussian():
    for event, z in (
        (RandomAllocation(1, 2.0, epochs=4), 1.0),
        (RandomAllocation(1, 2.0, epochs=4, redraw=True), 1.0),
        (RandomAllocation(1, 3.0, epochs=2, matrix=toeplitz((1.0, 1.0), 2)), 3 / math.sqrt(5)),
        (RandomAllocation(1, 3.0, epochs=2, redraw=True, matrix=toeplitz((1.0,), 1)), 3 / math.sqrt(2)),
    ):
        epsilon = Accountant("add_or_remove").compose(event).epsilon(1e-6)
        assert epsilon.bound == "analytic"
        assert epsilon.epsilon == pytest.approx(gaussian_epsilon(z, 1e-6), rel=1e-9)


def test_redrawn_bins_with_noise_across_epochs_are_refused():
    matrix = toeplitz((1.0, 1.0), 4)
    with pytest.raises(InvalidArgument, match=r"redraw needs noise that starts afresh .* got 4"):
        RandomAllocation(2, 2.0, epochs=2, redraw=True, matrix=matrix)
    # Why: the true divergence of order 2 exceeds twice that of one epoch.
    columns, sigma = matrix.dense(), 2.0
    vectors = [columns[:, i] + columns[:, 2 + j] for i in range(2) for j in range(2)]
    true = math.log(np.mean([math.exp(u @ v / sigma**2) for u, v in itertools.product(vectors, repeat=2)]))
    one = columns[:, :2]
    rule = 2 * math.log(
        np.mean([math.exp(one[:, i] @ one[:, j] / sigma**2) for i in range(2) for j in range(2)])
    )
    assert true == pytest.approx(0.848, abs=5e-4)
    assert rule == pytest.approx(0.766, abs=5e-4)
    # Restarting the noise each epoch makes the rule valid.
    event = RandomAllocation(2, 2.0, epochs=2, redraw=True, matrix=toeplitz((1.0, 1.0), 2))
    fresh = toeplitz((1.0, 1.0), 2).dense()
    one_epoch = math.log(
        np.mean([math.exp(u @ v / sigma**2) for u, v in itertools.product(fresh.T, repeat=2)])
    )
    assert event.curves(np.array([2.0])).remove.rdp[0] >= 2 * one_epoch * (1 - 1e-9)


def test_degenerate_inputs():
    silent = RandomAllocation(10, 0.0)
    assert Accountant("add_or_remove").compose(silent).epsilon(1e-5).epsilon == math.inf
    assert silent.pld() is None
    assert allocation_epsilon(silent, 1e-5).epsilon == math.inf
    assert allocation_epsilon(RandomAllocation(10, 1.0), 0.0).epsilon == math.inf
    # Losses beyond floating point: Rényi still answers.
    heavy = RandomAllocation(10, 0.2, epochs=60, redraw=True)
    assert heavy.pld() is None
    result = allocation_epsilon(heavy, 1e-9)
    assert result.bound == "rdp"
    assert result.notes
    assert 300 < result.epsilon < math.inf


def test_monotone_in_epochs_bins_and_noise():
    def epsilon(**changes):
        arguments = {"bins": 30, "noise_multiplier": 2.0, "epochs": 2, "redraw": False, **changes}
        if arguments.pop("correlated", False):
            rounds = arguments["bins"] * arguments["epochs"]
            arguments["matrix"] = bsr(rounds, 2)
        return allocation_epsilon(RandomAllocation(**arguments), 1e-6).epsilon

    for fixed in ({}, {"redraw": True}, {"correlated": True}):
        by_epochs = [epsilon(epochs=k, **fixed) for k in (1, 3, 9)]
        assert by_epochs == sorted(by_epochs)
        by_bins = [epsilon(bins=b, **fixed) for b in (10, 30, 90)]
        assert by_bins == sorted(by_bins, reverse=True)
        by_noise = [epsilon(noise_multiplier=s, **fixed) for s in (1.0, 2.5, 8.0)]
        assert by_noise == sorted(by_noise, reverse=True)


@pytest.mark.parametrize(
    "event",
    [
        RandomAllocation(200, 1.0),
        RandomAllocation(50, 1.0, epochs=4, redraw=True),
        RandomAllocation(16, 1.0, matrix=bsr(16, 2)),
    ],
    ids=["independent", "redrawn", "correlated"],
)
def test_calibration_meets_the_target_and_is_not_wasteful(event):
    found = calibrate_allocation(event, 1.0, 1e-6)
    assert isinstance(found.epsilon, AllocationEpsilon)
    assert 0.995 < found.epsilon.epsilon <= 1.0
    less = replace(event, noise_multiplier=found.noise_multiplier * 0.99)
    assert allocation_epsilon(less, 1e-6).epsilon > 1.0


def test_matrices_are_ranked_by_their_error():
    choices = compare_matrices(16, 2, 2.0, 1e-6, families=("identity", "bsr", "blt"), band=3, buffers=2)
    assert {choice.name for choice in choices} == {"identity", "bsr", "blt"}
    errors = [choice.rmse for choice in choices]
    assert errors == sorted(errors)
    for choice in choices:
        assert choice.epsilon.epsilon <= 2.0
        assert choice.bound in choice.epsilon.candidates
        assert choice.rmse == pytest.approx(choice.noise_multiplier * choice.matrix.prefix_rmse())
        assert choice.max_error >= choice.rmse
    # Amplification is worth something, and correlated noise more.
    assert choices[-1].name == "identity"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bins": 0, "noise_multiplier": 1.0}, "bins"),
        ({"bins": 3, "noise_multiplier": -1.0}, "noise_multiplier"),
        ({"bins": 3, "noise_multiplier": math.nan}, "noise_multiplier"),
        ({"bins": 3, "noise_multiplier": 1.0, "epochs": 0}, "epochs"),
        ({"bins": 3, "noise_multiplier": 1.0, "redraw": "yes"}, "redraw"),
        ({"bins": 3, "noise_multiplier": 1.0, "matrix": "bsr"}, "matrix"),
        ({"bins": 3, "noise_multiplier": 1.0, "epochs": 2, "matrix": bsr(3, 2)}, "matrix must have"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        RandomAllocation(**arguments)


def test_bad_targets_are_named():
    event = RandomAllocation(10, 1.0)
    with pytest.raises(InvalidArgument, match="target_epsilon"):
        calibrate_allocation(event, 0.0, 1e-6)
    with pytest.raises(InvalidArgument, match="delta"):
        calibrate_allocation(event, 1.0, 0.0)
    with pytest.raises(InvalidArgument, match="delta"):
        allocation_epsilon(event, 1.0)
