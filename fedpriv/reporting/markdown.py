"""The report as Markdown, for people; everything in it comes from the `RunReport` and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedpriv.accounting.vocabulary import VIEWS
from fedpriv.reporting.claim import (
    VIEW_WORDS,
    bound_in_words,
    claim,
    format_epsilon,
    format_nats,
    is_void,
    top_warnings,
)
from fedpriv.reporting.figures import describe_candidate, diagnostics_name, format_votes, tallies_name
from fedpriv.reporting.model import Hypothesis, RunReport, StageReport, VoteRecord

DEFAULT_LOAD_EXAMPLE = """\
from safetensors.torch import load_file

parameters = load_file("{model_file}")  # name -> tensor
for name, tensor in parameters.items():
    print(name, tuple(tensor.shape))
"""


def to_markdown(report: RunReport, figures: Mapping[str, str]) -> str:
    """Write the report as text.

    Parameters
    ----------
    report : RunReport
    figures : mapping from figure name to path
        Paths relative to the run folder, as `write_figures` names them.

    Returns
    -------
    str
        Markdown; its first line is the claim as a sentence.
    """
    blocks = [
        claim(report),
        _warnings(report),
        f"# {_text(report.title)}",
        _sentence(report.outcome),
        _views(report),
        _figure(figures, "epsilon_over_rounds", "Epsilon over releases, per view"),
        _assumptions(report),
        _pac(report),
        *(_stage(stage, figures) for stage in report.stages),
        _accuracy(report, figures),
        _split(report),
        _time_and_traffic(report),
        _recompute(report),
        _model(report),
        _settings(report),
    ]
    return "\n\n".join(block for block in blocks if block).rstrip() + "\n"


def _warnings(report: RunReport) -> str:
    severe = top_warnings(report)
    notes = [w for w in report.warnings if w.severity == "note"]
    lines = [f"- **Warning: {_text(w.text)}**" for w in severe] + [f"- Note: {_text(w.text)}" for w in notes]
    return "\n".join(lines)


def _views(report: RunReport) -> str:
    if not report.private:
        return ""
    rows = []
    for view in VIEWS:
        found = report.views[view]
        rows.append(
            [
                view,
                found.statement or VIEW_WORDS[view],
                f"**{format_epsilon(found.epsilon)}**",
                "none" if math.isinf(found.epsilon) else bound_in_words(found.bound),
                format_epsilon(found.rdp_epsilon) + (f" (order {found.order:g})" if found.order else ""),
                format_epsilon(found.pld_epsilon),
            ]
        )
    header = ["view", "who sees this", f"epsilon at delta {report.delta:.6g}", "bound", "RDP", "PLD"]
    text = "## What was leaked to whom\n\n"
    if is_void(report):
        text += "**None of these numbers is true of this run, see the first line: they are those of secret noise.**\n\n"
    text += _table(header, rows)
    budget = report.budget
    if budget is not None and math.isfinite(budget.max_epsilon):
        left = budget.max_epsilon - report.views[budget.view].epsilon
        text += f"\n\nBudget: epsilon {budget.max_epsilon:g} in the {budget.view} view"
        text += f"; left: {math.floor(left * 1000) / 1000:.3f}." if left >= 0 else "; exceeded."
    notes = [f"- {view}: {_text(note)}" for view in VIEWS for note in report.views[view].notes]
    return text + ("\n\n" + "\n".join(notes) if notes else "")


def _assumptions(report: RunReport) -> str:
    lines = []
    for stage in report.stages:
        lines += [_hypothesis(h, stage.name) for h in stage.hypotheses]
    if not lines:
        return ""
    rule = (
        "A bound is used only where everything it needs *holds*, or a line above says that it is conditional."
    )
    return f"## Assumptions\n\n{chr(10).join(lines)}\n\n{rule}"


def _hypothesis(hypothesis: Hypothesis, stage: str) -> str:
    detail = f": {_text(hypothesis.detail)}" if hypothesis.detail else ""
    return f"- *{hypothesis.status}* ({stage}) {_text(hypothesis.name)}{detail}"


def _pac(report: RunReport) -> str:
    if not report.pac:
        return ""
    rows = [
        [
            p.stage,
            p.silo,
            format_nats(p.nats),
            "-" if p.success is None else f"{100 * p.success:.2f} %",
            format_epsilon(p.comparison_epsilon),
        ]
        for p in report.pac
    ]
    header = ["stage", "silo", "nats, at most", "membership attack succeeds, at most", "comparison epsilon"]
    return (
        "## PAC privacy\n\nMutual information per silo. This is not differential privacy: it is in no "
        "epsilon above. The last column is the epsilon of pure differential privacy that bounds the same attack, "
        "for comparison only.\n\n" + _table(header, rows)
    )


def _stage(stage: StageReport, figures: Mapping[str, str]) -> str:
    parts = [f"## Stage {_text(stage.name)}: {_text(stage.kind)}"]
    rows = [[key, _cell(value)] for key, value in stage.table.items()]
    by_cost: dict[str, list[str]] = {}
    for view, epsilon in stage.epsilon.items():
        by_cost.setdefault(format_epsilon(epsilon), []).append(view)
    rows += [[f"epsilon of this stage alone, {_views_in_words(v)}", cost] for cost, v in by_cost.items()]
    if rows:
        parts.append(_table(["quantity", "value"], rows))
    if stage.vote is not None:
        parts += [
            _vote(stage.vote),
            _figure(figures, figure_of_vote(stage, figures), f"Noisy tallies of {stage.name}"),
        ]
    if len(stage.rounds) > 1:
        picture = diagnostics_name(stage.name)
        parts.append(_figure(figures, picture, f"Diagnostics of {stage.name}, known in a simulation only"))
        parts.append(_rounds(stage))
    return "\n\n".join(part for part in parts if part)


def figure_of_vote(stage: StageReport, figures: Mapping[str, str]) -> str:
    """Name of the figure of a stage's vote."""
    own = tallies_name(stage.name)
    return own if own in figures else "tallies"


