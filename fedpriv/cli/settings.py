"""``fedpriv settings``: the run-config keys."""

from __future__ import annotations

from typing import Annotated

import typer


def settings(
    toml: Annotated[
        bool,
        typer.Option(
            "--toml", help="Defaults as TOML, for the table tool.flwr.app.config of pyproject.toml."
        ),
    ] = False,
) -> None:
    """Print every run-config key with default, allowed values and meaning (Markdown).

    Example: fedpriv settings > docs/configuration-table.md
    """
    from fedpriv.settings import resolve_settings
    from fedpriv.settings.table import settings_table

    typer.echo(resolve_settings({}).to_toml() if toml else settings_table())
