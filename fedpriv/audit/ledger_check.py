"""Ledger entries against what was really sent, during a run and in the folder of a finished one."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv import wire
from fedpriv.accounting.vocabulary import VIEWS
from fedpriv.audit.result import Finding
from fedpriv.ledger import Ledger, LedgerReader, read_ledger
from fedpriv.plans import AnyPlan, PacPlan, Plan

if TYPE_CHECKING:
    from flwr.app import Message

Watch = Callable[[list["Message"]], None]
Play = Callable[[Ledger, Watch], None]
"""Plays some rounds with a ledger, and lets an observer see the requests of every exchange beforehand."""

_CLOSE = 1e-9


def check_messages(stage: str, plan: Plan, play: Play, *, charged_once: bool = False) -> Finding:
    """Every secure sum that clients were asked for is on the disk before its first message leaves, and no other.

    Parameters
    ----------
    stage : str
        Name for the finding.
    plan : Plan
        Whose events every release must be charged with.
    play : callable
        ``play(ledger, watch)`` plays at least two rounds.
    charged_once : bool
        The first release pays for all: the later ones are entered without a cost.

    Returns
    -------
    Finding
    """
    with tempfile.TemporaryDirectory(prefix="fedpriv-audit-") as folder:
        path = Path(folder) / "ledger.jsonl"
        on_disk: dict[bytes, int] = {}
        bare = 0

        def watch(messages: list[Message]) -> None:
            nonlocal bare
            for message in messages:
                record: Any = message.content.get(wire.RECORD_SECURE_SUM)
                if record is None:
                    bare += 1
                    continue
                session = bytes(record[wire.FIELD_SESSION])
                if session not in on_disk:
                    on_disk[session] = sum(entry.charged for entry in read_ledger(path).entries)

        with Ledger.open(path, unit=plan.unit, adjacency=plan.adjacency, run="audit", delta=1e-5) as ledger:
            play(ledger, watch)
            entries = [entry for entry in ledger.entries if entry.charged]
    faults = []
    late = [number for number, known in enumerate(on_disk.values(), 1) if known < number]
    if late:
        faults.append(f"release {late[0]} was not on the disk when its first request left")
    if len(entries) != len(on_disk):
        faults.append(f"{len(on_disk)} secure sums were run, {len(entries)} are charged")
    if bare:
        faults.append(f"{bare} requests were no part of a secure sum")
    paid = entries[:1] if charged_once else entries
    if any(not _same(entry.events[view], plan.events()[view]) for entry in paid for view in VIEWS):
        faults.append("an entry has other events than the plan")
    detail = "; ".join(faults) or f"{len(on_disk)} secure sums, each charged before its first request"
    return Finding(stage, "ledger against messages", not faults, detail)


def _same(first: Any, second: Any) -> bool:
    """Whether two events are equal up to rounding."""
    a, b = first.to_json(), second.to_json()
    if a.keys() != b.keys():
        return False
    for key, value in a.items():
        other = b[key]
        numbers = isinstance(value, float | int) and isinstance(other, float | int)
        if not (math.isclose(value, other, rel_tol=_CLOSE) if numbers else value == other):
            return False
    return True


def check_folder(
    ledger: LedgerReader | Path,
    run: str,
    plans: Mapping[str, AnyPlan],
    rounds: Iterable[tuple[str, int]],
) -> list[Finding]:
    """A finished run's ledger against its configuration and its report.

    Parameters
    ----------
    ledger : LedgerReader or Path
        The ledger; reading it checks its chain of hashes.
    run : str
        Name of the run.
    plans : mapping
        Stage -> plan, made again from the configuration.
    rounds : iterable of (stage, round)
        Rounds that the report says were released.

    Returns
    -------
    list of Finding
        One per stage.
    """
    reader = read_ledger(ledger) if isinstance(ledger, Path) else ledger
    released = list(rounds)
    return [
        _check_stage(name, plan, reader, run, [r for stage, r in released if stage == name])
        for name, plan in plans.items()
    ]


def _check_stage(
    name: str, plan: AnyPlan, reader: LedgerReader, run: str, released: Sequence[int]
) -> Finding:
    check = "ledger of the run against its configuration and report"
    if isinstance(plan, PacPlan):
        lines = [e for e in reader.pac_entries if e.charged and (e.run, e.stage) == (run, name)]
        nats: dict[str, float] = {}
        for line in lines:
            nats[line.silo] = nats.get(line.silo, 0.0) + line.nats
        good = bool(lines or not released) and all(v >= plan.nats * (1 - _CLOSE) for v in nats.values())
        return Finding(name, check, good, f"{len(lines)} lines, {plan.nats:g} nats planned per silo")
    assert isinstance(plan, Plan)
    entries = [e for e in reader.entries if e.charged and (e.run, e.stage) == (run, name)]
    faults = []
    missing = sorted(set(released) - {entry.round for entry in entries})
    if missing:
        faults.append(f"round {missing[0]} was released and is not charged")
    if plan.releases < plan.num_rounds:
        entries = entries[:1]  # the first release pays for all
    wrong = [e for e in entries if any(not _same(e.events[v], plan.events()[v]) for v in VIEWS)]
    if wrong:
        faults.append(f"round {wrong[0].round} is charged with other events than the configuration's plan")
    return Finding(
        name, check, not faults, "; ".join(faults) or f"{len(released)} releases, {len(entries)} entries"
    )
