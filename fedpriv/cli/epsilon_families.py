"""The mechanisms behind ``fedpriv eps``, ``calibrate`` and ``curve``: from flags to events per view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.calibration import calibrate_noise_multiplier
from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, PoissonGaussian, PrivacyEvent
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_integer,
    check_non_negative,
    check_probability,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, VIEWS, Adjacency, View
from fedpriv.accounting.votes import vote_sensitivity

if TYPE_CHECKING:
    pass

Events = tuple[tuple[PrivacyEvent, int], ...]
Build = Callable[[float, int, float], Mapping[View, Events]]
"""Events per view for a noise level, a number of rounds and a delta."""


@dataclass(frozen=True)
class Family:
    """A mechanism with its parameters.

    Parameters
    ----------
    name : str
        Sub-command.
    parameters : dict
        What the user gave, for the report.
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation.
    noise_name : str
        Name of the noise parameter: what `with_noise` sets and a calibration solves for.
    noise : float
        Its value.
    rounds_name : str
        Name of the parameter that counts rounds.
    rounds : int
        Its value.
    build : callable
        ``build(noise, rounds, delta)``: events per view.
    assumptions : tuple of str
        What must hold besides the assumptions of the events.
    """

    name: str
    parameters: dict[str, Any]
    adjacency: Adjacency
    noise_name: str
    noise: float
    rounds: int
    build: Build
    assumptions: tuple[str, ...] = ()
    rounds_name: str = "rounds"

    def with_noise(self, noise: float) -> Family:
        """The same mechanism with another noise level."""
        return replace(self, noise=noise, parameters={**self.parameters, self.noise_name: noise})

    def with_rounds(self, rounds: int) -> Family:
        """The same mechanism with another number of rounds."""
        return replace(self, rounds=rounds, parameters={**self.parameters, self.rounds_name: rounds})

    def epsilons(self, delta: float, use_pld: bool = True) -> dict[View, Epsilon]:
        """Epsilon per view; views with equal events are computed once."""
        found: dict[Events, Epsilon] = {}
        result: dict[View, Epsilon] = {}
        for view, events in self.build(self.noise, self.rounds, delta).items():
            if events not in found:
                accountant = Accountant(self.adjacency)
                for event, count in events:
                    accountant.compose(event, count)
                found[events] = accountant.epsilon(delta, use_pld)
            result[view] = found[events]
        return result

    def all_assumptions(self, delta: float) -> tuple[str, ...]:
        """Assumptions of the mechanism and of its events; those of some views only carry the views' names."""
        holders: dict[str, list[str]] = {}
        views = self.build(self.noise, self.rounds, delta)
        for view, events in views.items():
            for text in dict.fromkeys(text for event, _ in events for text in event.assumptions):
                holders.setdefault(text, []).append(view)
        specific = [
            text if len(names) == len(views) else f"{', '.join(names)}: {text}"
            for text, names in holders.items()
        ]
        return (*self.assumptions, *specific)

    def calibrated(self, target_epsilon: float, delta: float, view: View) -> Family:
        """The same mechanism with the smallest noise that meets the target in a view."""
        found = calibrate_noise_multiplier(
            lambda noise: self.build(noise, self.rounds, delta)[view], target_epsilon, delta, self.adjacency
        )
        return self.with_noise(found.noise_multiplier)


def same_for_all_views(events: Iterable[tuple[PrivacyEvent, int]]) -> dict[View, Events]:
    """One list of events that every view sees."""
    listed = tuple(events)
    return {view: listed for view in VIEWS}


def neighbours_sentence(adjacency: Adjacency) -> str:
    """What neighbouring inputs are, for the list of assumptions."""
    if adjacency == "add_or_remove":
        return (
            "neighbours differ by one unit's contribution replaced by zero; every divisor is a fixed constant"
        )
    return "neighbours differ by one unit's contribution replaced by another: sums move by twice the clip"