def _vote(vote: VoteRecord) -> str:
    order = sorted(range(len(vote.tallies)), key=lambda i: -vote.tallies[i])
    rows = [
        [
            str(place),
            describe_candidate(vote.candidates[i]) + (" (**chosen**)" if i == vote.chosen else ""),
            f"{vote.tallies[i]:.2f}",
        ]
        for place, i in enumerate(order, start=1)
    ]
    intro = (
        f"{vote.voters} clients cast {format_votes(vote.votes_per_client)} each over {len(vote.candidates)} "
        f"candidates in one secure sum; each tally carries noise of standard deviation {vote.noise_std:.3g}."
    )
    return intro + "\n\n" + _table(["place", "candidate", "noisy tally"], rows)


def _rounds(stage: StageReport) -> str:
    columns: list[tuple[str, list[str]]] = [("round", [str(r.round) for r in stage.rounds])]
    columns.append(("accuracy", [_percent(r.accuracy) for r in stage.rounds]))
    by_cells: dict[tuple[str, ...], list[str]] = {}
    for view in VIEWS:
        by_cells.setdefault(tuple(format_epsilon(r.epsilon.get(view)) for r in stage.rounds), []).append(view)
    columns += [
        (f"epsilon so far, at most ({_views_in_words(views)})", list(cells))
        for cells, views in by_cells.items()
    ]
    columns.append(("nats, at most", ["-" if r.nats is None else format_nats(r.nats) for r in stage.rounds]))
    for key in dict.fromkeys(key for r in stage.rounds for key in r.diagnostics):
        shown = [f"{r.diagnostics[key]:.3g}" if key in r.diagnostics else "-" for r in stage.rounds]
        columns.append((f"{key} (simulation only)", shown))
    columns.append(("asked", [_count(r.asked) for r in stage.rounds]))
    columns.append(("in the sum", [_count(r.survivors) for r in stage.rounds]))
    columns.append(("noise shares", [_count(r.noise_shares) for r in stage.rounds]))
    columns.append(("seconds", ["-" if r.seconds is None else f"{r.seconds:.1f}" for r in stage.rounds]))
    remarks = [
        "; ".join(([] if r.released else ["nothing released"]) + [r.note] * bool(r.note))
        for r in stage.rounds
    ]
    columns.append(("remark", [remark or "-" for remark in remarks]))
    kept = [(name, cells) for name, cells in columns if any(cell != "-" for cell in cells)]
    rows = [list(row) for row in zip(*(cells for _, cells in kept), strict=True)]
    table = _table([name for name, _ in kept], rows)
    if len(rows) <= 25:
        return table
    return f"<details><summary>{len(rows)} rounds</summary>\n\n{table}\n\n</details>"


def _accuracy(report: RunReport, figures: Mapping[str, str]) -> str:
    picture = _figure(figures, "accuracy_over_rounds", "Accuracy over rounds")
    if report.final_accuracy is None and not picture:
        why = "the server has no public data and no private evaluation was asked for"
        return f"## Accuracy\n\nNot evaluated: {why}."
    line = (
        ""
        if report.final_accuracy is None
        else f"Accuracy of the final model: {_percent(report.final_accuracy)}."
    )
    return "\n\n".join(part for part in ("## Accuracy", line, picture) if part)


