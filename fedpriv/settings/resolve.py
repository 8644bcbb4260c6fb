"""From a flat run configuration to one validated settings object."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.settings.base import SettingsError, SettingsModel, refuse_unknown
from fedpriv.settings.run import RunSettings
from fedpriv.settings.train import TrainSettings
from fedpriv.settings.tune import TuneSettings

#: All tables in the order of the documentation.
TABLES: tuple[type[SettingsModel], ...] = (RunSettings, TuneSettings, TrainSettings)


@dataclass(frozen=True)
class Settings:
    """A whole run's configuration.

    Parameters
    ----------
    run : RunSettings
        What every stage shares.
    tune : TuneSettings
        The vote.
    train : TrainSettings
        Training.
    """

    run: RunSettings
    tune: TuneSettings
    train: TrainSettings

    def with_candidate(self, candidate: Mapping[str, Any]) -> Settings:
        """Return the settings with a candidate's train keys put in."""
        changes = {key.replace("-", "_"): value for key, value in candidate.items()}
        values = self.train.model_dump() | changes
        return replace(self, train=TrainSettings(**values))

    def to_run_config(self) -> dict[str, Any]:
        """Flat run configuration, defaults filled in."""
        return {**self.run.to_run_config(), **self.tune.to_run_config(), **self.train.to_run_config()}

    def to_toml(self) -> str:
        """The resolved configuration as TOML, one table per stage."""
        lines: list[str] = []
        for table in (self.run, self.tune, self.train):
            if table.prefix:
                lines.append(f"\n[{table.prefix.rstrip('.')}]")
            for key, field in table.keys().items():
                lines.append(f"{key.removeprefix(table.prefix)} = {_toml_value(getattr(table, field))}")
        return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for the one control character that JSON lets through.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def known_keys() -> list[str]:
    """All run-config keys, in the order of the documentation."""
    return list(itertools.chain.from_iterable(table.keys() for table in TABLES))


def default_run_config() -> dict[str, Any]:
    """All keys with their defaults (what ``[tool.flwr.app.config]`` holds)."""
    return resolve_settings({}).to_run_config()


def resolve_settings(run_config: Mapping[str, Any]) -> Settings:
    """Validate a flat run configuration.

    Parameters
    ----------
    run_config : mapping
        Keys as in ``[tool.flwr.app.config]``; absent keys take their defaults.

    Returns
    -------
    Settings

    Raises
    ------
    SettingsError
        For an unknown key, a bad value, or values that do not go together.
    """
    refuse_unknown(run_config, known_keys())
    settings = Settings(
        RunSettings.from_run_config(run_config),
        TuneSettings.from_run_config(run_config),
        TrainSettings.from_run_config(run_config),
    )
    _check_combinations(settings)
    return settings


def _check_combinations(settings: Settings) -> None:
    run, tune = settings.run, settings.tune
    if run.sampling == "self" and run.adjacency != "add_or_remove":
        raise SettingsError(
            f"run config: adjacency = {run.adjacency!r} with sampling = 'self': Poisson sampling is "
            "accounted under add_or_remove only; use sampling = 'full' or 'server'"
        )
    if run.sampling == "full" and run.sampling_rate != 1.0:
        raise SettingsError(
            f"run config: sampling-rate = {run.sampling_rate} with sampling = 'full': should be 1.0, or "
            "choose sampling = 'self' or 'server'"
        )
    if run.noise == "central" and run.budget_view == "server":
        raise SettingsError(
            "run config: budget-view = 'server' with noise = 'central': the server sees the exact sum, so no "
            "noise bounds its view; use noise = 'distributed', or budget-view = 'participants' or 'release'"
        )
    if run.seeded_noise and run.secure_sum == "protocol":
        raise SettingsError(
            "run config: seeded-noise = true is for simulations; it needs secure-sum = 'simulated'"
        )
    if run.min_survivors > run.num_clients:
        raise SettingsError(
            f"run config: min-survivors = {run.min_survivors}: should be at most num-clients, "
            f"{run.num_clients}"
        )
    candidates = tune.candidates
    if "tune" in run.stage_names and tune.resolved_votes > len(candidates):
        raise SettingsError(
            f"run config: tune.votes = {tune.votes}: should be at most {len(candidates)}, the number of "
            "candidates"
        )
    order = [name for name in run.stage_names if name in ("tune", "train")]
    if order == ["train", "tune"]:
        raise SettingsError(f"run config: stages = {run.stages!r}: should have tune before train")
