"""The accountant: refusals, degenerate runs, named bounds, failure masses, speed."""

import math
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.curves import DirectionalCurves, RdpCurve, gaussian_curve
from fedpriv.accounting.events import (
    BOTH,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    NoRelease,
    PoissonGaussian,
    PrivacyEvent,
)
from fedpriv.accounting.gaussian import gaussian_epsilon
from fedpriv.accounting.validators import InvalidArgument


@dataclass(frozen=True)
class TwoBounds(PrivacyEvent):
    """A test event: one bound is better at large delta, the other carries a failure mass of half its
    share."""

    noise_multiplier: float
    kind = "test_two_bounds"
    adjacencies = BOTH
    uses_delta = True
    assumptions = ("nothing is published per round",)

    def curves(self, orders):
        return DirectionalCurves.symmetric(gaussian_curve(self.noise_multiplier / 3, orders))

    def bounds(self, orders, delta):
        better = gaussian_curve(self.noise_multiplier, orders)
        failing = RdpCurve(orders, better.rdp, delta / 2)
        return {"rdp": self.curves(orders), "hidden": DirectionalCurves.symmetric(failing)}


def test_empty_and_unreleased_runs_cost_nothing():
    for accountant in (
        Accountant("add_or_remove"),
        Accountant("add_or_remove").compose(NoRelease(), 5),
        Accountant("add_or_remove").compose(PoissonGaussian(0.0, 0.0), 5),
        Accountant("add_or_remove").compose(Gaussian(0.0), 0),
    ):
        for delta in (0.0, 1e-5):
            result = accountant.epsilon(delta)
            assert (result.epsilon, result.bound) == (0.0, "none")


def test_no_noise_and_no_delta_are_infinite():
    assert Accountant("replace_one").compose(Gaussian(0.0)).epsilon(1e-5).epsilon == math.inf
    assert Accountant("add_or_remove").compose(PoissonGaussian(0.1, 0.0)).epsilon(1e-5).epsilon == math.inf
    zero_delta = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.0)).epsilon(0.0)
    assert (zero_delta.epsilon, zero_delta.bound) == (math.inf, "none")
    accountant = Accountant("add_or_remove").compose(NonPrivate("a plain mean")).compose(Gaussian(1.0))
    result = accountant.epsilon(1e-5)
    assert result.epsilon == math.inf
    assert result.notes == ("no guarantee: a plain mean",)


@given(
    st.lists(st.tuples(st.floats(0.5, 50), st.integers(1, 20)), min_size=1, max_size=4),
    st.floats(1e-10, 1e-2),
)
@settings(deadline=None)
def test_gaussians_in_any_grouping_are_exact_and_below_rdp(parts, delta):
    accountant = Accountant("replace_one")
    for noise_multiplier, count in parts:
        for _ in range(count):
            accountant.compose(Gaussian(noise_multiplier))
    result = accountant.epsilon(delta)
    merged = sum(count / z**2 for z, count in parts) ** -0.5
    assert result.pld_epsilon == pytest.approx(gaussian_epsilon(merged, delta), rel=1e-9)
    assert result.epsilon == result.pld_epsilon <= result.rdp_epsilon
    assert result.rdp_epsilon == pytest.approx(accountant.rdp_epsilon(delta), rel=1e-12)


def test_delta_and_epsilon_are_inverse():
    accountant = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.2), 50).compose(Gaussian(5.0))
    for use_pld in (True, False):
        epsilon = accountant.epsilon(1e-5, use_pld).epsilon
        assert accountant.delta(epsilon, use_pld) == pytest.approx(1e-5, rel=1e-3)
    assert accountant.delta(1.0) <= accountant.delta(1.0, use_pld=False)


def test_more_rounds_more_noise_more_delta():
    def epsilon(z, rounds, delta):
        return Accountant("add_or_remove").compose(PoissonGaussian(0.05, z), rounds).epsilon(delta).epsilon

    assert epsilon(1.0, 10, 1e-5) < epsilon(1.0, 20, 1e-5) < epsilon(1.0, 20, 1e-6)
    assert epsilon(1.2, 20, 1e-5) < epsilon(1.0, 20, 1e-5)


def test_adjacency_and_unit_do_not_mix():
    with pytest.raises(InvalidArgument, match=r"adjacency must be equal .* add_or_remove and replace_one"):
        Accountant("add_or_remove").merge(Accountant("replace_one"))
    with pytest.raises(InvalidArgument, match="unit must be equal to compose: client and record"):
        Accountant("add_or_remove", "client").merge(Accountant("add_or_remove", "record"))


