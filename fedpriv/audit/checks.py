"""Consistency checks: does a mechanism do what its plan says and its events charge?

Every statistical check refutes a correct mechanism with probability at most `FALSE_ALARM`, by design of its test; what
a check can see is stated where it stands.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from scipy.special import bdtrc, chdtr, chdtrc, chdtri, ndtr, ndtri

from fedpriv.accounting.allocation_events import RandomAllocation
from fedpriv.accounting.events import FixedSizeGaussian, NonPrivate, PoissonGaussian, PrivacyEvent
from fedpriv.accounting.local_steps import LocalSteps
from fedpriv.accounting.vocabulary import View
from fedpriv.audit.ledger_check import check_messages
from fedpriv.audit.result import Finding
from fedpriv.audit.target import NoiseSample, Participation, Probes, Target
from fedpriv.plans import Plan

#: Probability with which one check fails although the mechanism is right.
FALSE_ALARM = 1e-9

#: Shifts are measured with a little noise and rounded to a grid.
SHIFT_TOLERANCE = 1e-3


def check_target(target: Target) -> list[Finding]:
    """All checks that a target has probes for.

    Parameters
    ----------
    target : Target
        Strategy under audit.

    Returns
    -------
    list of Finding
    """
    return list(iterate_checks(target))


def iterate_checks(target: Target) -> Iterator[Finding]:
    """The same, one by one as they are made."""
    probes, stage = target.probes(), target.stage
    if probes is None:
        return
    sums, (counted, again) = probes.noise(counted=False), _twice(probes)
    yield _variance(stage, "noise of a sum of honest clients", sums)
    yield _variance(stage, "noise that the guarantee counts", counted)
    yield _normal(stage, counted)
    yield _independent(stage, sums)
    yield _fresh(stage, counted, again)
    shifts = probes.shifts()
    worst = max(shifts, key=lambda name: shifts[name])
    yield Finding(
        stage,
        "sensitivity",
        shifts[worst] <= 1.0 + SHIFT_TOLERANCE,
        f"worst canary ({worst}) moves the sum by {shifts[worst]:.4g} of the plan's sensitivity",
    )
    yield from _events(stage, probes, counted, shifts[worst])
    yield check_messages(stage, probes.plan, probes.play_with, charged_once=probes.charged_once)


def _limits(square: float, count: int) -> tuple[float, float]:
    """Confidence limits of a variance from the sum of squares of ``count`` normal draws."""
    low, high = chdtri(count, FALSE_ALARM / 2), chdtri(count, 1.0 - FALSE_ALARM / 2)
    return square / float(low), square / float(high)


def _variance(stage: str, what: str, sample: NoiseSample) -> Finding:
    """Chi-square, two-sided: the noise is that of the plan. Sees 4 % of the standard deviation at 40,000 draws."""
    scaled = sample.draws / sample.expected_std[:, None]
    # per round: a round with more shares must not make up for one with fewer
    ratios = []
    good = True
    for row in scaled:
        square, count = float(row @ row), row.size
        level = FALSE_ALARM / 2 / len(scaled)
        good = good and min(chdtr(count, square), chdtrc(count, square)) >= level
        ratios.append((square / count) ** 0.5)
    shown = ", ".join(f"{ratio:.4f}" for ratio in ratios[:4])
    return Finding(stage, what, good, f"standard deviation over the plan's, by round: {shown}")


def _normal(stage: str, sample: NoiseSample) -> Finding:
    """Kolmogorov-Smirnov against the normal law, with the Dvoretzky-Kiefer-Wolfowitz inequality as its limit."""
    values = np.sort((sample.draws / sample.expected_std[:, None]).reshape(-1))
    count = len(values)
    law = ndtr(values)
    distance = float(
        max(np.max(np.arange(1, count + 1) / count - law), np.max(law - np.arange(count) / count))
    )
    limit = float(np.sqrt(np.log(2.0 / FALSE_ALARM) / (2.0 * count)))
    return Finding(stage, "noise is normal", distance <= limit, f"distance {distance:.4f}, limit {limit:.4f}")


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of two vectors of independent draws, in standard deviations; 0 where one has no variance."""
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale * np.sqrt(len(a)) if scale > 0 else 0.0


