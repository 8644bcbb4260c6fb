"""From outcomes to the tables of docs/deployment.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.measure import Outcome
from benchmarks.faults.silos import SiloOutcome
from benchmarks.output import markdown_table

START, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def server_table(outcomes: Sequence[Outcome]) -> str:
    """One row per point at which the ServerApp was killed."""
    header = [
        "ServerApp killed in round 2 of 4, or",
        "restarts after",
        "lost, done again",
        "charged / opened then",
    ]
    header += ["charged / opened in the end", "rounds in the model", "epsilon of 8"]
    return markdown_table(
        header,
        (
            (
                outcome.words,
                outcome.at_restart,
                outcome.lost,
                f"{outcome.charged_before} / {outcome.sent_before}",
                f"{outcome.charged} / {outcome.sent}",
                outcome.rounds,
                f"{outcome.epsilon:.3f}",
            )
            for outcome in outcomes
        ),
    )


def account_table(outcomes: Sequence[Outcome]) -> str:
    """One row per point of a record-level run; what the silo that died has charged in its own account."""
    header = [
        "record-level run killed in round 2 of 4",
        "restarts after",
        "silo: charged / models left it, then",
    ]
    header += ["in the end", "server: charged / opened in the end", "rounds in the model", "epsilon of 8"]
    return markdown_table(
        header,
        (
            (
                outcome.words,
                outcome.at_restart,
                f"{outcome.account_before} / {outcome.models_before}",
                f"{outcome.account} / {outcome.models}",
                f"{outcome.charged} / {outcome.sent}",
                outcome.rounds,
                f"{outcome.epsilon:.3f}",
            )
            for outcome in outcomes
        ),
    )


def silo_table(outcomes: Sequence[SiloOutcome]) -> str:
    """One row per exchange in which a silo died."""
    header = [
        "killed",
        "in exchange",
        "of round",
        "silos",
        "fewest in a sum",
        "in the sum",
        "the round's charge",
        "next round",
    ]
    words = {"void": "taken back", "committed": "stays"}
    return markdown_table(
        header,
        (
            (
                outcome.what,
                outcome.exchange,
                outcome.round,
                outcome.silos,
                outcome.min_survivors,
                outcome.survivors or "not released",
                words[outcome.status],
                f"{outcome.next_survivors} in the sum",
            )
            for outcome in outcomes
        ),
    )


def replace_section(file: Path, text: str) -> None:
    """Put ``text`` between the two marks of a Markdown file.

    Raises
    ------
    ValueError
        When the file lacks a mark.
    """
    whole = file.read_text()
    if whole.count(START) != 1 or whole.count(END) != 1:
        raise ValueError(f"{file}: should hold {START} and {END} once each")
    head, rest = whole.split(START)
    file.write_text(head + START + "\n" + text.strip() + "\n" + END + rest.split(END)[1])
