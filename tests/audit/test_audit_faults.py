"""Planted faults: each must be caught, by a lower bound above the claim or by a consistency check.

The same checks pass on the code as it is (`test_audit_targets`), with a false alarm at 1e-9 per check; the bounds here
hold with probability 1 - 1e-8, on the code as it is, too (`test_bounds_of_the_code_as_it_is`). With a fault planted the
chance that it goes unseen is below 1e-8 as well, by the margins that the tests state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from audit_helpers import SURE, target_of, train_plan, vote_plan

import fedpriv.clients.noise_share as noise_share
import fedpriv.clients.private_update as private_update
import fedpriv.strategies.noised_sum as noised_sum
from fedpriv import wire
from fedpriv.accounting import Gaussian, PoissonGaussian, View
from fedpriv.audit import Target, epsilon_lower_bound, gaussian_lower_bound
from fedpriv.audit.checks import iterate_checks
from fedpriv.audit.procedure import collect
from fedpriv.ledger import Ledger
from fedpriv.mechanisms import Ballot, PoissonCohort, SeededSource, SelfSampling, clip_to_norm
from fedpriv.mechanisms.clipping import ClippedUpdate
from fedpriv.plans import DpsgdDcPlan

Patch = pytest.MonkeyPatch


def fails(target: Target, check: str) -> bool:
    """Whether a check of that name fails; those behind it are not made."""
    return any(check in finding.check and not finding.good for finding in iterate_checks(target))


# -- faults of the mechanism -----------------------------------------------------------------------------------


def halve_the_noise(patch: Patch) -> None:
    for module in (noise_share, noised_sum):
        drawn = module.rounded_gaussian
        patch.setattr(module, "rounded_gaussian", lambda scale, *rest, drawn=drawn: drawn(scale / 2, *rest))


def skip_the_0d_array(patch: Patch) -> None:
    """Clips all coordinates but the last, which is the 0-d array's."""

    def encoded(start: np.ndarray, returned: np.ndarray | None, codec: Any) -> np.ndarray:
        moved = np.nan_to_num(start - (start if returned is None else returned), posinf=0.0)
        units = codec.encode(clip_to_norm(np.append(moved[:-1], 0.0), codec.clipping_norm).vector)
        units[-1] = np.clip(np.trunc(moved[-1] / codec.step), -(2**40), 2**40)
        return np.asarray(units)

    patch.setattr(private_update, "_encoded", encoded)


def weigh_by_examples(patch: Patch) -> None:
    """Weighs every contribution, after the clip, by its number of examples over ten."""
    weight = [1]
    trained, encoded = private_update._trained, private_update._encoded

    def counting(request: Any, context: Any, call_next: Any, layout: Any) -> Any:
        def call(msg: Any, ctx: Any) -> Any:
            reply = call_next(msg, ctx)
            (metrics,) = reply.content.metric_records.values()
            weight[0] = int(metrics["num-examples"]) // 10
            return reply

        return trained(request, context, call, layout)

    patch.setattr(private_update, "_trained", counting)
    patch.setattr(private_update, "_encoded", lambda *arguments: encoded(*arguments) * weight[0])


def no_share_from_the_unsampled(patch: Patch) -> None:
    """A client whose coin says no sends bare zeros: the variance of the sum tells how many took part."""
    contribution = private_update._contribution

    def without(request: Any, context: Any, call_next: Any, decide: Any) -> np.ndarray:
        tossed: list[bool] = []

        def watched(msg: Any, ctx: Any) -> bool:
            tossed.append(decide(msg, ctx))
            return tossed[-1]

        units = contribution(request, context, call_next, watched)
        return units if tossed[-1] else np.zeros_like(units)

    patch.setattr(private_update, "_contribution", without)


def vote_for_everything(patch: Patch) -> None:
    patch.setattr(Ballot, "cast", lambda self, losses: np.isfinite(losses).astype(np.int64))


