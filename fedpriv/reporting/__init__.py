"""Reports of a run: from plain data to report.md, .html and .json, figures, and console lines while it runs."""

from fedpriv.reporting.claim import claim, format_epsilon
from fedpriv.reporting.model import (
    CLEAR_METRICS,
    PER_RUN_LEDGER,
    SEEDED_NOISE,
    SIMULATED_SUM,
    BudgetRecord,
    EpsilonPoint,
    Hypothesis,
    LedgerRecord,
    PacRecord,
    RoundRecord,
    RunReport,
    StageReport,
    ViewReport,
    VoteRecord,
    Warning,
)
from fedpriv.reporting.progress import Progress
from fedpriv.reporting.write import read_report, write_report

__all__ = [
    "CLEAR_METRICS",
    "PER_RUN_LEDGER",
    "SEEDED_NOISE",
    "SIMULATED_SUM",
    "BudgetRecord",
    "EpsilonPoint",
    "Hypothesis",
    "LedgerRecord",
    "PacRecord",
    "Progress",
    "RoundRecord",
    "RunReport",
    "StageReport",
    "ViewReport",
    "VoteRecord",
    "Warning",
    "claim",
    "format_epsilon",
    "read_report",
    "write_report",
]
