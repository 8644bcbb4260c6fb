"""A federation with everything about its candidates worked out: losses per client, accuracy of each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.nonprivate import candidate_accuracies
from fedpriv.settings import Settings, resolve_settings
from fedpriv.tasks import federated


@dataclass(frozen=True)
class Case:
    """Which federation.

    Parameters
    ----------
    task : str
        Task name.
    clients : int
        Number of clients n.
    partition : str
        "iid" or "dirichlet" (alpha 0.5).
    seed : int
        Seed of split, model and data order.
    """

    task: str
    clients: int
    partition: str
    seed: int

    def settings(self, overrides: dict[str, Any]) -> Settings:
        """Run settings of the federation."""
        return resolve_settings(
            {
                "task": self.task,
                "num-clients": self.clients,
                "partition": self.partition,
                "alpha": 0.5,
                "seed": self.seed,
            }
            | overrides
        )


@dataclass(frozen=True)
class Scenario:
    """A case with its candidates judged.

    Parameters
    ----------
    case : Case
        Which federation.
    losses : np.ndarray
        Shape (clients, candidates): what each client's evaluation function returns in a vote.
    accuracies : np.ndarray
        Shape (candidates,): hold-out accuracy after federated training of the candidate over all clients
        without noise (same rounds, clip and projection as the app's).
    """

    case: Case
    losses: np.ndarray
    accuracies: np.ndarray


def make_scenario(case: Case, overrides: dict[str, Any], cache: Path | None = None) -> Scenario:
    """Judge every candidate on every client, and train each over all clients.

    Parameters
    ----------
    case : Case
        Which federation.
    overrides : dict
        Further run-config keys.
    cache : Path, optional
        Folder where what was worked out is kept, so that a benchmark that was interrupted goes on.

    Returns
    -------
    Scenario
    """
    settings = case.settings(overrides)
    stored = None
    if cache is not None:
        text = json.dumps(settings.to_run_config(), sort_keys=True)
        stored = cache / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.npz"
        if stored.exists():
            with np.load(stored) as arrays:
                return Scenario(case, arrays["losses"], arrays["accuracies"])
    losses = np.array(
        [
            [federated.candidate_loss(settings, client, candidate) for candidate in settings.tune.candidates]
            for client in range(case.clients)
        ]
    )
    accuracies = candidate_accuracies(settings)
    if stored is not None:
        stored.parent.mkdir(parents=True, exist_ok=True)
        np.savez(stored, losses=losses, accuracies=accuracies)
    return Scenario(case, losses, accuracies)
