"""Keyword validators: every message names the argument, its value and what is allowed.

Each function takes the value as a keyword, so that the name in the message is the caller's own:
``check_positive(noise_std=sigma)`` raises ``noise_std must be a finite number > 0, got -1.0``.
"""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any


class InvalidArgument(ValueError):
    """An argument is outside the range for which a computation is defined."""


def _number(name: str, value: Any, allowed: str) -> float:
    """Return ``value`` as a float, or raise; booleans, strings and NaN are not numbers."""
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise InvalidArgument(f"{name} must be {allowed}, got {value!r}")
    return float(value)


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise InvalidArgument(f"{name} must be {allowed}, got {value!r}")


def check_finite(**arguments: Any) -> None:
    """Require finite real numbers.

    Raises
    ------
    InvalidArgument
        For NaN, infinities and anything that is not a real number.
    """
    allowed = "a finite number"
    for name, value in arguments.items():
        _require(math.isfinite(_number(name, value, allowed)), name, value, allowed)


def check_positive(**arguments: Any) -> None:
    """Require finite numbers above 0.

    Raises
    ------
    InvalidArgument
        When a value is 0, negative, infinite or NaN.
    """
    allowed = "a finite number > 0"
    for name, value in arguments.items():
        number = _number(name, value, allowed)
        _require(math.isfinite(number) and number > 0, name, value, allowed)


def check_non_negative(**arguments: Any) -> None:
    """Require finite numbers of at least 0.

    Raises
    ------
    InvalidArgument
        When a value is negative, infinite or NaN.
    """
    allowed = "a finite number >= 0"
    for name, value in arguments.items():
        number = _number(name, value, allowed)
        _require(math.isfinite(number) and number >= 0, name, value, allowed)


def check_probability(**arguments: Any) -> None:
    """Require probabilities: numbers in [0, 1].

    Raises
    ------
    InvalidArgument
        When a value is outside [0, 1] or NaN.
    """
    allowed = "a probability in [0, 1]"
    for name, value in arguments.items():
        _require(0 <= _number(name, value, allowed) <= 1, name, value, allowed)


def check_delta(**arguments: Any) -> None:
    """Require failure probabilities of (epsilon, delta)-DP: numbers in [0, 1).

    Raises
    ------
    InvalidArgument
        When a value is outside [0, 1) or NaN.
    """
    allowed = "in [0, 1)"
    for name, value in arguments.items():
        _require(0 <= _number(name, value, allowed) < 1, name, value, allowed)


def check_integer(minimum: int, **arguments: Any) -> None:
    """Require integers (numpy's too, no booleans, no floats) of at least ``minimum``.

    Raises
    ------
    InvalidArgument
        When a value is not an integer or is below the minimum.
    """
    allowed = f"an integer >= {minimum}"
    for name, value in arguments.items():
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        _require(is_integer and value >= minimum, name, value, allowed)


def check_at_least(minimum: float, **arguments: Any) -> None:
    """Require finite numbers of at least ``minimum``.

    Raises
    ------
    InvalidArgument
        When a value is below the minimum, infinite or NaN.
    """
    allowed = f"a finite number >= {minimum}"
    for name, value in arguments.items():
        number = _number(name, value, allowed)
        _require(math.isfinite(number) and number >= minimum, name, value, allowed)


def check_choice(choices: Collection[str], **arguments: Any) -> None:
    """Require one of the listed strings.

    Raises
    ------
    InvalidArgument
        When a value is not among them; the message lists them.
    """
    allowed = "one of " + ", ".join(choices)
    for name, value in arguments.items():
        _require(isinstance(value, str) and value in choices, name, value, allowed)
