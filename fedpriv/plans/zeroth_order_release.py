"""When the release view of a zeroth-order stage may be charged by its hidden state, and by which event.

The bounds of `fedpriv.accounting.zeroth_order` are offered only if every hypothesis *holds*, judged from the objects
that run; one that fails means plain composition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.accounting.zeroth_order import zeroth_order_event
from fedpriv.mechanisms import FullParticipation
from fedpriv.mechanisms.parameter_grid import GRID_BITS
from fedpriv.plans.base import Hypothesis
from fedpriv.plans.hidden_state import HiddenState
from fedpriv.plans.zeroth_order import ZerothOrderPlan

_UNIT32, _UNIT64 = 2.0**-24, 2.0**-53
_DIRECTION = 2.0**-22  # relative rounding of a direction


@dataclass(frozen=True)
class ZerothOrderFacts:
    """What the objects of a zeroth-order stage say about its iteration.

    Parameters
    ----------
    learning_rate : float
        eta.
    constant_rate : bool
        No schedule.
    radius : float
        Of the ball to which every iterate is projected; 0 for none.
    center_norm : float
        Distance of the ball's centre from the origin.
    smoothness : float or None
        M of every record's loss where it follows from a proof: softmax regression on clipped features, which is
        convex and ``2 sqrt(M)``-Lipschitz, and which clients evaluate in float64. None otherwise.
    round_metrics : bool
        Something computed from an iterate before the last one is published.
    """

    learning_rate: float
    constant_rate: bool
    radius: float
    center_norm: float
    smoothness: float | None
    round_metrics: bool


def rounding_drift(plan: ZerothOrderPlan, facts: ZerothOrderFacts) -> tuple[float, float]:
    """Error of one evaluated loss, and distance that the rounding of models and directions adds to a pair of chains.

    With rho the norm of any model that is evaluated and z the features (norm at most ``sqrt(2 M)``), a loss is at
    most ``log C + 2 rho |z|`` and is computed in float64 from sums of d terms. Clients put model and perturbation
    on grids whose step is at most ``2^-50`` of the largest coordinate, so each moves by at most
    ``sqrt(d) 2^-50 rho``, and the loss by that times its Lipschitz constant. Directions are rounded to float32
    (at most ``2^-22`` of their length, normalisation included): that moves the points by ``2^-22 xi`` and the step
    by ``2^-22 eta Delta``. The model after a step is rounded to float32.
    """
    assert facts.smoothness is not None
    rho = _largest_model(facts) + plan.smoothing
    features, lipschitz = math.sqrt(2.0 * facts.smoothness), 2.0 * math.sqrt(facts.smoothness)
    grid = math.sqrt(plan.dimension) * 2.0 ** -GRID_BITS[8] * rho
    arithmetic = _UNIT64 * (8.0 * plan.dimension + 64.0) * (64.0 + 2.0 * rho * features)
    loss = arithmetic + lipschitz * (2.0 * grid + _DIRECTION * plan.smoothing)
    return loss, 2.0 * (_UNIT32 * rho + _DIRECTION * facts.learning_rate * plan.clip)


def _largest_model(facts: ZerothOrderFacts) -> float:
    """Norm of a model after projection and rounding to float32."""
    return (facts.radius + facts.center_norm) * (1.0 + 2.0 * _UNIT32)


def zeroth_order_hidden_state(plan: ZerothOrderPlan, facts: ZerothOrderFacts) -> HiddenState:
    """Judge the hypotheses and, when all hold, build the release view's event for the planned rounds."""
    conditions = _hypotheses(plan, facts)
    if any(h.status != "holds" for h in conditions) or facts.smoothness is None:
        return HiddenState(None, conditions, False)
    error, model = rounding_drift(plan, facts)
    event = zeroth_order_event(
        rounds=plan.rounds,
        dimension=plan.dimension,
        directions=plan.directions,
        learning_rate=facts.learning_rate,
        noise_std=plan.noise_std,
        direction_share=plan.direction_share,
        clip=plan.clip,
        contributors=round(plan.sums.divisor),
        radius=facts.radius + _UNIT32 * _largest_model(facts),
        adjacency=plan.adjacency,
        smoothness=facts.smoothness,
        strong_convexity=0.0,
        lipschitz=2.0 * math.sqrt(facts.smoothness),
        perturbation=plan.smoothing,
        grid_step=plan.sums.codec.step,
        loss_error=error,
        lattice_noise=True,
    )
    return HiddenState(replace(event, drift=event.drift + model), conditions, False)


def _hypotheses(plan: ZerothOrderPlan, facts: ZerothOrderFacts) -> tuple[Hypothesis, ...]:
    def judge(name: str, holds: bool, detail: str) -> Hypothesis:
        return Hypothesis(f"release view: {name}", "holds" if holds else "fails", detail)

    known = facts.smoothness is not None
    return (
        judge(
            "the clients' losses are smooth and Lipschitz with constants that follow from a proof",
            known,
            f"M = {facts.smoothness:g}, softmax regression on features clipped to a public norm"
            if facts.smoothness is not None
            else "this model has no known smoothness",
        ),
        judge(
            "directions are orthonormal",
            plan.kind == "orthonormal",
            f"{plan.directions} {plan.kind} directions",
        ),
        judge("the learning rate is constant", facts.constant_rate, "no schedule"),
        judge("every iterate is projected on a ball", facts.radius > 0, f"radius {facts.radius:g}"),
        judge(
            "continuous noise around the directions absorbs the shifts",
            plan.has_isotropic_noise,
            f"zeroth-order.direction-share = {plan.direction_share:g}",
        ),
        judge(
            "every client is asked in every round",
            isinstance(plan.sampler, FullParticipation),
            f"sampling = {plan.sampler.name}",
        ),
        judge(
            "nothing computed from an earlier iterate is published",
            not facts.round_metrics,
            "evaluate = none, or evaluate-every beyond the last round"
            if facts.round_metrics
            else "only the end",
        ),
        judge("the noise is secret", not plan.noise.seeded, "drawn from the operating system's entropy"),
        judge(
            "the noise of the sums is the clients' or the server's, on every sum",
            plan.noise.total_std_units > 0,
            plan.noise.kind,
        ),
    )
