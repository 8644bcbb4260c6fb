"""What can go wrong with a privacy ledger, each with a name that a caller can catch."""

from __future__ import annotations

from pathlib import Path


class LedgerError(Exception):
    """Base of every error that the ledger raises about its file or its rules."""


class LedgerMismatch(LedgerError):
    """The file was started with another unit or adjacency than the caller asked for."""


class LedgerLocked(LedgerError):
    """Another writer holds this ledger."""


class LedgerCorrupted(LedgerError):
    """The file is not a ledger, or its chain is broken.

    Parameters
    ----------
    path : Path
        The file.
    line : int
        Line number, counted from 1.
    why : str
        What is wrong with that line.
    """

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}, line {line}: {why}")
        self.path = path
        self.line = line
        self.why = why


class BudgetExceeded(LedgerError):
    """A release was refused before anything was written or sent, because it would exceed the budget.

    Attributes
    ----------
    spent, would_be, allowed : float
        Epsilon before the release, epsilon with it, and the largest epsilon that the budget allows.
    view, delta, stage, round
        What the budget is about and which release was refused.
    """

    def __init__(
        self,
        *,
        spent: float,
        would_be: float,
        allowed: float,
        view: str,
        delta: float,
        stage: str,
        round: int,
    ) -> None:
        super().__init__(
            f"stage {stage!r}, round {round}: this release would bring epsilon in the {view} view to "
            f"{would_be:.4f} at delta {delta:g}; spent so far {spent:.4f}, allowed {allowed:.4f}. "
            "Nothing was written and nothing may be sent."
        )
        self.spent = spent
        self.would_be = would_be
        self.allowed = allowed
        self.view = view
        self.delta = delta
        self.stage = stage
        self.round = round
