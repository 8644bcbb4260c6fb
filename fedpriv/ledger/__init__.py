"""The durable privacy ledger: what was released to whom, written before it is released, and what it costs."""

from fedpriv.ledger.budget import Budget
from fedpriv.ledger.entries import Entry, PacEntry, Session, StageBound
from fedpriv.ledger.errors import BudgetExceeded, LedgerCorrupted, LedgerError, LedgerLocked, LedgerMismatch
from fedpriv.ledger.ledger import Ledger
from fedpriv.ledger.reader import HistoryPoint, LedgerReader, read_ledger
from fedpriv.ledger.reservation import Reservation

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Entry",
    "HistoryPoint",
    "Ledger",
    "LedgerCorrupted",
    "LedgerError",
    "LedgerLocked",
    "LedgerMismatch",
    "LedgerReader",
    "PacEntry",
    "Reservation",
    "Session",
    "StageBound",
    "read_ledger",
]
