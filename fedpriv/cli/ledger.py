"""``fedpriv ledger``: read a privacy ledger, or check that nobody changed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Read a privacy ledger, or check its chain.", no_args_is_help=True)

PathArgument = Annotated[Path, typer.Argument(help="A ledger.jsonl, or the run folder that holds one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command()
def show(
    path: PathArgument,
    delta: Annotated[
        float | None, typer.Option(help="Delta to report at; default: the one the last run recorded.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Only this run. The guarantee is about all of them.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what was spent: epsilon per view and per stage, over all runs in the file.

    PATH: a ledger.jsonl, or the run folder that holds one.
    """
    from fedpriv.accounting.validators import InvalidArgument
    from fedpriv.ledger import LedgerError, read_ledger

    try:
        ledger = read_ledger(_find(path))
        summary = _summary(ledger, delta, run)
    except (LedgerError, InvalidArgument, OSError) as error:
        raise _failure(error, as_json) from error
    typer.echo(json.dumps(summary, indent=2) if as_json else _as_text(summary))


@app.command()
def verify(
    path: PathArgument,
    head: Annotated[
        str | None,
        typer.Option(help="Hash of the last line as a report printed it; it must be in the chain."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every line against the running hash and the rules; exit 1 with the line number when one fails.

    The chain shows damage and edits. Against somebody who rewrites the whole file, compare the last hash with
    one kept elsewhere (--head; every report prints it).

    PATH: a ledger.jsonl, or the run folder that holds one.
    """
    from fedpriv.ledger import LedgerError, read_ledger

    try:
        ledger = read_ledger(_find(path))
        if head is not None and head not in ledger.hashes:
            raise LedgerError(
                f"{ledger.path} has no line with hash {head}: lines were cut off, or the file was rewritten"
            )
    except (LedgerError, OSError) as error:
        raise _failure(error, as_json) from error
    if as_json:
        result = {"valid": True, "lines": ledger.num_lines, "head": ledger.head, "notes": list(ledger.notes)}
        typer.echo(json.dumps(result, indent=2))
        return
    typer.echo(f"{ledger.path}: {ledger.num_lines} lines, chain holds, last hash {ledger.head}")
    for note in ledger.notes:
        typer.echo(f"note: {note}")


def _find(path: Path) -> Path:
    return path / "ledger.jsonl" if path.is_dir() else path


def _failure(error: Exception, as_json: bool) -> typer.Exit:
    """Print why, on the channel that the caller reads."""
    if as_json:
        typer.echo(json.dumps({"valid": False, "error": str(error), "line": getattr(error, "line", None)}))
    else:
        typer.echo(f"error: {error}", err=True)
    return typer.Exit(1)


def _summary(ledger: Any, delta: float | None, run: str | None) -> dict[str, Any]:
    from fedpriv.accounting.vocabulary import VIEWS

    if delta is None:
        recorded = [s.delta for s in ledger.sessions if s.delta is not None]
        delta = recorded[-1] if recorded else None
    entries = [e for e in ledger.entries if run in (None, e.run)]
    statuses = ("committed", "reserved", "interrupted", "void")
    stages: dict[str, dict[str, Any]] = {}
    for entry in entries:
        stage = stages.setdefault(entry.stage, dict.fromkeys(statuses, 0))
        stage[entry.status] += 1
    summary: dict[str, Any] = {
        "path": str(ledger.path),
        "unit": ledger.unit,
        "adjacency": ledger.adjacency,
        "runs": list(ledger.runs),
        "run": run,
        "delta": delta,
        "views": {},
        "stages": stages,
        "pac_nats": [
            {"stage": stage, "silo": silo, "nats": nats}
            for (stage, silo), nats in ledger.pac_totals(run=run).items()
        ],
        "lines": ledger.num_lines,
        "head": ledger.head,
        "notes": list(ledger.notes),
    }
    if delta is None:
        return summary
    for view in VIEWS:
        epsilon = ledger.epsilon(view, delta, run=run)
        summary["views"][view] = {
            "epsilon": _number(epsilon.epsilon),
            "bound": epsilon.bound,
            "rdp_epsilon": _number(epsilon.rdp_epsilon),
            "pld_epsilon": _number(epsilon.pld_epsilon),
            "notes": list(epsilon.notes),
        }
        for stage, part in ledger.epsilon_by_stage(view, delta, run=run).items():
            stages[stage].setdefault("epsilon", {})[view] = _number(part.epsilon)
    return summary


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "infinity" if value == float("inf") else value


def _as_text(summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['path']}: {summary['lines']} lines, unit {summary['unit']}, "
        f"adjacency {summary['adjacency']}",
        f"runs: {', '.join(summary['runs'])}"
        + (f" (showing {summary['run']} only)" if summary["run"] else ""),
    ]
    if summary["delta"] is None:
        lines.append("epsilon: no delta is recorded in the file; pass --delta")
    for view, part in summary["views"].items():
        lines.append(
            f"{view:>13}: epsilon {_show(part['epsilon'])} at delta {summary['delta']:g} "
            f"(bound: {part['bound']}; RDP {_show(part['rdp_epsilon'])}, PLD {_show(part['pld_epsilon'])})"
        )
        lines += [f"{'':>15}{note}" for note in part["notes"]]
    for name, stage in summary["stages"].items():
        counts = ", ".join(
            f"{stage[status]} {status}"
            for status in ("committed", "reserved", "interrupted", "void")
            if stage[status]
        )
        alone = ", ".join(f"{view} {_show(value)}" for view, value in stage.get("epsilon", {}).items())
        lines.append(f"stage {name}: {counts}" + (f"; epsilon alone: {alone}" if alone else ""))
    lines += [
        f"PAC (not differential privacy): stage {p['stage']}, silo {p['silo']}: {p['nats']:.6g} nats"
        for p in summary["pac_nats"]
    ]
    lines += [f"note: {note}" for note in summary["notes"]]
    lines.append(f"last hash: {summary['head']}")
    return "\n".join(lines)


def _show(value: float | str | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4f}"
