"""Settings of the DP-HYPE stage."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from fedpriv.settings.base import SettingsModel
from fedpriv.settings.train import DEFAULT_GRID, TUNABLE

Check = Callable[[Any], None]


class TuneSettings(SettingsModel):
    """The vote."""

    prefix: ClassVar[str] = "tune."
    stage: ClassVar[str] = "tune"
    title: ClassVar[str] = "Tuning (DP-HYPE)"

    grid: str = Field(
        "",
        description="Candidates as JSON: an object of lists (their product), or a list of objects, over keys of the "
        'stage that follows the vote; "" takes that stage\'s own grid.',
    )
    votes: int = Field(0, ge=0, description="Votes per client; 0 takes a quarter of the candidates.")
    noise_multiplier: float = Field(
        0.0, ge=0, description="Noise of the vote over its sensitivity; 0 solves it from tune-share."
    )
    proxy_rounds: int = Field(
        10, ge=1, description="Rounds of clipped local training by which a client tries a candidate."
    )

    @field_validator("grid")
    @classmethod
    def _grid(cls, value: str) -> str:
        if value:
            parse_grid(value, None)
        return value

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The candidate grid, one dictionary of the tuned stage's keys each."""
        return parse_grid(self.grid or DEFAULT_GRID, None)

    @property
    def resolved_votes(self) -> int:
        """Votes per client in use."""
        return self.votes if self.votes > 0 else max(1, round(len(self.candidates) / 4))


def parse_grid(text: str, tunable: Mapping[str, Check] | None = TUNABLE) -> list[dict[str, Any]]:
    """Read a candidate grid.

    Parameters
    ----------
    text : str
        JSON: ``{"learning-rate": [0.1, 0.3], "local-steps": [1, 5]}`` (the product of the lists) or
        ``[{"learning-rate": 0.1}, {"learning-rate": 0.3, "local-steps": 5}]``.
    tunable : mapping or None
        Keys of the tuned stage and the checks of their values; None to check the JSON only.

    Returns
    -------
    list of dict
        Distinct candidates, in order.

    Raises
    ------
    ValueError
        For text that is no such JSON, an empty grid, or a key or a value that the tuned stage does not
        take.
    """
    try:
        grid = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
    if isinstance(grid, dict):
        lists = [value if isinstance(value, list) else [value] for value in grid.values()]
        candidates = [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*lists)]
        candidates = candidates if grid else []
    elif isinstance(grid, list) and all(isinstance(item, dict) for item in grid):
        candidates = grid
    else:
        raise ValueError("a JSON object of lists or a JSON list of objects")
    if not candidates:
        raise ValueError("a grid of at least one candidate")
    if tunable is not None:
        _check_values(candidates, tunable)
    distinct = [c for i, c in enumerate(candidates) if c not in candidates[:i]]
    if len(distinct) != len(candidates):
        raise ValueError("distinct candidates; some appear twice")
    return candidates


def _check_values(candidates: list[dict[str, Any]], tunable: Mapping[str, Check]) -> None:
    for candidate in candidates:
        for key, value in candidate.items():
            if key not in tunable:
                raise ValueError(f"candidates over {', '.join(sorted(tunable))}; {key!r} is not one of them")
            tunable[key](value)
