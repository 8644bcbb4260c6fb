"""The server's step on the noisy mean update. All of it is post-processing: it costs no privacy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from fedpriv.accounting.validators import InvalidArgument, check_positive


class ServerOptimizer(ABC):
    """Turns a mean update (start minus result of local training, shape (d,)) into a step."""

    learning_rate: float

    @abstractmethod
    def step(self, mean_update: np.ndarray, rate_factor: float = 1.0) -> np.ndarray:
        """Return what is subtracted from the model; ``rate_factor`` scales the learning rate."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Arrays to put in a checkpoint."""

    @abstractmethod
    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a checkpoint's arrays."""

    @property
    @abstractmethod
    def is_plain(self) -> bool:
        """True for theta <- theta - rate * mean: no memory of earlier rounds."""


@dataclass
class ServerSgd(ServerOptimizer):
    """theta <- theta - rate * v with v <- momentum * v + mean.

    Parameters
    ----------
    learning_rate : float
        Positive.
    momentum : float
        In [0, 1).
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    _velocity: np.ndarray | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive(learning_rate=self.learning_rate)
        if not 0.0 <= self.momentum < 1.0:
            raise InvalidArgument(f"momentum: {self.momentum} is outside [0, 1)")

    def step(self, mean_update: np.ndarray, rate_factor: float = 1.0) -> np.ndarray:
        if self.momentum == 0.0:
            return self.learning_rate * rate_factor * mean_update
        if self._velocity is None:
            self._velocity = np.zeros_like(mean_update)
        self._velocity = self.momentum * self._velocity + mean_update
        return self.learning_rate * rate_factor * self._velocity

    def state(self) -> dict[str, np.ndarray]:
        return {} if self._velocity is None else {"velocity": self._velocity}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._velocity = state.get("velocity")

    @property
    def is_plain(self) -> bool:
        return self.momentum == 0.0


@dataclass
class ServerAdam(ServerOptimizer):
    """FedAdam (Reddi et al. 2021, arXiv 2003.00295) with bias correction.

    Parameters
    ----------
    learning_rate : float
        Positive.
    beta1, beta2 : float
        Decay of first and second moment, in [0, 1).
    adaptivity : float
        The tau added to the root of the second moment, > 0.
    """

    learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    adaptivity: float = 1e-3
    _first: np.ndarray | None = field(default=None, init=False, repr=False)
    _second: np.ndarray | None = field(default=None, init=False, repr=False)
    _count: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive(learning_rate=self.learning_rate, adaptivity=self.adaptivity)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0.0 <= value < 1.0:
                raise InvalidArgument(f"{name}: {value} is outside [0, 1)")

    def step(self, mean_update: np.ndarray, rate_factor: float = 1.0) -> np.ndarray:
        if self._first is None or self._second is None:
            self._first, self._second = np.zeros_like(mean_update), np.zeros_like(mean_update)
        self._count += 1
        self._first = self.beta1 * self._first + (1 - self.beta1) * mean_update
        self._second = self.beta2 * self._second + (1 - self.beta2) * mean_update**2
        first = self._first / (1 - self.beta1**self._count)
        second = self._second / (1 - self.beta2**self._count)
        return self.learning_rate * rate_factor * first / (np.sqrt(second) + self.adaptivity)

    def state(self) -> dict[str, np.ndarray]:
        if self._first is None or self._second is None:
            return {}
        return {"first": self._first, "second": self._second, "count": np.array([self._count])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._first, self._second = state.get("first"), state.get("second")
        self._count = int(state["count"][0]) if "count" in state else 0

    @property
    def is_plain(self) -> bool:
        return False


def cosine_factor(server_round: int, rounds: int) -> float:
    """Half-cosine decay from 1 in round 1 toward 0 after the last round."""
    return 0.5 * (1.0 + math.cos(math.pi * (server_round - 1) / max(rounds, 1)))
