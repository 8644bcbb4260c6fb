"""Runs of the whole app in process, and of every candidate without a vote."""

from __future__ import annotations

import contextlib
import io
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.nonprivate import candidate_accuracies
from client_app.app import app as client
from fedpriv.reporting import RunReport, read_report
from fedpriv.settings import resolve_settings
from fedpriv.testing import run_local
from server_app.app import app as server


@dataclass(frozen=True)
class SeedResult:
    """What one seed gave; all accuracies in [0, 1] on the public hold-out.

    Parameters
    ----------
    seed : int
        Seed of split, model and data order.
    chosen : int
        Index of the candidate that the vote chose.
    tallies : list of float
        Noisy tallies, in votes.
    vote_noise : float
        Standard deviation of the noise that the tallies carry, in votes.
    vote_epsilon, epsilon : float
        Spent on the vote alone and on the whole run, ``server`` view.
    private : float
        Accuracy of the app: vote and training.
    private_alone : list of float
        Accuracy of every candidate when the whole budget goes to its training, without a vote.
    clipped, unclipped : list of float
        Accuracy of every candidate without noise; with the clip and the projection, and without.
    """

    seed: int
    chosen: int
    tallies: list[float]
    vote_noise: float
    vote_epsilon: float
    epsilon: float
    private: float
    private_alone: list[float]
    clipped: list[float]
    unclipped: list[float]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def run_app(config: dict[str, Any]) -> RunReport:
    """Run the app in process and return its report."""
    with tempfile.TemporaryDirectory() as folder:
        values = config | {"run-dir": folder, "name": "run"}
        clients = resolve_settings(values).run.num_clients
        with contextlib.redirect_stdout(io.StringIO()):
            run_local(server, client, clients, values)
        return read_report(Path(folder) / "run")


def _accuracy(report: RunReport) -> float:
    if report.final_accuracy is None:
        raise RuntimeError(f"the run has no accuracy: {report.outcome}")
    return report.final_accuracy


def measure_seed(seed: int, overrides: dict[str, Any]) -> SeedResult:
    """Run the app, then train every candidate privately without a vote, and twice without noise."""
    config = {"secure-sum": "simulated"} | overrides | {"seed": seed}
    settings = resolve_settings(config)
    report = run_app(config)
    tuning = report.stages[0]
    if tuning.vote is None:
        raise RuntimeError(f"seed {seed}: the vote was not held")
    alone = []
    for candidate in settings.tune.candidates:
        chosen = {f"train.{key}": value for key, value in candidate.items()}
        last = {"stages": "train", "evaluate-every": settings.train.rounds}
        alone.append(_accuracy(run_app(config | last | chosen)))
    return SeedResult(
        seed=seed,
        chosen=tuning.vote.chosen,
        tallies=tuning.vote.tallies,
        vote_noise=tuning.vote.noise_std,
        vote_epsilon=tuning.epsilon["server"],
        epsilon=report.views["server"].epsilon,
        private=_accuracy(report),
        private_alone=alone,
        clipped=candidate_accuracies(settings).tolist(),
        unclipped=candidate_accuracies(settings, clipped=False).tolist(),
    )
