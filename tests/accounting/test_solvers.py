"""Bracketing: the safe end, the tolerance, and few evaluations."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.accounting.solvers import bisect_decreasing, secant_decreasing
from fedpriv.accounting.validators import InvalidArgument


@given(st.floats(1e-6, 1e6), st.floats(0.2, 4), st.floats(1e-3, 1e3))
def test_bisection_finds_the_root_of_power_laws(root, power, start):
    found = bisect_decreasing(lambda x: (root / x) ** power, 1.0, start)
    assert found == pytest.approx(root, rel=1e-12)
    assert (root / found) ** power <= 1.0


@given(st.floats(1e-4, 1e6), st.floats(0.3, 3), st.floats(0, 2), st.floats(1e-2, 1e2))
def test_secant_is_safe_accurate_and_quick(root, power, curvature, start):
    calls = []

    def function(x):
        calls.append(x)
        ratio = root / x
        return ratio**power * (1 + curvature * min(ratio, 1e3)) / (1 + curvature)

    found = secant_decreasing(function, 1.0, start)
    assert function(found) <= 1.0
    assert found <= root * (1 + 1.01e-4)
    assert len(calls) <= 30


def test_secant_needs_few_evaluations_near_the_start():
    calls = []
    secant_decreasing(lambda x: calls.append(x) or 3.0 / x**1.1, 2.0, start=1.3)
    assert len(calls) <= 9


def test_infinite_and_zero_values_are_stepped_over():
    found = secant_decreasing(lambda x: math.inf if x < 3 else 0.0, 1.0, start=1.0)
    assert 3.0 <= found <= 3.0003


def test_limits():
    assert secant_decreasing(lambda x: 5.0, 1.0, start=1.0, upper_limit=1e3) is None
    assert secant_decreasing(lambda x: 0.5, 1.0, start=1.0, lower_limit=0.25) == 0.25
    with pytest.raises(InvalidArgument, match="not reached"):
        bisect_decreasing(lambda x: 5.0, 1.0, 1.0)
