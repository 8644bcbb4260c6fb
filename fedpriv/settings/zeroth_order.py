"""Settings of the zeroth-order fine-tuning stage."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedpriv.settings.base import SettingsModel, positive


class ZerothOrderSettings(SettingsModel):
    """Rounds of zeroth-order fine-tuning."""

    prefix: ClassVar[str] = "zeroth-order."
    title: ClassVar[str] = "Fine-tuning by K numbers a round (zeroth-order)"
    stage: ClassVar[str] = "zeroth-order"
    tunable: ClassVar = {
        "learning-rate": positive(float),
        "clip": positive(float),
        "smoothing": positive(float),
    }
    default_grid: ClassVar[str] = '{"learning-rate": [3.0, 10.0, 30.0, 100.0, 300.0]}'

    rounds: int = Field(100, ge=1, description="Rounds; the noise is solved for all of them.")
    directions: int = Field(16, ge=1, description="Directions K, and numbers that a client sends, per round.")
    direction_kind: Literal["auto", "uniform", "signs"] = Field(
        "auto",
        description="Law of the directions: uniform and orthonormal (independent where K times the model's size is "
        "too large), or random signs, which are made much quicker for large models and never amplify. auto takes "
        "signs above 16.8 million coordinates where direction-share = 1, which never amplifies either.",
    )
    learning_rate: float = Field(
        100.0,
        gt=0,
        description="Learning rate eta. A step sees K of d directions: d times a gradient step's rate is comparable.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning rate over the rounds; linear and cosine end near 0."
    )
    clip: float = Field(
        0.1, gt=0, description="Bound Delta on a client's mean two-point quotient in every direction."
    )
    smoothing: float = Field(0.01, gt=0, description="Distance xi of the two points from the model.")
    direction_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Part beta of the noise energy that lies along the directions; the server adds the rest around. "
        "1 without a ball sends no model, only seeds and released numbers.",
    )
    noise_multiplier: float = Field(
        0.0,
        ge=0,
        description="Noise of a summed quotient over the clip times sqrt(K); 0 solves it from target-epsilon.",
    )
    radius: float = Field(0.0, ge=0, description="Radius of the ball that keeps the model; 0: no projection.")
    center: Literal["origin", "initial"] = Field("initial", description="Centre of the ball.")
    batch_size: int = Field(
        0, ge=0, description="Records that a client uses per round; 0 takes all of the client's."
    )
    initial_model: Literal["sent", "built"] = Field(
        "sent",
        description="Where only steps are sent: the first model comes from the server, or every client builds it "
        "from the same seed and weights and no model is ever sent. A client whose model differs by a bit is left "
        "out of a round and then gets the server's.",
    )
