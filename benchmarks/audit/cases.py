"""One small configuration per strategy, with a claim that an attack of a minute can come near."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedpriv.accounting.matrices import make_matrix
from fedpriv.audit import Effort, Setup, Target, find_target
from fedpriv.mechanisms import Ballot, FullParticipation, RandomAllocationSchedule, SelfSampling
from fedpriv.plans import (
    AnyPlan,
    DpsgdDcPlan,
    EvaluationPlan,
    HiddenState,
    MatrixPlan,
    PacZeroPlan,
    RecordLevelPlan,
    RecordZerothOrderPlan,
    TrainingFacts,
    VotePlan,
    ZerothOrderPlan,
    hidden_state,
)
from fedpriv.settings import Settings, resolve_settings

DELTA = 1e-3
CLIENTS = 20


@dataclass(frozen=True)
class Case:
    """A configuration to audit.

    Parameters
    ----------
    name : str
        Stage in the table.
    words : str
        What it is.
    make : callable
        The target.
    effort : Effort
        How much to run.
    """

    name: str
    words: str
    make: Callable[[], Target]
    effort: Effort


def _target(
    name: str, plan: AnyPlan, settings: Settings | None = None, bound: HiddenState | None = None
) -> Target:
    return find_target(Setup(name, plan, settings, bound))


def training(**changes: Any) -> DpsgdDcPlan:
    """Client-level training of twenty clients."""
    values: dict[str, Any] = {
        "sampler": FullParticipation(),
        "clipping_norm": 0.5,
        "noise_multiplier": 1.0,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": CLIENTS,
        "min_survivors": 18,
        "rounds": 3,
        "length": 650,
    }
    return DpsgdDcPlan.build(**(values | changes))


def _vote() -> Target:
    plan = VotePlan.build(Ballot(12, 3), "add_or_remove", CLIENTS, 0.7, "distributed", 18)
    return _target("DP-HYPE vote", plan)


def _hidden() -> Target:
    """Ten rounds on a small ball, with continuous noise on every iterate."""
    rate, radius, noise = 1.0, 0.02, 0.03
    settings = resolve_settings(
        {"train.radius": radius, "train.release-noise": noise, "train.server-learning-rate": rate}
    )
    plan = training(clipping_norm=0.1, rounds=10, num_clients=4, min_survivors=4, length=8)
    facts = TrainingFacts(
        smoothness=0.5,
        smoothness_proved=True,
        local_learning_rate=0.01,
        local_steps=1,
        local_momentum=0.0,
        server_learning_rate=rate,
        plain_server=True,
        constant_rate=True,
        radius=radius,
        center_norm=0.0,
        release_noise=noise,
        round_metrics=False,
        linear_features=10,
        most_examples=100,
    )
    return _target("DPSGD-DC, hidden state", plan, settings, hidden_state(plan, facts, DELTA))


def _shadow() -> Target:
    """Breast cancer over five clients: logistic regression, two rounds, hardly any noise."""
    settings = resolve_settings(
        {
            "stages": "train",
            "task": "breast-cancer",
            "num-clients": 5,
            "partition": "iid",
            "train.rounds": 2,
            "train.noise-multiplier": 0.4,
            "train.learning-rate": 0.1,
            "max-epsilon": 1000.0,
        }
    )
    plan = training(
        clipping_norm=1.0, noise_multiplier=0.4, rounds=2, num_clients=5, min_survivors=5, length=62
    )
    return _target("DPSGD-DC, breast cancer", plan, settings)


def _zeroth_order() -> Target:
    plan = ZerothOrderPlan.build(
        sampler=FullParticipation(),
        dimension=100,
        directions=2,
        clip=1.0,
        smoothing=0.01,
        direction_share=1.0,
        noise_multiplier=1.0,
        kind="distributed",
        adjacency="add_or_remove",
        num_clients=CLIENTS,
        min_survivors=18,
        rounds=3,
    )
    return _target("zeroth order", plan)


def _matrix() -> Target:
    plan = MatrixPlan.build(
        schedule=RandomAllocationSchedule(4, 2),
        matrix=make_matrix("bandmf", 4, 2, band=2),
        clipping_norm=0.5,
        noise_multiplier=0.5,
        num_clients=CLIENTS,
        min_survivors=18,
        length=100,
    )
    return _target("random allocation, banded", plan)


def _record() -> Target:
    plan = RecordLevelPlan.build(
        sampling_rate=0.5,
        clipping_norm=0.5,
        noise_multiplier=0.5,
        local_steps=2,
        adjacency="add_or_remove",
        radius=10.0,
        weighted=False,
        num_clients=5,
        min_survivors=4,
        rounds=2,
        length=100,
    )
    return _target("record-level", plan)


def _record_zeroth_order() -> Target:
    plan = RecordZerothOrderPlan.build(
        dimension=100,
        directions=2,
        clip=1.0,
        smoothing=0.01,
        sampling_rate=0.5,
        noise_multiplier=0.5,
        adjacency="add_or_remove",
        weighted=False,
        num_clients=5,
        min_survivors=4,
        rounds=3,
    )
    return _target("record-level, zeroth order", plan)


def _evaluation() -> Target:
    plan = EvaluationPlan.build(
        cap=50,
        noise_multiplier=1.0,
        kind="distributed",
        adjacency="add_or_remove",
        num_clients=CLIENTS,
        min_survivors=18,
        evaluations=2,
    )
    return _target("private evaluation", plan)


def _pac(variant: str, nats: float) -> Target:
    plan = PacZeroPlan(
        variant=variant,  # type: ignore[arg-type]
        budget_nats=nats,
        subsets=8,
        rounds=4,
        num_silos=5,
        min_survivors=4,
        dimension=50,
        clip=1.0,
        smoothing=0.01,
    )
    return _target(f"PACZero, {variant}", plan)


def cases(scale: float = 1.0) -> list[Case]:
    """All configurations.

    Parameters
    ----------
    scale : float
        Factor on the number of runs and canaries.
    """

    def effort(runs: int, canaries: int = 0, shadow_runs: int = 0) -> Effort:
        least = 16
        return Effort(
            max(least, round(scale * runs)) if runs else 0,
            max(least, round(scale * canaries)) if canaries else 0,
            max(least, round(scale * shadow_runs)) if shadow_runs else 0,
        )

    return [
        Case("DP-HYPE vote", "3 of 12 votes, noise multiplier 0.7", _vote, effort(3000, 400)),
        Case(
            "DPSGD-DC, all clients",
            "3 rounds, noise multiplier 1",
            lambda: _target("DPSGD-DC, all clients", training()),
            effort(2000, 400),
        ),
        Case(
            "DPSGD-DC, self-sampling",
            "3 rounds, rate 0.3, noise multiplier 0.5",
            lambda: _target(
                "DPSGD-DC, self-sampling", training(sampler=SelfSampling(0.3), noise_multiplier=0.5)
            ),
            effort(2000, 400),
        ),
        Case(
            "DPSGD-DC, central noise",
            "3 rounds, noise multiplier 1; nothing is claimed for the server",
            lambda: _target("DPSGD-DC, central noise", training(kind="central")),
            effort(2000),
        ),
        Case(
            "DPSGD-DC, hidden state",
            "10 rounds, ball of radius 0.02, release noise 0.03; composition would claim for the release what it does "
            "for the server",
            _hidden,
            effort(1000),
        ),
        Case(
            "DPSGD-DC, breast cancer",
            "2 rounds of the task itself, noise multiplier 0.4",
            _shadow,
            effort(0, 0, 600),
        ),
        Case("zeroth order", "3 rounds of 2 directions, noise multiplier 1", _zeroth_order, effort(1200)),
        Case(
            "random allocation, banded",
            "4 bins, 2 epochs, banded matrix, noise multiplier 0.5",
            _matrix,
            effort(1200),
        ),
        Case("record-level", "2 rounds of 2 steps, rate 0.5, noise multiplier 0.5", _record, effort(1000)),
        Case(
            "record-level, zeroth order",
            "3 rounds of 2 directions, rate 0.5, noise multiplier 0.5",
            _record_zeroth_order,
            effort(800),
        ),
        Case("private evaluation", "2 evaluations, noise multiplier 1", _evaluation, effort(1500)),
        Case("PACZero, mi", "0.2 nats over 4 rounds", lambda: _pac("mi", 0.2), effort(1200)),
        Case("PACZero, zpl", "0 nats, 4 rounds", lambda: _pac("zpl", 0.0), effort(1200)),
    ]
