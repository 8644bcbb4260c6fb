"""What every plan answers: events per view, hypotheses, forecast."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.vocabulary import Adjacency, Unit, View

if TYPE_CHECKING:
    from fedpriv.plans.noise import NoiseModel

Status = Literal["holds", "assumed", "fails"]


@dataclass(frozen=True)
class Hypothesis:
    """One condition that a guarantee rests on.

    Parameters
    ----------
    name : str
        The condition, as a sentence.
    status : {"holds", "assumed", "fails"}
        *holds*: follows from the objects that run. *assumed*: nobody here can check it. *fails*: it does not
        hold, and what depends on it is not claimed.
    detail : str
        Why, or what follows.
    """

    name: str
    status: Status
    detail: str = ""


@dataclass(frozen=True)
class Forecast:
    """Expected quality of a stage, before anything is sent.

    Parameters
    ----------
    lines : mapping of str to float
        Named figures, in the order to print them.
    warnings : tuple of str
        What a user should reconsider.
    """

    lines: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class AnyPlan(ABC):
    """What the plans of all stages answer, whatever kind of privacy they give."""

    @property
    @abstractmethod
    def releases(self) -> int:
        """Number of releases if the stage runs to its end."""

    @property
    def num_rounds(self) -> int:
        """Number of rounds; one release each unless a plan says otherwise."""
        return self.releases

    @abstractmethod
    def hypotheses(self) -> list[Hypothesis]:
        """Conditions of the guarantee, with their status."""

    @abstractmethod
    def forecast(self) -> Forecast:
        """Noise against signal."""

    @abstractmethod
    def describe(self) -> dict[str, str | float | int]:
        """The mechanism as a table: everything that a reviewer needs to recompute the guarantee."""


class PacPlan(AnyPlan):
    """A plan whose guarantee is a mutual information per silo: PAC privacy, no differential privacy.

    It has no events and never an epsilon; the ledger keeps it on lines of its own.
    """

    @property
    @abstractmethod
    def nats(self) -> float:
        """Mutual information that all releases of one silo may carry about its secret, in nats."""

    @property
    @abstractmethod
    def posterior_success(self) -> float:
        """Most that an attacker's success probability can be, against 1/2 before the releases."""

    @property
    @abstractmethod
    def comparison_epsilon(self) -> float:
        """Epsilon of pure differential privacy that bounds the same attack; a comparison, never a claim."""


class Plan(AnyPlan):
    """Couples the sampler, the mechanism with its noise, and the privacy event of one stage.

    Attributes
    ----------
    unit : Unit
        What is protected.
    adjacency : Adjacency
        Neighbouring relation.
    num_clients : int
        Most clients that a sum may hold.
    noise : NoiseModel
        Noise of the sum.
    """

    unit: ClassVar[Unit] = "client"
    adjacency: Adjacency
    num_clients: int
    noise: NoiseModel

    @property
    @abstractmethod
    def releases(self) -> int:
        """Number of times that :meth:`events` is released if the stage runs to its end."""

    @abstractmethod
    def events(self) -> dict[View, PrivacyEvent]:
        """Privacy event of one release, per view."""

    def visibility(self, view: View) -> str:
        """Why a view was or was not amplified, as the second half of a sentence about who it is."""
        return "; every client takes part, nothing is sampled."

    def infinite_views(self) -> tuple[View, ...]:
        """Views for which this plan openly gives no guarantee (central noise: the server's).

        A sum without any noise is not among them: a ledger refuses it.
        """
        return self.noise.infinite_views
