"""Writing a ledger: reserve before a release, commit after it, void only when nothing left."""

from __future__ import annotations

import importlib.metadata
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import fedpriv
from fedpriv.accounting.curves import DEFAULT_ORDERS
from fedpriv.accounting.events import NonPrivate, PrivacyEvent, event_from_json
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_delta, check_integer
from fedpriv.accounting.vocabulary import ADJACENCIES, UNITS, VIEWS, Adjacency, Unit, View
from fedpriv.ledger.budget import Budget, BudgetGuard
from fedpriv.ledger.entries import DP, PAC, LedgerState, RuleBroken
from fedpriv.ledger.errors import LedgerError, LedgerMismatch
from fedpriv.ledger.journal import Journal
from fedpriv.ledger.reader import LedgerReader
from fedpriv.ledger.records import FORMAT, GENESIS, VERSION, ParsedFile, encode_line, jsonable, parse
from fedpriv.ledger.reservation import Reservation


class Ledger(LedgerReader):
    """The durable privacy ledger of one or several runs; open it with `Ledger.open`.

    Formal guarantees
    -----------------
    * When `reserve` returns, its line is on the disk; what it charges is in every later total, in this
      process and in any later one, until `Reservation.void`.
    * After a crash at any instant, reopening counts at least every release whose `reserve` had returned and
      that was not voided before.
    * A release over the budget, with an infinite epsilon that was not allowed in words, or with an event that
      does not fit the ledger's adjacency raises before anything is written.
    * Two writers never hold one file.
    """

    def __init__(self, journal: Journal, parsed: ParsedFile, run: str, budgets: Iterable[Budget]) -> None:
        super().__init__(journal.path, parsed)
        self._journal = journal
        self._lock = threading.RLock()
        self.run = run
        self._guards = [BudgetGuard(budget) for budget in budgets]

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        unit: Unit,
        adjacency: Adjacency,
        run: str,
        delta: float | None = None,
        budgets: Budget | Iterable[Budget] = (),
    ) -> Ledger:
        """Create a ledger or continue one.

        Parameters
        ----------
        path : path
            The file; created with mode 0600, with its directories.
        unit : {"client", "record"}
        adjacency : {"add_or_remove", "replace_one"}
        run : str
            Name of the run whose releases are recorded; the same name continues a run.
        delta : float, optional
            The delta that the run reports at; kept in the file for readers.
        budgets : Budget or iterable of Budget
            Checked by `reserve`, against the total of all runs.

        Raises
        ------
        LedgerMismatch
            The file has another unit or adjacency; the message names both.
        LedgerLocked
            Another writer holds the file.
        LedgerCorrupted
            The chain is broken, with the line number.
        InvalidArgument
            Naming the argument.
        """
        check_choice(UNITS, unit=unit)
        check_choice(ADJACENCIES, adjacency=adjacency)
        if not isinstance(run, str) or not run:
            raise InvalidArgument(f"run = {run!r}; allowed: a name that is not empty")
        if delta is not None:
            check_delta(delta=delta)
        budgets = (budgets,) if isinstance(budgets, Budget) else tuple(budgets)
        journal = Journal(Path(path))
        try:
            return cls._start(journal, unit, adjacency, run, delta, budgets)
        except BaseException:
            journal.close()
            raise

    @classmethod
    def _start(
        cls,
        journal: Journal,
        unit: Unit,
        adjacency: Adjacency,
        run: str,
        delta: float | None,
        budgets: tuple[Budget, ...],
    ) -> Ledger:
        parsed = parse(journal.data, journal.path)
        if not parsed.records:
            # New, or its very first write was torn: nothing can have been released yet.
            journal.cut(0)
            header = {"seq": 0, "type": "header", "format": FORMAT, "version": VERSION}
            header |= {"unit": unit, "adjacency": adjacency, "time": _now(), "run": run}
            line, _ = encode_line(header, GENESIS)
            journal.append(line)
            journal.sync_directory()
            parsed = parse(line, journal.path)
        ledger = cls(journal, parsed, run, budgets)
        if (ledger.unit, ledger.adjacency) != (unit, adjacency):
            raise LedgerMismatch(
                f"{journal.path} protects unit {ledger.unit!r} with adjacency {ledger.adjacency!r}, this run "
                f"asks for unit {unit!r} with adjacency {adjacency!r}; costs under different definitions "
                "cannot be added. Use the same settings, or another ledger, for unrelated data."
            )
        if parsed.torn_bytes:
            journal.cut(parsed.good_bytes)
        if parsed.missing_newline:
            journal.append(b"\n")
        ledger._dropped_bytes = 0
        ledger._append(
            {
                "type": "session",
                "delta": delta,
                "budgets": [jsonable(asdict(budget), "budget") for budget in budgets],
                "software": _software(),
                "dropped_bytes": parsed.torn_bytes,
            }
        )
        return ledger

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets that `reserve` checks."""
        return tuple(guard.budget for guard in self._guards)

    def reserve(
        self,
        stage: str,
        round: int,
        events: Mapping[View, PrivacyEvent],
        details: Mapping[str, Any] | None = None,
        *,
        allow_infinite: Collection[View] = (),
    ) -> Reservation:
        """Pay for a release before it is made; on the disk when this returns.

        Parameters
        ----------
        stage : str
        round : int
            >= 0. The same round may be reserved again after a crash, and counts again.
        events : mapping from view to PrivacyEvent
            One event for each of the three views; ``NoRelease()`` where a view sees nothing.
        details : mapping, optional
            Plain data for a reviewer (clip norm, noise, cohort). Never losses, votes, single updates or keys.
        allow_infinite : collection of views
            Views for which the plan states that there is no guarantee (central noise: ``server``).

        Returns
        -------
        Reservation

        Raises
        ------
        BudgetExceeded
            The release does not fit a budget; nothing was written.
        InvalidArgument
            A view is missing or unknown, an event is infinite without permission, or it does not go with the
            ledger's adjacency; nothing was written.
        LedgerError
            The file could not be written: the release must not be made.
        """
        _check_place(stage, round)
        self._check_events(events, allow_infinite)
        with self._lock:
            for guard in self._guards:
                event = events[guard.budget.view]
                guard.check(self._totals, self.run, stage, round, event)
            record = {
                "type": DP,
                "stage": stage,
                "round": int(round),
                "events": {view: jsonable(events[view].to_json(), view) for view in VIEWS},
                "details": jsonable(details or {}, "details"),
            }
            seq = self._append(record)
            self._totals.add(self.run, stage, events)
            return Reservation(self, seq, stage, int(round))

    def reserve_pac(
        self, stage: str, round: int, silo: str, nats: float, details: Mapping[str, Any] | None = None
    ) -> Reservation:
        """Pay for a PAC-private release, in nats of mutual information of one silo.

        These entries stand on lines of their own and are in no epsilon; see `pac_totals`.

        Parameters
        ----------
        stage : str
        round : int
            >= 0.
        silo : str
            Whose secret the release depends on.
        nats : float
            Mutual information that it may carry, at most; >= 0.
        details : mapping, optional
            Plain data for a reviewer.

        Raises
        ------
        InvalidArgument
            `nats` is not a finite number >= 0, or the stage already has differential-privacy entries.
        """
        _check_place(stage, round)
        if isinstance(nats, bool) or not 0 <= nats < float("inf"):
            raise InvalidArgument(f"nats = {nats!r}; allowed: a finite number >= 0")
        with self._lock:
            record = {
                "type": PAC,
                "stage": stage,
                "round": int(round),
                "silo": str(silo),
                "nats": float(nats),
            }
            record["details"] = jsonable(details or {}, "details")
            return Reservation(self, self._append(record), stage, int(round))

    def register_stage(
        self, stage: str, *, round_event: PrivacyEvent, events_by_rounds: Mapping[str, Any]
    ) -> None:
        """Register, before its first round, a bound on a stage as a whole for the ``release`` view.

        Totals of the release view then take the smaller of this bound and the composition of the stage's
        rounds. Only register a bound whose hypotheses all hold: only the final model is released, nothing per
        round.

        Parameters
        ----------
        stage : str
        round_event : PrivacyEvent
            The ``release`` event that every covered round is reserved with. Anything else that the stage
            reserves is composed on top.
        events_by_rounds : mapping
            An event's JSON form; a reader sets its ``rounds`` to the number of charged rounds. The bound must
            not fall when rounds grow.

        Raises
        ------
        InvalidArgument
            The stage has begun, or has another bound; the description is not an event with ``rounds``.
            Registering the same bound again (a resumed run) does nothing.
        """
        _check_place(stage, 0)
        described = jsonable(dict(events_by_rounds), "events_by_rounds")
        covered = jsonable(round_event.to_json(), "round_event")
        self._check_adjacency("release", round_event)
        with self._lock:
            known = self._state.bounds.get((self.run, stage))
            if known is not None and (known.round_event, known.events_by_rounds) == (covered, described):
                return
            record = {"type": "stage-bound", "stage": stage, "view": "release"}
            self._append({**record, "round_event": covered, "events_by_rounds": described})

    def close(self) -> None:
        """Give up the lock; open reservations stay counted."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_events(self, events: Mapping[View, PrivacyEvent], allow_infinite: Collection[View]) -> None:
        if set(events) != set(VIEWS):
            raise InvalidArgument(
                f"events are given for the views {sorted(events)}; allowed: exactly {list(VIEWS)}, with "
                "NoRelease() for a view that sees nothing"
            )
        for view in allow_infinite:
            check_choice(VIEWS, allow_infinite=view)
        for view, event in events.items():
            if not isinstance(event, PrivacyEvent):
                raise InvalidArgument(
                    f"events[{view!r}] = {event!r} is not a PrivacyEvent (a PAC budget in nats is no "
                    "differential-privacy cost and goes through reserve_pac)"
                )
            self._check_adjacency(view, event)
            if event_from_json(event.to_json()) != event:
                raise InvalidArgument(f"events[{view!r}] = {event!r} does not come back from its JSON form")
            if view not in allow_infinite and _is_infinite(event):
                raise InvalidArgument(
                    f"events[{view!r}] = {event!r} has infinite epsilon (a secure sum without noise has "
                    "infinite epsilon in the server view); allowed only where the plan says so: "
                    f"allow_infinite=[{view!r}]"
                )

    def _check_adjacency(self, view: View, event: PrivacyEvent) -> None:
        if self.adjacency not in event.adjacencies:
            raise InvalidArgument(
                f"events[{view!r}] = {event!r} is valid for adjacency {sorted(event.adjacencies)}, this "
                f"ledger is {self.adjacency!r}"
            )

    def _settle(self, kind: str, seq: int, payload: Mapping[str, Any]) -> None:
        with self._lock:
            state: LedgerState = self._state
            if not state.is_open(seq):
                raise LedgerError(f"line {seq + 1} of {self.path} was settled already")
            entry = state.entries.get(seq)
            self._append({"type": kind, "of": seq, **payload}, apply_after=True)
            if kind == "void" and entry is not None:
                self._totals.add(entry.run, entry.stage, entry.events, -1)

    def _append(self, payload: Mapping[str, Any], *, apply_after: bool = False) -> int:
        """Write a record durably and take it into the state.

        A cost enters the state before it is written and a refund after: whatever fails in between
        over-counts.
        """
        seq = self._next_seq
        record = {"seq": seq, "type": payload["type"], "time": _now(), "run": self.run, **payload}
        line, digest = encode_line(record, self._head)
        self._journal.check_usable()
        try:
            if not apply_after:
                self._state.apply(record)
            self._journal.append(line)
            if apply_after:
                self._state.apply(record)
        except RuleBroken as error:
            raise InvalidArgument(str(error)) from error
        self._head = digest
        self._hashes.append(digest)
        self._next_seq += 1
        return seq


def _check_place(stage: str, round: int) -> None:
    if not isinstance(stage, str) or not stage:
        raise InvalidArgument(f"stage = {stage!r}; allowed: a name that is not empty")
    check_integer(0, round=round)


@lru_cache(maxsize=256)
def _is_infinite(event: PrivacyEvent) -> bool:
    if isinstance(event, NonPrivate):
        return True
    known = [event.curves(DEFAULT_ORDERS)]
    if event.uses_delta:
        known += event.bounds(DEFAULT_ORDERS, 1e-5).values()
    return all(np.isinf(c.remove.rdp).all() or np.isinf(c.add.rdp).all() for c in known)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _software() -> dict[str, str]:
    versions = {"fedpriv": fedpriv.__version__}
    for package in ("dp-accounting", "numpy", "scipy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


__all__ = ["Ledger", "Reservation"]
