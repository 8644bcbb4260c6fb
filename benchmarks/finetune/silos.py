"""Several silos through the whole app: PACZero over Flower messages, IID and skewed, with drop-outs."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.testing import LocalGrid

SILOS, LOST = 8, 0.1


@dataclass(frozen=True)
class Federation:
    """One way of spreading the sentences and using the bits."""

    name: str
    config: dict[str, Any]
    drop_outs: bool = False


def federations(rounds: int, rate: float, examples: int) -> list[Federation]:
    """The rows: ZPL and MI, IID and Dirichlet 0.5, without and with drop-outs."""
    common = {
        "task": "sentiment",
        "model": "head",
        "max-examples": examples,
        "num-clients": SILOS,
        "validation-fraction": 0.0,
        "secure-sum": "simulated",
        "stages": "paczero",
        "paczero.rounds": rounds,
        "paczero.learning-rate": rate,
        "paczero.schedule": "linear",
        "paczero.smoothing": 0.01,
        "min-survivors": 4,
        "evaluate-every": rounds,
    }
    iid, skewed = {"partition": "iid"}, {"partition": "dirichlet", "alpha": 0.5, "min-partition-size": 30}
    mi = {"paczero.variant": "mi", "paczero.nats": 0.33}
    return [
        Federation("ZPL, IID", common | iid),
        Federation("ZPL, Dirichlet 0.5", common | skewed),
        Federation("ZPL, mean of the bits, Dirichlet 0.5", common | skewed | {"paczero.aggregate": "mean"}),
        Federation("ZPL, Dirichlet 0.5, 10 % of the silos away each round", common | skewed, drop_outs=True),
        Federation("MI 0.33 nats, IID", common | iid | mi),
        Federation("MI 0.33 nats, Dirichlet 0.5", common | skewed | mi),
    ]


def play(federation: Federation, seed: int) -> dict[str, float]:
    """Run the app once; accuracy on the public hold-out, unanimity, survivors."""
    from client_app.app import app
    from fedpriv.reporting import Progress
    from fedpriv.stages.run import execute_run

    away = np.random.default_rng([seed, 7])

    def drop(silo: int, request: Any) -> str | None:
        return "silent" if federation.drop_outs and away.random() < LOST else None

    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        config = federation.config | {"run-dir": folder, "name": "run", "seed": seed}
        grid = LocalGrid(app, SILOS, config, drop=drop)  # type: ignore[arg-type]
        path = execute_run(grid, config, Progress(log))
        report = json.loads((path / "report.json").read_text())
    (stage,) = report["stages"]
    unanimous = [r["diagnostics"]["unanimous silos"] for r in stage["rounds"] if r["diagnostics"]]
    return {
        "accuracy": report["final_accuracy"],
        "unanimous": float(np.mean(unanimous)),
        "survivors": float(np.mean([r["survivors"] for r in stage["rounds"]])),
        "bytes_up": stage["table"]["bytes up per silo and round, secure sum included"],
        "bytes_down": stage["table"]["bytes down per silo and round, secure sum included"],
        "nats": report["pac"][0]["nats"],
    }
