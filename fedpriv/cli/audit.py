"""``fedpriv audit``: attack what a run or a configuration claims, and put the result beside the claim."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer


@dataclass
class _Subject:
    """What is audited.

    Parameters
    ----------
    title : str
        For the heading.
    settings : Settings
        The vote's candidate put in, where a finished run chose one.
    folder : Path or None
        Of a finished run.
    released : list of (stage, round)
        Rounds that the finished run's checkpoint holds.
    """

    title: str
    settings: Any
    folder: Path | None = None
    released: list[tuple[str, int]] = field(default_factory=list)


def audit(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a finished run, or with the app's pyproject.toml.")
    ] = Path(),
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="Run-config values, for instance -c 'train.rounds=5'."),
    ] = None,
    runs: Annotated[
        int, typer.Option(help="Runs per stage, half of them with a canary; 0 for none.", min=0)
    ] = 1000,
    canaries: Annotated[int, typer.Option(help="Most canaries in one run; 0 for none.", min=0)] = 200,
    shadow_runs: Annotated[
        int, typer.Option(help="Runs on the task's own data for a membership attack; 0 for none.", min=0)
    ] = 0,
    view: Annotated[
        list[str] | None, typer.Option("--view", help="server, participants or release; may be repeated.")
    ] = None,
    delta: Annotated[float, typer.Option(help="At which epsilons are compared; 0: that of the run.")] = 0.0,
    confidence: Annotated[
        float, typer.Option(help="Probability that no lower bound of the report is above the truth.")
    ] = 0.95,
    checks: Annotated[bool, typer.Option(help="Run the consistency checks.")] = True,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for audit.json and audit.png; <run folder>/audit or ./audit by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack the stages of a run with canaries: lower bounds on epsilon beside the claimed upper bounds.

    The run's data is touched with --shadow-runs only, which trains on the simulated clients' data. Exit code 1: a lower
    bound exceeds its claim, or a consistency check failed.

    FOLDER: folder of a finished run, or with the app's pyproject.toml.

    Examples: fedpriv audit runs/my-run --runs 2000 --view release
    fedpriv audit . -c 'stages="train" train.rounds=5' --delta 1e-3
    """
    from fedpriv.accounting.validators import InvalidArgument
    from fedpriv.settings import SettingsError

    try:
        subject = _subject(folder, config)
        report = _audit(subject, view, delta, runs, canaries, shadow_runs, confidence, checks)
    except (SettingsError, InvalidArgument, ValueError) as error:
        typer.echo(f"fedpriv audit: {error}", err=True)
        raise typer.Exit(2) from None
    from fedpriv.audit.figure import draw

    target = output or (subject.folder / "audit" if subject.folder else Path("audit"))
    target.mkdir(parents=True, exist_ok=True)
    (target / "audit.json").write_text(report.dumps())
    draw(report, target / "audit.png")
    typer.echo(json.dumps(report.to_json(), indent=2) if as_json else report.text())
    if not as_json:
        typer.echo(f"\nwritten: {target / 'audit.json'}, {target / 'audit.png'}")
    if report.refuted:
        raise typer.Exit(1)


def _subject(folder: Path, config: list[str] | None) -> _Subject:
    from fedpriv.cli.run import flat_config, read_overrides
    from fedpriv.settings import resolve_settings

    overrides = read_overrides(config)
    stored, project = folder / "config.toml", folder / "pyproject.toml"
    if stored.exists():
        if overrides:
            raise ValueError(
                "-c: a finished run is audited as it was configured; give the app's folder instead"
            )
        settings = resolve_settings(flat_config(tomllib.loads(stored.read_text())))
        return _finished(folder, settings)
    if not project.exists():
        raise ValueError(f"FOLDER = {folder}: should hold a run's config.toml or an app's pyproject.toml")
    tables = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"]
    settings = resolve_settings(flat_config(tables) | overrides)
    return _Subject(f"audit of the configuration in {folder.resolve().name}", settings)


def _finished(folder: Path, settings: Any) -> _Subject:
    from fedpriv.stages.folder import RunFolder

    state = RunFolder(folder).load_checkpoint()
    title, released = f"audit of run {settings.run.name or folder.resolve().name}", []
    if state is not None:
        released = [(r.name, record.round) for r in state.reports for record in r.rounds if record.released]
        if state.candidate:
            settings = settings.with_candidate(state.candidate)
    return _Subject(title, settings, folder, released)


def _audit(
    subject: _Subject,
    view: list[str] | None,
    delta: float,
    runs: int,
    canaries: int,
    shadow_runs: int,
    confidence: float,
    checks: bool,
) -> Any:
    from fedpriv.accounting.validators import InvalidArgument
    from fedpriv.accounting.vocabulary import VIEWS
    from fedpriv.audit import Effort, Setup, audit, find_target
    from fedpriv.audit.result import Unaudited

    settings, effort = subject.settings, Effort(runs, canaries, shadow_runs, checks)
    plans, bounds = _plans(settings)
    targets, missing = [], []
    for name, plan in plans.named().items():
        try:
            targets.append(find_target(Setup(name, plan, settings, bounds.get(name))))
        except InvalidArgument as unknown:
            missing.append(Unaudited(name, "every view", str(unknown)))
    report = audit(
        targets,
        delta=delta or settings.run.resolved_delta,
        effort=effort,
        confidence=confidence,
        views=view or VIEWS,  # type: ignore[arg-type]
        subject=subject.title,
        say=lambda line: typer.echo(f"... {line}", err=True),
    )
    report.unaudited += missing
    if subject.folder is not None and checks:
        report.findings += _folder_findings(subject, plans)
    return report


def _plans(settings: Any) -> tuple[Any, dict[str, Any]]:
    """Plans of a run and the bounds on the release view of whole stages, with the values that a vote chose."""
    from fedpriv.stages.planning import plans_of
    from fedpriv.stages.registry import stage_class
    from fedpriv.stages.run import initial_model
    from fedpriv.tasks import get_task

    initial = initial_model(settings, get_task(settings.run.task))
    plans = plans_of(settings, initial)
    bounds = {
        name: stage_class(name, settings.run.unit).stage_bound(settings, plan, initial)
        for name, plan in plans.stages.items()
    }
    return plans, bounds


def _folder_findings(subject: _Subject, plans: Any) -> list[Any]:
    from fedpriv.audit.ledger_check import check_folder

    assert subject.folder is not None
    run = subject.settings.run
    ledger = Path(run.account) if run.account else subject.folder / "ledger.jsonl"
    return check_folder(ledger, run.name or subject.folder.resolve().name, plans.named(), subject.released)
