"""The mechanisms behind ``fedpriv eps``, ``calibrate`` and ``curve``: from flags to events per view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.calibration import calibrate_noise_multiplier
from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, PoissonGaussian, PrivacyEvent
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_delta,
    check_integer,
    check_non_negative,
    check_positive,
    check_probability,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, VIEWS, Adjacency, View
from fedpriv.accounting.votes import vote_sensitivity

if TYPE_CHECKING:
    from fedpriv.accounting.allocation_events import RandomAllocation

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


def _scale_sentence(adjacency: Adjacency) -> str:
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
            _scale_sentence(relation),
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


def dpsgd_dc_family(
    *,
    rounds: int,
    adjacency: str,
    sampling_rate: float,
    update_lipschitz: float | None,
    sensitivity: float | None,
    noise_std: float | None,
    diameter: float | None,
    drift: float,
    release_noise_std: float | None,
    learning_rate: float | None,
    smoothness: float | None,
    clipping_norm: float | None,
    noise_multiplier: float | None,
    radius: float | None,
    cohort: float | None,
    num_clients: int | None,
    local_steps: int,
    local_learning_rate: float | None,
    failure_mass: float | None,
) -> Family:
    """Projected noisy gradient descent with double clipping; hidden state for the release view."""
    check_choice(ADJACENCIES, adjacency=adjacency)
    check_integer(0, rounds=rounds)
    check_probability(sampling_rate=sampling_rate)
    relation: Adjacency = "replace_one" if adjacency == "replace_one" else "add_or_remove"
    if relation == "replace_one" and sampling_rate != 1:
        raise InvalidArgument(f"sampling_rate must be 1 under replace_one, got {sampling_rate}")
    direct = {
        "update_lipschitz": update_lipschitz,
        "sensitivity": sensitivity,
        "noise_std": noise_std,
        "diameter": diameter,
    }
    derived = {
        "learning_rate": learning_rate,
        "smoothness": smoothness,
        "clipping_norm": clipping_norm,
        "noise_multiplier": noise_multiplier,
        "radius": radius,
        "cohort": cohort,
    }
    chosen = _one_form(direct, derived)
    noise_name = "noise_std" if chosen is direct else "noise_multiplier"
    for name, value in chosen.items():
        check = check_non_negative if name in ("sensitivity", "smoothness", noise_name) else check_positive
        check(**{name: value})
    parameters: dict[str, Any] = {**chosen, "rounds": rounds, "sampling_rate": sampling_rate}

    def run(noise: float, count: int, delta: float) -> PrivacyEvent:
        if chosen is direct:
            from fedpriv.accounting.amplification_by_iteration import AmplificationByIteration

            assert update_lipschitz is not None and sensitivity is not None and diameter is not None
            return AmplificationByIteration(
                count,
                update_lipschitz,
                sensitivity,
                noise,
                diameter,
                sampling_rate,
                drift=drift,
                release_noise_std=release_noise_std,
            )
        from fedpriv.accounting.dpsgd_dc import dpsgd_dc_event

        assert learning_rate is not None and smoothness is not None and clipping_norm is not None
        assert radius is not None and cohort is not None
        return dpsgd_dc_event(
            rounds=count,
            learning_rate=learning_rate,
            smoothness=smoothness,
            clipping_norm=clipping_norm,
            noise_multiplier=noise,
            radius=radius,
            cohort=cohort,
            adjacency=relation,
            sampling_rate=sampling_rate,
            num_clients=num_clients,
            failure_mass=0.0 if sampling_rate == 1 else delta / 10 if failure_mass is None else failure_mass,
            local_steps=local_steps,
            local_learning_rate=local_learning_rate,
            release_noise_std=release_noise_std,
        )

    def build(noise: float, count: int, delta: float) -> Mapping[View, Events]:
        # The ratio of noise to sensitivity is the same in model space and in the space of sums.
        if chosen is direct:
            assert sensitivity is not None
            ratio = noise / sensitivity if sensitivity else None
        else:
            ratio = noise / (2 if relation == "replace_one" else 1)
        every_round: Events = ()
        if ratio is not None:
            event = Gaussian(ratio) if sampling_rate == 1 else PoissonGaussian(sampling_rate, ratio)
            every_round = ((event, count),)
        released: Events = ((run(noise, count, delta), 1),) if count and noise > 0 else every_round
        return {"server": every_round, "participants": every_round, "release": released}

    # Errors of the event's own checks should appear now, not in the middle of a search.
    build(chosen[noise_name] or 1.0, rounds, 1e-5)
    return Family(
        "dpsgd-dc",
        parameters,
        relation,
        noise_name,
        float(chosen[noise_name] or 0.0),
        rounds,
        build,
        (
            _scale_sentence(relation),
            "server, participants: every round is seen, hence ordinary composition",
        ),
    )


def _one_form(direct: dict[str, float | None], derived: dict[str, float | None]) -> dict[str, float | None]:
    """The form of parameters that the user chose; all of it must be there and nothing of the other."""
    given_direct = [name for name, value in direct.items() if value is not None]
    given_derived = [name for name, value in derived.items() if value is not None]
    if given_direct and given_derived:
        raise InvalidArgument(
            f"{given_derived[0]} must be left out together with --{given_direct[0].replace('_', '-')} (give "
            f"either distances of models or training settings), got {derived[given_derived[0]]}"
        )
    chosen = derived if given_derived else direct
    missing = [name for name, value in chosen.items() if value is None]
    if missing:
        raise InvalidArgument(f"{missing[0]} must be given, got None")
    return chosen


def zeroth_order_family(
    *,
    rounds: int,
    dimension: int,
    directions: int,
    learning_rate: float,
    noise_std: float,
    direction_share: float,
    clip: float,
    contributors: int,
    radius: float,
    adjacency: str,
    smoothness: float | None,
    strong_convexity: float | None,
    convexity_from_regulariser: bool,
    lipschitz: float | None,
    perturbation: float,
    grid_step: float,
    loss_error: float,
    lattice_noise: bool,
) -> Family:
    """Zeroth-order rounds; hidden state for the release view."""
    from fedpriv.accounting.zeroth_order import ZerothOrderHiddenState, zeroth_order_event

    check_choice(ADJACENCIES, adjacency=adjacency)
    relation: Adjacency = "replace_one" if adjacency == "replace_one" else "add_or_remove"

    def run(noise: float, count: int) -> ZerothOrderHiddenState:
        return zeroth_order_event(
            rounds=count,
            dimension=dimension,
            directions=directions,
            learning_rate=learning_rate,
            noise_std=noise,
            direction_share=direction_share,
            clip=clip,
            contributors=contributors,
            radius=radius,
            adjacency=relation,
            smoothness=smoothness,
            strong_convexity=strong_convexity,
            convexity_from_regulariser=convexity_from_regulariser,
            lipschitz=lipschitz,
            perturbation=perturbation,
            grid_step=grid_step,
            loss_error=loss_error,
            lattice_noise=lattice_noise,
        )

    def build(noise: float, count: int, delta: float) -> Mapping[View, Events]:
        event = run(noise, count)
        return {
            "server": ((Gaussian(event.server_noise_multiplier), count),),
            "participants": ((Gaussian(event.participants_noise_multiplier), count),),
            "release": ((event, 1),),
        }

    sensitivity = run(noise_std, rounds).sensitivity
    assumptions = [
        f"an averaged quotient moves by at most {sensitivity:.6g} with one unit, under {relation}",
        "server: it sees the noised averages before the isotropic noise; participants see every model",
    ]
    if direction_share == 0:
        assumptions.append("server: without noise along the directions there is no guarantee against it")
    if smoothness is None:
        assumptions.append("release: no smoothness constant is given, hence ordinary composition")
    return Family(
        "zeroth-order",
        {
            "noise_std": noise_std,
            "rounds": rounds,
            "dimension": dimension,
            "directions": directions,
            "learning_rate": learning_rate,
            "direction_share": direction_share,
            "clip": clip,
            "contributors": contributors,
            "radius": radius,
            "smoothness": smoothness,
            "strong_convexity": strong_convexity,
            "lipschitz": lipschitz,
        },
        relation,
        "noise_std",
        noise_std,
        rounds,
        build,
        tuple(assumptions),
    )


@dataclass(frozen=True)
class AllocationFamily(Family):
    """Random allocation: asks every bound of the allocation modules, and reports a lower value beside."""

    lower: dict[float, float] = field(default_factory=dict, compare=False)

    def epsilons(self, delta: float, use_pld: bool = True) -> dict[View, Epsilon]:
        """The smallest bound, for any view that cannot see the bins."""
        from fedpriv.accounting.allocation import allocation_epsilon

        check_delta(delta=delta)
        found = allocation_epsilon(self._event(delta), delta)
        losses = [value for name, value in found.candidates.items() if name != "rdp"]
        notes = found.notes
        if 0 < found.lower < float("inf"):
            notes = (*notes, f"no analysis of this mechanism can prove less than {found.lower:.6g}")
        epsilon = Epsilon(
            found.epsilon,
            delta,
            found.bound,
            None,
            found.candidates.get("rdp", found.epsilon),
            min(losses) if losses else None,
            notes,
        )
        return {view: epsilon for view in VIEWS}

    def calibrated(self, target_epsilon: float, delta: float, view: View) -> Family:
        """The same mechanism with the smallest noise that meets the target."""
        from fedpriv.accounting.allocation import calibrate_allocation

        return self.with_noise(
            calibrate_allocation(self._event(delta), target_epsilon, delta).noise_multiplier
        )

    def _event(self, delta: float) -> RandomAllocation:
        from fedpriv.accounting.allocation_events import RandomAllocation

        event = self.build(self.noise, self.rounds, delta)["release"][0][0]
        assert isinstance(event, RandomAllocation)
        return event


def allocation_family(
    *,
    noise_multiplier: float,
    bins: int,
    epochs: int,
    fixed: bool,
    matrix: str,
    band: int,
    buffers: int,
    adjacency: str,
) -> Family:
    """Balls in bins, with independent or correlated noise."""
    check_choice(ADJACENCIES, adjacency=adjacency)
    if adjacency != "add_or_remove":
        raise InvalidArgument(f"adjacency must be add_or_remove for random allocation, got {adjacency!r}")
    check_non_negative(noise_multiplier=noise_multiplier)
    check_integer(1, bins=bins, epochs=epochs, band=band, buffers=buffers)
    check_choice(("identity", "bsr", "bisr", "bandmf", "blt"), matrix=matrix)

    def event(noise: float, count: int) -> PrivacyEvent:
        from fedpriv.accounting.allocation_events import RandomAllocation
        from fedpriv.accounting.matrices import make_matrix

        strategy = None
        if matrix != "identity":
            strategy = make_matrix(matrix, bins, count if fixed else 1, band, buffers)  # type: ignore[arg-type]
        return RandomAllocation(bins, noise, count, not fixed, strategy)

    event(noise_multiplier, epochs)
    parameters: dict[str, Any] = {
        "noise_multiplier": noise_multiplier,
        "bins": bins,
        "epochs": epochs,
        "schedule": "fixed" if fixed else "redraw",
        "matrix": matrix,
    }
    if matrix in ("bsr", "bisr", "bandmf"):
        parameters["band"] = band
    if matrix == "blt":
        parameters["buffers"] = buffers
    return AllocationFamily(
        "allocation",
        parameters,
        "add_or_remove",
        "noise_multiplier",
        noise_multiplier,
        epochs,
        lambda noise, count, _: same_for_all_views([(event(noise, count), 1)]),
        (
            "the noise multiplier is the standard deviation of the independent noise Z over the clip norm",
            _scale_sentence("add_or_remove"),
            "every unit keeps its bin over all epochs" if fixed else "every unit draws a new bin each epoch",
        ),
        "epochs",
    )
