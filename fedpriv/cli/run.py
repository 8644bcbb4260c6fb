"""``fedpriv run``: the app of a folder on a private local SuperLink, from start to report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpriv.cli.processes import LocalSuperLink

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def read_overrides(texts: list[str] | None) -> dict[str, Any]:
    """Values given with -c, read as Flower reads them: 'key=value ...' with TOML values, or one .toml file.

    Raises
    ------
    typer.BadParameter
        Naming what could not be read.
    """
    import click
    from flwr.common.config import parse_config_args

    pairs = [item for text in texts or [] for item in [text] if item]
    try:
        values = parse_config_args(pairs)
    except (click.ClickException, ValueError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="-c") from None
    if pairs and not values:
        raise typer.BadParameter(f"{pairs}: should be 'key=value ...' or a .toml file", param_hint="-c")
    return values


def flat_config(tables: dict[str, Any]) -> dict[str, Any]:
    """Nested run-config tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _check_settings(defaults: dict[str, Any], values: dict[str, Any]) -> None:
    """Refuse a bad value before anything is started, when the app is configured by fedpriv's own keys."""
    from fedpriv.settings import SettingsError, resolve_settings
    from fedpriv.settings.resolve import known_keys

    if not set(flat_config(defaults)) <= set(known_keys()):
        return
    try:
        resolve_settings(flat_config(defaults) | values)
    except SettingsError as error:
        typer.echo(f"fedpriv run: {error}", err=True)
        raise typer.Exit(2) from None


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else str(value)


def run(
    app_folder: Annotated[Path, typer.Argument(help="Folder with the app's pyproject.toml.")] = Path(),
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", help="Run-config values, for instance -c 'train.rounds=30 alpha=0.1'."
        ),
    ] = None,
    cpus: Annotated[int, typer.Option(help="CPU cores per simulated client, at least 1.", min=1)] = 1,
    quiet: Annotated[bool, typer.Option(help="Show only fedpriv's own lines.")] = False,
) -> None:
    """Run the app in simulation and wait: exit code 0 only when the run finished.

    Starts a SuperLink of its own from a neutral folder, submits the app with `flwr run` and as many virtual clients as
    num-clients says, streams the log, and ends every process that it started.

    APP_FOLDER: folder with the app's pyproject.toml.

    Example: fedpriv run . -c 'train.rounds=20 target-epsilon=4.0'
    """
    app_folder = app_folder.resolve()
    project = app_folder / "pyproject.toml"
    if not project.exists():
        typer.echo(
            f"fedpriv run: APP_FOLDER = {app_folder}: should be a folder with a pyproject.toml", err=True
        )
        raise typer.Exit(2)
    defaults = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"]
    values = read_overrides(config)
    _check_settings(defaults, values)
    clients = values.get("num-clients", defaults.get("num-clients", 10))
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        typer.echo(f"fedpriv run: num-clients = {clients!r}: should be an integer >= 1", err=True)
        raise typer.Exit(2)
    root = Path(str(values.get("run-dir") or defaults.get("run-dir") or app_folder / "runs"))
    values["run-dir"] = str(root if root.is_absolute() else (Path.cwd() / root).resolve())
    name = str(values.get("resume") or values.get("name") or "")
    if not name:
        task = values.get("task", defaults.get("task", "run"))
        name = values["name"] = f"{task}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path(values["run-dir"]) / name
    from fedpriv.stages.source import COMMIT_VARIABLE, commit_of

    with LocalSuperLink({COMMIT_VARIABLE: commit_of(app_folder)}) as superlink:
        command = superlink.flwr("run", str(app_folder), "local", "--stream", "--federation-config")
        command += [f"num-supernodes={clients} client-resources-num-cpus={cpus}"]
        chosen = superlink.home / "chosen.toml"  # a file: values may hold any quotes
        chosen.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in values.items()))
        command += ["--run-config", str(chosen)]
        _stream(command, superlink, quiet)
        status = superlink.last_run()
        finished = status.get("status") == "finished:completed"
        if not finished:
            typer.echo(
                f"fedpriv run: the run ended as {status.get('status', 'unknown')!r}: "
                f"{status.get('status-details', '')}",
                err=True,
            )
    report = folder / "report.md"
    if finished and report.exists():
        typer.echo(
            f"\nreport: {report}, and as one page {folder / 'report.html'}\n"
            f"model:  {folder / 'model.safetensors'}\nledger: {folder / 'ledger.jsonl'}"
        )
        return
    if finished:
        typer.echo(f"fedpriv run: the run finished but left no report in {folder}", err=True)
    raise typer.Exit(1)


def _stream(command: list[str], superlink: LocalSuperLink, quiet: bool) -> None:
    process = subprocess.Popen(
        command,
        env=superlink.environment,
        cwd=superlink.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            plain = _ANSI.sub("", line.rstrip())
            if plain and (not quiet or plain.startswith(("[", "stage ", "fedpriv", "WARNING", "report"))):
                print(plain, file=sys.stdout, flush=True)
        process.wait(timeout=60)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=10)
