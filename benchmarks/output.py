"""What the benchmarks share at the command line and in their result files."""

from __future__ import annotations

import json
import logging
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A GitHub table; the first column is left-aligned, the others right-aligned."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def percent(values: Iterable[float]) -> str:
    """Mean and sample standard deviation of parts in percent, such as ``88.1 ± 0.9``."""
    numbers = [100.0 * float(value) for value in values]
    mean = sum(numbers) / len(numbers)
    if len(numbers) == 1:
        return f"{mean:.1f}"
    spread = (sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)) ** 0.5
    return f"{mean:.1f} ± {spread:.1f}"


def describe(candidate: Mapping[str, Any]) -> str:
    """A candidate in few letters."""
    return ", ".join(f"{key} {value:g}" for key, value in candidate.items())


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``key=value`` run-config overrides; a value is JSON where it can be, else text.

    Raises
    ------
    ValueError
        For a pair without ``=``.
    """
    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--config {pair!r}: should be key=value")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        overrides[key.strip()] = value if isinstance(value, bool | int | float | str) else text
    return overrides


def environment(threads: str = "one thread") -> str:
    """Versions and machine, for the foot of a table."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("fedpriv", "flwr", "torch"))
    return f"{packages}, Python {platform.python_version()}, {platform.machine()}, {threads}"


def write_results(folder: Path, name: str, text: str, data: Mapping[str, Any]) -> list[Path]:
    """Write ``name.md`` and ``name.json``; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    table, figures = folder / f"{name}.md", folder / f"{name}.json"
    table.write_text(text)
    figures.write_text(json.dumps(data, indent=1) + "\n")
    return [table, figures]


def quiet() -> None:
    """One torch thread, and no log lines between those of the benchmark."""
    import torch

    torch.set_num_threads(1)
    for name in ("flwr", "fedpriv"):
        logging.getLogger(name).setLevel(logging.ERROR)


class Stopwatch:
    """Prints lines with the seconds since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"[{self.seconds:6.0f} s] {text}", flush=True)
