"""Console lines: plain where nobody watches, never more privacy than there is."""

from __future__ import annotations

import io

import pytest

from fedpriv.reporting import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def speak(progress: Progress) -> None:
    progress.start("digits, 50 clients", "at most epsilon 8")
    progress.stage("train", "client-level DPSGD-DC", 15)
    progress.round(
        "train",
        7,
        15,
        accuracy=0.8053,
        epsilon=4.37601,
        epsilon_left=3.62399,
        survivors=49,
        asked=50,
        seconds=4.31,
    )
    progress.round("train", 8, 15, epsilon=1.0, view="release", note="nothing released: [22 of 34] clients")
    progress.warn("seeded noise: not private")
    progress.message("3 clients are late")
    progress.done("Client-level differential privacy ...", "runs/one/report.md")


EXPECTED = [
    "digits, 50 clients",
    "  at most epsilon 8",
    "stage train: client-level DPSGD-DC, 15 rounds",
    "[train  7/15]  accuracy  80.5 %  epsilon 4.377 (server)  left 3.623  clients 49/50  4.3 s",
    "[train  8/15]  epsilon 1.000 (release)  nothing released: [22 of 34] clients",
    "WARNING: seeded noise: not private",
    "3 clients are late",
    "Client-level differential privacy ...",
    "report: runs/one/report.md",
]


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "TERM"])
def test_plain_lines_without_control_codes_outside_a_terminal(monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    stream = io.StringIO()
    speak(Progress(stream))
    assert stream.getvalue().splitlines() == EXPECTED


def test_a_terminal_gets_the_same_words_in_colour(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    speak(Progress(stream))
    assert "\x1b[" in stream.getvalue()
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines() == EXPECTED


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    speak(Progress(stream))
    assert stream.getvalue().splitlines() == EXPECTED


def test_what_is_unknown_is_left_out_and_nothing_is_rounded_in_favour():
    stream = io.StringIO()
    progress = Progress(stream)
    progress.round("tune", 1, 1)
    progress.round("tune", 1, 1, epsilon=float("inf"), epsilon_left=float("inf"))
    progress.round("tune", 1, 1, epsilon=7.9991, epsilon_left=0.0009)
    progress.round("tune", 1, 1, epsilon=8.1, epsilon_left=-0.1)
    progress.stage("tune", "vote", 1)
    assert stream.getvalue().splitlines() == [
        "[tune 1/1]",
        "[tune 1/1]  epsilon infinite (server)",
        "[tune 1/1]  epsilon 8.000 (server)  left 0.000",
        "[tune 1/1]  epsilon 8.100 (server)  left 0.000",
        "stage tune: vote, 1 round",
    ]
