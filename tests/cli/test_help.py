"""--help of every command says what each word and option means, and nothing of it is lost on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from fedpriv.cli import app


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group with the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def shown(path: tuple[str, ...]) -> str:
    """Help text without boxes and line breaks."""
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 0
    return re.sub(r"[\s│╭╮╰╯─]+", " ", result.output)


def test_all_commands_are_found() -> None:
    assert {
        ("run",),
        ("eps", "gaussian"),
        ("calibrate", "allocation"),
        ("ledger", "verify"),
        ("data", "check"),
    } <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_explains_everything(path: tuple[str, ...]) -> None:
    command, text = COMMANDS[path], shown(path)
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            # Some versions of click and typer together show no help of an argument: the text must have it.
            assert f"{parameter.name.upper()}: " in text, parameter.name
        elif not getattr(parameter, "hidden", False):
            explanation = getattr(parameter, "help", None)
            assert explanation, f"{parameter.opts} has no help"
            # The box breaks lines, and rich would take [brackets] for markup.
            missing = [word for word in explanation.split() if word not in text]
            assert not missing, f"{parameter.opts}: {missing}"
