"""What ``fedpriv eps pac`` and ``fedpriv calibrate pac`` print: information, not epsilon."""

from __future__ import annotations

import math
from typing import Any

from fedpriv.accounting.validators import InvalidArgument, check_integer, check_non_negative, check_positive
from fedpriv.cli.epsilon_output import short, words

ASSUMPTIONS = (
    "the secret is one of the silo's subsets, drawn uniformly; every record lies in exactly half of them",
    "a round releases one noisy sign, with noise computed for the posterior given all earlier releases",
    "what other silos and the rest of the world know does not depend on which subset was drawn",
)


def information_for(target_success: float | None, target_epsilon: float | None) -> float:
    """Mutual information whose bound on membership guesses is the target.

    Raises
    ------
    InvalidArgument
        Unless exactly one target is given, in its range.
    """
    from fedpriv.accounting.pac import mutual_information_for_success

    if (target_success is None) == (target_epsilon is None):
        raise InvalidArgument(
            "target_success must be given, or else --target-epsilon: exactly one of both, "
            f"got {target_success} and {target_epsilon}"
        )
    if target_success is not None:
        if not 0.5 < target_success <= 1:
            raise InvalidArgument(f"target_success must be in (0.5, 1], got {target_success!r}")
        return mutual_information_for_success(target_success)
    check_positive(target_epsilon=target_epsilon)
    assert target_epsilon is not None
    return mutual_information_for_success(1 / (1 + math.exp(-target_epsilon)))


def pac_summary(mutual_information: float, rounds: int) -> dict[str, Any]:
    """Plain data: information, membership success, comparison with pure DP, noise of a balanced first round.

    Raises
    ------
    InvalidArgument
        When an argument is out of range.
    """
    from fedpriv.accounting.pac import (
        binary_channel_noise_std,
        membership_success,
        pure_dp_epsilon_with_equal_posterior,
    )

    check_non_negative(mutual_information=mutual_information)
    check_integer(1, rounds=rounds)
    return {
        "mechanism": "pac",
        "privacy": "PAC (mutual information), not differential privacy",
        "unit": "record of one silo",
        "mutual_information": mutual_information,
        "mia_success": membership_success(mutual_information),
        "comparison_pure_dp_epsilon": words(pure_dp_epsilon_with_equal_posterior(mutual_information)),
        "rounds": rounds,
        "noise_std": words(binary_channel_noise_std(0.5, mutual_information / rounds)),
        "assumptions": list(ASSUMPTIONS),
        "notes": [
            "comparison_pure_dp_epsilon: pure DP with the same bound on guesses; it is no DP guarantee",
            "noise_std: for a sign that is a fair coin to the adversary, in a round with an equal share",
        ],
    }


def pac_text(data: dict[str, Any]) -> str:
    """A small table, the assumptions under it."""
    rows = {
        "mutual information (nats)": data["mutual_information"],
        "success of membership guesses, at most": data["mia_success"],
        "pure DP epsilon with the same bound (comparison)": data["comparison_pure_dp_epsilon"],
        f"noise on a sign, one of {data['rounds']} equal rounds": data["noise_std"],
    }
    width = max(map(len, rows))
    lines = [f"pac: {data['privacy']}", ""]
    lines += [f"{name.ljust(width)}  {short(value)}" for name, value in rows.items()]
    for title in ("assumptions", "notes"):
        lines += ["", title.capitalize(), *(f"  - {text}" for text in data[title])]
    return "\n".join(lines)
