"""Every rejection names the argument, its value and what is allowed."""

import math

import numpy as np
import pytest

from fedpriv.accounting.validators import (
    InvalidArgument,
    check_at_least,
    check_choice,
    check_delta,
    check_finite,
    check_integer,
    check_non_negative,
    check_positive,
    check_probability,
)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (
            check_positive,
            [1, 0.5, np.float32(2), np.int64(3)],
            [0, -1.0, math.nan, math.inf, True, "1", None, 1j],
        ),
        (check_non_negative, [0, 0.0, 3], [-1e-300, math.nan, math.inf, False]),
        (check_finite, [-3, 0.0, 1e300], [math.nan, -math.inf, math.inf, None, [1.0]]),
        (check_probability, [0, 1, 0.3], [-0.1, 1.0000001, math.nan, True]),
        (check_delta, [0, 0.0, 0.999], [1, 1.5, -1e-9, math.nan, math.inf]),
    ],
)
def test_ranges(check, good, bad):
    for value in good:
        check(some_argument=value)
    for value in bad:
        with pytest.raises(InvalidArgument, match="some_argument must be") as caught:
            check(some_argument=value)
        assert repr(value) in str(caught.value)


def test_integers_are_not_floats_or_booleans():
    check_integer(1, rounds=np.int32(4), epochs=1)
    for value in (0, 1.0, True, math.nan, "3"):
        with pytest.raises(InvalidArgument, match="rounds must be an integer >= 1"):
            check_integer(1, rounds=value)


def test_minimum_is_in_the_message():
    check_at_least(1, factor=1.0)
    with pytest.raises(InvalidArgument, match=r"factor must be a finite number >= 1, got 0\.5"):
        check_at_least(1, factor=0.5)


def test_choices_are_in_the_message():
    check_choice(("add_or_remove", "replace_one"), adjacency="replace_one")
    with pytest.raises(InvalidArgument, match="one of add_or_remove, replace_one, got 'swap'"):
        check_choice(("add_or_remove", "replace_one"), adjacency="swap")


def test_invalid_argument_is_a_value_error():
    with pytest.raises(ValueError, match="noise_std"):
        check_positive(clip=1.0, noise_std=-1)
