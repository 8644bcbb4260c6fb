"""The methods of the table, one silo: the product's own mechanisms and plans in a plain loop.

A run through Flower's messages (`benchmarks.finetune.silos`) does the same arithmetic with more overhead; the private
methods here draw their subsets, coins and noise from the same classes and the operating system's entropy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.finetune.data import Sentences
from fedpriv.mechanisms import FullParticipation, SecureSource, rounded_gaussian
from fedpriv.mechanisms.directions import SEED_BYTES, Directions
from fedpriv.mechanisms.perturbation import two_point_quotients
from fedpriv.mechanisms.schedules import schedule_factor
from fedpriv.mechanisms.sign_release import SignRelease, balanced_subsets, subset_signs
from fedpriv.mechanisms.zeroth_order import PublicStep, clipped_quotients
from fedpriv.plans import ZerothOrderPlan, calibrate_plans
from fedpriv.tasks.objective import ModelObjective

SMOOTHING = 0.01
#: Bound on a record's quotient in the signs, for stability only.
SIGN_CLIP = 10.0
DELTA = 1e-5


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Parameters
    ----------
    name : str
    kind : {"mezo", "sign", "zpl", "mi", "dp"}
    budget : float
        Nats or epsilon; 0 where nothing is private or nothing leaks.
    directions : int
        K.
    rates : tuple of float
        Learning rates to choose from; as many for every method.
    batch : int
        Records per step; 0 for all.
    """

    name: str
    kind: str
    budget: float = 0.0
    directions: int = 1
    rates: tuple[float, ...] = ()
    batch: int = 0


#: Fixed before the committed run and never moved: half decades, seven for every method, one grid for steps of a given
#: length (signs and bits) and one for steps by the quotient's size.
SIGN_RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
MEAN_RATES = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
#: Sixteen directions cost sixteen times the forward passes: a fifth of the rounds.
MANY_SHARE = 5
METHODS = (
    Method("MeZO, no privacy (64 a step)", "mezo", rates=MEAN_RATES, batch=64),
    Method("sign of the full quotient, no privacy", "sign", rates=SIGN_RATES),
    Method("PACZero-ZPL", "zpl", rates=SIGN_RATES),
    *(
        Method(f"PACZero-MI, {nats:g} nats", "mi", nats, rates=SIGN_RATES)
        for nats in (1e-4, 0.11, 0.33, 0.68)
    ),
    *(
        Method(
            f"DP zeroth-order, K = {k}, epsilon {epsilon:g}",
            "dp",
            epsilon,
            k,
            MEAN_RATES,
        )
        for k in (1, 16)
        for epsilon in (0.5, 1.0, 2.0, 6.0)
    ),
)


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Parameters
    ----------
    validation, test : float
        Accuracies of the last model.
    unanimous : tuple of bool
        Per step, where the method has subsets.
    spent : float
        Nats, or epsilon at delta 1e-5 as planned.
    """

    validation: float
    test: float
    unanimous: tuple[bool, ...]
    spent: float


Coefficients = Callable[[np.ndarray, int], np.ndarray]
"""From quotients (K, n) and round to the K numbers that the step multiplies directions with."""


def dp_plan(method: Method, records: int, dimension: int, rounds: int, clip: float) -> ZerothOrderPlan:
    """Plan in which every record is a unit that sends its own clipped quotients; noise solved for the budget."""

    def build(noise_multiplier: float) -> ZerothOrderPlan:
        return ZerothOrderPlan.build(
            sampler=FullParticipation(),
            dimension=dimension,
            directions=method.directions,
            clip=clip,
            smoothing=SMOOTHING,
            direction_share=1.0,
            noise_multiplier=noise_multiplier,
            kind="central",
            adjacency="add_or_remove",
            num_clients=records,
            min_survivors=records,
            rounds=rounds,
        )

    found = calibrate_plans(
        target_epsilon=method.budget,
        delta=DELTA,
        adjacency="add_or_remove",
        view="participants",
        make_train=build,
    ).train
    assert isinstance(found, ZerothOrderPlan)
    return found


def run(
    method: Method, data: Sentences, rate: float, rounds: int, subsets: int, seed: int, clip: float
) -> Trained:
    """Train from a fresh model and return its accuracies."""
    objective = ModelObjective(data.model(seed), data.train)
    arrays = {name: tensor.detach().numpy() for name, tensor in objective.model.state_dict().items()}
    dimension = sum(array.size for array in arrays.values())
    records = objective.num_records
    release, members, unanimous = None, None, list[bool]()
    spent = 0.0
    if method.kind in ("zpl", "mi"):
        source = SecureSource()
        release = SignRelease.start(method.kind, subsets, method.budget, rounds, source)  # type: ignore[arg-type]
        members = balanced_subsets(records, subsets, source.words(4).tobytes())
    plan = dp_plan(method, records, dimension, rounds, clip) if method.kind == "dp" else None
    generator = np.random.default_rng([seed, 1])
    for server_round in range(1, rounds + 1):
        text = f"{seed}:{server_round}".encode()
        directions = Directions(hashlib.sha256(text).digest()[:SEED_BYTES], dimension, method.directions)
        chosen = None
        if method.batch and method.batch < records:
            chosen = np.sort(generator.choice(records, method.batch, replace=False))
        quotients = two_point_quotients(objective, directions, SMOOTHING, chosen)
        if method.kind == "mezo":
            numbers = quotients.mean(axis=1) / method.directions
        elif method.kind == "sign":
            numbers = np.where(quotients.mean(axis=1) >= 0.0, 1.0, -1.0)
        elif release is not None and members is not None:
            signs = subset_signs(clipped_quotients(quotients[0], SIGN_CLIP), members)
            numbers = np.array([float(release.release(signs, SecureSource()))])
            unanimous.append(bool(release.unanimous))
        else:
            assert plan is not None
            numbers = noised_means(quotients, plan) / method.directions
        step = rate * schedule_factor("linear", server_round, rounds)
        PublicStep(directions.seed, directions.kind, tuple(float(step * n) for n in numbers)).apply(arrays)
    if release is not None:
        spent = release.budget.used
    return Trained(
        data.accuracy(objective.model, data.validation),
        data.accuracy(objective.model, data.test),
        tuple(unanimous),
        method.budget if plan is not None else spent,
    )


def noised_means(quotients: np.ndarray, plan: ZerothOrderPlan) -> np.ndarray:
    """What `ZerothOrder` would release: every record's quotients on the grid, summed, noised, divided."""
    codec = plan.sums.codec
    units = np.trunc(clipped_quotients(quotients, plan.clip) / codec.step).astype(np.int64)
    noise = rounded_gaussian(plan.noise.total_std_units, plan.directions, SecureSource())
    return codec.decode(units.sum(axis=1) + noise) / plan.sums.divisor


def with_rates(method: Method, rates: tuple[float, ...]) -> Method:
    """The method with other learning rates to choose from."""
    return replace(method, rates=rates)
