"""Where a process is killed: each point patches one call of the running app, in a process that is about to die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpriv import wire
from fedpriv.ledger import Ledger, Reservation
from fedpriv.ledger.journal import Journal
from fedpriv.stages.folder import RunFolder

Install = Callable[[], None]
Matches = Callable[..., bool]
#: Run-config keys of record-level training inside silos.
RECORD: Mapping[str, Any] = {
    "unit": "record",
    "stages": "train",
    "record.rounds": 4,
    "record.local-steps": 2,
    "record.sampling-rate": 1.0,  # whole batches: no distributions to compute
    "delta": 1e-5,
}
#: The round of training in which a point strikes, unless it says otherwise.
ROUND = 2


def kill() -> None:
    """End this process as ``kill -9`` does: no handler, no flush, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Point:
    """A point of crash.

    Parameters
    ----------
    key : str
        Short name.
    words : str
        For people.
    install : callable
        Patches the app so that this process kills itself there.
    config : mapping
        Run-config keys that the point needs.
    """

    key: str
    words: str
    install: Install
    config: Mapping[str, Any] = field(default_factory=dict)


def before(owner: Any, name: str, matches: Matches) -> Install:
    """Die instead of making a call."""
    return lambda: _wrap(owner, name, matches, first=True)


def after(owner: Any, name: str, matches: Matches) -> Install:
    """Make the call, then die."""
    return lambda: _wrap(owner, name, matches, first=False)


def _wrap(owner: Any, name: str, matches: Matches, first: bool) -> None:
    whole = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        struck = matches(*arguments)
        if struck and first:
            kill()
        result = whole(*arguments, **named)
        if struck:
            kill()
        return result

    setattr(owner, name, wrapped)


def _reserves(stage: str, server_round: int) -> Matches:
    return lambda _, asked_stage, asked_round, *rest: (asked_stage, asked_round) == (stage, server_round)


def _settles(stage: str, server_round: int) -> Matches:
    return lambda reservation, *rest: (reservation.stage, reservation.round) == (stage, server_round)


def _pays(server_round: int) -> Matches:
    """A silo's reservation in its own account."""
    return lambda ledger, stage, asked_round, *rest: (
        ledger.unit == "record" and _in_account(ledger) and (asked_round == server_round)
    )


def _in_account(ledger: Ledger) -> bool:
    return ledger.path.name == "account.jsonl"


def _saves(stage: str, server_round: int) -> Matches:
    return lambda _, state: (state.stage, state.round) == (stage, server_round)


def _tears_the_reservation() -> None:
    whole = Journal._write

    def write(self: Journal, line: bytes) -> None:
        if b'"type":"reserve"' in line and b'"stage":"train"' in line and b'"round":%d' % ROUND in line:
            os.pwrite(self._file.fileno(), line[: len(line) // 2], self._size)
            kill()
        whole(self, line)

    Journal._write = write  # type: ignore[method-assign]


def _tears_the_checkpoint() -> None:
    whole, seen = RunFolder._replace, []

    def replace(path: Any, data: bytes, *rest: Any, **named: Any) -> None:
        seen.append(path.name)
        if seen.count("checkpoint.npz") == ROUND + 1:  # one was written after the vote
            path.with_name(path.name + ".part").write_bytes(data[: len(data) // 2])
            kill()
        whole(path, data, *rest, **named)

    RunFolder._replace = staticmethod(replace)  # type: ignore[method-assign]


def _around(exchange: str, first: bool) -> Install:
    """Before or after an exchange of the chosen round; see ``RecordingGrid.exchange``."""
    from benchmarks.faults.recording import RecordingGrid

    strike = before if first else after
    return strike(
        RecordingGrid,
        "exchange",
        lambda grid, found, *rest: found.exchange == exchange and found.place == ("train", ROUND),
    )


def _in_the_report() -> None:
    import fedpriv.stages.report as report

    before(report, "write_report", lambda *rest: True)()


POINTS = (
    Point("folder", "before the ledger exists", before(Ledger, "open", lambda *rest: True)),
    Point("vote", "vote: released, not checkpointed", after(Reservation, "commit", _settles("tune", 1))),
    Point("voted", "vote: checkpointed", after(RunFolder, "save_checkpoint", _saves("tune", -1))),
    Point("unreserved", "before the reservation", before(Ledger, "reserve", _reserves("train", ROUND))),
    Point("torn", "half of the reservation's line written", _tears_the_reservation),
    Point("reserved", "after the reservation", after(Ledger, "reserve", _reserves("train", ROUND))),
    Point("masking", "before the masked vectors", _around(wire.STAGE_MASKED_INPUT, True)),
    Point("masked", "after the masked vectors", _around(wire.STAGE_MASKED_INPUT, False)),
    Point(
        "marked", "before the unmask requests", after(Reservation, "mark_released", _settles("train", ROUND))
    ),
    Point("unmasked", "after the unmask replies", _around(wire.STAGE_UNMASK, False)),
    Point(
        "committed", "between ledger and checkpoint", after(Reservation, "commit", _settles("train", ROUND))
    ),
    Point(
        "evaluated",
        "private evaluation: released, not checkpointed",
        after(Reservation, "commit", _settles("evaluate", ROUND)),
        {"evaluate": "private"},
    ),
    Point("part", "half of the checkpoint written", _tears_the_checkpoint),
    Point("saved", "after the checkpoint", after(RunFolder, "save_checkpoint", _saves("train", ROUND))),
    Point("silo paid", "a silo reserves in its account", after(Ledger, "reserve", _pays(ROUND)), RECORD),
    Point("silos sent", "after the silos' masked models", _around(wire.STAGE_MASKED_INPUT, False), RECORD),
    Point("report", "after the last round, in the report", _in_the_report),
)
