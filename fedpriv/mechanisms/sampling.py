"""Who takes part in a round, and who can see it."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedpriv.accounting.validators import InvalidArgument, check_integer

_COIN_BITS = 53  # rates are binary64 numbers: 53 bits decide them up to 2^-53, always downward


def _coin(rate: float) -> bool:
    """Heads with probability floor(rate * 2^53) / 2^53, from the operating system's entropy."""
    return secrets.randbits(_COIN_BITS) < int(rate * 2**_COIN_BITS)


def _check_rate(rate: float) -> None:
    if not 0.0 < rate <= 1.0:
        raise InvalidArgument(f"sampling_rate: {rate} is outside (0, 1]")


class Sampler(ABC):
    """Draws the cohort of a round.

    Attributes
    ----------
    name : str
        Value of the ``sampling`` key that selects this sampler.
    hides_cohort : bool
        True when nobody but the client itself learns whether it took part.
    asks_all : bool
        True when every client is asked in every round.
    """

    name: ClassVar[str]
    asks_all: ClassVar[bool] = False
    hides_cohort: ClassVar[bool]

    @abstractmethod
    def asked(self, clients: Sequence[int]) -> list[int]:
        """Return the clients that the server asks this round."""

    @abstractmethod
    def expected_cohort(self, num_clients: int) -> float:
        """Fixed, public divisor of the summed update: the expected number of contributions."""

    @abstractmethod
    def expected_asked(self, num_clients: int) -> int:
        """Typical number of clients asked, which sizes ``min_survivors``."""


@dataclass(frozen=True)
class FullParticipation(Sampler):
    """Every client contributes in every round."""

    name: ClassVar[str] = "full"
    asks_all: ClassVar[bool] = True
    hides_cohort: ClassVar[bool] = False

    def asked(self, clients: Sequence[int]) -> list[int]:
        return list(clients)

    def expected_cohort(self, num_clients: int) -> float:
        return float(num_clients)

    def expected_asked(self, num_clients: int) -> int:
        return num_clients


@dataclass(frozen=True)
class SelfSampling(Sampler):
    """Every client answers; each tosses its own secret coin and sends its update or zeros, both noised.

    Parameters
    ----------
    rate : float
        Probability q in (0, 1] that a client contributes.
    """

    rate: float
    name: ClassVar[str] = "self"
    asks_all: ClassVar[bool] = True
    hides_cohort: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def asked(self, clients: Sequence[int]) -> list[int]:
        return list(clients)

    def toss(self) -> bool:
        """The client's own coin for one round."""
        return _coin(self.rate)

    def expected_cohort(self, num_clients: int) -> float:
        return self.rate * num_clients

    def expected_asked(self, num_clients: int) -> int:
        return num_clients


@dataclass(frozen=True)
class PoissonCohort(Sampler):
    """The server tosses a coin per client; it therefore knows the cohort.

    Parameters
    ----------
    rate : float
        Probability q in (0, 1] that a client is asked.
    """

    rate: float
    name: ClassVar[str] = "server"
    hides_cohort: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def asked(self, clients: Sequence[int]) -> list[int]:
        return [client for client in clients if _coin(self.rate)]

    def expected_cohort(self, num_clients: int) -> float:
        return self.rate * num_clients

    def expected_asked(self, num_clients: int) -> int:
        return max(1, round(self.rate * num_clients))

    def filled_up(self, cohort: Sequence[int], clients: Sequence[int], fewest: int) -> list[int]:
        """Clients outside the cohort that are asked for zeros, so that at least ``fewest`` are asked.

        Amplification needs a round that never ends because of who was drawn (Mironov, Talwar and Zhang
        2019 analyse the sum over the cohort, the empty one included). A secure sum needs a minimum of
        clients; so a small cohort is filled up with clients that send zeros.

        Returns
        -------
        list of int
            Drawn without replacement, from the operating system's entropy; all that are left when they are
            too few.
        """
        taken = set(cohort)
        others = [client for client in clients if client not in taken]
        missing = max(0, min(fewest - len(cohort), len(others)))
        return secrets.SystemRandom().sample(others, missing)


@dataclass(frozen=True)
class FixedSizeCohort(Sampler):
    """The server draws exactly ``size`` clients without replacement; it knows the cohort.

    Parameters
    ----------
    size : int
        Cohort size m, at least 1.
    """

    size: int
    name: ClassVar[str] = "server"
    hides_cohort: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_integer(1, size=self.size)

    def asked(self, clients: Sequence[int]) -> list[int]:
        if self.size > len(clients):
            raise InvalidArgument(f"size: a cohort of {self.size} out of {len(clients)} clients")
        return secrets.SystemRandom().sample(list(clients), self.size)

    def expected_cohort(self, num_clients: int) -> float:
        return float(self.size)

    def expected_asked(self, num_clients: int) -> int:
        return self.size
