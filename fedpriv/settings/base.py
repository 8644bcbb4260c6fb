"""Typed run configuration: what all settings models share."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class SettingsError(ValueError):
    """A run-config key has a bad value; the message names the key, the value and what is allowed."""


def positive(kind: type) -> Callable[[Any], None]:
    """Check of a candidate's value: a positive number, or a positive integer for ``int``."""

    def check(value: Any) -> None:
        good = isinstance(value, int) if kind is int else isinstance(value, int | float)
        if isinstance(value, bool) or not good or not 0 < value < math.inf:
            raise ValueError(f"candidates with positive {kind.__name__} values; got {value!r}")

    return check


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class SettingsModel(BaseModel):
    """One table of the run configuration.

    Field names become kebab-case keys, behind ``prefix`` (``train.`` gives ``train.rounds``). Values of the
    run configuration are int, float, bool or str (Flower allows no others), so an unset choice is written 0
    or "". Types are not converted, but for an integer where a number is asked for.
    """

    model_config = ConfigDict(
        alias_generator=_kebab,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )
    prefix: ClassVar[str] = ""
    title: ClassVar[str] = ""
    #: Name of the stage that the table belongs to; "" for none.
    stage: ClassVar[str] = ""
    #: Keys (without prefix) that a candidate of the vote may set, with a check of the value that raises
    #: ValueError.
    tunable: ClassVar[Mapping[str, Callable[[Any], None]]] = {}
    #: Candidates that the vote chooses from unless ``tune.grid`` names others, as JSON.
    default_grid: ClassVar[str] = ""

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Return run-config key -> field name."""
        return {cls.prefix + _kebab(name): name for name in cls.model_fields}

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> Self:
        """Read this table's keys out of a flat run configuration; absent keys take their defaults.

        Raises
        ------
        SettingsError
            Naming every bad key, its value and the allowed range.
        """
        values = {field: run_config[key] for key, field in cls.keys().items() if key in run_config}
        try:
            return cls(**values)
        except ValidationError as error:
            names = {field: key for key, field in cls.keys().items()}
            lines = []
            for problem in error.errors():
                place = problem["loc"][0] if problem["loc"] else ""
                field = str(place).replace("-", "_")
                key = names.get(field, cls.prefix + str(place))
                text = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
                lines.append(f"{key} = {values.get(field)!r}: should be {text}")
            raise SettingsError("run config: " + "; ".join(lines)) from None

    def to_run_config(self) -> dict[str, Any]:
        """Flat run-config keys with resolved values."""
        return {key: getattr(self, field) for key, field in self.keys().items()}


def refuse_unknown(run_config: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse keys that no settings model knows, and suggest the nearest known one.

    Raises
    ------
    SettingsError
        Naming the unknown key.
    """
    known = sorted(known)
    for key in run_config:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"run config: unknown key {key!r}{hint}")
