"""``fedpriv plan``: what a run would cost and be worth, before anything is sent."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer


def _run_config(folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    from fedpriv.cli.run import flat_config

    project = folder / "pyproject.toml"
    tables = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"] if project.exists() else {}
    return flat_config(tables) | overrides


def plan(
    app_folder: Annotated[Path, typer.Argument(help="Folder with the app's pyproject.toml.")] = Path(),
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="Run-config values, for instance -c 'num-clients=3'."),
    ] = None,
    federation: Annotated[
        str,
        typer.Option(
            help="A SuperLink connection of Flower's config.toml: also says which silos of it are online."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Forecast a run: epsilon per view, noise against signal, hypotheses, warnings. Sends nothing to any silo.

    APP_FOLDER: folder with the app's pyproject.toml.

    Examples: fedpriv plan . -c 'num-clients=3 target-epsilon=4.0'
    fedpriv plan . -c 'num-clients=3' --federation hospitals
    """
    from fedpriv.accounting.validators import InvalidArgument
    from fedpriv.cli.run import read_overrides
    from fedpriv.settings import SettingsError, resolve_settings

    try:
        settings = resolve_settings(_run_config(app_folder, read_overrides(config)))
        found = forecast(settings)
    except (SettingsError, InvalidArgument, ValueError) as error:
        typer.echo(f"fedpriv plan: {error}", err=True)
        raise typer.Exit(2) from None
    if federation:
        found["federation"] = _live(federation, settings.run.num_clients)
    typer.echo(json.dumps(found, indent=2) if as_json else _text(found))
    if "error" in found.get("federation", {}):
        raise typer.Exit(1)


def _live(federation: str, expected: int) -> dict[str, Any]:
    from fedpriv.cli.federation import FederationUnreachable, federation_state

    try:
        return {"name": federation, **federation_state(federation).to_json(expected)}
    except FederationUnreachable as error:
        return {
            "name": federation,
            "expected": expected,
            "ready": False,
            "error": str(error),
            "state": str(error),
        }


def forecast(settings: Any) -> dict[str, Any]:
    """The forecast as plain data: views, stages with noise against signal and hypotheses, warnings."""
    from fedpriv.stages.planning import large_delta, plans_of
    from fedpriv.stages.run import initial_model
    from fedpriv.tasks import task_of

    run = settings.run
    plans = plans_of(settings, initial_model(settings, task_of(settings)))
    delta = run.resolved_delta
    warnings = plans.warnings()
    if warning := large_delta(settings, plans):
        warnings.insert(0, warning)
    return {
        "unit": run.unit,
        "adjacency": run.adjacency,
        "delta": delta,
        "budget": {"view": run.budget_view, "target_epsilon": run.target_epsilon},
        "views": {
            view: {
                "epsilon": _finite(result.epsilon),
                "bound": result.bound,
                "epsilon_rdp": _finite(result.rdp_epsilon),
                "epsilon_pld": _finite(result.pld_epsilon),
                "notes": list(result.notes),
            }
            for view, result in (plans.epsilons(delta) if plans.private() else {}).items()
        },
        "nats": {name: stage.nats for name, stage in plans.pac().items()},
        "stages": {
            name: {
                "plan": stage.describe(),
                "releases": stage.releases,
                "forecast": dict(stage.forecast().lines),
                "hypotheses": [
                    {"name": h.name, "status": h.status, "detail": h.detail}
                    for h in [
                        *stage.hypotheses(),
                        *(plans.bounds[name].hypotheses if name in plans.bounds else ()),
                    ]
                ],
            }
            for name, stage in plans.named().items()
        },
        "warnings": warnings,
    }


def _finite(value: float | None) -> float | str | None:
    return "infinity" if value is not None and math.isinf(value) else value


def _text(found: dict[str, Any]) -> str:
    from fedpriv.reporting.claim import bound_in_words, format_epsilon, format_nats

    lines = [f"Planned for unit {found['unit']}, adjacency {found['adjacency']}, delta {found['delta']:.3g}"]
    if found["views"]:
        budget = found["budget"]
        lines[0] += f"; budget: epsilon {budget['target_epsilon']:g} in the {budget['view']} view"
        lines += ["", f"{'view':<14}{'epsilon':>10}  bound"]
    else:
        lines += ["", "No stage is covered by differential privacy: there is no epsilon."]
    for view, result in found["views"].items():
        epsilon, bound = result["epsilon"], bound_in_words(result["bound"])
        if isinstance(epsilon, str):  # the word for infinity
            bound = "none"
        else:
            epsilon = format_epsilon(epsilon)
        lines.append(f"{view:<14}{epsilon:>10}  {bound}")
    for name, nats in found["nats"].items():
        lines.append(f"{name}: at most {format_nats(nats)} nats per silo (PAC privacy, in no epsilon)")
    for name, stage in found["stages"].items():
        releases = "1 release" if stage["releases"] == 1 else f"{stage['releases']} releases"
        lines += ["", f"stage {name}: {stage['plan']['mechanism']}, {releases}"]
        lines += [f"  {key}: {value:.4g}" for key, value in stage["forecast"].items()]
        for key, value in stage["plan"].items():
            if key != "mechanism":
                lines.append(f"  {key}: {value:.6g}" if isinstance(value, float) else f"  {key}: {value}")
        for h in stage["hypotheses"]:
            lines.append(f"  {h['status']}: {h['name']}" + (f" ({h['detail']})" if h["detail"] else ""))
    lines += [""] + [f"WARNING: {text}" for text in found["warnings"]]
    if "federation" in found:
        lines += ["", f"federation {found['federation']['name']}: {found['federation']['state']}"]
    return "\n".join(lines).rstrip()
