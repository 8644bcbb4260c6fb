"""Correct mechanisms: lower bounds are below the claims and not far below them; checks pass."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from audit_helpers import SURE, target_of, train_plan, vote_plan

from fedpriv.accounting import InvalidArgument
from fedpriv.audit import (
    Effort,
    Trials,
    audit,
    check_target,
    epsilon_lower_bound,
    find_target,
    gaussian_lower_bound,
    one_run_lower_bound,
)
from fedpriv.audit.procedure import GAUSSIAN, MANY_RUNS, ONE_RUN, collect
from fedpriv.audit.target import Setup, few_clients, signal_ratio
from fedpriv.mechanisms import FixedSizeCohort, PoissonCohort, SelfSampling
from fedpriv.plans import DpsgdDcPlan, VotePlan
from fedpriv.settings import resolve_settings

PLANS = {
    "full": train_plan(),
    "self": train_plan(sampler=SelfSampling(0.25)),
    "self, idle clients skip": train_plan(sampler=SelfSampling(0.25), idle_clients_train=False),
    "central": train_plan(kind="central"),
    "colluders": train_plan(colluders=5),
    "replace_one": train_plan(adjacency="replace_one"),
    "server draws": train_plan(sampler=PoissonCohort(0.5), kind="central", num_clients=8, min_survivors=3),
    "fixed size": train_plan(
        sampler=FixedSizeCohort(3), adjacency="replace_one", num_clients=8, min_survivors=3
    ),
    "vote": vote_plan(),
    "vote, replace_one": vote_plan(adjacency="replace_one", kind="central"),
}


@pytest.mark.parametrize("name", PLANS)
def test_checks_pass(name: str) -> None:
    plan = PLANS[name]
    findings = check_target(target_of(plan))
    assert [finding for finding in findings if not finding.good] == []
    text = " ".join(finding.check for finding in findings)
    for expected in ("sensitivity", "fresh", "ledger against messages", "noise over sensitivity"):
        assert expected in text
    sampled = isinstance(plan, DpsgdDcPlan) and plan.sampler.name != "full"
    assert ("sampling" in text) == sampled


@pytest.mark.parametrize("name", PLANS)
def test_the_small_federation_has_the_configured_events(name: str) -> None:
    target = target_of(PLANS[name])
    assert target.plan.events() == PLANS[name].events()  # type: ignore[attr-defined]


def separation(trials: Trials) -> float:
    """Distance of the means of the first statistic in standard deviations: mu, for normal scores.

    With 160 runs at mu = 4 its standard deviation is 0.28, so that 1.7 is beyond six of them.
    """
    a, b = trials.present[:, 0], trials.absent[:, 0]
    return float((a.mean() - b.mean()) / np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2))


def test_a_vote_is_as_bad_as_claimed() -> None:
    """mu = 1 / z = 4 is claimed; the worst ballot reaches it, and the bounds stay below."""
    target = target_of(vote_plan(noise_multiplier=0.25))
    claim = target.claim("server", 1e-2)
    assert claim.gaussian_mu == pytest.approx(4.0)
    trials = collect(target, 160)["server"]
    assert abs(separation(trials) - 4.0) < 1.7
    bound = gaussian_lower_bound(trials, 1e-2, SURE)
    assert bound.mu is not None and bound.mu < 4.0
    assert epsilon_lower_bound(trials, 1e-2, SURE).epsilon < claim.value


def test_training_is_as_bad_as_claimed_in_every_view() -> None:
    """Two rounds with z = sqrt(2)/4: mu = 4."""
    target = target_of(train_plan(noise_multiplier=2**0.5 / 4, rounds=2, kind="central"))
    trials = collect(target, 160)
    assert set(trials) == {"server", "participants", "release"}
    for view in ("participants", "release"):
        assert target.claim(view, 1e-2).gaussian_mu == pytest.approx(4.0)  # type: ignore[arg-type]
        assert abs(separation(trials[view]) - 4.0) < 1.7  # type: ignore[index]
        bound = gaussian_lower_bound(trials[view], 1e-2, SURE)  # type: ignore[index]
        assert bound.mu is not None and bound.mu < 4.0


@pytest.mark.parametrize("plan", [train_plan(noise_multiplier=0.25), vote_plan(noise_multiplier=0.25)])
def test_one_run_is_below_the_claim_and_says_something(plan: DpsgdDcPlan | VotePlan) -> None:
    target = target_of(plan)
    assert target.has_one_run("server")
    run = target.one_run("server", 120)  # shares of 120 clients need a finer grid than those of 20
    assert 20 < run.included.sum() < 100
    # 28 canaries are in and 28 are out but for a chance of 2e-9; the median of either kind is 4 deviations from the
    # other's mean, so that more than 4 wrong guesses among the 28 highest and 28 lowest are rarer than that
    assert run.right_guesses(56) >= 52
    bound = one_run_lower_bound(run, 56, 1e-12, SURE).epsilon
    assert 0.3 < bound < target.claim("server", 1e-12).value


def test_one_run_of_sampled_rounds() -> None:
    """q = 1/2, three rounds, hardly any noise: seven in eight canaries are seen; fewer than 5 of 60 by 1e-9 only."""
    target = target_of(train_plan(sampler=SelfSampling(0.5), noise_multiplier=0.05, rounds=3))
    run = target.one_run("server", 60)
    order = np.argsort(run.scores)
    assert run.included[order[-5:]].all()


def test_a_hidden_state_bound_is_claimed_and_holds() -> None:
    """Release view of 8 rounds on a small ball: composition claims twice as much as the bound."""
    from fedpriv.plans import TrainingFacts, hidden_state

    settings = resolve_settings(
        {"train.radius": 0.02, "train.release-noise": 0.03, "train.server-learning-rate": 1.0}
    )
    plan = train_plan(
        clipping_norm=0.1, noise_multiplier=1.0, rounds=8, num_clients=4, min_survivors=4, length=8
    )
    facts = TrainingFacts(
        smoothness=0.5,
        smoothness_proved=True,
        local_learning_rate=0.01,
        local_steps=1,
        local_momentum=0.0,
        server_learning_rate=1.0,
        plain_server=True,
        constant_rate=True,
        radius=0.02,
        center_norm=0.0,
        release_noise=0.03,
        round_metrics=False,
        linear_features=10,
        most_examples=100,
    )
    bound = hidden_state(plan, facts, 1e-2)
    assert bound.event is not None
    with_bound = find_target(Setup("train", plan, settings, bound))
    without = find_target(Setup("train", plan, settings))
    claim, composed = with_bound.claim("release", 1e-2), without.claim("release", 1e-2)
    assert claim.value < 0.7 * composed.value and claim.gaussian_mu is None
    assert with_bound.claim("server", 1e-2).value == composed.value
    report = audit(
        [with_bound], delta=1e-2, effort=Effort(16, 0, 0, False), confidence=SURE, views=["release"]
    )
    assert [row.method for row in report.rows] == [MANY_RUNS]
    assert not report.refuted


def test_the_server_s_step_is_that_of_the_configured_federation() -> None:
    """The canary moves the model by clip / 20 a round, as it would among the configured twenty clients."""
    plan = train_plan(noise_multiplier=1e-3, kind="central", rounds=2)
    settings = resolve_settings({"train.server-learning-rate": 2.0, "train.radius": 0.0})
    found = find_target(Setup("train", plan, settings)).play(True)["release"][0]
    assert found == pytest.approx(2 * 2.0 * 0.5 / 20, rel=0.01)
    projected = resolve_settings({"train.server-learning-rate": 2.0, "train.radius": 0.01})
    assert find_target(Setup("train", plan, projected)).play(True)["release"][0] == pytest.approx(
        0.01, rel=0.01
    )


def test_audit_reports_what_it_did_and_left_out() -> None:
    lines: list[str] = []
    report = audit(
        [target_of(vote_plan(kind="central"), "tune"), target_of(train_plan(), "train")],
        delta=1e-3,
        effort=Effort(16, 50, 0, False),
        confidence=SURE,
        views=["server"],
        say=lines.append,
    )
    assert [(row.stage, row.method) for row in report.rows] == [
        ("train", MANY_RUNS),
        ("train", GAUSSIAN),
        ("train", ONE_RUN),
    ]
    assert [(item.stage, item.view) for item in report.unaudited] == [("tune", "server")]
    assert all(row.confidence == pytest.approx(1 - (1 - SURE) / 3, abs=1e-12) for row in report.rows)
    assert "train: 16 runs" in lines and not report.refuted
    assert "DpsgdDc.train_round" in report.text()


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="runs"):
        Effort(runs=3)
    with pytest.raises(
        InvalidArgument, match="SimpleNamespace has no audit; there are audits of DpsgdDcPlan"
    ):
        target_of(SimpleNamespace())
    with pytest.raises(InvalidArgument, match="view must be"):
        audit([], delta=0.1, views=["final"])  # type: ignore[list-item]


def test_likelihood_ratio_of_a_sampled_gaussian() -> None:
    y, shift, rate = np.array([0.3, -1.2]), 1.5, 0.2
    expected = 0.0
    for value in y:
        dense = math.exp(-((value - shift) ** 2) / 2)
        expected += math.log((1 - rate) + rate * dense / math.exp(-(value**2) / 2))
    assert signal_ratio(y, shift, rate) == pytest.approx(expected)
    assert signal_ratio(y, shift, 1.0) == pytest.approx(float(np.sum(shift * y - shift**2 / 2)))


def test_few_clients_keep_the_guaranteed_noise() -> None:
    noise = train_plan(colluders=3).noise
    alone = few_clients(noise, 1, 1)
    assert alone.shares.counted_shares == 1 and alone.share_std_units == noise.total_std_units
    four = few_clients(noise, 4, 0)
    assert four.realised_std_units(4) == pytest.approx(noise.total_std_units * math.sqrt(4 / 3))
    assert replace(noise, kind="central").total_std_units == few_clients(noise, 1, 1).total_std_units
