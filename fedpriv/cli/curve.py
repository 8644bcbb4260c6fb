"""``fedpriv curve``: epsilon against rounds, delta or noise, several mechanisms in one picture."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpriv.cli.epsilon_output import (
    DeltaOption,
    JsonOption,
    OneLineErrors,
    check_view,
    one_line_errors,
    short,
    table,
    words,
)

app = typer.Typer(help="Epsilon against rounds, delta or noise.")

AXES = ("rounds", "delta", "noise")
_RANGES = {"rounds": (1.0, 1000.0), "delta": (1e-9, 1e-3), "noise": (0.5, 10.0)}
_LABELS = {"rounds": "rounds (epochs for allocation)", "delta": "delta", "noise": "noise parameter"}


@app.command(cls=OneLineErrors)
def curve(
    ctx: typer.Context,
    mechanisms: Annotated[
        list[str],
        typer.Option(
            "--mechanism", "-m", help="A mechanism as `fedpriv eps` takes it, in quotes. Repeatable."
        ),
    ],
    against: Annotated[str, typer.Option("--against", help="rounds, delta or noise.")] = "rounds",
    start: Annotated[float | None, typer.Option("--start", help="First value, > 0.")] = None,
    stop: Annotated[float | None, typer.Option("--stop", help="Last value, above the first.")] = None,
    points: Annotated[int, typer.Option("--points", help="Values, evenly spaced in logarithm, >= 2.")] = 20,
    delta: DeltaOption = 1e-5,
    view: Annotated[
        str, typer.Option("--view", help="server, participants, release, or all (those that differ).")
    ] = "all",
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture: .png, .svg or .pdf.")] = Path(
        "epsilon-curve.png"
    ),
    as_json: JsonOption = False,
) -> None:
    """Plot epsilon of several mechanisms in one picture; the values are printed too.

    Example: fedpriv curve --against rounds --stop 400 -m "gaussian --noise-multiplier 4"
    -m "gaussian --noise-multiplier 1 --sampling-rate 0.05" --output curve.png
    """
    from fedpriv.accounting.validators import check_choice, check_delta, check_integer, check_positive

    with one_line_errors(ctx):
        check_choice(AXES, against=against)
        check_delta(delta=delta)
        check_integer(2, points=points)
        if view != "all":
            check_view(view)
        default = _RANGES[against]
        first, last = default[0] if start is None else start, default[1] if stop is None else stop
        check_positive(start=first, stop=last)
        values = axis_values(against, first, last, points)
        check_choice((".png", ".svg", ".pdf"), output=output.suffix)
        lines = [line for text in mechanisms for line in _lines(text, against, values, delta, view)]
    draw(lines, against, values, delta, output)
    if as_json:
        typer.echo(json.dumps(_as_json(lines, against, values, delta, output), indent=2))
    else:
        typer.echo(_as_text(lines, against, values, delta, output))


def axis_values(against: str, start: float, stop: float, points: int) -> list[float]:
    """Values spaced evenly in logarithm; whole and distinct for rounds.

    Raises
    ------
    InvalidArgument
        When the last is not above the first, or a delta is not below 1.
    """
    import numpy as np

    from fedpriv.accounting.validators import InvalidArgument, check_at_least, check_delta

    if stop <= start:
        raise InvalidArgument(f"stop must be above start = {start:g}, got {stop:g}")
    if against == "delta":
        check_delta(stop=stop)
    if against == "rounds":
        check_at_least(1, start=start)
        return [float(v) for v in np.unique(np.round(np.geomspace(start, stop, points)))]
    return [float(v) for v in np.geomspace(start, stop, points)]


def _lines(text: str, against: str, values: list[float], delta: float, view: str) -> list[dict[str, Any]]:
    """One line per view of one mechanism; views with equal values are one line."""
    from fedpriv.accounting.vocabulary import VIEWS

    family = parse_mechanism(text)
    found: dict[str, list[float]] = {name: [] for name in VIEWS}
    for value in values:
        if against == "rounds":
            results = family.with_rounds(int(value)).epsilons(delta)
        elif against == "noise":
            results = family.with_noise(value).epsilons(delta)
        else:
            results = family.epsilons(value)
        for name, result in results.items():
            found[name].append(result.epsilon)
    wanted = [name for name in VIEWS if view in ("all", name)]
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in wanted:
        groups.setdefault(tuple(found[name]), []).append(name)
    return [
        {
            "mechanism": text,
            "views": names,
            "epsilon": list(epsilons),
            "adjacency": family.adjacency,
            "assumptions": list(family.all_assumptions(delta)),
        }
        for epsilons, names in groups.items()
    ]


def parse_mechanism(text: str) -> Any:
    """A mechanism from the words that ``fedpriv eps`` takes.

    Raises
    ------
    InvalidArgument
        When the mechanism is unknown, or a flag of it is missing or rejected; the message quotes the text.
    """
    import click

    from fedpriv.accounting.validators import InvalidArgument
    from fedpriv.cli import eps

    command = typer.main.get_command(eps.app)
    assert isinstance(command, click.Group)
    try:
        words_of = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(
            f"mechanisms must be words as `fedpriv eps` takes them ({error}), got {text!r}"
        ) from error
    name, *flags = words_of or [""]
    if name not in eps.BUILDERS:
        raise InvalidArgument(f"mechanisms must start with one of {', '.join(eps.BUILDERS)}, got {text!r}")
    sub = command.commands[name]
    try:
        context = sub.make_context(name, flags)
    except click.UsageError as error:
        raise InvalidArgument(f"mechanisms must be complete: {error.format_message()} in {text!r}") from error
    given = {key: value for key, value in context.params.items() if key not in eps.COMMON}
    try:
        return eps.BUILDERS[name]()(adjacency=context.params["adjacency"], **given)
    except InvalidArgument as error:
        raise InvalidArgument(f"mechanisms must be valid: {error}, in {text!r}") from error


def draw(lines: list[dict[str, Any]], against: str, values: list[float], delta: float, output: Path) -> None:
    """Save the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for line in lines:
        finite = [(x, y) for x, y in zip(values, line["epsilon"], strict=True) if 0 < y < math.inf]
        if finite:
            names = "all views" if len(line["views"]) == 3 else ", ".join(line["views"])
            axes.plot(*zip(*finite, strict=True), marker=".", label=f"{line['mechanism']}\n({names})")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(_LABELS[against])
    axes.set_ylabel("epsilon" if against == "delta" else f"epsilon at delta = {delta:g}")
    axes.grid(visible=True, which="both", alpha=0.25)
    if axes.lines:
        axes.legend(fontsize="small")
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)


def _as_json(
    lines: list[dict[str, Any]], against: str, values: list[float], delta: float, output: Path
) -> dict[str, Any]:
    shown = [{**line, "epsilon": [words(value) for value in line["epsilon"]]} for line in lines]
    return {
        "against": against,
        "values": values,
        "delta": None if against == "delta" else delta,
        "curves": shown,
        "picture": str(output),
    }


def _as_text(
    lines: list[dict[str, Any]], against: str, values: list[float], delta: float, output: Path
) -> str:
    rows = [[against, *(f"[{i}]" for i in range(1, len(lines) + 1))]]
    for i, value in enumerate(values):
        rows.append([f"{value:.4g}", *(short(words(line["epsilon"][i])) for line in lines)])
    legend = [
        f"[{i}] {line['mechanism']}, {line['adjacency']}, view {', '.join(line['views'])}"
        for i, line in enumerate(lines, 1)
    ]
    heading = "epsilon" if against == "delta" else f"epsilon at delta {delta:g}"
    texts = list(dict.fromkeys(text for line in lines for text in line["assumptions"]))
    assumptions = ["", "Assumptions", *(f"  - {text}" for text in texts)]
    return "\n".join([heading, *table(rows), "", *legend, *assumptions, "", f"picture: {output}"])
