"""Settings of the client-level DPSGD-DC stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedpriv.settings.base import SettingsModel, positive


def _fraction(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"candidates with momentum in [0, 1); got {value!r}")


#: Keys that a candidate may set, with the check of a value. All of them act on a client alone, so that a
#: client can judge them on its own data.
TUNABLE: dict[str, Callable[[Any], None]] = {
    "learning-rate": positive(float),
    "momentum": _fraction,
    "local-steps": positive(int),
    "batch-size": positive(int),
    "clip-norm": positive(float),
}

DEFAULT_GRID = '{"learning-rate": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0], "local-steps": [2, 8]}'


class TrainSettings(SettingsModel):
    """Rounds of private training."""

    prefix: ClassVar[str] = "train."
    stage: ClassVar[str] = "train"
    tunable: ClassVar = TUNABLE
    default_grid: ClassVar[str] = DEFAULT_GRID
    title: ClassVar[str] = "Training (client-level DPSGD-DC)"

    rounds: int = Field(15, ge=1, description="Rounds; the noise is solved for all of them.")
    learning_rate: float = Field(0.3, gt=0, description="Learning rate of the clients' local steps.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of the clients' local steps.")
    local_steps: int = Field(5, ge=1, description="Local gradient steps per round.")
    batch_size: int = Field(0, ge=0, description="Examples per local step; 0 takes all of the client's.")
    clip_norm: float = Field(1.0, gt=0, description="L2 bound C on a client's whole update.")
    noise_multiplier: float = Field(
        0.0, ge=0, description="Noise of the sum over the clip; 0 solves it from target-epsilon."
    )
    server_optimizer: Literal["sgd", "adam"] = Field("sgd", description="Step on the noisy mean update.")
    server_learning_rate: float = Field(1.0, gt=0, description="Learning rate of the server's step.")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum of the server's step.")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="Server learning rate over the rounds."
    )
    radius: float = Field(
        10.0, ge=0, description="Radius of the ball that keeps the model; 0: no projection."
    )
    center: Literal["origin", "initial"] = Field("origin", description="Centre of the ball.")
    release_noise: float = Field(
        0.0,
        ge=0,
        description="Standard deviation per coordinate of continuous noise that the server adds to the model in every "
        "round, for the release view's hidden-state bound; 0: none, and that view is charged by composition.",
    )
    assume_smoothness: float = Field(
        0.0,
        ge=0,
        description="Smoothness of the clients' loss that you vouch for where none is proved; the release view's bound "
        "is then labelled conditional. 0: only what is proved.",
    )
    idle_work: Literal["train", "skip"] = Field(
        "train",
        description="sampling = self: what a client does when its coin says no; skip is faster, but the time "
        "of a reply reveals the coin, so only the release view is then charged with amplification.",
    )
