"""Calibration: meets the target, is nearly the smallest, and says which bound was active."""

import math

import pytest

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.calibration import calibrate_noise_multiplier
from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, NonPrivate, PoissonGaussian
from fedpriv.accounting.gaussian import gaussian_noise_multiplier
from fedpriv.accounting.validators import InvalidArgument

FAMILIES = {
    "full": (lambda z: [(Gaussian(z), 100)], "add_or_remove", "analytic"),
    "poisson": (lambda z: [(PoissonGaussian(0.1, z), 200)], "add_or_remove", "pld"),
    "fixed size": (lambda z: [(FixedSizeGaussian(100, 10, z), 50)], "replace_one", "rdp"),
    "two stages": (lambda z: [(Gaussian(3 * z), 1), (PoissonGaussian(0.05, z), 100)], "add_or_remove", "pld"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target", [0.3, 4.0])
def test_meets_the_target_and_is_nearly_the_smallest(family, target):
    make_events, adjacency, bound = FAMILIES[family]
    result = calibrate_noise_multiplier(make_events, target, 1e-6, adjacency)
    assert result.epsilon.epsilon <= target
    assert result.epsilon.bound == bound
    again = Accountant(adjacency).would_be(make_events(result.noise_multiplier), 1e-6)
    assert again == result.epsilon
    less = Accountant(adjacency).would_be(make_events(result.noise_multiplier * (1 - 2.5e-4)), 1e-6)
    assert less.epsilon > target


def test_one_gaussian_agrees_with_the_analytic_inverse():
    result = calibrate_noise_multiplier(lambda z: [(Gaussian(z), 1)], 1.0, 1e-5, "replace_one")
    exact = gaussian_noise_multiplier(1.0, 1e-5)
    assert exact <= result.noise_multiplier <= exact * 1.0002


def test_rdp_only_needs_more_noise():
    make_events, adjacency, _ = FAMILIES["poisson"]
    tight = calibrate_noise_multiplier(make_events, 2.0, 1e-5, adjacency)
    loose = calibrate_noise_multiplier(make_events, 2.0, 1e-5, adjacency, use_pld=False)
    assert loose.epsilon.bound == "rdp"
    assert loose.noise_multiplier > tight.noise_multiplier * 1.03


def test_fixed_events_take_their_part():
    make_events = FAMILIES["full"][0]
    alone = calibrate_noise_multiplier(make_events, 2.0, 1e-5, "add_or_remove")
    shared = calibrate_noise_multiplier(
        make_events, 2.0, 1e-5, "add_or_remove", fixed_events=[(Gaussian(5.0), 1)]
    )
    assert shared.noise_multiplier > alone.noise_multiplier
    total = (
        Accountant("add_or_remove")
        .compose(Gaussian(5.0))
        .would_be(make_events(shared.noise_multiplier), 1e-5)
    )
    assert total.epsilon <= 2.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_epsilon": 0.0}, "target_epsilon must be"),
        ({"target_epsilon": -1.0}, "target_epsilon must be"),
        ({"target_epsilon": math.nan}, "target_epsilon must be"),
        ({"target_epsilon": math.inf}, "target_epsilon must be"),
        ({"delta": 0.0}, "delta must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"adjacency": "zero_out"}, "adjacency must be"),
        ({"fixed_events": [(Gaussian(0.5), 1)]}, r"target_epsilon must be above 9\.99"),
        ({"fixed_events": [(NonPrivate(), 1)]}, "target_epsilon must be above inf"),
        ({"make_events": lambda z: [(Gaussian(0.1), 1)]}, "target_epsilon must be reachable"),
    ],
)
def test_rejections(arguments, message):
    defaults = {
        "make_events": FAMILIES["full"][0],
        "target_epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": "add_or_remove",
    }
    with pytest.raises(InvalidArgument, match=message):
        calibrate_noise_multiplier(**(defaults | arguments))