def test_merge_copy_and_storage_keep_the_total():
    first = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.2), 30)
    second = Accountant("add_or_remove").compose(Gaussian(4.0)).compose(PoissonGaussian(0.1, 1.2), 20)
    total = first.copy().merge(second)
    assert total.events == {PoissonGaussian(0.1, 1.2): 50, Gaussian(4.0): 1}
    assert first.events == {PoissonGaussian(0.1, 1.2): 30}
    assert Accountant.from_json(total.to_json()).rdp_epsilon(1e-5) == total.rdp_epsilon(1e-5)
    assert total.rdp_epsilon(1e-5) > first.rdp_epsilon(1e-5)


def test_would_be_does_not_compose():
    accountant = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.2), 10)
    before = accountant.events
    ahead = accountant.would_be([(PoissonGaussian(0.1, 1.2), 10), (Gaussian(3.0), 1)], 1e-5)
    assert accountant.events == before
    accountant.compose(PoissonGaussian(0.1, 1.2), 10).compose(Gaussian(3.0))
    assert ahead.epsilon == pytest.approx(accountant.epsilon(1e-5).epsilon, rel=1e-12)


def test_the_smallest_bound_wins_and_is_named():
    accountant = Accountant("add_or_remove").compose(TwoBounds(3.0))
    result = accountant.epsilon(1e-5)
    assert result.bound == "hidden"
    assert result.pld_epsilon is None
    assert result.epsilon == pytest.approx(gaussian_curve(3.0, accountant.orders).to_epsilon(5e-6).epsilon)
    assert accountant.assumptions == ("nothing is published per round",)


def test_an_event_may_name_the_bound_behind_its_loss():
    @dataclass(frozen=True)
    class Hidden(Gaussian):
        composed: float = 1.0
        kind = "test_hidden"
        loss_bound = "last_iterate"

        def bounds(self, orders, delta):
            composed = DirectionalCurves.symmetric(gaussian_curve(self.composed, orders))
            return {"composition": composed, "last_iterate": self.curves(orders)}

    result = Accountant("replace_one").compose(Hidden(2.0)).compose(Gaussian(3.0)).epsilon(1e-5)
    assert (result.bound, result.epsilon) == ("last_iterate", result.pld_epsilon)
    same = Accountant("replace_one").compose(Hidden(2.0, 2.0)).epsilon(1e-5)
    assert same.bound == "analytic"


def test_gaussian_bounds_with_a_failure_mass_are_converted_exactly():
    @dataclass(frozen=True)
    class Exact(TwoBounds):
        kind = "test_exact"

        def gaussian_bounds(self, delta):
            return {"": (9 / self.noise_multiplier**2, 0.0), "hidden": (self.noise_multiplier**-2, delta / 2)}

    result = Accountant("add_or_remove").compose(Exact(3.0)).compose(Gaussian(4.0)).epsilon(1e-5)
    exact = gaussian_epsilon((1 / 9 + 1 / 16) ** -0.5, 5e-6)
    assert result.epsilon == result.pld_epsilon == pytest.approx(exact)
    assert result.bound == "hidden"
    assert result.epsilon < result.rdp_epsilon
    # Two of them share delta; with a sampled round there is no exact answer.
    twice = Accountant("add_or_remove").compose(Exact(3.0), 2).epsilon(1e-5)
    assert twice.epsilon == pytest.approx(gaussian_epsilon(3 / math.sqrt(2), 5e-6))
    mixed = Accountant("add_or_remove").compose(Exact(3.0)).compose(PoissonGaussian(0.1, 2.0)).epsilon(1e-5)
    assert (mixed.pld_epsilon, mixed.bound) == (None, "hidden")


def test_failure_masses_share_delta():
    accountant = Accountant("add_or_remove").compose(TwoBounds(3.0), 2).compose(TwoBounds(4.0))
    accountant.compose(Gaussian(2.0))
    result = accountant.epsilon(3e-5)
    orders = accountant.orders
    total = sum((gaussian_curve(z, orders) for z in (3.0, 3.0, 4.0)), gaussian_curve(2.0, orders))
    assert result.epsilon == pytest.approx(total.to_epsilon(1.5e-5).epsilon)
    assert result.bound == "hidden"


def test_failure_mass_above_delta_is_an_error():
    @dataclass(frozen=True)
    class Failing(PrivacyEvent):
        kind = "test_failing"
        adjacencies = BOTH

        def curves(self, orders):
            return DirectionalCurves.symmetric(RdpCurve(orders, np.zeros(orders.shape), 1e-6))

    accountant = Accountant("add_or_remove").compose(Failing(), 3)
    assert accountant.epsilon(4e-6, use_pld=False).epsilon == 0.0
    with pytest.raises(InvalidArgument, match="delta must be above the failure mass delta_0 = 3e-06"):
        accountant.epsilon(2e-6)


