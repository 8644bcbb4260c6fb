"""``fedpriv eps``: epsilon per view of one mechanism."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedpriv.cli.epsilon_output import (
    AdjacencyOption,
    DeltaOption,
    JsonOption,
    OneLineErrors,
    ViewOption,
    check_view,
    one_line_errors,
    show,
    summary,
)

app = typer.Typer(
    help="Epsilon of a mechanism, for every view: the server, the participants, the released model.",
    no_args_is_help=True,
)

RoundsOption = Annotated[int, typer.Option("--rounds", help="Rounds, >= 0.")]
SamplingRateOption = Annotated[
    float,
    typer.Option("--sampling-rate", help="Rate in [0, 1] at which units join a round, unseen by the view."),
]
NoiseMultiplierOption = Annotated[
    float,
    typer.Option("--noise-multiplier", help="Noise standard deviation over the clip norm of one unit, >= 0."),
]
PopulationOption = Annotated[
    int | None, typer.Option("--population", help="Units a cohort of fixed size is drawn from (replace_one).")
]
SampleSizeOption = Annotated[int | None, typer.Option("--sample-size", help="Size of that cohort.")]
VotesOption = Annotated[int, typer.Option("--votes", help="Ones on every ballot, >= 1.")]
CandidatesOption = Annotated[
    int | None, typer.Option("--candidates", help="Entries of a ballot; matters only below twice the votes.")
]
NoiseStdOption = Annotated[float, typer.Option("--noise-std", help="Noise standard deviation, >= 0.")]
UpdateLipschitzOption = Annotated[
    float | None, typer.Option("--update-lipschitz", help="Lipschitz constant of one noiseless round, > 0.")
]
SensitivityOption = Annotated[
    float | None,
    typer.Option("--sensitivity", help="Distance by which one unit moves a round, under the adjacency."),
]
ModelNoiseOption = Annotated[
    float | None, typer.Option("--noise-std", help="Noise per coordinate of the model and round.")
]
DiameterOption = Annotated[
    float | None,
    typer.Option("--diameter", help="Diameter (twice the radius) of the ball models are kept in."),
]
DriftOption = Annotated[float, typer.Option("--drift", help="Rounding per round, as a distance of models.")]
ReleaseNoiseOption = Annotated[
    float | None,
    typer.Option(
        "--release-noise-std", help="Separate continuous noise for the shifts; the rest is lattice noise."
    ),
]
LearningRateOption = Annotated[
    float | None, typer.Option("--learning-rate", help="Second form: server learning rate, > 0.")
]
SmoothnessOption = Annotated[
    float | None,
    typer.Option("--smoothness", help="Second form: smoothness L of the clients' losses, proven."),
]
ClippingNormOption = Annotated[
    float | None, typer.Option("--clipping-norm", help="Second form: clip norm C of an update, > 0.")
]
ClipNoiseOption = Annotated[
    float | None, typer.Option("--noise-multiplier", help="Second form: noise on the summed updates over C.")
]
RadiusOption = Annotated[float | None, typer.Option("--radius", help="Second form: radius of the ball.")]
CohortOption = Annotated[
    float | None, typer.Option("--cohort", help="Second form: the fixed divisor of the summed updates.")
]
NumClientsOption = Annotated[
    int | None, typer.Option("--num-clients", help="Second form: clients, needed with a sampling rate.")
]
LocalStepsOption = Annotated[int, typer.Option("--local-steps", help="Second form: local steps E.")]
LocalRateOption = Annotated[
    float | None, typer.Option("--local-learning-rate", help="Second form: rate of the local steps.")
]
FailureMassOption = Annotated[
    float | None,
    typer.Option("--failure-mass", help="Part of delta for unusually large cohorts (default: a tenth)."),
]
DimensionOption = Annotated[int, typer.Option("--dimension", help="Trained parameters d, >= 1.")]
DirectionsOption = Annotated[int, typer.Option("--directions", help="Directions K per round, 1 to d.")]
RateOption = Annotated[float, typer.Option("--learning-rate", help="Learning rate, > 0.")]
DirectionShareOption = Annotated[
    float, typer.Option("--direction-share", help="Share in [0, 1] of the noise energy along the directions.")
]
ClipOption = Annotated[float, typer.Option("--clip", help="Clip on every two-point quotient, > 0.")]
ContributorsOption = Annotated[
    int, typer.Option("--contributors", help="Fixed number of averaged units, >= 1.")
]
BallOption = Annotated[float, typer.Option("--radius", help="Radius of the ball that models are kept in.")]
LossSmoothnessOption = Annotated[
    float | None,
    typer.Option("--smoothness", help="Proven smoothness of the losses; without it, composition only."),
]
StrongConvexityOption = Annotated[
    float | None, typer.Option("--strong-convexity", help="0 for convex losses; leave out without convexity.")
]
RegulariserOption = Annotated[
    bool, typer.Option("--convexity-from-regulariser", help="It comes from an unclipped regulariser.")
]
LipschitzOption = Annotated[
    float | None,
    typer.Option("--lipschitz", help="Lipschitz constant of the losses: up to the clip, none is active."),
]
PerturbationOption = Annotated[
    float, typer.Option("--perturbation", help="Half distance of the two points, >= 0.")
]
GridStepOption = Annotated[
    float, typer.Option("--grid-step", help="Grid that quotients are rounded to; 0 for none.")
]
LossErrorOption = Annotated[
    float, typer.Option("--loss-error", help="Largest floating-point error of a loss, >= 0.")
]
LatticeNoiseOption = Annotated[
    bool, typer.Option("--lattice-noise", help="The noise along the directions is on a grid.")
]
BinsOption = Annotated[int, typer.Option("--bins", help="Rounds per epoch, of which a unit joins one, >= 1.")]
EpochsOption = Annotated[int, typer.Option("--epochs", help="Epochs, >= 1.")]
FixedOption = Annotated[
    bool, typer.Option("--fixed/--redraw", help="Keep the bin over all epochs, or draw it again each epoch.")
]
PacRoundsOption = Annotated[
    int, typer.Option("--rounds", help="Rounds that share the information equally, >= 1.")
]
MatrixOption = Annotated[str, typer.Option("--matrix", help="identity, bsr, bisr, bandmf or blt.")]
BandOption = Annotated[int, typer.Option("--band", help="Band of bsr, bisr and bandmf.")]
BuffersOption = Annotated[int, typer.Option("--buffers", help="Buffers of blt.")]


def _report(
    ctx: typer.Context, make: Callable[[], Any], delta: float, view: str | None, as_json: bool
) -> None:
    with one_line_errors(ctx):
        check_view(view)
        data = summary(make(), delta, view)
    show(data, as_json)


@app.command(cls=OneLineErrors)
def gaussian(
    ctx: typer.Context,
    noise_multiplier: NoiseMultiplierOption,
    rounds: RoundsOption = 1,
    sampling_rate: SamplingRateOption = 1.0,
    population: PopulationOption = None,
    sample_size: SampleSizeOption = None,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: ViewOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rounds of a clipped sum with Gaussian noise.

    Example: fedpriv eps gaussian --noise-multiplier 1.1 --rounds 100 --sampling-rate 0.1 --delta 1e-5
    """
    from fedpriv.cli.epsilon_families import gaussian_family

    _report(
        ctx,
        lambda: gaussian_family(
            noise_multiplier=noise_multiplier,
            rounds=rounds,
            sampling_rate=sampling_rate,
            population=population,
            sample_size=sample_size,
            adjacency=adjacency,
        ),
        delta,
        view,
        as_json,
    )


