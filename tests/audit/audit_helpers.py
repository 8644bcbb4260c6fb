"""Small plans and their targets, for tests of the audit."""

from __future__ import annotations

from typing import Any

from fedpriv.audit import Setup, Target, find_target
from fedpriv.mechanisms import Ballot, FullParticipation
from fedpriv.plans import DpsgdDcPlan, VotePlan

#: Of a statistical test here: chance that it fails although the code is right. There are about thirty of them, and
#: about four hundred consistency checks at 1e-9 each, so the suite raises a false alarm with probability below 1e-6.
FLAKE = 1e-8
SURE = 1.0 - FLAKE


def train_plan(**changes: object) -> DpsgdDcPlan:
    values: dict[str, Any] = {
        "sampler": FullParticipation(),
        "clipping_norm": 0.5,
        "noise_multiplier": 1.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": 20,
        "min_survivors": 18,
        "rounds": 1,
        "length": 100,
    }
    return DpsgdDcPlan.build(**(values | changes))


def vote_plan(
    candidates: int = 12, votes: int = 3, noise_multiplier: float = 1.0, **changes: Any
) -> VotePlan:
    values: dict[str, Any] = {
        "adjacency": "add_or_remove",
        "num_clients": 20,
        "kind": "distributed",
        "min_survivors": 18,
    }
    return VotePlan.build(
        ballot=Ballot(candidates, votes), noise_multiplier=noise_multiplier, **(values | changes)
    )


def target_of(plan: Any, stage: str = "train", **options: Any) -> Target:
    return find_target(Setup(stage, plan, **options))
