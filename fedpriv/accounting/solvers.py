"""Bracketing on monotone functions, always returning the safe end.

Privacy calibration asks for the smallest x with f(x) <= target for a non-increasing f. The returned x
satisfies the inequality as computed; the true crossing is within the tolerance below it.
"""

import math
from collections.abc import Callable

from fedpriv.accounting.validators import InvalidArgument

_LARGEST = 1e30
_SMALLEST = 1e-30


def bisect_decreasing(function: Callable[[float], float], target: float, start: float) -> float:
    """Smallest x > 0 with ``function(x) <= target``, to floating-point resolution.

    For cheap functions: about a hundred evaluations.

    Parameters
    ----------
    function : callable
        Non-increasing on (0, inf).
    target : float
        The level.
    start : float
        Where to start the search for a bracket, > 0.

    Returns
    -------
    float
        The upper end of the final bracket, where the inequality holds; relative width below 1e-14.

    Raises
    ------
    InvalidArgument
        When the level is not reached below 1e30.
    """
    low, high = start, start
    while function(high) > target:
        low, high = high, high * 4
        if high > _LARGEST:
            raise InvalidArgument(
                f"target must be reachable, but {target!r} is not reached below {_LARGEST:g}"
            )
    while low > _SMALLEST and function(low) <= target:
        low, high = low / 4, low
    while high - low > 1e-14 * high:
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        if function(middle) <= target:
            high = middle
        else:
            low = middle
    return high


def secant_decreasing(
    function: Callable[[float], float],
    target: float,
    start: float,
    relative_tolerance: float = 1e-4,
    lower_limit: float = 1e-6,
    upper_limit: float = 1e9,
    first_factor: float = 2.0,
) -> float | None:
    """Smallest x with ``function(x) <= target``, in few evaluations of an expensive function.

    A bracketed secant on (log x, log function) with the Illinois weights: privacy against noise is close to
    a power law, so five to eight evaluations are enough.

    Parameters
    ----------
    function : callable
        Non-increasing and non-negative; may be infinite.
    target : float
        The level, > 0.
    start : float
        First guess, > 0.
    relative_tolerance : float
        Width of the final bracket relative to x.
    lower_limit, upper_limit : float
        The search stays between them. The lower limit is returned when it meets the target already.

    first_factor : float
        First step of the search for a bracket; close to 1 when the guess is good.

    Returns
    -------
    float or None
        The upper end of the final bracket, where the inequality holds; None when it does not at the upper
        limit.
    """
    values: dict[float, float] = {}

    def gap(x: float) -> float:
        if x not in values:
            value = function(x)
            values[x] = (
                math.log(value / target) if 0 < value < math.inf else math.copysign(math.inf, value - target)
            )
        return values[x]

    low = high = min(max(start, lower_limit), upper_limit)
    factor = first_factor
    while gap(high) > 0:
        if high >= upper_limit:
            return None
        low, high = high, min(upper_limit, high * factor)
        factor = factor**1.5
    factor = first_factor
    while gap(low) <= 0:
        if low <= lower_limit:
            return low
        low, high = max(lower_limit, low / factor), low
        factor = factor**1.5

    gap_low, gap_high = gap(low), gap(high)
    last_moved = 0
    while high > low * (1 + relative_tolerance):
        log_low, log_high = math.log(low), math.log(high)
        width = log_high - log_low
        if math.isinf(gap_low) or math.isinf(gap_high):
            guess = (log_low + log_high) / 2
        else:
            guess = log_low + width * gap_low / (gap_low - gap_high)
        # Aim beside the guess, on the side that moved longer ago: two good guesses then close the bracket.
        margin = min(0.5 * math.log1p(relative_tolerance), width / 4)
        guess = min(
            max(guess + (margin if last_moved >= 0 else -margin), log_low + margin), log_high - margin
        )
        middle = math.exp(guess)
        if not low < middle < high:
            break
        value = gap(middle)
        if value <= 0:
            if last_moved < 0:
                gap_low /= 2
            high, gap_high, last_moved = middle, value, -1
        else:
            if last_moved > 0:
                gap_high /= 2
            low, gap_low, last_moved = middle, value, 1
    return high
