"""From a flat run configuration to one validated settings object."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedpriv.settings.base import SettingsError, SettingsModel, refuse_unknown
from fedpriv.settings.matrix import MatrixSettings, check_matrix
from fedpriv.settings.pac_zero import PacZeroSettings
from fedpriv.settings.record import RecordSettings, check_record_level
from fedpriv.settings.run import RunSettings
from fedpriv.settings.train import TrainSettings
from fedpriv.settings.tune import TuneSettings, parse_grid
from fedpriv.settings.zeroth_order import ZerothOrderSettings

#: All tables in the order of the documentation.
TABLES: tuple[type[SettingsModel], ...] = (
    RunSettings,
    TuneSettings,
    TrainSettings,
    ZerothOrderSettings,
    PacZeroSettings,
    MatrixSettings,
    RecordSettings,
)


Table = TypeVar("Table", bound=SettingsModel)


@dataclass(frozen=True)
class Settings:
    """A whole run's configuration.

    Parameters
    ----------
    tables : tuple of SettingsModel
        One of each kind in ``TABLES``.
    """

    tables: tuple[SettingsModel, ...]

    def of(self, kind: type[Table]) -> Table:
        """The table of a kind, for instance ``settings.of(TrainSettings)``."""
        return next(table for table in self.tables if isinstance(table, kind))

    @property
    def run(self) -> RunSettings:
        """What every stage shares."""
        return self.of(RunSettings)

    @property
    def tune(self) -> TuneSettings:
        """The vote."""
        return self.of(TuneSettings)

    @property
    def train(self) -> TrainSettings:
        """Client-level training."""
        return self.of(TrainSettings)

    @property
    def tuned(self) -> SettingsModel:
        """The table that the vote's candidates change: of the stage that follows the vote, or of training."""
        names = self.run.stage_names
        after = names[names.index("tune") + 1 :] if "tune" in names else ()
        return next((t for name in after for t in self.tables if t.stage == name and t.tunable), self.train)

    def replacing(self, *tables: SettingsModel) -> Settings:
        """The settings with some tables put in the place of those of their kind."""
        kinds = {type(table): table for table in tables}
        return Settings(tuple(kinds.get(type(table), table) for table in self.tables))

    def with_run(self, **changes: Any) -> Settings:
        """The settings with some fields of the run's own table changed."""
        return self.replacing(self.run.model_copy(update=changes))

    def with_candidate(self, candidate: Mapping[str, Any]) -> Settings:
        """The settings with a candidate's values put into the tuned table."""
        changes = {key.replace("-", "_"): value for key, value in candidate.items()}
        return self.replacing(type(self.tuned)(**(self.tuned.model_dump() | changes)))

    def to_run_config(self) -> dict[str, Any]:
        """Flat run configuration, defaults filled in."""
        return {key: value for table in self.tables for key, value in table.to_run_config().items()}

    def to_toml(self) -> str:
        """The resolved configuration as TOML, one table per stage."""
        lines: list[str] = []
        for table in self.tables:
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
    return {key: value for table in TABLES for key, value in table().to_run_config().items()}


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
    settings = Settings(tuple(table.from_run_config(run_config) for table in TABLES))
    if not settings.tune.grid:
        settings = settings.replacing(settings.tune.model_copy(update={"grid": settings.tuned.default_grid}))
    _check_combinations(settings)
    return settings


def _check_combinations(settings: Settings) -> None:
    run, tune = settings.run, settings.tune
    if run.unit == "record":
        check_record_level(settings)
    elif "matrix" in run.stage_names:
        check_matrix(settings)
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
    try:
        candidates = parse_grid(tune.grid, settings.tuned.tunable)
    except ValueError as error:
        raise SettingsError(f"run config: tune.grid = {tune.grid!r}: should be {error}") from None
    if "tune" in run.stage_names and tune.resolved_votes > len(candidates):
        raise SettingsError(
            f"run config: tune.votes = {tune.votes}: should be at most {len(candidates)}, the number of "
            "candidates"
        )
    if "tune" in run.stage_names[1:]:
        raise SettingsError(f"run config: stages = {run.stages!r}: should have tune first")
