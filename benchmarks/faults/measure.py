"""Kill a run at a point, resume it, and compare what left the server with what the ledger charged."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.points import Point
from benchmarks.faults.recording import ANSWERED, Exchange, digest, read_exchanges, run_recorded
from fedpriv import wire
from fedpriv.ledger import LedgerReader, read_ledger
from fedpriv.reporting import read_report
from fedpriv.stages.folder import RunFolder

CONFIG: dict[str, Any] = {
    "task": "breast-cancer",
    "num-clients": 4,
    "partition": "iid",
    "tune.grid": '{"learning-rate": [0.1, 1.0]}',
    "tune.proxy-rounds": 1,
    "train.rounds": 4,
    "delta": 0.01,
    "name": "run",
}


@dataclass
class Outcome:
    """What one crash cost.

    Parameters
    ----------
    words : str
        Where the process was killed.
    at_restart : str
        Position of the checkpoint that was found.
    lost : str
        Work that was done and has to be done again.
    charged_before : int
        Releases that the ledger charges after the crash.
    sent_before : int
        Sums whose unmask requests had left before it.
    charged, sent : int
        The same after the resumed run.
    account_before, models_before : int
        After the crash: rounds that a silo's own account charges, and masked models that left the silo; of the silo
        that is charged most, which is the one that died.
    account, models : int
        The same after the resumed run; all are 0 in a run whose unit is the client.
    repeated : str
        Releases that were charged twice.
    rounds : str
        Rounds of training that the resumed run's model holds, of those planned.
    epsilon : float
        Of the whole run, in the server view.
    problems : list of str
        Broken promises; empty in a correct program.
    """

    words: str
    at_restart: str = "none"
    lost: str = "nothing"
    charged_before: int = 0
    sent_before: int = 0
    charged: int = 0
    sent: int = 0
    account_before: int = 0
    models_before: int = 0
    account: int = 0
    models: int = 0
    repeated: str = "nothing"
    rounds: str = ""
    epsilon: float = 0.0
    problems: list[str] = field(default_factory=list)


def in_child(work: Callable[[], None], log: Path) -> int:
    """Run ``work`` in a forked process; its exit code, negative for the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def crash_and_resume(point: Point, folder: Path) -> Outcome:
    """One scenario.

    Parameters
    ----------
    point : Point
        Where the server's process dies.
    folder : Path
        An empty folder for the run.
    """
    values = CONFIG | {"run-dir": str(folder)} | dict(point.config)
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    outcome = Outcome(point.words)

    def crashing() -> None:
        point.install()
        run_recorded(first, values)

    code = in_child(crashing, folder / "first.log")
    if code != -signal.SIGKILL:
        raise RuntimeError(
            f"{point.key}: the run was not killed (exit code {code}):\n{_tail(folder / 'first.log')}"
        )
    run = RunFolder(folder / "run")
    ledger = read_ledger(run.ledger) if run.ledger.exists() else None
    before = read_exchanges(first)
    charged = _charged(ledger)
    outcome.charged_before, outcome.sent_before = charged.total(), _sent(before).total()
    _under_counts(outcome, "after the crash", before, charged)
    outcome.account_before, outcome.models_before = _accounts(outcome, "after the crash", run, before)
    state = run.load_checkpoint()
    expected = ""
    if state is not None:
        outcome.at_restart = f"{state.stage}, {f'round {state.round}' if state.round > 0 else 'finished'}"
        expected = digest(state.arrays)
    outcome.lost = _lost(before, ledger, state)

    resumed = values | {"resume": "run", "name": ""}

    def resuming() -> None:
        _draw_nothing()
        run_recorded(second, resumed)

    code = in_child(resuming, folder / "second.log")
    if code != 0:
        outcome.problems.append(f"the resumed run ended with code {code}:\n{_tail(folder / 'second.log')}")
        return outcome
    later = read_exchanges(second)
    _inspect(outcome, run, before, later, expected)
    return outcome


def _draw_nothing() -> None:
    """Pictures take more time than the rest of the run, and nothing here looks at them."""
    import fedpriv.reporting.write as writing
    import fedpriv.stages.report as report

    writing.write_figures = lambda *rest: {}  # type: ignore[assignment]
    report._partition_figure = lambda *rest: None  # type: ignore[assignment,return-value]


