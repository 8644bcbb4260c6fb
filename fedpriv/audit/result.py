"""What an audit found: rows of bounds beside the claim, and findings of the consistency checks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Quantity = Literal["epsilon", "success"]


@dataclass(frozen=True)
class Claim:
    """An upper bound that is claimed.

    Parameters
    ----------
    value : float
        Epsilon, or the success probability of an attack on one secret (PAC privacy).
    quantity : {"epsilon", "success"}
        Which of the two.
    bound : str
        What proves it.
    gaussian_mu : float or None
        mu, where the claim says that the view is exactly mu-Gaussian-DP.
    """

    value: float
    quantity: Quantity = "epsilon"
    bound: str = ""
    gaussian_mu: float | None = None


@dataclass(frozen=True)
class Row:
    """One lower bound beside its claim.

    Parameters
    ----------
    stage : str
        Stage or strategy.
    view : str
        Adversary.
    method : str
        Name of the method.
    claim : Claim
        Upper bound.
    lower : float
        Empirical lower bound on the same quantity.
    confidence : float
        Of this row.
    runs : int
        Runs that it used.
    detail : str
        Test and counts.
    """

    stage: str
    view: str
    method: str
    claim: Claim
    lower: float
    confidence: float
    runs: int
    detail: str = ""

    @property
    def exceeds(self) -> bool:
        """Whether the bound refutes the claim."""
        return self.lower > self.claim.value


@dataclass(frozen=True)
class Finding:
    """Outcome of one consistency check.

    Parameters
    ----------
    stage, check : str
        Stage, and name of the check.
    good : bool
        Whether it passed.
    detail : str
        What was measured against what.
    """

    stage: str
    check: str
    good: bool
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "good", bool(self.good))  # a comparison of numpy numbers is not JSON


@dataclass(frozen=True)
class Unaudited:
    """A view that was left out, and why."""

    stage: str
    view: str
    why: str


@dataclass
class Report:
    """All rows and findings of an audit.

    Parameters
    ----------
    subject : str
        What was audited.
    delta : float
        Of every epsilon.
    confidence : float
        With which no bound of the report is above the truth.
    code : dict
        Stage -> which code ran.
    """

    subject: str
    delta: float
    confidence: float
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unaudited: list[Unaudited] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        """Whether a lower bound exceeds its claim, or a check failed."""
        return any(row.exceeds for row in self.rows) or any(not f.good for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "subject": self.subject,
            "delta": self.delta,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "rows": [_plain(asdict(row)) | {"exceeds": row.exceeds} for row in self.rows],
            "findings": [asdict(finding) for finding in self.findings],
            "unaudited": [asdict(item) for item in self.unaudited],
            "code": self.code,
        }

    def dumps(self) -> str:
        """JSON text."""
        return json.dumps(self.to_json(), indent=1) + "\n"

    def cells(self) -> list[list[str]]:
        """The table of bounds, header first."""
        header = ["stage", "view", "method", "claimed at most", "at least", "runs", ""]
        found = [header]
        for row in self.rows:
            unit = "" if row.claim.quantity == "epsilon" else " (success)"
            found.append(
                [
                    row.stage,
                    row.view,
                    row.method,
                    _short(row.claim.value) + unit,
                    _short(row.lower),
                    str(row.runs),
                    "EXCEEDS THE CLAIM" if row.exceeds else "below",
                ]
            )
        return found

    def text(self) -> str:
        """The report for a terminal."""
        lines = [
            self.subject,
            f"epsilon at delta {self.delta:.3g}; with {100 * self.confidence:.7g} % confidence no lower bound is above "
            "the truth",
            "",
            *_aligned(self.cells()),
        ]
        lines += [f"not audited: {item.stage}, {item.view}: {item.why}" for item in self.unaudited]
        if self.findings:
            lines.append("")
            lines += [
                f"{'ok    ' if f.good else 'FAILED'}  {f.stage}: {f.check} ({f.detail})"
                for f in self.findings
            ]
        lines += ["", *(f"code that ran for {stage}: {text}" for stage, text in self.code.items())]
        return "\n".join(lines).rstrip()


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Floats that JSON has no word for become text."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found[key] = _plain(value)
        elif isinstance(value, float) and not math.isfinite(value):
            found[key] = "infinity"
        else:
            found[key] = value
    return found


def _short(value: float) -> str:
    return "infinity" if math.isinf(value) else f"{value:.3f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
