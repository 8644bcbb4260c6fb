"""The server's step against a recomputation coordinate by coordinate."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.strategies import ServerAdam, ServerSgd
from fedpriv.strategies.optimizers import cosine_factor

updates = st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3).map(np.array), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None)
@given(updates, st.floats(0.01, 2), st.sampled_from([0.0, 0.5, 0.9]), st.floats(0.1, 1))
def test_sgd(means: list[np.ndarray], rate: float, momentum: float, factor: float) -> None:
    optimizer = ServerSgd(rate, momentum)
    for index, mean in enumerate(means):
        expected = [
            rate * factor * sum(momentum ** (index - past) * means[past][i] for past in range(index + 1))
            for i in range(3)
        ]
        assert optimizer.step(mean, factor) == pytest.approx(np.array(expected), rel=1e-9, abs=1e-12)
    assert optimizer.is_plain == (momentum == 0.0)


@settings(max_examples=50, deadline=None)
@given(updates, st.floats(0.01, 2), st.floats(0.1, 1))
def test_adam(means: list[np.ndarray], rate: float, factor: float) -> None:
    optimizer = ServerAdam(rate, beta1=0.8, beta2=0.9, adaptivity=0.01)
    for index, mean in enumerate(means):
        expected = []
        for i in range(3):
            first = sum(0.2 * 0.8 ** (index - past) * means[past][i] for past in range(index + 1))
            second = sum(0.1 * 0.9 ** (index - past) * means[past][i] ** 2 for past in range(index + 1))
            first, second = first / (1 - 0.8 ** (index + 1)), second / (1 - 0.9 ** (index + 1))
            expected.append(rate * factor * first / (math.sqrt(second) + 0.01))
        assert optimizer.step(mean, factor) == pytest.approx(np.array(expected), rel=1e-9, abs=1e-12)
    assert not optimizer.is_plain


@pytest.mark.parametrize(
    "make", [lambda: ServerSgd(0.5, 0.9), lambda: ServerAdam(0.5), lambda: ServerSgd(0.5)]
)
def test_a_checkpoint_continues_where_it_was(make) -> None:  # type: ignore[no-untyped-def]
    means = np.random.default_rng(1).normal(size=(6, 4))
    whole, first, second = make(), make(), make()
    expected = [whole.step(mean) for mean in means]
    for mean in means[:3]:
        first.step(mean)
    second.load_state({name: value.copy() for name, value in first.state().items()})
    assert np.array_equal([second.step(mean) for mean in means[3:]], expected[3:])
    fresh = make()
    fresh.load_state({})
    assert np.array_equal(fresh.step(means[0]), expected[0])


def test_a_step_does_not_change_its_input() -> None:
    for optimizer in (ServerSgd(0.5), ServerSgd(0.5, 0.9), ServerAdam(0.5)):
        mean = np.ones(3)
        for _ in range(3):
            optimizer.step(mean)[:] = 7.0
        assert mean.tolist() == [1.0] * 3


def test_cosine_goes_from_one_toward_zero() -> None:
    factors = [cosine_factor(server_round, 10) for server_round in range(1, 11)]
    assert factors[0] == 1.0
    assert factors[5] == pytest.approx(0.5)
    assert all(a > b > 0 for a, b in itertools.pairwise(factors))
    assert cosine_factor(11, 10) == pytest.approx(0.0)
    assert cosine_factor(1, 1) == 1.0


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ServerSgd(0.0), "learning_rate"),
        (lambda: ServerSgd(1.0, 1.0), "momentum"),
        (lambda: ServerSgd(1.0, -0.1), "momentum"),
        (lambda: ServerSgd(1.0, float("nan")), "momentum"),
        (lambda: ServerAdam(float("inf")), "learning_rate"),
        (lambda: ServerAdam(1.0, beta1=1.0), "beta1"),
        (lambda: ServerAdam(1.0, beta2=-0.5), "beta2"),
        (lambda: ServerAdam(1.0, adaptivity=0.0), "adaptivity"),
    ],
)
def test_bad_values_are_refused(make, named: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgument, match=named):
        make()
