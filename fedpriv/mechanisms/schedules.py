"""Learning-rate schedules: a public factor by round."""

from __future__ import annotations

import math

from fedpriv.accounting.validators import InvalidArgument, check_integer


def schedule_factor(name: str, server_round: int, rounds: int) -> float:
    """Factor on the learning rate in a round.

    Parameters
    ----------
    name : {"constant", "linear", "cosine"}
        *linear* falls from 1 to 1/rounds, *cosine* along half a cosine from 1 to nearly 0.
    server_round, rounds : int
        Round 1 .. rounds.

    Raises
    ------
    InvalidArgument
        For another name, or a round outside the range.

    >>> [round(schedule_factor("linear", r, 4), 2) for r in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> round(schedule_factor("cosine", 3, 4), 2)
    0.5
    """
    check_integer(1, rounds=rounds)
    if not 1 <= server_round <= rounds:
        raise InvalidArgument(f"server_round: {server_round} is outside 1 .. {rounds}")
    done = (server_round - 1) / rounds
    factors = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    if name not in factors:
        raise InvalidArgument(f"schedule: {name!r} is not one of {', '.join(factors)}")
    return factors[name]