def clip_every_array_by_itself(patch: Patch) -> None:
    def clip(vector: np.ndarray, clipping_norm: float) -> ClippedUpdate:
        parts = [clip_to_norm(part, clipping_norm).vector for part in np.array_split(vector, 2)]
        return ClippedUpdate(np.concatenate(parts), 0.0, True, True)

    patch.setattr(private_update, "clip_to_norm", clip)
    patch.setattr(
        "fedpriv.mechanisms.grid.GridCodec.encode",
        lambda self, vector: np.trunc(vector / self.step).astype(np.int64),
    )


def keep_nan(patch: Patch) -> None:
    """Clips by a comparison that a NaN passes, and lets the grid turn it into the largest integer there is."""

    def encoded(start: np.ndarray, returned: np.ndarray | None, codec: Any) -> np.ndarray:
        moved = start - (start if returned is None else returned)
        with np.errstate(all="ignore"):
            norm = np.linalg.norm(moved)
            if norm > codec.clipping_norm:
                moved = moved * (codec.clipping_norm / norm)
            return np.asarray(np.clip(np.nan_to_num(moved, nan=1e9) / codec.step, -(2**40), 2**40), np.int64)

    patch.setattr(private_update, "_encoded", encoded)


def seed_the_noise(patch: Patch) -> None:
    patch.setattr(noise_share, "SecureSource", lambda: SeededSource("fixed"))


def seed_by_the_global_generator(patch: Patch) -> None:
    patch.setattr(noise_share, "SecureSource", lambda: SeededSource(random.getrandbits(64)))


def draw_uniform_noise(patch: Patch) -> None:
    """Of the right variance."""

    def uniform(scale: float, size: int, source: Any = None) -> np.ndarray:
        width = round(scale * 3**0.5)
        return np.random.default_rng().integers(-width, width + 1, size)

    patch.setattr(noise_share, "rounded_gaussian", uniform)


def toss_more_often(patch: Patch) -> None:
    patch.setattr(SelfSampling, "toss", lambda self: True)


MECHANISM_FAULTS: dict[str, tuple[Callable[[Patch], None], Any, str]] = {
    "noise halved": (halve_the_noise, train_plan(), "noise that the guarantee counts"),
    "noise halved in a vote": (halve_the_noise, vote_plan(), "noise that the guarantee counts"),
    "central noise halved": (halve_the_noise, train_plan(kind="central"), "noise over sensitivity"),
    "clip skipped for a 0-d array": (skip_the_0d_array, train_plan(), "sensitivity"),
    "weights": (weigh_by_examples, train_plan(), "sensitivity"),
    "no share from the unsampled": (
        no_share_from_the_unsampled,
        train_plan(sampler=SelfSampling(0.3)),
        "noise of a sum of honest clients",
    ),
    "votes not limited": (vote_for_everything, vote_plan(), "sensitivity"),
    "each array clipped by itself": (clip_every_array_by_itself, train_plan(), "sensitivity"),
    "NaN passes the clip": (keep_nan, train_plan(), "sensitivity"),
    "seeded noise": (seed_the_noise, train_plan(), "noise is fresh whatever the global seeds"),
    "seeded noise repeats over rounds": (seed_the_noise, train_plan(), "independent over rounds"),
    "noise from a global generator": (
        seed_by_the_global_generator,
        vote_plan(),
        "noise is fresh whatever the global seeds",
    ),
    "uniform noise": (draw_uniform_noise, train_plan(), "noise is normal"),
    "a coin that always says yes": (
        toss_more_often,
        train_plan(sampler=SelfSampling(0.3)),
        "sampling",
    ),
}


@pytest.mark.parametrize("name", MECHANISM_FAULTS)
def test_a_faulty_mechanism_fails_its_check(name: str, monkeypatch: Patch) -> None:
    plant, plan, check = MECHANISM_FAULTS[name]
    target = target_of(plan)
    plant(monkeypatch)
    assert fails(target, check)


# -- events that do not match their mechanism -------------------------------------------------------------------


def charge(patch: Patch, events: Callable[[DpsgdDcPlan], dict[str, Any]]) -> None:
    patch.setattr(DpsgdDcPlan, "events", events)


