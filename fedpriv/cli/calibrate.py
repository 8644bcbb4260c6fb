"""``fedpriv calibrate``: the smallest noise with which a mechanism meets a target epsilon in one view."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from click.core import ParameterSource

from fedpriv.cli.eps import (
    COMMON,
    BallOption,
    BinsOption,
    BuffersOption,
    CandidatesOption,
    ClipOption,
    ClippingNormOption,
    CohortOption,
    ContributorsOption,
    DiameterOption,
    DimensionOption,
    DirectionShareOption,
    DirectionsOption,
    DriftOption,
    EpochsOption,
    FailureMassOption,
    FixedOption,
    GridStepOption,
    LatticeNoiseOption,
    LearningRateOption,
    LipschitzOption,
    LocalRateOption,
    LocalStepsOption,
    LossErrorOption,
    LossSmoothnessOption,
    NumClientsOption,
    PacRoundsOption,
    PerturbationOption,
    PopulationOption,
    RadiusOption,
    RateOption,
    RegulariserOption,
    RoundsOption,
    SampleSizeOption,
    SamplingRateOption,
    SensitivityOption,
    SmoothnessOption,
    StrongConvexityOption,
    UpdateLipschitzOption,
    VotesOption,
)
from fedpriv.cli.epsilon_output import (
    AdjacencyOption,
    DeltaOption,
    JsonOption,
    OneLineErrors,
    check_view,
    one_line_errors,
    show,
    summary,
)

app = typer.Typer(
    help="The smallest noise with which a mechanism meets a target epsilon in one view.", no_args_is_help=True
)

AnyMatrixOption = Annotated[
    str, typer.Option("--matrix", help="identity, bsr, bisr, bandmf or blt; or all, to compare them.")
]
FreeBandOption = Annotated[
    int | None,
    typer.Option(
        "--band",
        help="Band of bsr, bisr and bandmf; 4 by default, with --matrix all the best of 2, 4, 8, ...",
    ),
]
ConditionalOption = Annotated[
    bool,
    typer.Option(
        "--conditional/--no-conditional",
        help="With --matrix all: try conditional composition too (minutes; it seldom wins).",
    ),
]
TargetSuccessOption = Annotated[
    float | None, typer.Option("--target-success", help="Success of membership guesses, in (0.5, 1].")
]
TargetOption = Annotated[float, typer.Option("--target-epsilon", help="Epsilon to meet, > 0.")]
TargetViewOption = Annotated[
    str, typer.Option("--view", help="View that must meet it: server, participants or release.")
]


def _report(
    ctx: typer.Context, make: Callable[[], Any], target_epsilon: float, delta: float, view: str, as_json: bool
) -> None:
    from fedpriv.accounting.validators import check_delta, check_positive

    with one_line_errors(ctx):
        check_view(view)
        check_positive(target_epsilon=target_epsilon)
        check_delta(delta=delta)
        check_positive(delta=delta)
        family = make().calibrated(target_epsilon, delta, view)
        data = summary(family, delta, view)
    data |= {
        "target_epsilon": target_epsilon,
        "solved_for": family.noise_name,
        family.noise_name: family.noise,
    }
    show(data, as_json)


@app.command(cls=OneLineErrors)
def gaussian(
    ctx: typer.Context,
    target_epsilon: TargetOption,
    rounds: RoundsOption = 1,
    sampling_rate: SamplingRateOption = 1.0,
    population: PopulationOption = None,
    sample_size: SampleSizeOption = None,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: TargetViewOption = "server",
    as_json: JsonOption = False,
) -> None:
    """Noise multiplier of a clipped sum, on the clip norm.

    Example: fedpriv calibrate gaussian --target-epsilon 2 --rounds 100 --sampling-rate 0.1 --delta 1e-5
    """
    from fedpriv.cli.epsilon_families import gaussian_family

    _report(
        ctx,
        lambda: gaussian_family(
            noise_multiplier=1.0,
            rounds=rounds,
            sampling_rate=sampling_rate,
            population=population,
            sample_size=sample_size,
            adjacency=adjacency,
        ),
        target_epsilon,
        delta,
        view,
        as_json,
    )


@app.command(cls=OneLineErrors)
def vote(
    ctx: typer.Context,
    target_epsilon: TargetOption,
    votes: VotesOption = 1,
    candidates: CandidatesOption = None,
    rounds: RoundsOption = 1,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: TargetViewOption = "server",
    as_json: JsonOption = False,
) -> None:
    """Standard deviation of the noise on every tally.

    Example: fedpriv calibrate vote --target-epsilon 1 --votes 5 --adjacency replace_one
    """
    from fedpriv.cli.epsilon_families import vote_family

    _report(
        ctx,
        lambda: vote_family(
            noise_std=1.0, votes=votes, candidates=candidates, rounds=rounds, adjacency=adjacency
        ),
        target_epsilon,
        delta,
        view,
        as_json,
    )


@app.command(name="dpsgd-dc", cls=OneLineErrors)
def dpsgd_dc(
    ctx: typer.Context,
    target_epsilon: TargetOption,
    rounds: RoundsOption,
    update_lipschitz: UpdateLipschitzOption = None,
    sensitivity: SensitivityOption = None,
    diameter: DiameterOption = None,
    drift: DriftOption = 0.0,
    sampling_rate: SamplingRateOption = 1.0,
    learning_rate: LearningRateOption = None,
    smoothness: SmoothnessOption = None,
    clipping_norm: ClippingNormOption = None,
    radius: RadiusOption = None,
    cohort: CohortOption = None,
    num_clients: NumClientsOption = None,
    local_steps: LocalStepsOption = 1,
    local_learning_rate: LocalRateOption = None,
    failure_mass: FailureMassOption = None,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: TargetViewOption = "server",
    as_json: JsonOption = False,
) -> None:
    """Noise of projected SGD with double clipping (central continuous noise).

    Example: fedpriv calibrate dpsgd-dc --target-epsilon 2 --view release --rounds 400 --update-lipschitz 1.05
    --sensitivity 0.03 --diameter 0.4
    """
    from fedpriv.cli.hidden_state_families import dpsgd_dc_family

    given = {name: ctx.params[name] for name in ctx.params if name not in (*COMMON, "target_epsilon")}
    training = (learning_rate, smoothness, clipping_norm, radius, cohort)
    from_training = any(value is not None for value in training)
    given |= {"noise_multiplier": 1.0 if from_training else None, "noise_std": None if from_training else 1.0}
    _report(
        ctx,
        lambda: dpsgd_dc_family(adjacency=adjacency, release_noise_std=None, **given),
        target_epsilon,
        delta,
        view,
        as_json,
    )


@app.command(name="zeroth-order", cls=OneLineErrors)
def zeroth_order(
    ctx: typer.Context,
    target_epsilon: TargetOption,
    rounds: RoundsOption,
    dimension: DimensionOption,
    learning_rate: RateOption,
    clip: ClipOption,
    contributors: ContributorsOption,
    radius: BallOption,
    directions: DirectionsOption = 1,
    direction_share: DirectionShareOption = 0.5,
    smoothness: LossSmoothnessOption = None,
    strong_convexity: StrongConvexityOption = None,
    convexity_from_regulariser: RegulariserOption = False,
    lipschitz: LipschitzOption = None,
    perturbation: PerturbationOption = 0.0,
    grid_step: GridStepOption = 0.0,
    loss_error: LossErrorOption = 0.0,
    lattice_noise: LatticeNoiseOption = False,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: TargetViewOption = "server",
    as_json: JsonOption = False,
) -> None:
    """Noise of zeroth-order fine-tuning (sigma; its energy does not depend on the number of directions).

    Example: fedpriv calibrate zeroth-order --target-epsilon 2 --view release --rounds 2000 --dimension 1000
    --directions 100 --learning-rate 0.5 --clip 1 --contributors 100 --radius 1 --smoothness 1
    --strong-convexity 0 --lipschitz 1
    """
    from fedpriv.cli.hidden_state_families import zeroth_order_family

    given = {name: ctx.params[name] for name in ctx.params if name not in (*COMMON, "target_epsilon")}
    _report(
        ctx,
        lambda: zeroth_order_family(adjacency=adjacency, noise_std=1.0, **given),
        target_epsilon,
        delta,
        view,
        as_json,
    )


@app.command(cls=OneLineErrors)
def allocation(
    ctx: typer.Context,
    target_epsilon: TargetOption,
    bins: BinsOption,
    epochs: EpochsOption = 1,
    fixed: FixedOption = True,
    matrix: AnyMatrixOption = "identity",
    band: FreeBandOption = None,
    buffers: BuffersOption = 3,
    conditional: ConditionalOption = False,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: TargetViewOption = "server",
    as_json: JsonOption = False,
) -> None:
    """Noise multiplier of balls in bins; with --matrix all, of every strategy matrix, with a recommendation.

    Example: fedpriv calibrate allocation --target-epsilon 2 --bins 64 --epochs 4 --matrix all --delta 1e-6
    """
    from fedpriv.accounting.validators import InvalidArgument
    from fedpriv.cli.allocation_family import allocation_family

    if matrix == "all":
        from fedpriv.cli.matrix_choice import matrix_choice, matrix_choice_text

        with one_line_errors(ctx):
            _check_choice_of_all(ctx, target_epsilon, delta, adjacency)
            data = matrix_choice(
                target_epsilon=target_epsilon,
                delta=delta,
                bins=bins,
                epochs=epochs,
                fixed=fixed,
                band=band,
                buffers=buffers,
                conditional=conditional,
            )
        typer.echo(json.dumps(data, indent=2) if as_json else matrix_choice_text(data))
        return
    if conditional:
        with one_line_errors(ctx):
            raise InvalidArgument("conditional: --conditional goes with --matrix all only")
    _report(
        ctx,
        lambda: allocation_family(
            noise_multiplier=1.0,
            bins=bins,
            epochs=epochs,
            fixed=fixed,
            matrix=matrix,
            band=4 if band is None else band,
            buffers=buffers,
            adjacency=adjacency,
        ),
        target_epsilon,
        delta,
        view,
        as_json,
    )


def _check_choice_of_all(ctx: typer.Context, target_epsilon: float, delta: float, adjacency: str) -> None:
    from fedpriv.accounting.validators import InvalidArgument, check_delta, check_positive

    check_positive(target_epsilon=target_epsilon)
    check_delta(delta=delta)
    check_positive(delta=delta)
    if adjacency != "add_or_remove":
        raise InvalidArgument(f"adjacency must be add_or_remove for random allocation, got {adjacency!r}")
    if ctx.get_parameter_source("view") not in (None, ParameterSource.DEFAULT):
        raise InvalidArgument(
            "view: --matrix all compares for any view that cannot see the bins; leave --view out"
        )


@app.command(cls=OneLineErrors)
def pac(
    ctx: typer.Context,
    target_success: TargetSuccessOption = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option("--target-epsilon", help="Pure DP epsilon > 0 with the same bound on that success."),
    ] = None,
    rounds: PacRoundsOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Mutual information of a silo that bounds membership guesses. It is not differential privacy.

    Example: fedpriv calibrate pac --target-epsilon 1 --rounds 100
    """
    from fedpriv.cli.pac_output import information_for, pac_summary, pac_text

    with one_line_errors(ctx):
        data = pac_summary(information_for(target_success, target_epsilon), rounds)
    typer.echo(json.dumps(data, indent=2) if as_json else pac_text(data))
