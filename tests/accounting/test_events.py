"""Events: values, adjacency, storage."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.events import (
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    NoRelease,
    PoissonGaussian,
    PrivacyEvent,
    event_from_json,
    register_event,
)
from fedpriv.accounting.validators import InvalidArgument

ORDERS = np.array([1.5, 2.0, 7.0])


def test_gaussian_is_alpha_over_two_z_squared_in_both_directions():
    curves = Gaussian(0.5).curves(ORDERS)
    np.testing.assert_allclose(curves.remove.rdp, 2 * ORDERS)
    np.testing.assert_allclose(curves.add.rdp, 2 * ORDERS)


def test_degenerate_events():
    assert (NoRelease().curves(ORDERS).remove.rdp == 0).all()
    assert np.isinf(NonPrivate("a plain mean").curves(ORDERS).add.rdp).all()
    assert np.isinf(Gaussian(0.0).curves(ORDERS).remove.rdp).all()
    assert np.isinf(PoissonGaussian(0.1, 0.0).curves(ORDERS).remove.rdp).all()
    assert (PoissonGaussian(0.0, 1.0).curves(ORDERS).remove.rdp == 0).all()
    assert (PoissonGaussian(0.0, 0.0).curves(ORDERS).remove.rdp == 0).all()
    assert (FixedSizeGaussian(10, 0, 0.0).curves(ORDERS).remove.rdp == 0).all()


def test_everyone_sampled_is_the_plain_gaussian():
    plain = Gaussian(0.8).curves(DEFAULT_ORDERS).remove.rdp
    np.testing.assert_allclose(PoissonGaussian(1.0, 0.8).curves(DEFAULT_ORDERS).remove.rdp, plain)
    np.testing.assert_allclose(FixedSizeGaussian(7, 7, 0.8).curves(DEFAULT_ORDERS).remove.rdp, plain)


def test_gaussian_equivalents_are_exact_only_without_sampling():
    assert Gaussian(0.5).gaussian_equivalent() == pytest.approx(4.0)
    assert Gaussian(0.0).gaussian_equivalent() == math.inf
    assert PoissonGaussian(1.0, 0.5).gaussian_equivalent() == pytest.approx(4.0)
    assert PoissonGaussian(0.5, 0.5).gaussian_equivalent() is None
    assert PoissonGaussian(0.0, 0.5).gaussian_equivalent() == 0
    assert FixedSizeGaussian(5, 5, 0.5).gaussian_equivalent() == pytest.approx(4.0)
    assert FixedSizeGaussian(5, 2, 0.5).gaussian_equivalent() is None
    assert NoRelease().gaussian_equivalent() == 0
    assert NonPrivate().gaussian_equivalent() is None


def test_sampling_and_adjacency_pair_as_proven():
    assert Gaussian.adjacencies == {"add_or_remove", "replace_one"}
    assert PoissonGaussian.adjacencies == {"add_or_remove"}
    assert FixedSizeGaussian.adjacencies == {"replace_one"}


@given(
    st.one_of(
        st.builds(Gaussian, st.floats(0, 1e6)),
        st.builds(PoissonGaussian, st.floats(0, 1), st.floats(0, 1e6)),
        st.builds(
            lambda n, q, z: FixedSizeGaussian(n, int(q * n), z),
            st.integers(1, 10**6),
            st.floats(0, 1),
            st.floats(0, 99),
        ),
        st.just(NoRelease()),
        st.builds(NonPrivate, st.text()),
    )
)
def test_json_round_trip(event):
    assert event_from_json(json.loads(json.dumps(event.to_json()))) == event


def test_equal_events_are_one_key():
    assert len({PoissonGaussian(0.1, 1.2), PoissonGaussian(0.1, 1.2), Gaussian(1.2)}) == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "cauchy"}, "kind must be one of .*gaussian.*got 'cauchy'"),
        ({}, "kind must be one of"),
        ({"kind": "gaussian"}, "fields of event 'gaussian' must be"),
        ({"kind": "gaussian", "noise_multiplier": 1.0, "sampling_rate": 0.1}, "fields of event 'gaussian'"),
        ({"kind": "gaussian", "noise_multiplier": -1.0}, "noise_multiplier must be"),
        ({"kind": "gaussian", "noise_multiplier": "1"}, "noise_multiplier must be"),
    ],
)
def test_bad_json_is_rejected(data, message):
    with pytest.raises(InvalidArgument, match=message):
        event_from_json(data)


def test_two_classes_cannot_share_a_kind():
    class Other(PrivacyEvent):
        kind = "gaussian"

    with pytest.raises(InvalidArgument, match="kind must be unique"):
        register_event(Other)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Gaussian(-1.0), "noise_multiplier"),
        (lambda: Gaussian(math.nan), "noise_multiplier"),
        (lambda: Gaussian(math.inf), "noise_multiplier"),
        (lambda: PoissonGaussian(1.1, 1.0), "sampling_rate"),
        (lambda: PoissonGaussian(math.nan, 1.0), "sampling_rate"),
        (lambda: PoissonGaussian(0.1, -1.0), "noise_multiplier"),
        (lambda: FixedSizeGaussian(0, 0, 1.0), "population_size"),
        (lambda: FixedSizeGaussian(10, 11, 1.0), "sample_size"),
        (lambda: FixedSizeGaussian(10, -1, 1.0), "sample_size"),
        (lambda: FixedSizeGaussian(10, 0.5, 1.0), "sample_size"),
        (lambda: FixedSizeGaussian(10, 5, math.nan), "noise_multiplier"),
    ],
)
def test_rejections(make, name):
    with pytest.raises(InvalidArgument, match=f"{name} must be"):
        make()