def _independent(stage: str, sample: NoiseSample) -> Finding:
    """Correlations between rounds and between neighbouring coordinates."""
    pairs = [(first, second) for i, first in enumerate(sample.draws) for second in sample.draws[i + 1 :]]
    pairs += [(row[1:], row[:-1]) for row in sample.draws]
    worst = max(abs(_correlation(a, b)) for a, b in pairs)
    # a normal limit for a product moment: its tails are a little heavier, hence the factor
    limit = 1.1 * float(-ndtri(FALSE_ALARM / 2 / len(pairs)))
    return Finding(
        stage, "noise is independent over rounds and coordinates", worst <= limit, f"{worst:.1f} deviations"
    )


def _twice(probes: Probes) -> list[NoiseSample]:
    """The same release twice, with all global generators put to the same state beforehand."""
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    samples = []
    try:
        for _ in range(2):
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            torch.default_generator.manual_seed(0)
            samples.append(probes.noise(counted=True))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
    return samples


def _fresh(stage: str, sample: NoiseSample, again: NoiseSample) -> Finding:
    """Noise must not repeat itself when global seeds do."""
    deviations = abs(_correlation(sample.draws.reshape(-1), again.draws.reshape(-1)))
    limit = 1.1 * float(-ndtri(FALSE_ALARM / 2))
    return Finding(
        stage,
        "noise is fresh whatever the global seeds",
        deviations <= limit,
        f"{deviations:.1f} deviations between two runs",
    )


def _events(stage: str, probes: Probes, counted: NoiseSample, worst: float) -> Iterator[Finding]:
    """What the events charge against noise, sensitivity and participation as measured."""
    plan = probes.plan
    square = float(np.sum((counted.draws / counted.guaranteed_std) ** 2))
    _, highest = _limits(square, counted.draws.size)
    # the largest noise over sensitivity that the measurements allow
    possible = counted.guaranteed_std * highest**0.5 / (probes.sensitivity_units * max(worst, 1e-12))
    possible *= 1.0 + SHIFT_TOLERANCE
    seen = probes.participation()
    for event, views in _by_event(plan).items():
        if isinstance(event, NonPrivate):
            continue
        place = f"event of the {', '.join(views)} view" + ("s" if len(views) > 1 else "")
        charged = probes.claimed_noise_multiplier(event)
        yield Finding(
            stage,
            f"{place}: noise over sensitivity",
            charged <= possible,
            f"charged for {charged:.4g}, measured at most {possible:.4g}",
        )
        rate = _sampling_rate(event)
        if rate < 1.0:
            yield _sampling(stage, place, rate, views, seen)


def _by_event(plan: Plan) -> dict[PrivacyEvent, list[View]]:
    found: dict[PrivacyEvent, list[View]] = {}
    for view, event in plan.events().items():
        found.setdefault(event, []).append(view)
    return found


def _sampling_rate(event: PrivacyEvent) -> float:
    if isinstance(event, PoissonGaussian):
        return event.sampling_rate
    if isinstance(event, FixedSizeGaussian):
        return event.sample_size / event.population_size
    if isinstance(event, LocalSteps):
        return event.sampling_rate
    if isinstance(event, RandomAllocation):
        return 1.0 / event.bins
    return 1.0


def _sampling(stage: str, place: str, rate: float, views: list[View], seen: Participation | None) -> Finding:
    """A binomial test of the rate, and whether a view that is amplified could read the cohort off the requests."""
    check = f"{place}: sampling"
    if seen is None:
        return Finding(stage, check, False, f"charged at rate {rate:g}, but everyone takes part")
    tail = float(bdtrc(seen.took_part - 1, seen.chances, rate)) if seen.took_part else 1.0
    hidden = views == ["release"] or not seen.cohort_is_visible
    detail = f"charged at rate {rate:g}, {seen.took_part} of {seen.chances} took part"
    detail += "" if hidden else "; the requests tell who takes part"
    return Finding(stage, check, tail >= FALSE_ALARM and hidden, detail)
