"""A client's side of fine-tuning by two-point quotients: its objective, and how it tries a candidate of the vote."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import torch

from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.mechanisms.directions import SEED_BYTES, Directions
from fedpriv.mechanisms.perturbation import two_point_quotients
from fedpriv.mechanisms.zeroth_order import clipped_quotients
from fedpriv.settings import PacZeroSettings, Settings, ZerothOrderSettings
from fedpriv.tasks import task_of
from fedpriv.tasks.base import Split, Task
from fedpriv.tasks.directions import direction_kind
from fedpriv.tasks.federated import client_data
from fedpriv.tasks.objective import ModelObjective
from fedpriv.tasks.training import evaluate

#: Rounds of a trial per proxy round: one number says far less than one gradient.
TRIAL_FACTOR = 10


def client_objective(settings: Settings, partition: int, arrays: Mapping[str, np.ndarray]) -> ModelObjective:
    """Per-record losses of a model on a client's training part.

    A model whose smoothness is proved is evaluated in float64, as the hidden-state bound assumes.
    """
    return _objective(settings, client_data(settings, partition).train).load(arrays)


def initial_arrays(settings: Settings) -> dict[str, np.ndarray]:
    """The model before any training, as the server builds it too."""
    state = task_of(settings).build_model(settings.run.model, settings.run.seed).state_dict()
    return {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}


def _objective(settings: Settings, split: Split) -> ModelObjective:
    task = task_of(settings)
    model = _shared_model(task, settings.run.model, settings.run.seed)
    if task.smoothness(settings.run.model) is not None:
        model, split = model.double(), Split(split.x.double(), split.y)
    return ModelObjective(model, split)


@functools.lru_cache(maxsize=1)
def _shared_model(task: Task, name: str, seed: int) -> torch.nn.Module:
    """One model for all rounds of a process: its weights are replaced before every use."""
    return task.build_model(name, seed)


def sign_trial(settings: Settings, partition: int) -> float:
    """Loss of a PACZero candidate: some rounds along the sign of the mean quotient of all own records."""
    own = settings.of(PacZeroSettings)

    def step(mean: np.ndarray) -> np.ndarray:
        return own.learning_rate * np.where(mean >= 0.0, 1.0, -1.0)

    return _trial(settings, partition, own.smoothing, own.clip, 1, step, None, own)


def zeroth_order_trial(settings: Settings, partition: int) -> float:
    """Loss of a candidate: some noise-free rounds of which the client is the only member.

    Ten rounds per ``tune.proxy-rounds``, with the candidate's rate, clip and smoothing; the loss is that of the
    client's validation part.
    """
    own = settings.of(ZerothOrderSettings)

    def step(mean: np.ndarray) -> np.ndarray:
        return own.learning_rate / own.directions * clipped_quotients(mean, own.clip)

    ball = (own.radius, own.center) if own.radius > 0 else None
    return _trial(settings, partition, own.smoothing, np.inf, own.directions, step, ball, own)


def _trial(
    settings: Settings,
    partition: int,
    smoothing: float,
    record_clip: float,
    count: int,
    step: Callable[[np.ndarray], np.ndarray],
    projection: tuple[float, str] | None,
    own: ZerothOrderSettings | PacZeroSettings,
) -> float:
    """Noise-free rounds of one client; ``step`` turns mean quotients into coefficients of the directions."""
    data = client_data(settings, partition)
    objective = _objective(settings, data.train)
    arrays = initial_arrays(settings)
    layout = ArrayLayout.of(arrays)
    ball = None
    if projection is not None:
        radius, center = projection
        ball = Ball(radius, layout.flatten(arrays) if center == "initial" else None)
    for number in range(TRIAL_FACTOR * settings.tune.proxy_rounds):
        seed = hashlib.sha256(f"{settings.run.seed}:trial:{number}".encode()).digest()[:SEED_BYTES]
        directions = Directions(seed, layout.size, count, direction_kind(own, layout.size))
        quotients = two_point_quotients(objective.load(arrays), directions, smoothing)
        mean = clipped_quotients(quotients, record_clip).mean(axis=1)
        weights = layout.flatten(arrays) - directions.combine(step(mean))
        arrays = layout.unflatten(weights if ball is None else ball.project(weights))
    objective.load(arrays)
    model = objective.model.float()
    with torch.no_grad():
        return evaluate(model, data.validation).loss
