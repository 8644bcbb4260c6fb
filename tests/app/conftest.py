"""The whole app in one process, on a few small clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_app.app import app as client
from fedpriv.testing import run_local
from server_app.app import app as server

SMALL: dict[str, Any] = {
    "num-clients": 6,
    "partition": "iid",
    "train.rounds": 3,
    "tune.proxy-rounds": 2,
    "tune.grid": '{"learning-rate": [0.1, 1.0], "local-steps": [1, 4]}',
    "delta": 1e-3,
    "name": "small",
}

RunApp = Callable[..., Path]


@pytest.fixture
def run_app(tmp_path: Path) -> RunApp:
    """``run_app(**options)`` runs the app and returns the run folder; ``config`` adds run-config keys."""

    def run(config: dict[str, Any] | None = None, **options: Any) -> Path:
        values = SMALL | {"run-dir": str(tmp_path)} | (config or {})
        run_local(server, client, int(values["num-clients"]), values, **options)
        return tmp_path / str(values.get("resume") or values["name"])

    return run
