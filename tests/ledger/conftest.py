"""Short ways to open a ledger and to say what a release costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.ledger import Ledger

Opener = Callable[..., Ledger]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "ledger.jsonl"


@pytest.fixture
def open_ledger(path: Path) -> Opener:
    """Open the test's ledger; keyword arguments replace the usual ones."""

    def opener(**arguments: Any) -> Ledger:
        usual: dict[str, Any] = {"unit": "client", "adjacency": "add_or_remove", "run": "one"}
        return Ledger.open(path, **(usual | arguments))

    return opener
