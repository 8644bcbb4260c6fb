"""A membership attack with shadow models on the final model, like LiRA (Carlini et al. 2022, arXiv 2112.03570).

The target is a client of the simulated federation with its own data. In half of the runs it takes part, in half it
sends zeros. From the first half of the runs of either kind the attacker learns how the final models treat the target's
examples: for each example the logit-scaled confidence phi = log(p / (1 - p)) of the true label has a normal law with
and without the target (one mean each, a common variance). The score of a model is the log-likelihood ratio summed over
the examples. Two more statistics beside it: the mean of phi, and the model itself along the difference of the two mean
models, since the adversary holds the model. The other half of the runs is judged.

Imports torch with the task's models; loaded only for this attack.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from torch.nn import functional

from fedpriv.audit.bounds import Trials
from fedpriv.audit.grid import AuditGrid, RecordedSums, make_app, partition_of
from fedpriv.audit.target import few_clients
from fedpriv.audit.targets.updates import plain
from fedpriv.clients import client_level_dp_mod
from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.plans import DpsgdDcPlan
from fedpriv.settings import Settings
from fedpriv.strategies import DpsgdDc, ServerSgd
from fedpriv.strategies.optimizers import ServerAdam, ServerOptimizer
from fedpriv.tasks import federated, get_task

#: Clients of a shadow federation: the target and others, all honest, with their own data.
SHADOW_CLIENTS = 3


class UpdateShadow:
    """Shadow models of client-level DPSGD-DC on the task of a run configuration.

    Parameters
    ----------
    plan : DpsgdDcPlan
        As configured; its noise is kept, its federation cut to three clients.
    settings : Settings
        The run configuration.
    """

    def __init__(self, plan: DpsgdDcPlan, settings: Settings) -> None:
        noise = few_clients(plan.noise, SHADOW_CLIENTS, 0)
        self._divisor = plan.divisor
        self.plan = replace(plan, num_clients=SHADOW_CLIENTS, noise=noise)
        self.settings, self._member = settings, False
        self._grid = AuditGrid(make_app([client_level_dp_mod], self._train), SHADOW_CLIENTS)
        task = get_task(settings.run.task)
        self._model = task.build_model(settings.run.model, settings.run.seed)
        self._start = ArrayRecord(self._model.state_dict())
        self._target = federated.client_data(settings, 0).train

    def _train(self, msg: Message, context: Context) -> Message:
        received = {name: array.numpy() for name, array in msg.content.array_records["arrays"].items()}
        client = partition_of(context)
        if client == 0 and not self._member:
            trained = received
        else:
            server_round = int(msg.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
            local = federated.local_training(self.settings)
            trained = federated.train_locally(self.settings, client, received, local, server_round)
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in trained.items()})
        return Message(RecordDict({"arrays": arrays}), reply_to=msg)

    def _final_model(self, member: bool) -> ArrayRecord:
        self._member = member
        train, plan = self.settings.train, self.plan
        optimizer: ServerOptimizer
        if train.server_optimizer == "adam":
            optimizer = ServerAdam(train.server_learning_rate)
        else:
            rate = train.server_learning_rate * plan.divisor / self._divisor
            optimizer = ServerSgd(rate, train.server_momentum)
        center = None
        if train.center == "initial":
            arrays = {name: array.numpy() for name, array in self._start.items()}
            center = ArrayLayout.of(arrays).flatten(arrays)
        strategy = DpsgdDc(
            plan,
            RecordedSums(None, mode="simulated", seed=0 if plan.noise.seeded else None),
            optimizer=optimizer,
            ball=Ball(train.radius, center) if train.radius > 0 else None,
            release_noise=train.release_noise,
            cosine=train.schedule == "cosine",
            seed=0 if plan.noise.seeded else None,
        )
        model = self._start
        for server_round in range(1, plan.rounds + 1):
            outcome = strategy.train_round(self._grid, server_round, model)
            assert outcome.arrays is not None
            model = outcome.arrays
        return model

    def _confidences(self, model: ArrayRecord) -> np.ndarray:
        """phi of every example of the target, shape (examples,)."""
        self._model.load_state_dict({name: torch.from_numpy(a.numpy().copy()) for name, a in model.items()})
        with torch.no_grad():
            logits = self._model(self._target.x).to(torch.float64)
        labels = functional.one_hot(self._target.y, logits.shape[1]).bool()
        true = logits[labels]
        others = torch.logsumexp(logits.masked_fill(labels, -torch.inf), dim=1)
        return (true - others).numpy()

    def trials(self, runs: int) -> Trials:
        """Play the runs and score them by the attacker that the first half trains.

        Parameters
        ----------
        runs : int
            In all, at least 16.
        """
        found: dict[bool, tuple[list[np.ndarray], list[np.ndarray]]] = {True: ([], []), False: ([], [])}
        for _ in range(runs // 2):
            for member in (True, False):
                model = self._final_model(member)
                found[member][0].append(self._confidences(model))
                found[member][1].append(plain(model))
        inside, outside = (np.array(found[member][0]) for member in (True, False))
        models_in, models_out = (np.array(found[member][1]) for member in (True, False))
        half = runs // 2 // 2
        along = models_in[:half].mean(axis=0) - models_out[:half].mean(axis=0)
        ratio = LikelihoodRatio(inside[:half], outside[:half])
        return Trials(
            np.column_stack([ratio(inside), inside.mean(axis=1), models_in @ along]),
            np.column_stack([ratio(outside), outside.mean(axis=1), models_out @ along]),
        )


class LikelihoodRatio:
    """Log-likelihood ratio of two normal laws per example with a common variance, summed over the examples.

    Parameters
    ----------
    inside, outside : np.ndarray
        Shape (shadow models, examples): confidences of models with and without the target.
    """

    def __init__(self, inside: np.ndarray, outside: np.ndarray) -> None:
        self.means = inside.mean(axis=0), outside.mean(axis=0)
        spread = np.concatenate([inside - self.means[0], outside - self.means[1]])
        self.variance = max(float(np.mean(spread**2)), 1e-12)

    def __call__(self, confidences: np.ndarray) -> np.ndarray:
        """Shape (models, examples) -> (models,)."""
        with_target, without = self.means
        ratio = (confidences - without) ** 2 - (confidences - with_target) ** 2
        return np.asarray(ratio.sum(axis=1) / (2 * self.variance))
