"""The ``fedpriv`` command: one file per command group, loaded only when it is called."""

from __future__ import annotations

import importlib
import sys

import typer

#: Command groups in the order of ``fedpriv --help``: name -> module that exposes ``app``.
GROUPS = {
    "run": "fedpriv.cli.run",
    "plan": "fedpriv.cli.plan",
    "eps": "fedpriv.cli.eps",
    "calibrate": "fedpriv.cli.calibrate",
    "curve": "fedpriv.cli.curve",
    "ledger": "fedpriv.cli.ledger",
    "data": "fedpriv.cli.data",
    "settings": "fedpriv.cli.settings",
}
