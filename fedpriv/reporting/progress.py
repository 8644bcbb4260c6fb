"""Console progress: one line per round, plain text where the output is not a terminal."""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, TextIO

from fedpriv.reporting.claim import format_epsilon, format_nats

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """Prints what a run does while it does it.

    On a terminal the lines are coloured (``NO_COLOR`` and ``TERM=dumb`` are respected); anywhere else they
    are plain text without control codes, one line per event, flushed at once.

    Parameters
    ----------
    stream : text stream, optional
        Standard output by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._console: Console | None = None
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console

            self._console = Console(file=self._stream, highlight=False, soft_wrap=True)

    def start(self, title: str, claim: str = "") -> None:
        """Announce the run, and what it is about to spend."""
        self._print(title, "bold")
        if claim:
            self._print(f"  {claim}", "")

    def stage(self, name: str, kind: str, rounds: int) -> None:
        """Announce a stage and its number of rounds."""
        self._print(f"stage {name}: {kind}, {rounds} {'round' if rounds == 1 else 'rounds'}", "bold cyan")

    def round(
        self,
        stage: str,
        round: int,
        of: int,
        *,
        accuracy: float | None = None,
        epsilon: float | None = None,
        epsilon_left: float | None = None,
        nats: float | None = None,
        view: str = "server",
        survivors: int | None = None,
        asked: int | None = None,
        seconds: float | None = None,
        note: str = "",
    ) -> None:
        """Report a finished round; what is None is left out.

        Parameters
        ----------
        stage, round, of
            Which round of how many.
        accuracy : float, optional
            In [0, 1].
        epsilon, epsilon_left : float, optional
            Spent so far in `view`, and left of the budget.
        nats : float, optional
            What a silo's releases so far may carry, at most.
        survivors, asked : int, optional
            Clients in the sum, and clients asked.
        seconds : float, optional
        note : str
        """
        parts = [f"[{stage} {round:>{len(str(of))}}/{of}]"]
        if accuracy is not None:
            parts.append(f"accuracy {100 * accuracy:5.1f} %")
        if epsilon is not None:
            parts.append(f"epsilon {format_epsilon(epsilon)} ({view})")
        if epsilon_left is not None and not math.isinf(epsilon_left):
            # Rounded down: the line must not promise more than there is.
            parts.append(f"left {math.floor(max(0.0, epsilon_left) * 1000) / 1000:.3f}")
        if nats is not None:
            parts.append(f"at most {format_nats(nats)} nats")
        if survivors is not None:
            parts.append(f"clients {survivors}" + (f"/{asked}" if asked is not None else ""))
        if seconds is not None:
            parts.append(f"{seconds:.1f} s")
        if note:
            parts.append(note)
        self._print("  ".join(parts), "yellow" if note else "")

    def message(self, text: str) -> None:
        """Say one thing."""
        self._print(text, "")

    def warn(self, text: str) -> None:
        """Say one thing that must not be missed."""
        self._print(f"WARNING: {text}", "bold red")

    def done(self, claim: str, report: str) -> None:
        """Say what was leaked and where the report is."""
        self._print(claim, "bold green")
        self._print(f"report: {report}", "")

    def _print(self, text: str, style: str) -> None:
        if self._console is not None:
            self._console.print(text, style=style or None, markup=False)
            return
        print(text, file=self._stream, flush=True)
