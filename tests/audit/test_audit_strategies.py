"""The other strategies: checks pass, attacks are as strong as claimed and no stronger, planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from audit_helpers import SURE, target_of

import fedpriv.clients.private_evaluation as private_evaluation
import fedpriv.clients.private_update as private_update
import fedpriv.clients.zeroth_order as zeroth_order
import fedpriv.mechanisms.local_steps as local_steps
import fedpriv.mechanisms.sign_release as sign_release
from fedpriv import wire
from fedpriv.accounting.matrices import make_matrix
from fedpriv.audit import check_target, epsilon_lower_bound, success_lower_bound
from fedpriv.audit.checks import iterate_checks
from fedpriv.audit.procedure import collect
from fedpriv.audit.targets.matrix import bin_means
from fedpriv.audit.targets.record_level import steps_ratio
from fedpriv.mechanisms import FullParticipation, RandomAllocationSchedule, SelfSampling
from fedpriv.mechanisms.correlated_noise import CorrelatedNoise
from fedpriv.mechanisms.sign_release import SignRelease
from fedpriv.plans import (
    EvaluationPlan,
    MatrixPlan,
    PacZeroPlan,
    RecordLevelPlan,
    RecordZerothOrderPlan,
    ZerothOrderPlan,
)

Patch = pytest.MonkeyPatch


def quotient_plan(**changes: Any) -> ZerothOrderPlan:
    values: dict[str, Any] = {
        "sampler": FullParticipation(),
        "dimension": 100,
        "directions": 3,
        "clip": 0.5,
        "smoothing": 0.01,
        "direction_share": 1.0,
        "noise_multiplier": 0.2,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": 20,
        "min_survivors": 18,
        "rounds": 1,
    }
    return ZerothOrderPlan.build(**(values | changes))


def matrix_plan(bins: int = 3, epochs: int = 2, *, redraw: bool = False, **changes: Any) -> MatrixPlan:
    drawn_by = changes.pop("drawn_by", "self")
    values: dict[str, Any] = {
        "schedule": RandomAllocationSchedule(bins, epochs, redraw, drawn_by),
        "matrix": make_matrix("bsr", bins, 1 if redraw else epochs, band=2),
        "clipping_norm": 0.5,
        "noise_multiplier": 0.2,
        "num_clients": 20,
        "min_survivors": 18,
        "length": 100,
    }
    return MatrixPlan.build(**(values | changes))


def silo_plan(**changes: Any) -> RecordLevelPlan:
    values: dict[str, Any] = {
        "sampling_rate": 0.5,
        "clipping_norm": 0.5,
        "noise_multiplier": 0.2,
        "local_steps": 2,
        "adjacency": "add_or_remove",
        "radius": 10.0,
        "weighted": False,
        "num_clients": 5,
        "min_survivors": 4,
        "rounds": 1,
        "length": 100,
    }
    return RecordLevelPlan.build(**(values | changes))


def silo_quotient_plan(**changes: Any) -> RecordZerothOrderPlan:
    values: dict[str, Any] = {
        "dimension": 100,
        "directions": 3,
        "clip": 0.5,
        "smoothing": 0.01,
        "sampling_rate": 1.0,
        "noise_multiplier": 0.2,
        "adjacency": "add_or_remove",
        "weighted": False,
        "num_clients": 5,
        "min_survivors": 4,
        "rounds": 1,
    }
    return RecordZerothOrderPlan.build(**(values | changes))


def evaluation_plan(**changes: Any) -> EvaluationPlan:
    values: dict[str, Any] = {
        "cap": 50,
        "noise_multiplier": 0.2,
        "kind": "distributed",
        "adjacency": "add_or_remove",
        "num_clients": 20,
        "min_survivors": 18,
        "evaluations": 1,
    }
    return EvaluationPlan.build(**(values | changes))


def bit_plan(**changes: Any) -> PacZeroPlan:
    values: dict[str, Any] = {
        "variant": "mi",
        "budget_nats": 0.005,
        "subsets": 6,
        "rounds": 1,
        "num_silos": 5,
        "min_survivors": 4,
        "dimension": 50,
        "clip": 1.0,
        "smoothing": 0.01,
    }
    return PacZeroPlan(**(values | changes))


CHECKED = {
    "quotients": quotient_plan(),
    "quotients, self-sampling": quotient_plan(sampler=SelfSampling(0.3)),
    "quotients, replace_one": quotient_plan(adjacency="replace_one", kind="central", direction_share=0.5),
    "matrix": matrix_plan(),
    "matrix, redrawn": matrix_plan(redraw=True),
    "matrix, the server draws": matrix_plan(drawn_by="server", num_clients=6, min_survivors=2),
    "silos": silo_plan(),
    "silos, replace_one": silo_plan(sampling_rate=1.0, adjacency="replace_one"),
    "evaluation": evaluation_plan(),
}


@pytest.mark.parametrize("name", CHECKED)
def test_checks_pass(name: str) -> None:
    findings = check_target(target_of(CHECKED[name], "stage"))
    assert [finding for finding in findings if not finding.good] == []
    text = " ".join(finding.check for finding in findings)
    for expected in ("sensitivity", "fresh", "ledger against messages", "noise over sensitivity"):
        assert expected in text


@pytest.mark.parametrize(
    "plan",
    [
        quotient_plan(),
        quotient_plan(adjacency="replace_one", noise_multiplier=0.4),
        silo_plan(sampling_rate=1.0, local_steps=4, noise_multiplier=0.4),
        silo_plan(sampling_rate=1.0, local_steps=1, adjacency="replace_one", noise_multiplier=0.4),
        silo_quotient_plan(),
        evaluation_plan(),
    ],
    ids=[
        "quotients",
        "quotients, replace_one",
        "silos",
        "silos, replace_one",
        "silos' quotients",
        "evaluation",
    ],
)
def test_attacks_are_as_strong_as_claimed(plan: Any) -> None:
    """mu = 5 is claimed: with 60 runs its estimate has a standard deviation of 0.55, and 3.3 is six of them."""
    target = target_of(plan, "stage")
    claim = target.claim("server", 1e-2)
    assert claim.gaussian_mu == pytest.approx(5.0, rel=1e-6)
    trials = collect(target, 60)["server"]
    a, b = trials.present[:, 0], trials.absent[:, 0]
    measured = (a.mean() - b.mean()) / np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert abs(measured - 5.0) < 3.3
    assert epsilon_lower_bound(trials, 1e-2, SURE).epsilon < claim.value


@pytest.mark.parametrize(
    "plan",
    [
        quotient_plan(sampler=SelfSampling(0.5), noise_multiplier=1e-3, rounds=6),
        matrix_plan(noise_multiplier=1e-3),
        matrix_plan(noise_multiplier=1e-3, redraw=True),
        matrix_plan(noise_multiplier=1e-3, drawn_by="server", num_clients=6, min_survivors=2),
        silo_plan(noise_multiplier=1e-3, rounds=3),
    ],
    ids=["quotients", "matrix", "matrix, redrawn", "matrix, the server draws", "silos"],
)
def test_hardly_any_noise_is_seen_in_every_view(plan: Any) -> None:
    """The canary takes part but for a chance of 1/64, and then nothing hides it: 16 runs tell, but for one or two."""
    target = target_of(plan, "stage")
    trials = collect(target, 16)
    assert "release" in trials
    for view, found in trials.items():
        threshold = found.absent[:, 0].max()
        # more than 5 of 8 runs without the canary's coin: below 1e-9
        assert np.sum(found.present[:, 0] > threshold) >= 3, view


def test_means_of_bins_are_sums_of_columns() -> None:
    kept, redrawn = matrix_plan(), matrix_plan(redraw=True)
    dense = kept.matrix.dense()
    assert np.allclose(bin_means(kept)[0, 1], dense[:, 1] + dense[:, 4])
    block = redrawn.matrix.dense()
    assert bin_means(redrawn).shape == (2, 3, 6)
    assert np.allclose(bin_means(redrawn)[1, 2], np.concatenate([np.zeros(3), block[:, 2]]))


def test_ratio_of_steps_is_that_of_the_mixture() -> None:
    steps, rate, z, y = 3, 0.3, 0.8, 1.7
    chances = [(1 - rate) ** 3, 3 * rate * (1 - rate) ** 2, 3 * rate**2 * (1 - rate), rate**3]
    variance = steps * z * z
    dense = sum(c * np.exp(-((y - j) ** 2) / (2 * variance)) for j, c in enumerate(chances))
    expected = np.log(dense / np.exp(-(y**2) / (2 * variance)))
    assert steps_ratio(y, steps, rate, z, both=False) == pytest.approx(expected)
    whole = ((y + 3) ** 2 - (y - 3) ** 2) / (2 * variance)
    assert steps_ratio(y, steps, 1.0, z, both=True) == pytest.approx(whole)


# -- planted faults -------------------------------------------------------------------------------------------------


def clip_no_quotient(patch: Patch) -> None:
    patch.setattr(zeroth_order, "clipped_quotients", lambda quotients, clip: quotients)


def clip_quotients_twice_as_far(patch: Patch) -> None:
    clipped = zeroth_order.clipped_quotients
    patch.setattr(zeroth_order, "clipped_quotients", lambda quotients, clip: clipped(quotients, 2 * clip))
    patch.setattr(
        "fedpriv.mechanisms.grid.GridCodec.encode",
        lambda self, vector: np.trunc(vector / self.step).astype(np.int64),
    )


def draw_independent_rows(patch: Patch) -> None:
    """Noise of the right variance per round, without the correlation that the matrix asks for."""
    row = CorrelatedNoise.row

    def independent(self: CorrelatedNoise, index: int) -> np.ndarray:
        std = float(np.std(row(self, index)))
        return np.rint(np.random.default_rng().normal(0.0, std, self.length)).astype(np.int64)  # type: ignore[attr-defined]

    patch.setattr(CorrelatedNoise, "row", independent)


def take_part_always(patch: Patch) -> None:
    patch.setitem(private_update.TAKES_PART, wire.PURPOSE_ALLOCATION, lambda request, context: True)


def draw_every_record(patch: Patch) -> None:
    patch.setattr(local_steps, "poisson_records", lambda count, rate, source: np.arange(count))


def clip_no_record(patch: Patch) -> None:
    def summed(rows: np.ndarray, codec: Any) -> np.ndarray:
        values = np.nan_to_num(np.asarray(rows, dtype=np.float64).sum(axis=0) / codec.step)
        return np.clip(np.trunc(values), -(2**40), 2**40).astype(np.int64)

    patch.setattr(local_steps, "encoded_sum", summed)


def halve_the_noise_of_a_step(patch: Patch) -> None:
    drawn = local_steps.rounded_gaussian
    patch.setattr(local_steps, "rounded_gaussian", lambda scale, *rest: drawn(scale / 2, *rest))


def count_without_cap(patch: Patch) -> None:
    patch.setattr(
        private_evaluation,
        "capped_counts",
        lambda correct, examples, cap, units: np.array([correct * units, examples * units]),
    )


FAULTS: dict[str, tuple[Callable[[Patch], None], Any, str]] = {
    "quotients without a clip": (clip_no_quotient, quotient_plan(), "sensitivity"),
    "quotients at twice the clip": (clip_quotients_twice_as_far, quotient_plan(), "sensitivity"),
    "rows without correlation": (draw_independent_rows, matrix_plan(), "noise"),
    "a client in every round": (take_part_always, matrix_plan(), "sampling"),
    "every record in every batch": (draw_every_record, silo_plan(), "sampling"),
    "records without a clip": (clip_no_record, silo_plan(), "sensitivity"),
    "half the noise in a step": (halve_the_noise_of_a_step, silo_plan(), "noise over sensitivity"),
    "counts without a cap": (count_without_cap, evaluation_plan(), "sensitivity"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_check(name: str, monkeypatch: Patch) -> None:
    plant, plan, check = FAULTS[name]
    plant(monkeypatch)
    assert any(check in f.check and not f.good for f in iterate_checks(target_of(plan, "stage")))


# -- PACZero --------------------------------------------------------------------------------------------------------


def success_of(plan: PacZeroPlan, runs: int = 140) -> tuple[float, float]:
    """Lower bound on the success of the attack, and what is claimed."""
    target = target_of(plan, "paczero")
    claim = target.claim("server", 1e-2)
    assert claim.quantity == "success"
    return success_lower_bound(collect(target, runs)["server"], SURE).epsilon, claim.value


def test_bits_without_noise_refute_the_claim(monkeypatch: Patch) -> None:
    """0.005 nats claim 0.55; 35 judged runs of either kind, all told rightly, prove 0.57."""
    monkeypatch.setattr(sign_release, "noise_std_from_log_odds", lambda log_odds, nats: 1e-3)
    bound, claimed = success_of(bit_plan())
    assert claimed == pytest.approx(0.55, abs=2e-3)
    assert bound > claimed


def test_a_real_sign_instead_of_a_coin_refutes_the_claim(monkeypatch: Patch) -> None:
    monkeypatch.setattr(SignRelease, "release", lambda self, signs, source: int(signs[self.secret]))
    bound, claimed = success_of(bit_plan(variant="zpl", budget_nats=0.0))
    assert claimed == 0.5 and bound > claimed


def test_the_code_as_it_is_keeps_to_both_claims() -> None:
    for plan in (bit_plan(), bit_plan(variant="zpl", budget_nats=0.0)):
        bound, claimed = success_of(plan, 40)
        assert bound <= claimed


def test_a_large_budget_tells_the_secret() -> None:
    """One round with 0.69 of 0.693 nats is wrong in about one of 500 runs: the attack itself is a good one."""
    trials = collect(target_of(bit_plan(budget_nats=0.69), "paczero"), 20)
    for view in ("server", "release"):
        right = np.sum(trials[view].present[:, 0] > 0) + np.sum(trials[view].absent[:, 0] < 0)  # type: ignore[index]
        assert right >= 14  # six wrong ones: below 1e-11
