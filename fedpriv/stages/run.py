"""A whole run: settings, federation, plans, stages, report."""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedpriv.ledger import Budget, Entry, Ledger, PacEntry
from fedpriv.reporting import Progress
from fedpriv.reporting.claim import format_epsilon, format_nats
from fedpriv.settings import Settings, SettingsError, resolve_settings
from fedpriv.stages.base import Run, RunState
from fedpriv.stages.federation import wait_for_clients
from fedpriv.stages.folder import RunFolder
from fedpriv.stages.planning import RunPlans, large_delta, plans_of
from fedpriv.stages.registry import stage_class
from fedpriv.strategies import NoisedSum
from fedpriv.tasks import task_of

if TYPE_CHECKING:
    from fedpriv.tasks.base import Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Keys that may differ when a run is resumed: they do not touch data, noise or budget.
_FREE_ON_RESUME = ("run-dir", "name", "resume", "timeout", "wait-for-clients")


def initial_model(settings: Settings, task: Task) -> ArrayRecord:
    """The model before any training, from the run's seed."""
    model = task.build_model(settings.run.model, settings.run.seed)
    return ArrayRecord(model.state_dict())


def execute_run(grid: Grid, run_config: Mapping[str, Any], progress: Progress | None = None) -> Path:
    """Run all stages over a federation and write the report.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    run_config : mapping
        The run configuration.
    progress : Progress, optional
        Where console lines go; standard output by default.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    SettingsError
        For a bad configuration or a federation of another size, before anything is sent.
    """
    progress = Progress() if progress is None else progress
    started = time.monotonic()
    settings = resolve_settings(run_config)
    for name in settings.run.stage_names:
        stage_class(name, settings.run.unit)
    # before torch and the data are loaded: a wrong set-up should fail within seconds
    clients = wait_for_clients(
        grid, settings.run.num_clients, settings.run.wait_for_clients, progress.message
    )
    from fedpriv.stages.evaluation import make_evaluator
    from fedpriv.stages.report import write_run_report

    task = task_of(settings)
    initial = initial_model(settings, task)
    plans = plans_of(settings, initial)
    settings, folder = _open_folder(settings)
    stages = [stage_class(name, settings.run.unit)() for name in settings.run.stage_names]
    with _open_ledger(settings, folder) as ledger:
        # only now: while the ledger is held, no other process of this run writes a checkpoint
        state = _checkpoint(settings, folder, ledger, progress)
        sums = NoisedSum(ledger, settings.run.secure_sum, settings.run.timeout)
        sums.share_threshold = settings.run.share_threshold or None
        sums.neighbours = settings.run.neighbours or None
        sums.seed = settings.run.seed if settings.run.seeded_noise else None
        evaluator = make_evaluator(settings, plans, task, grid, clients, sums, progress)
        run = Run(settings, plans, grid, clients, ledger, folder, progress, evaluator, initial)
        _announce(settings, plans, folder, progress)
        state = RunState(initial) if state is None else state
        _run_stages(run, stages, state)
        if settings.run.evaluate != "none" and settings.run.stage_names == ("tune",):
            progress.message("nothing was trained: the model is the initial one")
        folder.save_model(state.arrays)
        claim = write_run_report(run, task, state, sums, time.monotonic() - started)
    progress.done(claim, str(folder.path / "report.md"))
    return folder.path


def _run_stages(run: Run, stages: list[Any], state: RunState) -> None:
    order = [stage.name for stage in stages]
    for stage in stages:
        if state.stage in order and order.index(stage.name) < order.index(state.stage):
            continue
        if stage.name == state.stage and state.round < 0:
            continue  # finished before the run was interrupted
        if state.stopped:
            continue
        run.progress.stage(stage.name, stage.kind, run.plans.stages[stage.name].num_rounds)
        report = stage.run(run, state)
        report.epsilon = {
            view: result.epsilon
            for view in ("server", "participants", "release")
            if (result := run.ledger.epsilon_by_stage(view, run.settings.run.resolved_delta).get(stage.name))
        }
        state.reports = [known for known in state.reports if known.name != stage.name] + [report]
        state.stage, state.round = stage.name, -1
        state.optimizer = {}
        run.folder.save_checkpoint(state)


def _open_folder(settings: Settings) -> tuple[Settings, RunFolder]:
    """Settings with the run's name, and its folder: a new one, or that of the run to resume."""
    # a container's volume is not for whoever submits a run to know
    root = Path(settings.run.run_dir or os.environ.get("FEDPRIV_RUNS") or Path.cwd() / "runs")
    if settings.run.resume:
        return _resume(settings, root)
    name = settings.run.name or f"{settings.run.task}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"run config: name = {name!r}: should be letters, digits, dots, dashes and underscores"
        )
    settings = settings.with_run(name=name)
    folder = RunFolder(root / name)
    if folder.ledger.exists() or not folder.claim(settings.to_toml()):
        raise SettingsError(
            f"run config: name = {name!r}: {root / name} holds a run; choose another name, or resume it with "
            f"resume = {name!r}"
        )
    folder.write_text(folder.resume, settings.with_run(name="", resume=name).to_toml())
    return settings, folder