def gaussian_family(
    *,
    noise_multiplier: float,
    rounds: int,
    sampling_rate: float,
    population: int | None,
    sample_size: int | None,
    adjacency: str,
) -> Family:
    """Rounds of a clipped sum with Gaussian noise, with or without a secret cohort."""
    check_choice(ADJACENCIES, adjacency=adjacency)
    check_non_negative(noise_multiplier=noise_multiplier)
    check_integer(0, rounds=rounds)
    check_probability(sampling_rate=sampling_rate)
    relation: Adjacency = "replace_one" if adjacency == "replace_one" else "add_or_remove"
    if (population is None) != (sample_size is None):
        missing = "sample_size" if sample_size is None else "population"
        raise InvalidArgument(f"{missing} must be given for a cohort of fixed size, got None")
    scale = 2.0 if relation == "replace_one" else 1.0
    parameters: dict[str, Any] = {"noise_multiplier": noise_multiplier, "rounds": rounds}

    def event(noise: float) -> PrivacyEvent:
        if population is not None and sample_size is not None:
            return FixedSizeGaussian(population, sample_size, noise / scale)
        return Gaussian(noise / scale) if sampling_rate == 1 else PoissonGaussian(sampling_rate, noise)

    if population is not None and sample_size is not None:
        check_integer(1, population=population)
        check_integer(0, sample_size=sample_size)
        if sample_size > population:
            raise InvalidArgument(f"sample_size must be at most population = {population}, got {sample_size}")
        if relation == "add_or_remove":
            raise InvalidArgument(
                "sample_size must be left out under add_or_remove (a cohort of fixed size goes with "
                f"--adjacency replace_one; a sampling rate goes with add_or_remove), got {sample_size}"
            )
        if sampling_rate != 1:
            raise InvalidArgument(f"sampling_rate must be left out with sample_size, got {sampling_rate}")
        parameters |= {"population": population, "sample_size": sample_size}
    else:
        if relation == "replace_one" and sampling_rate != 1:
            raise InvalidArgument(
                "sampling_rate must be 1 under replace_one (a Poisson cohort goes with add_or_remove; for a "
                f"cohort of fixed size give --population and --sample-size), got {sampling_rate}"
            )
        parameters["sampling_rate"] = sampling_rate
    return Family(
        "gaussian",
        parameters,
        relation,
        "noise_multiplier",
        noise_multiplier,
        rounds,
        lambda noise, count, _: same_for_all_views([(event(noise), count)]),
        (
            "the noise multiplier is noise standard deviation over the clip norm of one unit's contribution",
            neighbours_sentence(relation),
        ),
    )


def vote_family(
    *, noise_std: float, votes: int, candidates: int | None, rounds: int, adjacency: str
) -> Family:
    """Noisy tallies of ballots with a fixed number of votes each."""
    check_choice(ADJACENCIES, adjacency=adjacency)
    check_non_negative(noise_std=noise_std)
    check_integer(1, votes=votes)
    check_integer(0, rounds=rounds)
    if candidates is not None:
        check_integer(1, candidates=candidates)
        if votes > candidates:
            raise InvalidArgument(f"votes must be at most candidates = {candidates}, got {votes}")
    relation: Adjacency = "replace_one" if adjacency == "replace_one" else "add_or_remove"
    sensitivity = vote_sensitivity(votes, 2 * votes if candidates is None else candidates, relation)

    def build(noise: float, count: int, delta: float) -> Mapping[View, Events]:
        return same_for_all_views([(Gaussian(noise / sensitivity), count)] if sensitivity else [])

    return Family(
        "vote",
        {
            "noise_std": noise_std,
            "votes": votes,
            "candidates": candidates,
            "rounds": rounds,
            "sensitivity": sensitivity,
        },
        relation,
        "noise_std",
        noise_std,
        rounds,
        build,
        (
            f"every ballot has exactly {votes} ones: L2 sensitivity {sensitivity:.6g} under {relation}",
            "the noise standard deviation is that of the guaranteed noise on the sum of all ballots",
        ),
    )
