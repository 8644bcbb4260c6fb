"""A round of local steps costs exactly what its steps cost."""

from __future__ import annotations

import math

import pytest

from fedpriv.accounting import Accountant, Gaussian, InvalidArgument, PoissonGaussian, event_from_json
from fedpriv.accounting.local_steps import LocalSteps


@pytest.mark.parametrize(("rate", "noise", "steps", "rounds"), [(0.1, 1.0, 5, 10), (1.0, 3.0, 4, 3)])
def test_rounds_of_steps_compose_like_single_steps(
    rate: float, noise: float, steps: int, rounds: int
) -> None:
    whole = Accountant("add_or_remove", "record").compose(LocalSteps(rate, noise, steps), rounds)
    single = Accountant("add_or_remove", "record").compose(PoissonGaussian(rate, noise), steps * rounds)
    assert whole.events == single.events
    assert whole.epsilon(1e-5) == single.epsilon(1e-5)


def test_known_value() -> None:
    """100 rounds at q = .1, z = 1: 7.90 by Rényi (notes on known values), here as 20 releases of 5 steps."""
    found = Accountant("add_or_remove").compose(LocalSteps(0.1, 1.0, 5), 20)
    assert found.rdp_epsilon(1e-5) == pytest.approx(7.90, abs=0.01)


def test_curves_and_json() -> None:
    event = LocalSteps(0.2, 1.5, 7)
    orders = Accountant("add_or_remove").orders
    one = PoissonGaussian(0.2, 1.5).curves(orders)
    assert event.curves(orders).remove.rdp == pytest.approx(7 * one.remove.rdp)
    assert event_from_json(event.to_json()) == event
    assert event.gaussian_equivalent() is None
    assert LocalSteps(1.0, 2.0, 8).gaussian_equivalent() == pytest.approx(2.0)
    assert Gaussian(2.0 / math.sqrt(8)).gaussian_equivalent() == pytest.approx(2.0)


def test_replaced_records_and_no_steps_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="adjacency"):
        Accountant("replace_one").compose(LocalSteps(0.2, 1.0, 2))
    with pytest.raises(InvalidArgument, match="steps"):
        LocalSteps(0.2, 1.0, 0)