def test_directions_are_converted_before_the_maximum():
    @dataclass(frozen=True)
    class Lopsided(PrivacyEvent):
        kind = "test_lopsided"
        adjacencies = BOTH

        def curves(self, orders):
            low = np.where(orders < 5, 0.1, 9.0)
            high = np.where(orders < 5, 6.0, 0.2)
            return DirectionalCurves(RdpCurve(orders, low), RdpCurve(orders, high))

    accountant = Accountant("add_or_remove", orders=[3.0, 4.0, 16.0, 17.0, 20.0]).compose(Lopsided())
    orders = accountant.orders
    both = Lopsided().curves(orders)
    assert accountant.rdp_epsilon(1e-5) == pytest.approx(both.to_epsilon(1e-5).epsilon)
    assert (
        accountant.rdp_epsilon(1e-5)
        < RdpCurve(orders, np.maximum(both.remove.rdp, both.add.rdp)).to_epsilon(1e-5).epsilon
    )


@pytest.mark.parametrize("noise_multiplier", [0.02, 3000.0])
def test_the_default_grid_is_extended_at_both_ends(noise_multiplier):
    accountant = Accountant("add_or_remove").compose(Gaussian(noise_multiplier))
    result = accountant.epsilon(1e-5)
    assert accountant.orders[0] < result.order < accountant.orders[-1]
    exact_best = 1 + noise_multiplier * math.sqrt(2 * math.log(1e5))
    assert abs(math.log((result.order - 1) / (exact_best - 1))) < 1
    assert result.rdp_epsilon < 1.3 * result.epsilon


def test_a_best_order_beyond_all_limits_is_noted():
    result = Accountant("add_or_remove").compose(Gaussian(1e6)).epsilon(1e-12)
    assert any("edge of the grid" in note for note in result.notes)


def test_values_equal_flowers_accountant():
    from flwr.serverapp import (
        GaussianPrivacyEvent,
        NeighboringRelation,
        PrivacyConfig,
        RdpAccountant,
        SamplingMethod,
    )

    for method, relation, event in [
        (SamplingMethod.POISSON, NeighboringRelation.ADD_OR_REMOVE_ONE, PoissonGaussian(0.1, 1.0)),
        (SamplingMethod.NO_AMPLIFICATION, NeighboringRelation.ADD_OR_REMOVE_ONE, Gaussian(1.0)),
        (
            SamplingMethod.WITHOUT_REPLACEMENT,
            NeighboringRelation.REPLACE_ONE,
            FixedSizeGaussian(100, 10, 1.0),
        ),
    ]:
        flower = RdpAccountant(PrivacyConfig(1e-5, 100, relation, method))
        flower.compose(GaussianPrivacyEvent(1.0, 10, 100), count=50)
        adjacency = "add_or_remove" if relation.value.startswith("add") else "replace_one"
        ours = Accountant(adjacency).compose(event, 50)
        assert ours.rdp_epsilon(1e-5) == pytest.approx(flower.get_epsilon(1e-5), rel=1e-9)


def test_an_epsilon_after_each_of_ten_thousand_rounds_is_cheap():
    accountant, event = Accountant("add_or_remove"), PoissonGaussian(0.01, 1.0)
    accountant.compose(event).rdp_epsilon(1e-5)
    start = time.perf_counter()
    for _ in range(9_999):
        last = accountant.compose(event).rdp_epsilon(1e-5)
    assert time.perf_counter() - start < 5.0
    once = Accountant("add_or_remove").compose(event, 10_000)
    assert last == pytest.approx(once.rdp_epsilon(1e-5), rel=1e-9)


def test_one_library_call_per_rate_and_multiplier(monkeypatch):
    import dp_accounting

    calls = []
    original = dp_accounting.rdp.RdpAccountant.compose
    monkeypatch.setattr(
        dp_accounting.rdp.RdpAccountant, "compose", lambda self, *a: (calls.append(a), original(self, *a))[1]
    )
    event = PoissonGaussian(0.0317, 1.117)
    for rounds in (10, 20):
        Accountant("add_or_remove").compose(event, rounds).rdp_epsilon(1e-5)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Accountant("zero_out"), "adjacency must be one of"),
        (lambda: Accountant("replace_one", "silo"), "unit must be one of"),
        (lambda: Accountant("replace_one", orders=[1.0]), "orders must be"),
        (lambda: Accountant("replace_one").compose("gaussian"), "event must be a PrivacyEvent"),
        (lambda: Accountant("replace_one").compose(Gaussian(1.0), -1), "count must be"),
        (lambda: Accountant("replace_one").compose(Gaussian(1.0), 1.5), "count must be"),
        (lambda: Accountant("replace_one").epsilon(1.0), "delta must be"),
        (lambda: Accountant("replace_one").epsilon(math.nan), "delta must be"),
        (lambda: Accountant("replace_one").rdp_epsilon(-1e-5), "delta must be"),
        (lambda: Accountant("replace_one").delta(-1.0), "epsilon must be"),
    ],
)
def test_rejections(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
