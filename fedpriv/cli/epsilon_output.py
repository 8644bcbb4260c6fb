"""Printing epsilons: one JSON object, or a small table with the assumptions under it; errors in one line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand

DeltaOption = Annotated[float, typer.Option("--delta", help="Failure probability, in [0, 1).")]
AdjacencyOption = Annotated[
    str,
    typer.Option("--adjacency", help="add_or_remove (a unit's contribution becomes zero) or replace_one."),
]
ViewOption = Annotated[
    str | None,
    typer.Option(
        "--view", help="server, participants or release: also print this view's epsilon on its own."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


class OneLineErrors(TyperCommand):
    """A command whose usage errors are one line on standard error, exit code 2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and turn click's multi-line usage errors into one line."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                raise
            typer.echo(f"{ctx.command_path}: {' '.join(error.format_message().split())}", err=True)
            raise typer.Exit(2) from None


@contextmanager
def one_line_errors(ctx: typer.Context) -> Iterator[None]:
    """Print a rejected value as one line with its flag, and exit with code 2."""
    from fedpriv.accounting.validators import InvalidArgument

    try:
        yield
    except InvalidArgument as error:
        flags = {p.name: p.opts[0] for p in ctx.command.params if p.name and p.opts}
        message = re.sub(r"^\w+", lambda m: flags.get(m.group(0), m.group(0)), str(error))
        typer.echo(f"{ctx.command_path}: {message}", err=True)
        raise typer.Exit(2) from None


def check_view(view: str | None) -> None:
    """Require a known view, or none.

    Raises
    ------
    InvalidArgument
        When the view is unknown.
    """
    from fedpriv.accounting.validators import check_choice
    from fedpriv.accounting.vocabulary import VIEWS

    if view is not None:
        check_choice(VIEWS, view=view)


def summary(family: Any, delta: float, view: str | None) -> dict[str, Any]:
    """Plain data about a mechanism: what JSON shows."""
    from fedpriv.accounting.validators import check_delta

    check_delta(delta=delta)
    found = family.epsilons(delta)
    views = {
        name: {
            "epsilon": words(result.epsilon),
            "bound": result.bound,
            "order": result.order,
            "epsilon_rdp": words(result.rdp_epsilon),
            "epsilon_pld": words(result.pld_epsilon),
        }
        for name, result in found.items()
    }
    data: dict[str, Any] = {
        "mechanism": family.name,
        "parameters": {name: value for name, value in family.parameters.items() if value is not None},
        "adjacency": family.adjacency,
        "delta": delta,
        "views": views,
    }
    for key in ("epsilon_rdp", "epsilon_pld"):
        data[key] = _one_or_each({name: entry[key] for name, entry in views.items()}, view)
    data["assumptions"] = list(family.all_assumptions(delta))
    data["notes"] = list(dict.fromkeys(note for result in found.values() for note in result.notes))
    if view is not None:
        data |= {"view": view, "epsilon": views[view]["epsilon"], "bound": views[view]["bound"]}
    return data


def _one_or_each(values: dict[str, Any], view: str | None) -> Any:
    """A number where all views agree or one was asked for, else one number per view."""
    if view is not None:
        return values[view]
    return next(iter(values.values())) if len(set(values.values())) == 1 else values


def words(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "infinity" if value is not None and math.isinf(value) else value


def show(data: dict[str, Any], as_json: bool) -> None:
    """Print the summary."""
    typer.echo(json.dumps(data, indent=2) if as_json else as_text(data))


def as_text(data: dict[str, Any]) -> str:
    """A small table, the assumptions under it."""
    settings = ", ".join(
        f"{name.replace('_', '-')} {short(value)}" for name, value in data["parameters"].items()
    )
    lines = [
        f"{data['mechanism']}: {settings}",
        f"adjacency {data['adjacency']}, delta {data['delta']:g}",
        "",
    ]
    if "solved_for" in data:
        name = data["solved_for"]
        target = f"target epsilon {data['target_epsilon']:g} in the {data['view']} view"
        lines.insert(2, f"smallest {name.replace('_', '-')}: {data[name]:.6g} ({target})")
    rows = [["view", "epsilon", "bound", "order", "by Rényi", "by loss distribution"]]
    for view, entry in data["views"].items():
        name = f"{view} *" if view == data.get("view") else view
        order = "-" if entry["order"] is None else f"{entry['order']:g}"
        rows.append(
            [
                name,
                short(entry["epsilon"]),
                entry["bound"],
                order,
                short(entry["epsilon_rdp"]),
                short(entry["epsilon_pld"]),
            ]
        )
    lines += table(rows)
    for title in ("assumptions", "notes"):
        if data[title]:
            lines += ["", title.capitalize(), *(f"  - {text}" for text in data[title])]
    return "\n".join(lines)


def table(rows: list[list[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def short(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
