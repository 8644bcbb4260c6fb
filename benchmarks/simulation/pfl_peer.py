"""pfl-research on the same clients, model and local steps; runs in a virtual environment that has ``pfl`` and torch.

``python benchmarks/simulation/pfl_peer.py DATA.npz ROUNDS`` prints a line of JSON like the other contenders.
Gaussian noise is added centrally after clipping every user's update.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from fedpriv.tasks.models import GroupNormCNN


class Model(GroupNormCNN):
    """The model with the two methods that pfl calls."""

    def loss(self, x: Any, y: Any, eval: bool = False) -> torch.Tensor:
        """Mean cross-entropy."""
        self.eval() if eval else self.train()
        return torch.nn.functional.cross_entropy(self(torch.as_tensor(x)), torch.as_tensor(y))

    def metrics(self, x: Any, y: Any) -> dict[str, Any]:
        """None are measured."""
        return {}


def main(data: str, rounds: int) -> None:
    """Play one round more than asked; the first one is not counted."""
    import pfl
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    torch.set_num_threads(1)
    file = np.load(data, allow_pickle=False)
    settings = json.loads(str(file["settings"]))
    users = [
        (torch.from_numpy(file[f"x{user}"]), torch.from_numpy(file[f"y{user}"]))
        for user in range(settings["users"])
    ]
    network = Model(**settings["model"])
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    dataset = FederatedDataset(
        lambda user: Dataset(users[user], user_id=str(user)),
        get_user_sampler("random", list(range(len(users)))),
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(settings["clip"], settings["noise"]))
    ends: list[float] = []

    class Clock(TrainingProcessCallback):
        def after_central_iteration(
            self, metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            ends.append(time.process_time())
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=settings["cohort"],
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[noise]),
        model,
        NNTrainHyperParams(
            local_batch_size=settings["batch"],
            local_num_epochs=None,
            local_num_steps=settings["steps"],
            local_learning_rate=settings["rate"],
        ),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    seconds = [b - a for a, b in itertools.pairwise(ends)]
    assert len(seconds) == rounds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "version": pfl.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
