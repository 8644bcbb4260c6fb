"""From a finished run to its report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.reporting import (
    CLEAR_METRICS,
    PER_RUN_LEDGER,
    SEEDED_NOISE,
    SIMULATED_SUM,
    BudgetRecord,
    EpsilonPoint,
    LedgerRecord,
    PacRecord,
    RunReport,
    StageReport,
    ViewReport,
    Warning,
    claim,
    write_report,
)
from fedpriv.settings import Settings
from fedpriv.stages.base import Run, RunState, report_hypotheses
from fedpriv.stages.federation import is_simulation
from fedpriv.stages.planning import large_delta
from fedpriv.stages.source import COMMIT_VARIABLE, commit_of
from fedpriv.strategies import NoisedSum

if TYPE_CHECKING:
    from fedpriv.tasks.base import Task

_PACKAGES = ("fedpriv", "flwr", "dp-accounting", "numpy", "scipy", "torch", "cryptography")


def write_run_report(run: Run, task: Task, state: RunState, evaluation: NoisedSum, seconds: float) -> str:
    """Write report.json, report.md and the figures; return the claim as a sentence."""
    configured = run.settings.run
    delta = configured.resolved_delta
    stages = list(state.reports)
    if run.plans.evaluation is not None:
        stages.append(_evaluation_stage(run, evaluation))
    accuracies = [r.accuracy for stage in stages for r in stage.rounds if r.accuracy is not None]
    report = RunReport(
        title=f"{configured.name}: {task.title}, {configured.num_clients} {configured.members}",
        unit=configured.unit,
        adjacency=configured.adjacency,
        delta=delta,
        views={view: _view(run, view) for view in VIEWS},
        stages=stages,
        warnings=_warnings(run),
        settings=run.settings.to_run_config(),
        environment={"data": task.examples.source} | _environment(seconds),
        orders=[float(order) for order in run.ledger.totals()[configured.budget_view].orders],
        epsilon_curves={
            view: [
                EpsilonPoint(
                    stage=point.stage, round=point.round, epsilon=point.epsilon, release=point.release
                )
                for point in run.ledger.epsilon_curve(delta, view)
            ]
            for view in VIEWS
        },
        budget=BudgetRecord(view=configured.budget_view, max_epsilon=configured.resolved_max_epsilon)
        if run.plans.private()
        else None,
        outcome=state.stopped or "all stages ran to their end",
        final_accuracy=accuracies[-1] if accuracies else None,
        pac=_pac(run),
        private=bool(run.plans.private()),
        ledger=LedgerRecord(
            file=Path(run.ledger.path).name,
            lines=run.ledger.num_lines,
            head=run.ledger.head,
            runs=list(run.ledger.runs),
            notes=list(run.ledger.notes),
        ),
        # in a deployment nobody knows the split, and it would be the silos' secret
        partition_figure=_partition_figure(run, task) if is_simulation(run.grid) else None,
        model_file=run.folder.model.name,
        load_example=_load_example(run.settings, configured.model or task.default_model),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_report(run.folder.path, report)
    return claim(report)


def _pac(run: Run) -> list[PacRecord]:
    """One line per PAC-private stage and silo, of what the ledger charged, never less than was planned."""
    charged = run.ledger.pac_totals(run=run.settings.run.name)
    return [
        PacRecord(
            stage=stage,
            silo=silo,
            nats=max(nats, plan.nats),
            success=plan.posterior_success,
            comparison_epsilon=plan.comparison_epsilon,
        )
        for stage, plan in run.plans.pac().items()
        for (charged_stage, silo), nats in charged.items()
        if charged_stage == stage
    ]


def _view(run: Run, view: View) -> ViewReport:
    found = run.ledger.epsilon(view, run.settings.run.resolved_delta)
    return ViewReport(
        epsilon=found.epsilon,
        bound=found.bound,
        rdp_epsilon=found.rdp_epsilon,
        pld_epsilon=found.pld_epsilon,
        order=found.order,
        statement=_statement(run, view),
        notes=list(found.notes),
    )


def _statement(run: Run, view: View) -> str:
    configured = run.settings.run
    plans = {name: plan for name, plan in run.plans.private().items() if name != "evaluate"}
    who = {
        "server": "Whoever runs the server sees every secure sum and every model",
        "participants": "Whoever takes part sees every broadcast model and its own noise",
        "release": "Whoever gets only the final model",
    }[view]
    if view == "server" and configured.noise == "central":
        return f"{who}, before the server adds the noise: nothing bounds what it learns."
    if not plans:
        return f"{who}: no stage of this run is covered by differential privacy."
    return who + list(plans.values())[-1].visibility(view)


def _warnings(run: Run) -> list[Warning]:
    configured = run.settings.run
    found = []
    if configured.seeded_noise:
        found.append(SEEDED_NOISE)
    if configured.evaluate == "clear":
        found.append(CLEAR_METRICS)
    if configured.secure_sum == "simulated":
        found.append(SIMULATED_SUM)
    if not configured.account:
        found.append(PER_RUN_LEDGER)
    if warning := large_delta(run.settings, run.plans):
        found.append(Warning(text=warning, severity="severe"))
    if configured.evaluate == "none":
        found.append(Warning(text="the model was not evaluated: evaluate = none"))
    found += [Warning(text=text) for text in run.plans.warnings()]
    return found


def _evaluation_stage(run: Run, sums: NoisedSum) -> StageReport:
    plan = run.plans.evaluation
    assert plan is not None
    charged = [entry for entry in run.ledger.entries if entry.stage == "evaluate" and entry.charged]
    epsilon = {
        view: result.epsilon
        for view in VIEWS
        if (result := run.ledger.epsilon_by_stage(view, run.settings.run.resolved_delta).get("evaluate"))
    }
    return StageReport(
        name="evaluate",
        kind="private evaluation",
        table={**plan.describe(), "evaluations released": len(charged)},
        hypotheses=report_hypotheses(plan),
        bytes_up=sums.bytes_up,
        bytes_down=sums.bytes_down,
        epsilon=epsilon,
    )


def _partition_figure(run: Run, task: Task) -> str:
    from fedpriv.tasks.client_data import client_counts
    from fedpriv.tasks.federated import partition_settings
    from fedpriv.tasks.partitions import plot_partition

    configured = run.settings.run
    counts = client_counts(
        task, partition_settings(run.settings), configured.holdout_fraction, configured.seed
    )
    path = run.folder.figures / "partition.png"
    plot_partition(counts, path)
    return path.relative_to(run.folder.path).as_posix()


def _load_example(settings: Settings, model: str) -> str:
    run = settings.run
    if run.task == "sentiment":
        return f'''from safetensors.torch import load_file

from fedpriv.tasks.client_data import public_split
from fedpriv.tasks.sentiment import sentiment_task

task = sentiment_task("{model}", {run.language_model!r}, {run.language_data!r}, {run.max_examples})
model = task.build_model("{model}", seed={run.seed})
model.load_state_dict(load_file("model.safetensors"))
print(model(public_split(task, {run.holdout_fraction}, {run.seed}).x[:5]).argmax(dim=1))'''
    return f'''import torch
from safetensors.torch import load_file

from fedpriv.tasks import get_task
from fedpriv.tasks.client_data import public_split

task = get_task("{run.task}")
model = task.build_model("{model}", seed={run.seed})
model.load_state_dict(load_file("model.safetensors"))
images = public_split(task, {run.holdout_fraction}, {run.seed}).x[:5]
print(model(images).argmax(dim=1))'''


def _environment(seconds: float) -> dict[str, str]:
    found = {name: _version(name) for name in _PACKAGES}
    found["python"] = platform.python_version()
    found["platform"] = platform.platform()
    found["wall time of this session"] = f"{seconds:.1f} s"
    if commit := _commit():
        found["commit"] = commit
    return found


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"


def _commit() -> str:
    """Commit of the app's source tree; empty where nobody knows it.

    An app bundle holds no git data, so ``fedpriv run`` passes the commit of the submitted folder on.
    """
    root = Path(__file__).resolve().parents[2]
    return os.environ.get(COMMIT_VARIABLE, "") or commit_of(root)
