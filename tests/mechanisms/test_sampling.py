"""Who takes part, and that the draw comes from the operating system."""

import random
from collections import Counter

import numpy as np
import pytest

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import FixedSizeCohort, FullParticipation, PoissonCohort, SelfSampling
from fedpriv.mechanisms import sampling as sampling_module

CLIENTS = list(range(100, 140))


def within(count: int, trials: int, rate: float) -> bool:
    """Six standard deviations."""
    return abs(count - trials * rate) < 6 * np.sqrt(trials * rate * (1 - rate)) + 1


def test_full_participation_asks_everyone() -> None:
    sampler = FullParticipation()
    assert sampler.asked(CLIENTS) == CLIENTS
    assert (sampler.expected_cohort(40), sampler.expected_asked(40)) == (40.0, 40)
    assert not sampler.hides_cohort


def test_self_sampling_asks_everyone_and_the_coin_has_its_rate() -> None:
    sampler = SelfSampling(0.3)
    assert sampler.hides_cohort
    assert sampler.asked(CLIENTS) == CLIENTS
    assert sampler.expected_cohort(40) == pytest.approx(12.0)
    assert sampler.expected_asked(40) == 40
    assert within(sum(sampler.toss() for _ in range(20_000)), 20_000, 0.3)
    assert all(SelfSampling(1.0).toss() for _ in range(100))


def test_poisson_cohort_is_independent_per_client() -> None:
    sampler = PoissonCohort(0.2)
    counts: Counter[int] = Counter()
    sizes = []
    for _ in range(1000):
        cohort = sampler.asked(CLIENTS)
        assert set(cohort) <= set(CLIENTS)
        counts.update(cohort)
        sizes.append(len(cohort))
    assert all(within(counts[client], 1000, 0.2) for client in CLIENTS)
    assert 0.5 < np.var(sizes) / (40 * 0.2 * 0.8) < 1.6  # binomial, not a fixed size
    assert sampler.expected_cohort(40) == pytest.approx(8.0)
    assert (sampler.expected_asked(40), PoissonCohort(1e-3).expected_asked(40)) == (8, 1)
    assert not sampler.hides_cohort


def test_small_cohorts_are_filled_up_from_the_others() -> None:
    sampler = PoissonCohort(0.1)
    for size in (0, 1, 4, 6):
        cohort = CLIENTS[:size]
        others = sampler.filled_up(cohort, CLIENTS, 5)
        assert len(others) == max(0, 5 - size)
        assert not set(others) & set(cohort)
        assert set(others) <= set(CLIENTS)
    assert len(sampler.filled_up([100], [100, 101, 102], 9)) == 2
    drawn = Counter(client for _ in range(400) for client in sampler.filled_up([], CLIENTS, 10))
    assert all(within(drawn[client], 400, 0.25) for client in CLIENTS)


def test_fixed_size_cohort_is_without_replacement_and_uniform() -> None:
    sampler = FixedSizeCohort(10)
    counts: Counter[int] = Counter()
    for _ in range(1000):
        cohort = sampler.asked(CLIENTS)
        assert len(set(cohort)) == len(cohort) == 10
        counts.update(cohort)
    assert all(within(counts[client], 1000, 0.25) for client in CLIENTS)
    assert (sampler.expected_cohort(40), sampler.expected_asked(40)) == (10.0, 10)


@pytest.mark.parametrize("sampler", [PoissonCohort(0.5), FixedSizeCohort(20)])
def test_global_seeds_do_not_fix_the_cohort(sampler: PoissonCohort | FixedSizeCohort) -> None:
    drawn = set()
    for _ in range(3):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        drawn.add(tuple(sorted(sampler.asked(CLIENTS))))
    assert len(drawn) == 3


def test_coin_never_exceeds_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def lowest_tail(bits: int) -> int:
        seen.append(bits)
        return int(0.3 * 2**53)

    monkeypatch.setattr(sampling_module.secrets, "randbits", lowest_tail)
    assert not sampling_module._coin(0.3)  # the first value that is not below rate * 2^53
    assert seen == [53]
    monkeypatch.setattr(sampling_module.secrets, "randbits", lambda bits: int(0.3 * 2**53) - 1)
    assert sampling_module._coin(0.3)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0001, float("nan")])
@pytest.mark.parametrize("kind", [SelfSampling, PoissonCohort])
def test_rates_outside_the_range_are_refused(kind: type, rate: float) -> None:
    with pytest.raises(InvalidArgument, match="sampling_rate"):
        kind(rate)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_bad_cohort_sizes_are_refused(size: int) -> None:
    with pytest.raises(InvalidArgument, match="size"):
        FixedSizeCohort(size)


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="41 out of 40"):
        FixedSizeCohort(41).asked(CLIENTS)