def _split(report: RunReport) -> str:
    if report.partition_figure is None:
        return ""
    known = "A simulation knows this; in a federation nobody does."
    return (
        f"## How the data was split\n\n{known}\n\n![Examples per client and label]({report.partition_figure})"
    )


def _time_and_traffic(report: RunReport) -> str:
    if not report.stages:
        return ""
    rows = [
        [s.name, f"{s.seconds:.1f}", str(len(s.rounds)), format_bytes(s.bytes_up), format_bytes(s.bytes_down)]
        for s in report.stages
    ]
    if len(rows) > 1:
        total_up, total_down = (
            sum(s.bytes_up for s in report.stages),
            sum(s.bytes_down for s in report.stages),
        )
        seconds, rounds = sum(s.seconds for s in report.stages), sum(len(s.rounds) for s in report.stages)
        rows.append(["all", f"{seconds:.1f}", str(rounds), format_bytes(total_up), format_bytes(total_down)])
    header = ["stage", "seconds", "rounds", "from clients", "to clients"]
    return "## Time and traffic\n\n" + _table(header, rows)


def _recompute(report: RunReport) -> str:
    lines = [
        "## How to recompute this",
        f"Unit: {report.unit}. Adjacency: {report.adjacency}. Delta: {report.delta!r}. The clip "
        "norm, the normalisation convention, sampling, rounds, noise multiplier and events of each "
        "stage are in its table above.",
    ]
    if report.ledger is not None:
        ledger = report.ledger
        lines.append(
            f"The ledger `{ledger.file}` holds every event, written before the release it paid for "
            f"({ledger.lines} lines; runs: {', '.join(ledger.runs) or '-'}). Check it and add it up again:"
        )
        lines.append(
            f"```sh\nfedpriv ledger verify {ledger.file} --head {ledger.head}\n"
            f"fedpriv ledger show {ledger.file} --delta {report.delta!r}\n```"
        )
        lines += ["\n".join(f"- {_text(note)}" for note in ledger.notes)] if ledger.notes else []
    if report.orders:
        orders = format_orders(report.orders)
        lines.append(
            f"Rényi orders ({len(report.orders)}, extended when the best one sits at an edge): {orders}."
        )
    if report.environment:
        lines.append(_table(["environment", "value"], [[k, v] for k, v in report.environment.items()]))
    if report.created:
        lines.append(f"Report made {report.created}.")
    return "\n\n".join(lines)


def _model(report: RunReport) -> str:
    if report.model_file is None:
        return ""
    example = report.load_example or DEFAULT_LOAD_EXAMPLE.format(model_file=report.model_file)
    return f"## Load the model\n\nFrom this folder:\n\n```python\n{example.rstrip()}\n```"


def _settings(report: RunReport) -> str:
    if not report.settings:
        return ""
    rows = [[f"`{key}`", _cell(value)] for key, value in report.settings.items()]
    return "## Settings\n\n" + _table(["key", "value"], rows)


def format_bytes(count: int) -> str:
    """A number of bytes for people.

    >>> format_bytes(999), format_bytes(1_500_000)
    ('999 B', '1.50 MB')
    """
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.3g} {unit}" if value < 1 else f"{value:.2f} {unit}"


def format_orders(orders: Sequence[float]) -> str:
    """Orders with evenly spaced ones written as ranges.

    >>> format_orders([1.1, 1.2, 1.3, 1.4, 2, 3, 64])
    '1.1 to 1.4 by 0.1, 2, 3, 64'
    """
    parts: list[str] = []
    start = 0
    while start < len(orders):
        end = start + 1
        while end < len(orders) and math.isclose(
            orders[end] - orders[end - 1], orders[start + 1] - orders[start], rel_tol=1e-6
        ):
            end += 1
        if end - start >= 4:
            parts.append(f"{orders[start]:g} to {orders[end - 1]:g} by {orders[start + 1] - orders[start]:g}")
            start = end
        else:
            parts.append(f"{orders[start]:g}")
            start += 1
    return ", ".join(parts)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_cell(item)}" for key, item in value.items())
    return "-" if value is None else str(value)


def _views_in_words(views: Sequence[str]) -> str:
    if len(views) == len(VIEWS):
        return "all views"
    return f"{' and '.join(views)} view{'s' * (len(views) > 1)}"


def _sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = _text(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else ""


def _text(text: str) -> str:
    """One line of prose."""
    return " ".join(text.split())


def _figure(figures: Mapping[str, str], name: str, caption: str) -> str:
    return f"![{caption}]({figures[name]})" if name in figures else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(_text(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
