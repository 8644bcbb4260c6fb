"""An audit from end to end: attacks of every view, bounds beside claims, consistency checks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedpriv.accounting.gaussian import gaussian_noise_multiplier
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_delta, check_integer
from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.audit.bounds import (
    LowerBound,
    Trials,
    check_confidence,
    epsilon_lower_bound,
    gaussian_lower_bound,
    success_lower_bound,
)
from fedpriv.audit.checks import check_target
from fedpriv.audit.one_run import best_guesses, one_run_lower_bound
from fedpriv.audit.result import Claim, Report, Row, Unaudited
from fedpriv.audit.target import Target

Say = Callable[[str], None]

MANY_RUNS = "many runs"
GAUSSIAN = "many runs, Gaussian DP"
ONE_RUN = "one run, many canaries"
SHADOW = "shadow models"

#: Numbers of canaries that are tried on paper for an attack with one run.
_CANARIES = (25, 50, 100, 200, 400, 800)


@dataclass(frozen=True)
class Effort:
    """How much to run.

    Parameters
    ----------
    runs : int
        Runs per stage, half of them with the canary; 0 leaves these methods out.
    canaries : int
        Most canaries in an attack with one run; 0 leaves it out.
    shadow_runs : int
        Runs on the task's own data for a membership attack on the release view; 0 leaves it out.
    checks : bool
        Whether to run the consistency checks.
    """

    runs: int = 400
    canaries: int = 200
    shadow_runs: int = 0
    checks: bool = True

    def __post_init__(self) -> None:
        check_integer(0, runs=self.runs, canaries=self.canaries, shadow_runs=self.shadow_runs)
        for name in ("runs", "shadow_runs"):
            if 0 < getattr(self, name) < 16:
                raise InvalidArgument(f"{name}: {getattr(self, name)}; at least 16 are needed, or 0 for none")


@dataclass(frozen=True)
class _Planned:
    target: Target
    view: View
    method: str
    claim: Claim
    canaries: int = 0
    guesses: int = 0


def audit(
    targets: Sequence[Target],
    *,
    delta: float,
    effort: Effort | None = None,
    confidence: float = 0.95,
    views: Sequence[View] = VIEWS,
    subject: str = "",
    say: Say | None = None,
) -> Report:
    """Attack every view of every target and put the lower bounds beside the claims.

    Parameters
    ----------
    targets : sequence of Target
        Stages of one configuration, or strategies of their own.
    delta : float
        At which epsilons are compared.
    effort : Effort, optional
        How much to run.
    confidence : float
        With this probability **no** bound of the report exceeds the truth: the error is shared out over the rows.
    views : sequence of View
        Views to attack.
    subject : str
        What is audited, for the heading.
    say : callable, optional
        Gets lines of progress.

    Returns
    -------
    Report
        Its ``refuted`` says whether a bound exceeds its claim or a check failed.

    Raises
    ------
    InvalidArgument
        When an argument is out of range; the message names it.
    """
    check_delta(delta=delta)
    check_confidence(confidence)
    for view in views:
        check_choice(VIEWS, view=view)
    effort, say = effort or Effort(), say or (lambda line: None)
    report = Report(subject, delta, confidence, code={t.stage: t.code for t in targets})
    planned = [row for target in targets for row in _planned(target, views, delta, effort, report)]
    each = 1.0 - (1.0 - confidence) / max(len(planned), 1)
    with _quiet_logs():
        for target in targets:
            rows = [row for row in planned if row.target is target]
            report.rows += _rows(target, rows, delta, each, effort, say)
            if effort.checks:
                say(f"{target.stage}: consistency checks")
                report.findings += check_target(target)
    return report


def _planned(
    target: Target, views: Sequence[View], delta: float, effort: Effort, report: Report
) -> Iterator[_Planned]:
    for view in target.views():
        if view not in views:
            continue
        claim = target.claim(view, delta)
        if math.isinf(claim.value):
            report.unaudited.append(Unaudited(target.stage, view, "no guarantee is claimed"))
            continue
        if effort.runs:
            yield _Planned(target, view, MANY_RUNS, claim)
            if claim.gaussian_mu is not None:
                yield _Planned(target, view, GAUSSIAN, claim)
        if effort.canaries and target.has_one_run(view):
            canaries, guesses, expected = _design(effort.canaries, claim, delta)
            if expected > 0:
                yield _Planned(target, view, ONE_RUN, claim, canaries, guesses)
            else:
                why = f"one run with {effort.canaries} canaries can show nothing at delta {delta:g}"
                report.unaudited.append(Unaudited(target.stage, view, why))
        if effort.shadow_runs and view == "release" and target.shadow() is not None:
            yield _Planned(target, view, SHADOW, claim)


def _design(most: int, claim: Claim, delta: float) -> tuple[int, int, float]:
    """Canaries and guesses with the best expected bound if the claim were tight and Gaussian."""
    if claim.value <= 0 or delta <= 0:
        return 0, 0, 0.0
    mu = claim.gaussian_mu or 1.0 / gaussian_noise_multiplier(claim.value, delta)
    best = (0, 0, 0.0)
    for canaries in sorted({min(count, most) for count in _CANARIES}):
        if canaries < 2:
            continue
        guesses, bound = best_guesses(canaries, mu, delta)
        if bound > best[2]:
            best = (canaries, guesses, bound)
    return best


def collect(target: Target, runs: int) -> dict[View, Trials]:
    """Play a target with and without its canary, in turns.

    Parameters
    ----------
    target : Target
        Strategy.
    runs : int
        In all.
    """
    check_integer(8, runs=runs)
    played = [(target.play(True), target.play(False)) for _ in range(runs // 2)]
    return {
        view: Trials(
            np.array([present[view] for present, _ in played]),
            np.array([absent[view] for _, absent in played]),
        )
        for view in target.views()
    }


def _rows(
    target: Target, planned: Sequence[_Planned], delta: float, confidence: float, effort: Effort, say: Say
) -> list[Row]:
    trials: dict[View, Trials] = {}
    if any(row.method in (MANY_RUNS, GAUSSIAN) for row in planned):
        say(f"{target.stage}: {effort.runs} runs")
        trials = collect(target, effort.runs)
    found = []
    for row in planned:
        if row.method == ONE_RUN:
            say(f"{target.stage}: one run with {row.canaries} canaries ({row.view})")
            run = target.one_run(row.view, row.canaries)
            bound = one_run_lower_bound(run, row.guesses, delta, confidence)
        elif row.method == SHADOW:
            say(f"{target.stage}: {effort.shadow_runs} shadow models")
            shadow = target.shadow()
            assert shadow is not None
            bound = epsilon_lower_bound(shadow.trials(effort.shadow_runs), delta, confidence)
        elif row.claim.quantity == "success":
            bound = success_lower_bound(trials[row.view], confidence)
        elif row.method == GAUSSIAN:
            bound = gaussian_lower_bound(trials[row.view], delta, confidence)
        else:
            bound = epsilon_lower_bound(trials[row.view], delta, confidence)
        found.append(make_row(target.stage, row.view, row.method, row.claim, bound))
    return found


def make_row(stage: str, view: str, method: str, claim: Claim, bound: LowerBound) -> Row:
    """A row of the report."""
    return Row(stage, view, method, claim, bound.epsilon, bound.confidence, bound.runs, bound.detail)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Canaries do what clients log; thousands of runs would repeat it."""
    loggers = [logging.getLogger(name) for name in ("fedpriv", "flwr")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