@app.command(cls=OneLineErrors)
def vote(
    ctx: typer.Context,
    noise_std: NoiseStdOption,
    votes: VotesOption = 1,
    candidates: CandidatesOption = None,
    rounds: RoundsOption = 1,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: ViewOption = None,
    as_json: JsonOption = False,
) -> None:
    """A private vote: noisy tallies of ballots.

    Example: fedpriv eps vote --votes 5 --noise-std 12.5 --adjacency replace_one --delta 1e-5
    """
    from fedpriv.cli.epsilon_families import vote_family

    _report(
        ctx,
        lambda: vote_family(
            noise_std=noise_std, votes=votes, candidates=candidates, rounds=rounds, adjacency=adjacency
        ),
        delta,
        view,
        as_json,
    )


@app.command(name="dpsgd-dc", cls=OneLineErrors)
def dpsgd_dc(
    ctx: typer.Context,
    rounds: RoundsOption,
    update_lipschitz: UpdateLipschitzOption = None,
    sensitivity: SensitivityOption = None,
    noise_std: ModelNoiseOption = None,
    diameter: DiameterOption = None,
    drift: DriftOption = 0.0,
    release_noise_std: ReleaseNoiseOption = None,
    sampling_rate: SamplingRateOption = 1.0,
    learning_rate: LearningRateOption = None,
    smoothness: SmoothnessOption = None,
    clipping_norm: ClippingNormOption = None,
    noise_multiplier: ClipNoiseOption = None,
    radius: RadiusOption = None,
    cohort: CohortOption = None,
    num_clients: NumClientsOption = None,
    local_steps: LocalStepsOption = 1,
    local_learning_rate: LocalRateOption = None,
    failure_mass: FailureMassOption = None,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: ViewOption = None,
    as_json: JsonOption = False,
) -> None:
    """Projected noisy SGD with double clipping; the release view gains from the hidden iterates.

    Example: fedpriv eps dpsgd-dc --rounds 400 --update-lipschitz 1.05 --sensitivity 0.03 --noise-std 0.06
    --diameter 0.4. Or from training settings: fedpriv eps dpsgd-dc --rounds 100 --learning-rate 0.1
    --smoothness 0.5 --clipping-norm 1 --noise-multiplier 8 --radius 2 --cohort 50
    """
    from fedpriv.cli.hidden_state_families import dpsgd_dc_family

    given = {name: ctx.params[name] for name in ctx.params if name not in COMMON}
    _report(ctx, lambda: dpsgd_dc_family(adjacency=adjacency, **given), delta, view, as_json)