def _inspect(
    outcome: Outcome, run: RunFolder, before: list[Exchange], later: list[Exchange], expected: str
) -> None:
    ledger, report = read_ledger(run.ledger), read_report(run.path)
    charged = _charged(ledger)
    outcome.charged, outcome.sent = charged.total(), _sent([*before, *later]).total()
    _under_counts(outcome, "at the end", [*before, *later], charged)
    outcome.account, outcome.models = _accounts(outcome, "at the end", run, [*before, *later])
    twice = sorted(place for place, count in charged.items() if count > 1)
    outcome.repeated = _places(twice)
    train = next(stage for stage in report.stages if stage.name == "train")
    done = [record.round for record in train.rounds]
    planned = int(report.settings["record.rounds" if report.unit == "record" else "train.rounds"])
    outcome.rounds = f"{len(done)} of {planned}"
    outcome.epsilon = report.views["server"].epsilon
    models = [found.model for found in later if found.model and found.stage == "train"]
    first = next((found.model for found in before if found.model), "")
    if models and models[0] != (expected or first or models[0]):
        outcome.problems.append("the first model that was sent after the restart is not the checkpoint's")
    final = run.load_checkpoint()
    if final is None or digest(final.arrays) != _model_file(run):
        outcome.problems.append("model.safetensors is not the last checkpoint's model")
    if done != list(range(1, len(done) + 1)):
        outcome.problems.append(f"the report holds rounds {done}")
    if outcome.epsilon > 8.0 or outcome.epsilon != ledger.epsilon("server", report.delta).epsilon:
        outcome.problems.append(f"epsilon {outcome.epsilon} is above the budget or not the ledger's")
    if len(done) < planned and "before round" not in report.outcome:
        outcome.problems.append(f"{outcome.rounds} rounds, and the report does not say why: {report.outcome}")
    lines = run.metrics.read_text().splitlines()
    if lines != [json.dumps(record.model_dump(mode="json")) for record in train.rounds]:
        outcome.problems.append("metrics.jsonl does not hold each round of the report once")
    left = [path.name for path in run.path.iterdir() if path.name.endswith(".part")]
    if left:
        outcome.problems.append(f"left behind: {left}")


def _model_file(run: RunFolder) -> str:
    from safetensors.numpy import load_file

    state = run.load_checkpoint()
    stored = load_file(run.model)
    assert state is not None
    return digest({name: stored[name] for name in state.arrays})


def _charged(ledger: LedgerReader | None) -> Counter[tuple[str, int]]:
    """Charged releases by stage and round."""
    entries = () if ledger is None else ledger.entries
    return Counter((entry.stage, entry.round) for entry in entries if entry.charged)


def _sent(exchanges: list[Exchange]) -> Counter[tuple[str, int]]:
    """Sums whose unmask requests left, by stage and round."""
    return Counter(found.place for found in exchanges if found.exchange == wire.STAGE_UNMASK)


def _under_counts(
    outcome: Outcome, when: str, exchanges: list[Exchange], charged: Counter[tuple[str, int]]
) -> None:
    for place, count in _sent(exchanges).items():
        if charged[place] < count:
            outcome.problems.append(f"{when}, {place}: {count} sums opened, {charged[place]} charged")


def _accounts(outcome: Outcome, when: str, run: RunFolder, exchanges: list[Exchange]) -> tuple[int, int]:
    """What the account that charges most holds and what left its silo; each must have paid for what left it."""
    found = (0, 0)
    for path in sorted((run.path.parent / "silos").glob("silo-*/account.jsonl")):
        silo = int(path.parent.name.removeprefix("silo-"))
        paid = _charged(read_ledger(path))
        left = Counter(
            answer.place for answer in exchanges if answer.exchange == ANSWERED and silo in answer.partitions
        )
        for place, count in left.items():
            if paid[place] < count:
                outcome.problems.append(
                    f"{when}, silo {silo}, {place}: {count} models left, {paid[place]} charged"
                )
        found = max(found, (paid.total(), left.total()))
    return found


def _lost(exchanges: list[Exchange], ledger: LedgerReader | None, state: Any) -> str:
    """What was under way or done, and is in no checkpoint."""
    kept = set()
    for report in () if state is None else state.reports:
        kept |= {(name, record.round) for record in report.rounds for name in (report.name, "evaluate")}
    worked = {found.place for found in exchanges if found.round > 0}
    worked |= set(_charged(ledger))
    return _places(sorted(worked - kept))


def _places(places: list[tuple[str, int]]) -> str:
    words = {"tune": "the vote", "train": "round {}", "evaluate": "evaluation {}"}
    return ", ".join(words[stage].format(number) for stage, number in places) or "nothing"


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:]) if path.exists() else ""