def _resume(settings: Settings, root: Path) -> tuple[Settings, RunFolder]:
    name = settings.run.resume
    if not _NAME.fullmatch(name) or not (root / name / "config.toml").exists():
        raise SettingsError(f"run config: resume = {name!r}: {root / name} holds no run to continue")
    folder = RunFolder(root / name)
    stored = _flatten(tomllib.loads(folder.config.read_text()))
    asked = settings.to_run_config()
    changed = [k for k in asked if k not in _FREE_ON_RESUME and k in stored and asked[k] != stored[k]]
    if changed:
        details = ", ".join(f"{key} = {asked[key]!r} (was {stored[key]!r})" for key in changed)
        raise SettingsError(
            f"run config: resume = {name!r}: a run continues with its own configuration, but {details}; set "
            f"these keys as they were, or give all of them at once: --run-config {folder.resume}"
        )
    return settings.with_run(name=name), folder


def _checkpoint(settings: Settings, folder: RunFolder, ledger: Ledger, progress: Progress) -> RunState | None:
    """The last checkpoint of a run that is resumed, if the ledger has paid for all that it holds."""
    name = settings.run.name
    if not settings.run.resume:
        return None
    state = folder.load_checkpoint()
    every: list[Entry | PacEntry] = [*ledger.entries, *ledger.pac_entries]
    entries = [entry for entry in every if entry.run == name]
    _check_paid(settings, state, entries, ledger.path)
    if state is None:
        progress.message(f"resuming {name}: no round was finished, so it begins with its first stage")
    else:
        folder.complete_metrics(state)
        done = f"after round {state.round} of" if state.round > 0 else "behind"
        progress.message(f"resuming {name} {done} stage {state.stage}")
    lost = [entry for entry in entries if entry.status == "interrupted"]
    if lost:
        progress.warn(
            f"{len(lost)} release(s) were under way when the run stopped and stay charged: "
            + ", ".join(f"{entry.stage} round {entry.round}" for entry in lost)
            + "; the budget may end the run before its last round"
        )
    return state


def _check_paid(
    settings: Settings, state: RunState | None, entries: Iterable[Entry | PacEntry], ledger: Path
) -> None:
    """Refuse a ledger that lacks a release which the checkpoint holds: going on would under-count."""
    charged = [entry for entry in entries if entry.charged]
    paid = {(entry.stage, entry.round) for entry in charged}
    at_once = {entry.stage for entry in charged if isinstance(entry, PacEntry)}
    for report in () if state is None else state.reports:
        for record in report.rounds:
            if record.released and report.name not in at_once and (report.name, record.round) not in paid:
                raise SettingsError(
                    f"run config: resume = {settings.run.name!r}: the checkpoint holds round {record.round} of "
                    f"stage {report.name!r}, which {ledger} has not paid for; that is another ledger, or an "
                    "old copy of this run's: put the right one back"
                )


def _flatten(tables: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            flat[key] = value
    return flat


def _open_ledger(settings: Settings, folder: RunFolder) -> Ledger:
    run = settings.run
    path = Path(run.account) if run.account else folder.ledger
    limit = Budget(run.resolved_max_epsilon, run.resolved_delta, run.budget_view)
    return Ledger.open(
        path, unit=run.unit, adjacency=run.adjacency, run=run.name, delta=run.resolved_delta, budgets=limit
    )


def _announce(settings: Settings, plans: RunPlans, folder: RunFolder, progress: Progress) -> None:
    run = settings.run
    progress.start(
        f"fedpriv: {run.stages} on {run.task}, {run.num_clients} {run.members}, in {folder.path}",
        "; ".join(_planned(settings, plans)),
    )
    if warning := large_delta(settings, plans):
        progress.warn(warning)
    for text in plans.warnings():
        progress.warn(text)


def _planned(settings: Settings, plans: RunPlans) -> list[str]:
    delta, found = settings.run.resolved_delta, []
    if plans.private():
        spent = ", ".join(f"{view} {format_epsilon(e.epsilon)}" for view, e in plans.epsilons(delta).items())
        found.append(f"planned epsilon at delta {delta:.3g}: {spent}")
    for name, plan in plans.pac().items():
        found.append(
            f"planned for {name}: at most {format_nats(plan.nats)} nats per silo (no differential privacy)"
        )
    return found