@app.command(name="zeroth-order", cls=OneLineErrors)
def zeroth_order(
    ctx: typer.Context,
    rounds: RoundsOption,
    dimension: DimensionOption,
    noise_std: NoiseStdOption,
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
    view: ViewOption = None,
    as_json: JsonOption = False,
) -> None:
    """Zeroth-order fine-tuning; the release view gains from the hidden iterates.

    Example: fedpriv eps zeroth-order --rounds 2000 --dimension 1000 --directions 100 --learning-rate 0.5
    --clip 1 --contributors 100 --noise-std 1 --radius 1 --smoothness 1 --strong-convexity 0 --lipschitz 1
    """
    from fedpriv.cli.hidden_state_families import zeroth_order_family

    given = {name: ctx.params[name] for name in ctx.params if name not in COMMON}
    _report(ctx, lambda: zeroth_order_family(adjacency=adjacency, **given), delta, view, as_json)


@app.command(cls=OneLineErrors)
def allocation(
    ctx: typer.Context,
    noise_multiplier: NoiseMultiplierOption,
    bins: BinsOption,
    epochs: EpochsOption = 1,
    fixed: FixedOption = True,
    matrix: MatrixOption = "identity",
    band: BandOption = 4,
    buffers: BuffersOption = 3,
    delta: DeltaOption = 1e-5,
    adjacency: AdjacencyOption = "add_or_remove",
    view: ViewOption = None,
    as_json: JsonOption = False,
) -> None:
    """Balls in bins: every unit joins one secret round per epoch.

    Example: fedpriv eps allocation --bins 1000 --epochs 1 --noise-multiplier 1 --delta 1e-6
    """
    from fedpriv.cli.allocation_family import allocation_family

    _report(
        ctx,
        lambda: allocation_family(
            noise_multiplier=noise_multiplier,
            bins=bins,
            epochs=epochs,
            fixed=fixed,
            matrix=matrix,
            band=band,
            buffers=buffers,
            adjacency=adjacency,
        ),
        delta,
        view,
        as_json,
    )


@app.command(cls=OneLineErrors)
def pac(
    ctx: typer.Context,
    mutual_information: Annotated[
        float, typer.Option("--mutual-information", help="Nats about a silo's secret over the run, >= 0.")
    ],
    rounds: PacRoundsOption = 1,
    as_json: JsonOption = False,
) -> None:
    """PAC privacy of a silo: what a bound on mutual information means. It is not differential privacy.

    Example: fedpriv eps pac --mutual-information 0.33 --rounds 100
    """
    from fedpriv.cli.pac_output import pac_summary, pac_text

    with one_line_errors(ctx):
        data = pac_summary(mutual_information, rounds)
    typer.echo(json.dumps(data, indent=2) if as_json else pac_text(data))


COMMON = ("delta", "adjacency", "view", "as_json", "ctx")
"""Parameters of every command that do not describe the mechanism."""


def _builder(module: str, name: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(importlib.import_module(f"fedpriv.cli.{module}"), name)
        return found

    return load


BUILDERS = {
    "gaussian": _builder("epsilon_families", "gaussian_family"),
    "vote": _builder("epsilon_families", "vote_family"),
    "dpsgd-dc": _builder("hidden_state_families", "dpsgd_dc_family"),
    "zeroth-order": _builder("hidden_state_families", "zeroth_order_family"),
    "allocation": _builder("allocation_family", "allocation_family"),
}
"""What makes a family from the flags of a command; loaded when called."""
