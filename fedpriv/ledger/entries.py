"""The records of a ledger read back as entries, with the rules that make a sequence of records legal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fedpriv.accounting.events import PrivacyEvent, event_from_json
from fedpriv.accounting.vocabulary import ADJACENCIES, UNITS, VIEWS, Unit, View
from fedpriv.ledger.records import VERSION

#: ``reserved``: written, fate unknown (counts). ``committed``: the release was made. ``void``: nothing left.
#: ``interrupted``: the process ended before it said which (counts, and can no longer be voided).
Status = Literal["reserved", "committed", "void", "interrupted"]

#: How a line begins, by what it is about.
DP, PAC = "reserve", "reserve-pac"


@dataclass(frozen=True)
class Entry:
    """One release of a differentially private stage.

    Parameters
    ----------
    seq : int
        Number of the line that reserved it.
    time, run, stage : str
        When (UTC, ISO 8601), in which run, in which stage.
    round : int
        Round of the stage; a round that was repeated after a crash appears twice and counts twice.
    events : mapping from view to PrivacyEvent
        What the release costs in every view.
    details, realised : mapping
        Plain data: what was planned, and what the round turned out to be. Never part of the accounting.
    status : Status
    reason : str
        Why it was voided.
    """

    seq: int
    time: str
    run: str
    stage: str
    round: int
    events: Mapping[View, PrivacyEvent]
    details: Mapping[str, Any] = field(default_factory=dict)
    realised: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "reserved"
    reason: str = ""

    @property
    def charged(self) -> bool:
        """Whether it counts: everything does that was not voided."""
        return self.status != "void"


@dataclass(frozen=True)
class PacEntry:
    """One release of a PAC-private stage, in nats of mutual information; in no epsilon."""

    seq: int
    time: str
    run: str
    stage: str
    round: int
    silo: str
    nats: float
    details: Mapping[str, Any] = field(default_factory=dict)
    realised: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "reserved"
    reason: str = ""

    @property
    def charged(self) -> bool:
        """Whether it counts."""
        return self.status != "void"


@dataclass(frozen=True)
class StageBound:
    """A bound on a stage as a whole, for the ``release`` view, that may replace the composition of its
    rounds.

    Parameters
    ----------
    seq, run, stage
        Where it was registered.
    round_event : dict
        The ``release`` event (as JSON) that each covered round is charged with; other events of the stage are
        composed on top.
    events_by_rounds : dict
        An event as JSON; its ``rounds`` is set to the number of charged rounds.
    """

    seq: int
    run: str
    stage: str
    round_event: Mapping[str, Any]
    events_by_rounds: Mapping[str, Any]

    def event(self, rounds: int) -> PrivacyEvent:
        """The event that stands for `rounds` rounds of the stage."""
        return event_from_json({**self.events_by_rounds, "rounds": rounds})


@dataclass(frozen=True)
class Session:
    """One opening of the file by a process that wrote to it."""

    seq: int
    time: str
    run: str
    delta: float | None
    budgets: tuple[Mapping[str, Any], ...]
    software: Mapping[str, str]
    dropped_bytes: int


class RuleBroken(Exception):
    """A record that cannot follow the ones before it."""


class LedgerState:
    """Everything the records say, built one record at a time, by the same rules for readers and writers."""

    def __init__(self) -> None:
        self.unit: Unit = "client"
        self.adjacency: str = ""
        self.entries: dict[int, Entry] = {}
        self.pac_entries: dict[int, PacEntry] = {}
        self.bounds: dict[tuple[str, str], StageBound] = {}
        self.sessions: list[Session] = []
        self._open: set[int] = set()

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take one record in.

        Raises
        ------
        RuleBroken
            With the reason.
        """
        handler = self._HANDLERS.get(record["type"])
        if handler is None:
            raise RuleBroken(
                f"record type {record['type']!r} is unknown to this version of fedpriv; it may be a cost"
            )
        if (record["type"] == "header") != (record["seq"] == 0):
            raise RuleBroken("a ledger has exactly one header, on its first line")
        try:
            handler(self, record)
        except (ImportError, KeyError, TypeError, ValueError) as error:
            raise RuleBroken(f"bad {record['type']} record: {error!r}") from error

    def is_open(self, seq: int) -> bool:
        """Whether a reservation of the current session has been neither committed nor voided."""
        return seq in self._open

    def _header(self, record: Mapping[str, Any]) -> None:
        if record["version"] != VERSION:
            raise RuleBroken(f"format version {record['version']}; this fedpriv reads version {VERSION}")
        if record["unit"] not in UNITS or record["adjacency"] not in ADJACENCIES:
            raise RuleBroken(f"unit {record['unit']!r} with adjacency {record['adjacency']!r} is not known")
        self.unit, self.adjacency = record["unit"], record["adjacency"]

    def _session(self, record: Mapping[str, Any]) -> None:
        for seq in sorted(self._open):
            self._replace(seq, status="interrupted")
        self._open.clear()
        self.sessions.append(
            Session(
                record["seq"],
                record["time"],
                record["run"],
                record["delta"],
                tuple(record["budgets"]),
                record["software"],
                record["dropped_bytes"],
            )
        )

    def _reserve(self, record: Mapping[str, Any]) -> None:
        events: dict[View, PrivacyEvent] = {
            view: event_from_json(record["events"][view]) for view in VIEWS if view in record["events"]
        }
        if set(record["events"]) != set(VIEWS):
            raise RuleBroken(f"events are given for {sorted(record['events'])}, not for {list(VIEWS)}")
        self._check_kind(record, self.pac_entries)
        self.entries[record["seq"]] = Entry(
            record["seq"],
            record["time"],
            record["run"],
            record["stage"],
            record["round"],
            events,
            record["details"],
        )
        self._open.add(record["seq"])

    def _reserve_pac(self, record: Mapping[str, Any]) -> None:
        nats = float(record["nats"])
        if not 0 <= nats < float("inf"):
            raise RuleBroken(f"nats = {record['nats']!r}; allowed: a finite number >= 0")
        self._check_kind(record, self.entries)
        self.pac_entries[record["seq"]] = PacEntry(
            record["seq"],
            record["time"],
            record["run"],
            record["stage"],
            record["round"],
            record["silo"],
            nats,
            record["details"],
        )
        self._open.add(record["seq"])

    def _check_kind(
        self, record: Mapping[str, Any], other: Mapping[int, Entry] | Mapping[int, PacEntry]
    ) -> None:
        if any(e.run == record["run"] and e.stage == record["stage"] for e in other.values()):
            raise RuleBroken(
                f"stage {record['stage']!r} of run {record['run']!r} has both differential-privacy and PAC "
                "entries; the two guarantees cannot be added, so they need stages of their own"
            )

    def _settle(self, record: Mapping[str, Any]) -> None:
        seq = record["of"]
        if seq not in self._open:
            raise RuleBroken(
                f"{record['type']} of line {seq}, which is not an open reservation of this session"
            )
        if record["type"] == "commit":
            self._replace(seq, status="committed", realised=record["realised"])
        else:
            self._replace(seq, status="void", reason=record["reason"])
        self._open.discard(seq)

    def _replace(self, seq: int, **changes: Any) -> None:
        if seq in self.entries:
            self.entries[seq] = dataclasses.replace(self.entries[seq], **changes)
        else:
            self.pac_entries[seq] = dataclasses.replace(self.pac_entries[seq], **changes)

    def _stage_bound(self, record: Mapping[str, Any]) -> None:
        key = (record["run"], record["stage"])
        if record["view"] != "release":
            raise RuleBroken(f"a stage bound is for the release view only, not for {record['view']!r}")
        if key in self.bounds:
            raise RuleBroken(f"stage {key[1]!r} of run {key[0]!r} has a bound already")
        if any((e.run, e.stage) == key for e in self.entries.values()):
            raise RuleBroken(
                f"stage {key[1]!r} of run {key[0]!r} has begun; its bound must be registered before"
            )
        bound = StageBound(record["seq"], *key, record["round_event"], record["events_by_rounds"])
        bound.event(1)
        event_from_json(dict(bound.round_event))
        self.bounds[key] = bound

    _HANDLERS: ClassVar[Mapping[str, Callable[[LedgerState, Mapping[str, Any]], None]]] = {
        "header": _header,
        "session": _session,
        DP: _reserve,
        PAC: _reserve_pac,
        "commit": _settle,
        "void": _settle,
        "stage-bound": _stage_bound,
    }
