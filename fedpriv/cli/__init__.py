"""The ``fedpriv`` command: one file per command or command group, heavy imports inside the functions."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from fedpriv.cli import audit, calibrate, curve, data, eps, ledger, plan, run, settings
from fedpriv.cli.epsilon_output import OneLineErrors

app = typer.Typer(
    name="fedpriv",
    help="Federated learning on Flower with privacy that can be proven.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fedpriv {importlib.metadata.version('fedpriv')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning on Flower with privacy that can be proven."""


app.command()(run.run)
app.command()(plan.plan)
app.command()(settings.settings)
app.command()(audit.audit)
app.add_typer(eps.app, name="eps")
app.add_typer(calibrate.app, name="calibrate")
app.command(cls=OneLineErrors)(curve.curve)
app.add_typer(ledger.app, name="ledger")
app.add_typer(data.app, name="data")
