"""Reading a ledger: what was spent, by view, stage and run."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_integer
from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.ledger.entries import Entry, LedgerState, PacEntry, RuleBroken, Session, StageBound
from fedpriv.ledger.errors import LedgerCorrupted
from fedpriv.ledger.records import ParsedFile, parse
from fedpriv.ledger.totals import Totals


class HistoryPoint(NamedTuple):
    """Cumulative epsilon right after one charged release.

    Parameters
    ----------
    seq : int
        Line (counted from 0) that reserved it.
    stage, round
        Which release it was.
    epsilon : float
        Of everything up to it.
    release : int
        Its number among all charged releases of the file, counted from 1.
    """

    seq: int
    stage: str
    round: int
    epsilon: float
    release: int


class LedgerReader:
    """A ledger as it stands, without the right to write.

    Build one with `read_ledger`. All totals count what was reserved and not voided, of all runs in the file
    unless a run is named: two runs on the same data compose, whichever program made them.
    """

    def __init__(self, path: Path, parsed: ParsedFile) -> None:
        self.path = path
        self._state = LedgerState()
        self._totals = Totals(self._state)
        self._head = parsed.head
        self._hashes = [record["hash"] for record in parsed.records]
        self._next_seq = len(parsed.records)
        self._dropped_bytes = parsed.torn_bytes
        for number, record in enumerate(parsed.records, start=1):
            try:
                self._state.apply(record)
            except RuleBroken as error:
                raise LedgerCorrupted(path, number, str(error)) from error
        for entry in self._state.entries.values():
            if entry.charged:
                self._totals.add(entry.run, entry.stage, entry.events)

    @property
    def unit(self) -> str:
        """``client`` or ``record``: what the guarantee protects."""
        return self._state.unit

    @property
    def adjacency(self) -> str:
        """``add_or_remove`` or ``replace_one``."""
        return self._state.adjacency

    @property
    def head(self) -> str:
        """Hash of the last line. Kept elsewhere, it pins the whole file down to this line."""
        return self._head

    @property
    def hashes(self) -> tuple[str, ...]:
        """Hash of every line; an earlier `head` must be among them."""
        return tuple(self._hashes)

    @property
    def num_lines(self) -> int:
        """Number of valid lines."""
        return self._next_seq

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the file: torn lines, releases whose fate is unknown."""
        notes = []
        if self._dropped_bytes:
            notes.append(
                f"the last line was torn ({self._dropped_bytes} bytes) and is ignored: its write never "
                "finished, so its release was not made"
            )
        notes += [
            f"line {s.seq + 1}: {s.dropped_bytes} bytes of a torn last line were dropped when run {s.run!r} "
            "opened the file"
            for s in self._state.sessions
            if s.dropped_bytes
        ]
        both: tuple[Entry | PacEntry, ...] = (*self.entries, *self.pac_entries)
        notes += [
            f"line {e.seq + 1}: run {e.run!r} stopped in stage {e.stage!r}, round {e.round}, before it said "
            "whether the release was made; it is counted"
            for e in both
            if e.status == "interrupted"
        ]
        return tuple(notes)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every differentially private release, voided ones included, in order."""
        return tuple(self._state.entries.values())

    @property
    def pac_entries(self) -> tuple[PacEntry, ...]:
        """Every PAC release, in order."""
        return tuple(self._state.pac_entries.values())

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Every opening of the file for writing."""
        return tuple(self._state.sessions)

    @property
    def stage_bounds(self) -> tuple[StageBound, ...]:
        """Every registered bound on a stage as a whole."""
        return tuple(self._state.bounds.values())

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs that wrote to the file, in order of appearance."""
        return tuple(dict.fromkeys(s.run for s in self.sessions))

    def totals(self, *, run: str | None = None) -> dict[View, Accountant]:
        """Composition of everything charged, per view.

        Parameters
        ----------
        run : str, optional
            Only this run.

        Returns
        -------
        dict from view to Accountant
            Plain composition; `epsilon` also uses registered stage bounds.
        """
        self._check_run(run)
        return {view: self._totals.compose(self._totals.counts(view, run=run).values()) for view in VIEWS}

    def epsilon(self, view: View, delta: float, *, run: str | None = None, use_pld: bool = True) -> Epsilon:
        """The smallest valid epsilon of a view at `delta`.

        Parameters
        ----------
        view : {"server", "participants", "release"}
        delta : float
            In [0, 1).
        run : str, optional
            Only this run; the guarantee is about all runs on the same data.
        use_pld : bool
            Also compute the tighter epsilon by privacy-loss distributions where every event has one.
        """
        check_choice(VIEWS, view=view)
        self._check_run(run)
        return self._totals.best(view, self._totals.counts(view, run=run), delta, use_pld)

    def epsilon_by_stage(
        self, view: View, delta: float, *, run: str | None = None, use_pld: bool = True
    ) -> dict[str, Epsilon]:
        """Epsilon of every stage taken alone. They do not add up to the total: composition is better than a
        sum.

        Stages of the same name in several runs are composed. PAC stages have no epsilon and are not in it.
        """
        check_choice(VIEWS, view=view)
        self._check_run(run)
        return {
            stage: self._totals.best(view, self._totals.counts(view, run=run, stage=stage), delta, use_pld)
            for stage in self._totals.stages(run)
        }

    def history(self, delta: float, view: View, *, run: str | None = None) -> list[HistoryPoint]:
        """Cumulative RDP epsilon after each charged release, for the curve over rounds.

        Parameters
        ----------
        delta : float
        view : {"server", "participants", "release"}
        run : str, optional
            Only points of this run, starting from what it found in the file.

        Returns
        -------
        list of HistoryPoint
            Its epsilon counts all runs up to that line.
        """
        check_choice(VIEWS, view=view)
        self._check_run(run)
        so_far = Totals(self._state)
        points = []
        for release, entry in enumerate((e for e in self.entries if e.charged), start=1):
            so_far.add(entry.run, entry.stage, {view: entry.events[view]})
            if run in (None, entry.run):
                epsilon = so_far.best_rdp(view, so_far.counts(view), delta)
                points.append(HistoryPoint(entry.seq, entry.stage, entry.round, epsilon, release))
        return points

    def epsilon_curve(
        self, delta: float, view: View, *, run: str | None = None, max_points: int = 40
    ) -> list[HistoryPoint]:
        """Cumulative epsilon by the best valid bound, at evenly spaced releases and at the last one.

        The curve of a report: it ends at the very number that `epsilon` gives, where `history` (RDP at every
        release) may end above it.

        Parameters
        ----------
        delta : float
        view : {"server", "participants", "release"}
        run : str, optional
            Only points of this run, starting from what it found in the file.
        max_points : int
            At most so many points, each a computation of up to a second.
        """
        check_choice(VIEWS, view=view)
        check_integer(1, max_points=max_points)
        self._check_run(run)
        charged = [entry for entry in self.entries if entry.charged]
        shown = [i for i, entry in enumerate(charged) if run in (None, entry.run)]
        step = max(1, math.ceil(len(shown) / max_points))
        chosen = set(shown[::-1][::step])
        so_far = Totals(self._state)
        points = []
        for i, entry in enumerate(charged):
            so_far.add(entry.run, entry.stage, {view: entry.events[view]})
            if i in chosen:
                epsilon = so_far.best(view, so_far.counts(view), delta, use_pld=True).epsilon
                points.append(HistoryPoint(entry.seq, entry.stage, entry.round, epsilon, i + 1))
        return points

    def pac_totals(self, *, run: str | None = None) -> dict[tuple[str, str], float]:
        """Nats spent per (stage, silo). They are per silo and are never added to an epsilon."""
        self._check_run(run)
        totals: dict[tuple[str, str], float] = {}
        for entry in self.pac_entries:
            if entry.charged and run in (None, entry.run):
                key = (entry.stage, entry.silo)
                totals[key] = totals.get(key, 0.0) + entry.nats
        return totals

    def _check_run(self, run: str | None) -> None:
        if run is not None and run not in self.runs:
            raise InvalidArgument(f"run = {run!r} is not in {self.path}; it holds {list(self.runs)}")


def read_ledger(path: str | os.PathLike[str]) -> LedgerReader:
    """Read a ledger and check its chain; a run may be writing it at the same time.

    Parameters
    ----------
    path : path
        The file itself, not its run folder.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    LedgerCorrupted
        The chain is broken, with the line number. A torn last line is not an error: it is dropped, with a
        note.
    """
    path = Path(path)
    parsed = parse(path.read_bytes(), path)
    if not parsed.records:
        raise LedgerCorrupted(path, 1, "the file holds no complete line")
    return LedgerReader(path, parsed)