def charge_half(patch: Patch) -> None:
    """Noise twice as large as it is."""
    charge(
        patch,
        lambda plan: dict.fromkeys(
            ("server", "participants", "release"), Gaussian(2 * plan.noise_multiplier)
        ),
    )


def charge_one_clip(patch: Patch) -> None:
    """Replacing a client moves the sum by two clips."""
    charge(
        patch,
        lambda plan: dict.fromkeys(("server", "participants", "release"), Gaussian(plan.noise_multiplier)),
    )


def charge_sampling_to_all(patch: Patch) -> None:
    """The server draws the cohort, and its view is amplified."""
    event = PoissonGaussian(0.5, 1.0)
    charge(patch, lambda plan: {"server": Gaussian(1.0), "participants": event, "release": event})


def charge_half_the_rate(patch: Patch) -> None:
    event = PoissonGaussian(0.15, 1.0)
    charge(patch, lambda plan: dict.fromkeys(("server", "participants", "release"), event))


def charge_sampling_of_all(patch: Patch) -> None:
    event = PoissonGaussian(0.1, 1.0)
    charge(patch, lambda plan: dict.fromkeys(("server", "participants", "release"), event))


EVENT_FAULTS: dict[str, tuple[Callable[[Patch], None], Any, str]] = {
    "half the cost": (charge_half, train_plan(), "noise over sensitivity"),
    "one clip for a replacement": (
        charge_one_clip,
        train_plan(adjacency="replace_one"),
        "noise over sensitivity",
    ),
    "amplified where the server draws": (
        charge_sampling_to_all,
        train_plan(sampler=PoissonCohort(0.5), num_clients=10, min_survivors=3),
        "participants, release views: sampling",
    ),
    "a rate too small": (charge_half_the_rate, train_plan(sampler=SelfSampling(0.9)), "sampling"),
    "amplified where all take part": (charge_sampling_of_all, train_plan(), "sampling"),
}


@pytest.mark.parametrize("name", EVENT_FAULTS)
def test_an_event_that_does_not_match_fails_its_check(name: str, monkeypatch: Patch) -> None:
    plant, plan, check = EVENT_FAULTS[name]
    target = target_of(plan)
    plant(monkeypatch)
    assert fails(target, check)


# -- ledger against messages --------------------------------------------------------------------------------------


def forget_every_other(patch: Patch) -> None:
    reserve, calls = Ledger.reserve, iter(range(100))
    nothing = SimpleNamespace(
        mark_released=lambda: None, commit=lambda realised: None, void=lambda reason: None, released=True
    )
    patch.setattr(
        Ledger, "reserve", lambda self, *a, **k: nothing if next(calls) % 2 else reserve(self, *a, **k)
    )


def charge_afterwards(patch: Patch) -> None:
    reserve = Ledger.reserve

    def later(self: Ledger, *arguments: Any, **options: Any) -> Any:
        def commit(realised: Any) -> None:
            reserve(self, *arguments, **options).commit(realised)

        return SimpleNamespace(
            mark_released=lambda: None, commit=commit, void=lambda reason: None, released=True
        )

    patch.setattr(Ledger, "reserve", later)


def charge_something_else(patch: Patch) -> None:
    reserve = Ledger.reserve

    def other(self: Ledger, stage: str, server_round: int, events: Any, *rest: Any, **options: Any) -> Any:
        return reserve(self, stage, server_round, dict.fromkeys(events, Gaussian(100.0)), *rest, **options)

    patch.setattr(Ledger, "reserve", other)


def sum_twice(patch: Patch) -> None:
    """Each release asks the clients for two sums and charges one."""
    run = noised_sum.SecureSum.run

    def twice(self: Any, *arguments: Any, **options: Any) -> Any:
        run(self, *arguments, **options)
        return run(self, *arguments, **options)

    patch.setattr(noised_sum.SecureSum, "run", twice)


