"""DPSGD-DC and zeroth-order runs behind ``fedpriv eps``: the release view hides the iterates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.accounting.events import Gaussian, PoissonGaussian, PrivacyEvent
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_integer,
    check_non_negative,
    check_positive,
    check_probability,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency, View
from fedpriv.cli.epsilon_families import Events, Family, neighbours_sentence


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
            neighbours_sentence(relation),
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
