"""One release that is paid for, from its reservation to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedpriv.ledger.errors import LedgerError
from fedpriv.ledger.records import jsonable

if TYPE_CHECKING:
    from fedpriv.ledger.ledger import Ledger


class Reservation:
    """One release that is paid for. Counted from the moment it exists, unless it is voided.

    Call `mark_released` right before anything leaves; then `commit` when the round is over. If the process
    dies or the object is forgotten, the release stays counted.
    """

    def __init__(self, ledger: Ledger, seq: int, stage: str, round: int) -> None:
        self._ledger = ledger
        self.seq = seq
        self.stage = stage
        self.round = round
        self.released = False

    def mark_released(self) -> None:
        """Say that something is about to leave the server: from now on the reservation cannot be voided."""
        self.released = True

    def commit(self, realised: Mapping[str, Any] | None = None) -> None:
        """Record that the release was made, with what the round turned out to be (survivors, noise shares,
        ...).

        Raises
        ------
        LedgerError
            When it was settled already.
        """
        record = {"realised": jsonable(realised or {}, "realised")}
        self._ledger._settle("commit", self.seq, record)
        self.released = True

    def void(self, reason: str) -> None:
        """Take the charge back: nothing left the server, so nobody learnt anything.

        Raises
        ------
        LedgerError
            After `mark_released`, after `commit`, or when it was voided already.
        """
        if self.released:
            raise LedgerError(
                f"stage {self.stage!r}, round {self.round} cannot be voided: its release was marked as made"
            )
        self._ledger._settle("void", self.seq, {"reason": str(reason)})