@pytest.mark.parametrize("plan", [train_plan(), vote_plan()], ids=["train", "vote"])
@pytest.mark.parametrize("plant", [forget_every_other, charge_afterwards, charge_something_else, sum_twice])
def test_a_ledger_that_does_not_match_the_messages_is_seen(
    plan: Any, plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    from fedpriv.audit.ledger_check import check_messages

    probes = target_of(plan).probes()
    assert probes is not None
    plant(monkeypatch)
    assert not check_messages("train", plan, probes.play_with).good


def test_a_request_in_the_clear_is_seen(monkeypatch: Patch) -> None:
    """An evaluation round of Flower's own, beside the secure sums."""
    from flwr.app import Message, RecordDict

    from fedpriv.audit.ledger_check import check_messages

    plan = train_plan()
    probes = target_of(plan).probes()
    assert probes is not None

    def play(ledger: Ledger, watch: Any) -> None:
        probes.play_with(ledger, watch)
        watch([Message(RecordDict(), 3, wire.MESSAGE_TYPE)])

    finding = check_messages("train", plan, play)
    assert not finding.good and "no part of a secure sum" in finding.detail


# -- lower bounds above the claim ---------------------------------------------------------------------------------


@pytest.fixture
def bounds() -> Iterator[Callable[[Target, View, int], tuple[float, float, float, float]]]:
    """Bounds on epsilon and mu of a view at delta 0.01, beside both claims."""

    def measure(target: Target, view: View, runs: int) -> tuple[float, float, float, float]:
        trials = collect(target, runs)[view]
        claim = target.claim(view, 1e-2)
        found = gaussian_lower_bound(trials, 1e-2, SURE)
        assert found.mu is not None and claim.gaussian_mu is not None
        return epsilon_lower_bound(trials, 1e-2, SURE).epsilon, claim.value, found.mu, claim.gaussian_mu

    yield measure


#: z = 4: mu 0.25 and epsilon 0.31 are claimed. A canary without bounds is told in every run, which proves mu 0.79 and
#: epsilon 0.6 with 45 judged runs per world.
QUIET_TRAINING = train_plan(noise_multiplier=4.0, kind="central")
#: One vote of 100: mu 0.5 is claimed.
QUIET_VOTE = vote_plan(100, 1, noise_multiplier=2.0)


@pytest.mark.parametrize("plant", [skip_the_0d_array, weigh_by_examples])
def test_a_canary_without_bounds_refutes_the_claim(
    plant: Callable[[Patch], None], bounds: Any, monkeypatch: Patch
) -> None:
    target = target_of(QUIET_TRAINING)
    plant(monkeypatch)
    epsilon, claimed, mu, claimed_mu = bounds(target, "participants", 180)
    assert epsilon > claimed and mu > claimed_mu


def test_halved_noise_refutes_the_claim(bounds: Any, monkeypatch: Patch) -> None:
    """mu 1.5 is claimed, 3 is true: with 2200 runs the bound is 2.1 on average, with a standard deviation of 0.1."""
    target = target_of(vote_plan(2, 1, noise_multiplier=1 / 1.5))
    halve_the_noise(monkeypatch)
    _, _, mu, claimed = bounds(target, "server", 2200)
    assert claimed == pytest.approx(1.5)
    assert mu > claimed


def test_votes_without_limit_refute_the_claim(bounds: Any, monkeypatch: Patch) -> None:
    """mu 5 is true: with 300 runs the bound is 1.4 on average, with a standard deviation of 0.1."""
    target = target_of(QUIET_VOTE)
    vote_for_everything(monkeypatch)
    _, _, mu, claimed = bounds(target, "server", 300)
    assert claimed == pytest.approx(0.5)
    assert mu > claimed


@pytest.mark.parametrize(("plan", "view"), [(QUIET_TRAINING, "participants"), (QUIET_VOTE, "server")])
def test_bounds_of_the_code_as_it_is(plan: Any, view: str, bounds: Any) -> None:
    epsilon, claimed, mu, claimed_mu = bounds(target_of(plan), view, 180)
    assert epsilon <= claimed and mu <= claimed_mu
