"""Settings of training under record-level privacy, with the checks of a run whose unit is the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedpriv.settings.base import SettingsError, SettingsModel
from fedpriv.settings.zeroth_order import ZerothOrderSettings

if TYPE_CHECKING:
    from fedpriv.settings.resolve import Settings


class RecordSettings(SettingsModel):
    """Rounds of noised steps inside every silo."""

    prefix: ClassVar[str] = "record."
    stage: ClassVar[str] = "train"
    title: ClassVar[str] = "Training inside silos (unit = record, record-level DPSGD-DC)"

    rounds: int = Field(10, ge=1, description="Rounds; the noise is solved for all of them.")
    local_steps: int = Field(10, ge=1, description="Noised steps of a silo per round.")
    learning_rate: float = Field(0.5, gt=0, description="Learning rate of the steps.")
    sampling_rate: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Probability with which a record is in the secret batch of a step (or of a zeroth-order round).",
    )
    clip_norm: float = Field(1.0, gt=0, description="L2 bound C on the gradient of one record.")
    noise_multiplier: float = Field(
        0.0, ge=0, description="Noise of a step's sum over the clip; 0 solves it from target-epsilon."
    )
    radius: float = Field(
        10.0, gt=0, description="Radius of the ball that keeps the model, after every step."
    )
    center: Literal["origin", "initial"] = Field("origin", description="Centre of the ball.")
    weighting: Literal["uniform", "records"] = Field(
        "uniform",
        description="Average of the silos' models: every silo alike, or by its number of records (which a run of this "
        "unit declares public).",
    )


def check_record_level(settings: Settings) -> None:
    """Refuse what does not go with ``unit = "record"``, before anything is sent.

    Raises
    ------
    SettingsError
        Naming key, value and what to do instead.
    """
    run, record = settings.run, settings.of(RecordSettings)
    if "tune" in run.stage_names:
        raise SettingsError(
            f"run config: stages = {run.stages!r} with unit = 'record': a vote protects clients, not records, and "
            "one ledger has one unit; choose hyperparameters on public data, or vote among more clients under "
            "unit = 'client'"
        )
    if run.evaluate == "private":
        raise SettingsError(
            "run config: evaluate = 'private' with unit = 'record': its noised counts protect clients, not "
            "records; use evaluate = 'public' or 'none'"
        )
    if run.sampling != "full":
        raise SettingsError(
            f"run config: sampling = {run.sampling!r} with unit = 'record': should be 'full'; silos are not "
            "sampled, their records are (record.sampling-rate)"
        )
    if run.noise != "distributed":
        raise SettingsError(
            f"run config: noise = {run.noise!r} with unit = 'record': should be 'distributed'; every silo adds its own"
        )
    own = settings.of(ZerothOrderSettings)
    if "zeroth-order" in run.stage_names and (own.direction_share != 1.0 or own.batch_size):
        raise SettingsError(
            f"run config: zeroth-order.direction-share = {own.direction_share}, zeroth-order.batch-size = "
            f"{own.batch_size} with unit = 'record': should be 1.0 and 0; all noise is the silos' own, and their "
            "batches are sampled (record.sampling-rate)"
        )
    if run.adjacency == "replace_one" and record.sampling_rate < 1:
        raise SettingsError(
            f"run config: record.sampling-rate = {record.sampling_rate} with adjacency = 'replace_one': should be "
            "1.0; sampled batches are accounted under add_or_remove only"
        )
