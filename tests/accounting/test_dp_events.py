"""Event trees of dp_accounting: equal epsilon where the library is right, the truth where it is not."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import integrate

from fedpriv.accounting.accountant import Accountant
from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.dp_events import Laplace, ZeroConcentrated, events_from_dp_event
from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, PoissonGaussian, event_from_json
from fedpriv.accounting.validators import InvalidArgument

RELATION = dpa.NeighboringRelation


def composed(tree, adjacency="add_or_remove"):
    accountant = Accountant(adjacency)
    for event, count in events_from_dp_event(tree, adjacency):
        accountant.compose(event, count)
    return accountant


TREE = dpa.ComposedDpEvent(
    [
        dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.2)), 100),
        dpa.GaussianDpEvent(4.0),
        dpa.NoOpDpEvent(),
        dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([dpa.GaussianDpEvent(4.0), dpa.LaplaceDpEvent(9.0)]), 3),
        dpa.ZCDpEvent(0.01, 0.002),
    ]
)


def test_a_tree_costs_what_the_library_says_under_add_or_remove():
    accountant = composed(TREE)
    assert accountant.events == {
        PoissonGaussian(0.1, 1.2): 100,
        Gaussian(4.0): 4,
        Laplace(9.0): 3,
        ZeroConcentrated(0.01, 0.002): 1,
    }
    library = dpa.rdp.RdpAccountant().compose(TREE)
    assert accountant.rdp_epsilon(1e-5) == pytest.approx(library.get_epsilon(1e-5), rel=1e-9)


def test_statistics_of_one_cohort_become_one_event():
    inner = dpa.ComposedDpEvent(
        [dpa.GaussianDpEvent(1.0), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(2.0), 4)]
    )
    [(event, count)] = events_from_dp_event(dpa.PoissonSampledDpEvent(0.01, inner), "add_or_remove")
    assert (event.sampling_rate, count) == (0.01, 1)
    assert event.noise_multiplier == pytest.approx((1 + 4 / 4) ** -0.5)


def test_replace_one_is_halved():
    assert events_from_dp_event(dpa.GaussianDpEvent(1.0), "replace_one") == [(Gaussian(0.5), 1)]
    assert events_from_dp_event(dpa.LaplaceDpEvent(1.0), "replace_one") == [(Laplace(0.5), 1)]
    assert composed(dpa.GaussianDpEvent(1.0), "replace_one").epsilon(1e-5).epsilon == pytest.approx(
        9.997, abs=5e-4
    )
    wrong = dpa.rdp.RdpAccountant(neighboring_relation=RELATION.REPLACE_ONE).compose(dpa.GaussianDpEvent(1.0))
    assert wrong.get_epsilon(1e-5) == pytest.approx(4.73, abs=5e-3)
    right = dpa.pld.PLDAccountant(RELATION.REPLACE_ONE).compose(dpa.GaussianDpEvent(1.0))
    assert right.get_epsilon(1e-5) == pytest.approx(9.997, abs=1e-3)


def test_fixed_size_is_halved():
    tree = dpa.SampledWithoutReplacementDpEvent(100, 10, dpa.GaussianDpEvent(2.0))
    assert events_from_dp_event(tree, "replace_one") == [(FixedSizeGaussian(100, 10, 1.0), 1)]


def test_degenerate_trees():
    assert events_from_dp_event(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), 0), "replace_one") == []
    assert events_from_dp_event(dpa.PoissonSampledDpEvent(0.5, dpa.NoOpDpEvent()), "add_or_remove") == []
    assert composed(dpa.NonPrivateDpEvent()).epsilon(1e-5).epsilon == math.inf
    unsafe = dpa.PoissonSampledDpEvent(0.5, dpa.NonPrivateDpEvent())
    assert composed(unsafe).epsilon(1e-5).epsilon == math.inf


@pytest.mark.parametrize(
    ("tree", "adjacency", "message"),
    [
        (
            dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0)),
            "replace_one",
            "must be add_or_remove for Poisson",
        ),
        (
            dpa.SampledWithoutReplacementDpEvent(9, 3, dpa.GaussianDpEvent(1.0)),
            "add_or_remove",
            "must be replace_one for SampledWithoutReplacement",
        ),
        (dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)), "add_or_remove", "LaplaceDpEvent"),
        (dpa.ComposedDpEvent([dpa.UnsupportedDpEvent()]), "add_or_remove", "UnsupportedDpEvent"),
        (
            dpa.dp_event.RepeatAndSelectDpEvent(dpa.GaussianDpEvent(1.0), 3, 1),
            "add_or_remove",
            "RepeatAndSelect",
        ),
        (dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), -1), "add_or_remove", "count must be"),
        (dpa.GaussianDpEvent(-1.0), "add_or_remove", "noise_multiplier must be"),
        ("gaussian", "add_or_remove", "got 'gaussian'"),
        (dpa.NoOpDpEvent(), "zero_out", "adjacency must be one of"),
    ],
)
def test_refusals_name_the_part(tree, adjacency, message):
    with pytest.raises(InvalidArgument, match=message):
        events_from_dp_event(tree, adjacency)


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("alpha", [1.1, 2.0, 9.0])
def test_laplace_by_quadrature(scale, alpha):
    def density(x, mean):
        return math.exp(-abs(x - mean) / scale) / (2 * scale)

    def integrand(x):
        return density(x, 1.0) ** alpha * density(x, 0.0) ** (1 - alpha)

    pieces = [(-80 * scale, 0), (0, 1), (1, 1 + 80 * scale)]
    moment = sum(integrate.quad(integrand, *piece, epsabs=0, epsrel=1e-12)[0] for piece in pieces)
    exact = math.log(moment) / (alpha - 1)
    assert Laplace(scale).curves(np.array([alpha])).remove.rdp[0] == pytest.approx(exact, rel=1e-8)


def test_laplace_limits():
    assert np.isinf(Laplace(0.0).curves(DEFAULT_ORDERS).remove.rdp).all()
    tiny = Laplace(1e9).curves(DEFAULT_ORDERS).remove.rdp
    assert (tiny > 0).all()
    assert (tiny <= DEFAULT_ORDERS * 1e-18).all()
    # Pure epsilon is the limit of large orders: one release at scale 1 is (1, 0)-DP.
    assert Accountant("add_or_remove").compose(Laplace(1.0)).epsilon(1e-9).epsilon == pytest.approx(
        1.0, abs=0.01
    )


def test_events_are_stored_and_read_back():
    for event in (Laplace(1.5), ZeroConcentrated(0.5, 0.1)):
        assert event_from_json(event.to_json()) == event
    for make, name in ((lambda: Laplace(-1.0), "noise_multiplier"), (lambda: ZeroConcentrated(-1.0), "rho")):
        with pytest.raises(InvalidArgument, match=f"{name} must be"):
            make()
