"""Attack what is claimed: empirical lower bounds on epsilon beside the upper bounds, and consistency checks.

A lower bound above a claim refutes it; one below it proves nothing, but says how far the claim can be off. What the
attacks run are the real strategies, plans and client halves. Imports nothing heavy; targets are loaded when used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedpriv.audit.bounds import (
    LowerBound,
    Trials,
    epsilon_lower_bound,
    gaussian_lower_bound,
    largest_possible_bound,
    success_lower_bound,
)
from fedpriv.audit.one_run import OneRun, best_guesses, one_run_lower_bound
from fedpriv.audit.result import Claim, Finding, Report, Row

if TYPE_CHECKING:
    from fedpriv.audit.checks import check_target
    from fedpriv.audit.procedure import Effort, audit
    from fedpriv.audit.target import Setup, Target
    from fedpriv.audit.targets import find_target

_LAZY = {
    "Effort": "procedure",
    "Setup": "target",
    "Target": "target",
    "audit": "procedure",
    "check_target": "checks",
    "find_target": "targets",
}

__all__ = [
    "Claim",
    "Effort",
    "Finding",
    "LowerBound",
    "OneRun",
    "Report",
    "Row",
    "Setup",
    "Target",
    "Trials",
    "audit",
    "best_guesses",
    "check_target",
    "epsilon_lower_bound",
    "find_target",
    "gaussian_lower_bound",
    "largest_possible_bound",
    "one_run_lower_bound",
    "success_lower_bound",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
