"""Settings of the stage that trains with noise correlated over rounds, with the checks of a run that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedpriv.settings.base import SettingsError, SettingsModel
from fedpriv.settings.train import DEFAULT_GRID, TUNABLE

if TYPE_CHECKING:
    from fedpriv.settings.resolve import Settings


class MatrixSettings(SettingsModel):
    """Epochs of balls in bins; the server adds the noise."""

    prefix: ClassVar[str] = "matrix."
    stage: ClassVar[str] = "matrix"
    tunable: ClassVar = TUNABLE
    default_grid: ClassVar[str] = DEFAULT_GRID
    title: ClassVar[str] = "Training with correlated noise (random allocation, DP-FTRL)"

    bins: int = Field(
        8, ge=1, description="Rounds per epoch; each client takes part in one of them, its secret bin."
    )
    epochs: int = Field(
        2, ge=1, description="Epochs; bins times epochs rounds in all, for which the noise is solved."
    )
    redraw: bool = Field(
        False, description="Draw bins again each epoch; the noise then starts afresh each epoch."
    )
    matrix: Literal["identity", "bsr", "bisr", "bandmf", "blt"] = Field(
        "bandmf", description="Strategy matrix; fedpriv calibrate allocation --matrix all compares them."
    )
    band: int = Field(4, ge=1, description="bsr, bisr, bandmf: number of diagonals, at most the rounds.")
    buffers: int = Field(3, ge=1, description="blt: number of buffers.")
    learning_rate: float = Field(0.3, gt=0, description="Learning rate of the clients' local steps.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of the clients' local steps.")
    local_steps: int = Field(5, ge=1, description="Local gradient steps per round.")
    batch_size: int = Field(0, ge=0, description="Examples per local step; 0 takes all of the client's.")
    clip_norm: float = Field(1.0, gt=0, description="L2 bound C on a client's whole update.")
    noise_multiplier: float = Field(
        0.0,
        ge=0,
        description="Standard deviation of the independent noise Z behind C^-1 Z over the clip; 0 solves it from "
        "target-epsilon.",
    )
    server_learning_rate: float = Field(1.0, gt=0, description="Learning rate of the server's step.")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of the server's step.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Server learning rate over the rounds."
    )
    radius: float = Field(
        0.0,
        ge=0,
        description="Radius of the ball that keeps the model; 0: no projection. It gains no privacy here.",
    )
    center: Literal["origin", "initial"] = Field("origin", description="Centre of the ball.")
    idle_work: Literal["train", "skip"] = Field(
        "train",
        description="sampling = self: what a client does outside its bin; skip is faster, but the time of a reply "
        "reveals the bin, so only the release view is then charged with amplification.",
    )


def check_matrix(settings: Settings) -> None:
    """Refuse what does not go with the stage, before anything is sent, and say all of it at once.

    Raises
    ------
    SettingsError
        Naming keys, values and what to do instead.
    """
    run, own = settings.run, settings.of(MatrixSettings)
    wrong = []
    if run.noise != "central":
        wrong.append(
            f"noise = {run.noise!r} with stage 'matrix': should be 'central': the server draws the correlated noise, "
            "and nothing is promised against it"
        )
    if run.budget_view == "server":
        wrong.append("budget-view = 'server' with stage 'matrix': should be 'participants' or 'release'")
    if run.sampling == "full":
        wrong.append(
            "sampling = 'full' with stage 'matrix': should be 'self' (every client draws its own bin) or 'server' "
            "(the server draws; amplification for the release view only)"
        )
    if run.adjacency != "add_or_remove":
        wrong.append(
            f"adjacency = {run.adjacency!r} with stage 'matrix': should be 'add_or_remove', the only one under which "
            "random allocation is accounted"
        )
    if run.sampling_rate != 1.0 and not {"train", "zeroth-order"} & set(run.stage_names):
        wrong.append(
            f"sampling-rate = {run.sampling_rate:g} with stage 'matrix': should be 1.0; matrix.bins decides how many "
            "clients take part in a round"
        )
    rows = own.bins if own.redraw else own.bins * own.epochs
    if own.matrix in ("bsr", "bisr", "bandmf") and own.band > rows:
        wrong.append(
            f"matrix.band = {own.band}: should be at most {rows}, the rounds over which the noise is correlated"
        )
    if wrong:
        raise SettingsError("run config: " + "\nrun config: ".join(wrong))
