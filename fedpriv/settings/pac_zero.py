"""Settings of the PACZero fine-tuning stage."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedpriv.settings.base import SettingsModel, positive


class PacZeroSettings(SettingsModel):
    """Rounds of one bit per silo."""

    prefix: ClassVar[str] = "paczero."
    title: ClassVar[str] = "Fine-tuning by one bit a round (PACZero)"
    stage: ClassVar[str] = "paczero"
    tunable: ClassVar = {"learning-rate": positive(float), "smoothing": positive(float)}
    default_grid: ClassVar[str] = '{"learning-rate": [0.01, 0.03, 0.1, 0.3]}'

    rounds: int = Field(200, ge=1, description="Rounds; mi shares its budget over all of them.")
    variant: Literal["zpl", "mi"] = Field(
        "zpl",
        description="Where the subsets disagree: a fair coin (0 nats, exactly), or a noisy sign under a budget.",
    )
    nats: float = Field(
        0.0, ge=0, description="mi: mutual information that all bits of a silo may carry; must be 0 for zpl."
    )
    subsets: int = Field(
        126, ge=2, description="Subsets M of a silo's records, every record in half of them; even."
    )
    learning_rate: float = Field(0.05, gt=0, description="Length of a step along the unit direction.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning rate over the rounds; linear and cosine end near 0."
    )
    smoothing: float = Field(0.01, gt=0, description="Distance xi of the two points from the model.")
    clip: float = Field(10.0, gt=0, description="Bound on every record's quotient, for stability.")
    direction_kind: Literal["auto", "uniform", "signs"] = Field(
        "auto",
        description="Law of the direction: uniform on the sphere, or random signs, which are made much quicker; auto "
        "takes signs above 16.8 million coordinates. Privacy does not depend on it.",
    )
    aggregate: Literal["majority", "mean"] = Field(
        "majority", description="What becomes of the silos' bits: their sign, or their mean."
    )
