"""Targets by plan: a new strategy adds one file here and one line below."""

from __future__ import annotations

import importlib

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.audit.target import Setup, Target

#: Class of the plan -> module and class of the target.
TARGETS: dict[str, str] = {
    "VotePlan": "fedpriv.audit.targets.vote:VoteTarget",
    "ZerothOrderPlan": "fedpriv.audit.targets.zeroth_order:ZerothOrderTarget",
    "MatrixPlan": "fedpriv.audit.targets.matrix:MatrixTarget",
    "PacZeroPlan": "fedpriv.audit.targets.pac_zero:PacZeroTarget",
    "RecordLevelPlan": "fedpriv.audit.targets.record_level:RecordLevelTarget",
    "RecordZerothOrderPlan": "fedpriv.audit.targets.record_zeroth_order:RecordZerothOrderTarget",
    "EvaluationPlan": "fedpriv.audit.targets.evaluation:EvaluationTarget",
    "DpsgdDcPlan": "fedpriv.audit.targets.dpsgd_dc:DpsgdDcTarget",
}


def find_target(setup: Setup) -> Target:
    """The target of a configured stage.

    Raises
    ------
    InvalidArgument
        When no target is registered for its plan.
    """
    name = type(setup.plan).__name__
    if name not in TARGETS:
        raise InvalidArgument(f"plan: {name} has no audit; there are audits of {', '.join(sorted(TARGETS))}")
    module, attribute = TARGETS[name].split(":")
    found: type[Target] = getattr(importlib.import_module(module), attribute)
    return found.of(setup)
