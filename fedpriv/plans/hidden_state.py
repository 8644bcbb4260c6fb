"""When the release view of a training run may be charged by amplification by iteration, and by which event.

The bound of `fedpriv.accounting.amplification_by_iteration` is offered only if every hypothesis *holds*, judged from
the objects that run. One that fails, or is taken on trust, means plain composition, with a single exception: a
smoothness that the user vouches for (``train.assume-smoothness``) gives a bound that is labelled conditional.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.accounting.amplification_by_iteration import AmplificationByIteration
from fedpriv.accounting.dpsgd_dc import dpsgd_dc_event
from fedpriv.accounting.zeroth_order import ZerothOrderHiddenState
from fedpriv.mechanisms import FixedSizeCohort, PoissonCohort, SelfSampling
from fedpriv.plans.base import Hypothesis
from fedpriv.plans.dpsgd_dc import DpsgdDcPlan

_UNIT = 2.0**-24  # unit roundoff of float32, in which clients train and models travel
#: Part of delta that pays for a self-sampled cohort above its quantile.
_COHORT_SHARE = 0.01


@dataclass(frozen=True)
class TrainingFacts:
    """What the objects of a training run say about its iteration.

    Parameters
    ----------
    smoothness : float or None
        L of every client's loss, with the constant feature of the bias; None when nothing is known.
    smoothness_proved : bool
        False when the user vouches for it.
    local_learning_rate, local_steps, local_momentum
        The clients' plain SGD.
    server_learning_rate : float
        Constant rate of the server's step.
    plain_server : bool
        The server's step has no momentum and no adaptivity.
    constant_rate : bool
        No schedule.
    radius : float
        Of the ball to which every iterate is projected; 0 for none.
    center_norm : float
        Distance of the ball's centre from the origin.
    release_noise : float
        Standard deviation per coordinate of continuous noise that the server adds to every iterate.
    round_metrics : bool
        Something computed from an iterate before the last one is published (a curve in the report).
    linear_features : int or None
        Number of features, bias included, of a linear model whose rounding error can be bounded; else None.
    most_examples : int
        Public bound on the number of examples of a client.
    """

    smoothness: float | None
    smoothness_proved: bool
    local_learning_rate: float
    local_steps: int
    local_momentum: float
    server_learning_rate: float
    plain_server: bool
    constant_rate: bool
    radius: float
    center_norm: float
    release_noise: float
    round_metrics: bool
    linear_features: int | None
    most_examples: int


@dataclass(frozen=True)
class HiddenState:
    """The answer for one run.

    Parameters
    ----------
    event : AmplificationByIteration, ZerothOrderHiddenState or None
        The stage as a whole in the release view; None when only composition may be claimed.
    hypotheses : tuple of Hypothesis
        All conditions with their status.
    conditional : bool
        The event rests on a smoothness that the user vouches for.
    """

    event: AmplificationByIteration | ZerothOrderHiddenState | None
    hypotheses: tuple[Hypothesis, ...]
    conditional: bool


def local_rounding_error(facts: TrainingFacts) -> float:
    """Bound on the float32 error (L2) of one client's update, for softmax regression on clipped features.

    With u = 2^-24 and gamma(n) = n u / (1 - n u) the error of any order of summation of n terms (Higham 2002,
    section 3.1), B^2 = 2 L the squared feature norm and r the largest norm of a model within the local steps:
    a logit is off by at most gamma(F) B r, a probability vector by twice that and rounding, the mean gradient by
    B (2 gamma(F) B r + gamma(n) sqrt(2) + 16 u); each of the E steps adds eta_l times that and u r for the
    subtraction, and later steps expand an error by at most 1 + eta_l L.
    """
    if facts.linear_features is None or not facts.smoothness or facts.most_examples * _UNIT >= 0.5:
        return math.inf
    bound = math.sqrt(2.0 * facts.smoothness)
    rate, steps = facts.local_learning_rate, facts.local_steps
    largest = facts.radius + facts.center_norm + steps * rate * bound * math.sqrt(2.0)

    def gamma(terms: int) -> float:
        return terms * _UNIT / (1.0 - terms * _UNIT)

    gradient = bound * (
        2.0 * gamma(facts.linear_features) * bound * largest
        + gamma(facts.most_examples) * math.sqrt(2.0)
        + 16.0 * _UNIT
    )
    growth = steps * math.log1p(rate * facts.smoothness)
    if growth > 600.0:
        return math.inf
    expansions = math.expm1(growth) / (rate * facts.smoothness)  # sum of (1 + eta_l L)^i, i < E
    return expansions * (rate * gradient + _UNIT * largest)


def hidden_state(plan: DpsgdDcPlan, facts: TrainingFacts, delta: float) -> HiddenState:
    """Judge the hypotheses and, when they allow it, build the release view's event for the planned rounds.

    The clients' pseudo-gradient theta - theta_E is ((1 + eta_l L)^E - 1)-Lipschitz; float32 errors of the local
    steps and of the model on the wire enter as drift, like the grid's rounding.

    Parameters
    ----------
    plan : DpsgdDcPlan
        Sampling, clip, grid and noise.
    facts : TrainingFacts
        The rest of the iteration.
    delta : float
        Where the epsilon will be read; a hundredth of it pays for large self-sampled cohorts.
    """
    conditions = _hypotheses(plan, facts)
    blocking = [
        h for h in conditions if h.status == "fails" or (h.status == "assumed" and facts.smoothness_proved)
    ]
    conditional = not facts.smoothness_proved and facts.smoothness is not None
    if blocking or facts.smoothness is None:
        return HiddenState(None, tuple(conditions), False)
    growth = facts.local_steps * math.log1p(facts.local_learning_rate * facts.smoothness)
    if growth > 600.0:
        return HiddenState(None, tuple(conditions), False)
    rate = plan.sampler.rate if isinstance(plan.sampler, SelfSampling) else 1.0
    event = dpsgd_dc_event(
        rounds=plan.rounds,
        learning_rate=facts.server_learning_rate,
        smoothness=math.expm1(growth),
        clipping_norm=plan.codec.clipping_norm,
        noise_multiplier=plan.noise_multiplier,
        radius=facts.radius,
        cohort=plan.divisor,
        adjacency=plan.adjacency,
        sampling_rate=rate,
        num_clients=plan.num_clients,
        failure_mass=_COHORT_SHARE * delta if rate < 1.0 else 0.0,
        grid_step=plan.codec.step,
        dimension=plan.length,
        release_noise_std=facts.release_noise,
    )
    members = plan.num_clients / plan.divisor
    model_error = _UNIT * (facts.radius + facts.center_norm)
    client_error = local_rounding_error(facts)
    if conditional and not math.isfinite(client_error):
        client_error = 0.0  # vouched for, see the hypotheses
    drift = 2.0 * (model_error + facts.server_learning_rate * members * client_error)
    if not math.isfinite(drift):
        return HiddenState(None, tuple(conditions), False)
    return HiddenState(replace(event, drift=event.drift + drift), tuple(conditions), conditional)


_ROUNDING = "release view: the rounding error of local training has a bound"
_SMOOTH = "release view: the clients' loss is smooth with a constant that follows from a proof"


def _hypotheses(plan: DpsgdDcPlan, facts: TrainingFacts) -> list[Hypothesis]:
    def judge(name: str, holds: bool, detail: str) -> Hypothesis:
        return Hypothesis(f"release view: {name}", "holds" if holds else "fails", detail)

    if facts.smoothness is None:
        smooth = Hypothesis(_SMOOTH, "fails", "this model has no known smoothness")
    elif facts.smoothness_proved:
        detail = f"L = {facts.smoothness:g}, softmax regression on features clipped to a public norm"
        smooth = Hypothesis(_SMOOTH, "holds", detail)
    else:
        detail = (
            f"L = {facts.smoothness:g} is vouched for by train.assume-smoothness: the bound is conditional"
        )
        smooth = Hypothesis(_SMOOTH, "assumed", detail)
    if math.isfinite(local_rounding_error(facts)):
        rounding = Hypothesis(_ROUNDING, "holds", "enters as drift")
    elif facts.smoothness is not None and not facts.smoothness_proved:
        rounding = Hypothesis(
            _ROUNDING, "assumed", "vouched for together with the smoothness, and set to zero"
        )
    else:
        rounding = Hypothesis(_ROUNDING, "fails", "known for softmax regression with moderate steps only")
    return [
        smooth,
        judge(
            "the clients take plain SGD steps in a fixed data order",
            facts.local_momentum == 0.0,
            f"momentum {facts.local_momentum:g}; the order follows from seed, round and partition",
        ),
        judge(
            "the server's step is plain, with a constant rate and a constant clip",
            facts.plain_server and facts.constant_rate,
            "no momentum, no adaptivity, no schedule"
            if facts.plain_server
            else "momentum or an adaptive step",
        ),
        judge("every iterate is projected on a ball", facts.radius > 0, f"radius {facts.radius:g}"),
        judge(
            "everyone takes part, or each client by its own secret coin",
            not isinstance(plan.sampler, FixedSizeCohort | PoissonCohort)
            and (plan.idle_clients_train or not isinstance(plan.sampler, SelfSampling)),
            f"sampling = {plan.sampler.name}"
            + ("" if plan.idle_clients_train else "; idle clients skip the training, which shows their coin"),
        ),
        judge(
            "continuous noise absorbs the shifts",
            facts.release_noise > 0,
            f"train.release-noise = {facts.release_noise:g}; noise on the grid cannot",
        ),
        judge(
            "nothing computed from an earlier iterate is published",
            not facts.round_metrics,
            "evaluate = none, or evaluate-every beyond the last round"
            if facts.round_metrics
            else "only the end",
        ),
        rounding,
        judge("the noise is secret", not plan.noise.seeded, "drawn from the operating system's entropy"),
    ]
