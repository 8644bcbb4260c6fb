"""A claim of a paper, and what came of it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["reproduced", "partly", "not"]
PAPERS = {
    "dp-hype": "DP-HYPE, arXiv 2510.04902",
    "dpsgd-dc": "DPSGD-DC, arXiv 2502.17772",
    "zeroth-order": "zeroth-order fine-tuning with hidden states, arXiv 2506.00158",
    "allocation": "sampling-free accounting under random allocation, arXiv 2601.21636",
    "pac-zero": "PACZero, arXiv 2605.06505",
}


@dataclass(frozen=True)
class Check:
    """One condition of a verdict, decided by figures.

    Parameters
    ----------
    words : str
        What should be so, in words.
    holds : bool
        Whether it is.
    figure : str
        The figures that decide.
    """

    words: str
    holds: bool
    figure: str


@dataclass
class Finding:
    """What a run found.

    Parameters
    ----------
    checks : list of Check
        All must hold for *reproduced*, some for *partly*.
    header, rows : sequence
        A table of figures.
    source : str
        "" for figures of this run, else the benchmark whose committed results were read.
    remark : str
        What a reader should know besides.
    data : dict
        Figures for a picture.
    """

    checks: list[Check]
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    source: str = ""
    remark: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """From the checks alone."""
        held = [check.holds for check in self.checks]
        return "reproduced" if all(held) else "partly" if any(held) else "not"


@dataclass(frozen=True)
class Claim:
    """A claim and how it is tried.

    Parameters
    ----------
    key : str
        Short name, on the command line and of its files.
    paper : str
        Key of `PAPERS`.
    words : str
        The claim, in our words.
    run : callable
        ``run(quick) -> Finding``; quick is a smoke run whose figures mean nothing.
    draw : callable, optional
        ``draw(data, path)`` makes the picture.
    """

    key: str
    paper: str
    words: str
    run: Callable[[bool], Finding]
    draw: Callable[[dict[str, Any], Path], None] | None = None


def figure(width: float, height: float, panels: int = 1) -> tuple[Any, list[Any]]:
    """An empty figure with some panels in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(found)
    axes = found.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.grid(alpha=0.25)
    return found, list(axes)
