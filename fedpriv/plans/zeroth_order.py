"""Plan of zeroth-order fine-tuning at client level (arXiv 2506.00158): K noised quotients a round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_integer, check_positive
from fedpriv.accounting.vocabulary import Adjacency, View
from fedpriv.mechanisms import Sampler
from fedpriv.mechanisms.directions import KINDS, Kind, best_kind
from fedpriv.plans.base import Forecast, Hypothesis, Plan
from fedpriv.plans.dpsgd_dc import DpsgdDcPlan
from fedpriv.plans.noise import NoiseKind, NoiseModel


@dataclass(frozen=True)
class ZerothOrderPlan(Plan):
    """A secure sum of K clipped two-point quotients per round, with noise along the directions and around.

    A client's K quotients, each clipped to Delta, are a vector of L2 norm at most ``sqrt(K) Delta``: the sum is
    that of client-level training with this vector as the update, and so are sampling, noise shares and events.
    The server then adds isotropic noise to the model, which no view is credited for round by round (the noise
    on the sum lies on a grid, so that the two together are no Gaussian); it is what a hidden-state bound needs.

    Parameters
    ----------
    sums : DpsgdDcPlan
        Sampler, codec (clip ``sqrt(K) Delta``), noise and rounds of the sums of K numbers.
    dimension : int
        d, model coordinates.
    smoothing : float
        xi > 0, the distance of the two points from the model.
    direction_share : float
        beta in (0, 1]: part of the noise energy that lies along the directions.
    kind : {"orthonormal", "independent", "signs"}
        Of the directions.
    """

    sums: DpsgdDcPlan
    dimension: int
    smoothing: float
    direction_share: float
    kind: Kind

    def __post_init__(self) -> None:
        check_integer(1, dimension=self.dimension)
        check_positive(smoothing=self.smoothing)
        check_choice(KINDS, kind=self.kind)
        if not 0.0 < self.direction_share <= 1.0:
            raise InvalidArgument(
                f"direction_share: {self.direction_share} is outside (0, 1]; without noise along the directions "
                "(0) the server would see every sum of quotients bare"
            )

    @classmethod
    def build(
        cls,
        *,
        sampler: Sampler,
        dimension: int,
        directions: int,
        clip: float,
        smoothing: float,
        direction_share: float,
        noise_multiplier: float,
        kind: NoiseKind,
        adjacency: Adjacency,
        num_clients: int,
        min_survivors: int,
        rounds: int,
        colluders: int = 0,
        seeded: bool = False,
        idle_clients_train: bool = True,
        direction_kind: Kind | None = None,
    ) -> ZerothOrderPlan:
        """Choose the grid for a noise multiplier on the sum of quotient vectors and size the noise shares.

        Parameters
        ----------
        directions : int
            K.
        clip : float
            Delta on every quotient.
        noise_multiplier : float
            Guaranteed noise of the sum, per coordinate, over ``sqrt(K) Delta``.
        direction_kind : {"orthonormal", "independent", "signs"}, optional
            By default :func:`fedpriv.mechanisms.directions.best_kind`.
        """
        check_integer(1, directions=directions)
        check_positive(clip=clip)
        sums = DpsgdDcPlan.build(
            sampler=sampler,
            clipping_norm=clip * math.sqrt(directions),
            noise_multiplier=noise_multiplier,
            kind=kind,
            adjacency=adjacency,
            num_clients=num_clients,
            min_survivors=min_survivors,
            rounds=rounds,
            length=directions,
            colluders=colluders,
            seeded=seeded,
            idle_clients_train=idle_clients_train,
            # a mean quotient is often far below its clip, and rounding toward zero must leave it alone
            rounding_share=1e-5,
        )
        kind_of_directions = direction_kind or best_kind(dimension, directions)
        return cls(sums, dimension, smoothing, direction_share, kind_of_directions)

    def with_values(self, *, clip: float, smoothing: float) -> ZerothOrderPlan:
        """The same plan for another clip and smoothing: noise and grid scale with the clip, the events stay."""
        sums = self.sums.with_clipping_norm(clip * math.sqrt(self.directions))
        return replace(self, sums=sums, smoothing=smoothing)

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        """Neighbouring relation."""
        return self.sums.adjacency

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        """Clients in the federation."""
        return self.sums.num_clients

    @property
    def noise(self) -> NoiseModel:  # type: ignore[override]
        """Noise of the sum, in grid steps."""
        return self.sums.noise

    @property
    def sampler(self) -> Sampler:
        """Who takes part."""
        return self.sums.sampler

    @property
    def rounds(self) -> int:
        """Rounds planned."""
        return self.sums.rounds

    @property
    def releases(self) -> int:
        return self.sums.releases

    @property
    def directions(self) -> int:
        """K."""
        return self.sums.length

    @property
    def clip(self) -> float:
        """Delta."""
        return self.sums.codec.clipping_norm / math.sqrt(self.directions)

    @property
    def noise_std(self) -> float:
        """sigma: the noise on each averaged quotient has variance ``K beta sigma^2``, guaranteed."""
        per_sum = self.noise.total_std_units * self.sums.codec.step
        return per_sum / self.sums.divisor / math.sqrt(self.directions * self.direction_share)

    @property
    def has_isotropic_noise(self) -> bool:
        """Whether the server adds noise around the directions (beta < 1)."""
        return self.direction_share < 1.0

    def isotropic_std(self, learning_rate: float) -> float:
        """Standard deviation per coordinate that the server adds to the model: ``eta sqrt((1-beta)/d) sigma``."""
        return learning_rate * self.noise_std * math.sqrt((1.0 - self.direction_share) / self.dimension)

    def events(self) -> dict[View, PrivacyEvent]:
        """One round, per view: the noised sum of K quotients, and nothing for the isotropic noise."""
        return self.sums.events()

    def visibility(self, view: View) -> str:
        return self.sums.visibility(view)

    def hypotheses(self) -> list[Hypothesis]:
        found = [
            Hypothesis(
                f"one client moves each of the {self.directions} sums by at most "
                + ("the clip" if self.adjacency == "add_or_remove" else "twice the clip"),
                "holds",
                "its mean quotient is clipped per direction and rounded toward zero; the integer norm of all is "
                "checked by the client half",
            ),
            Hypothesis(
                "directions are public and drawn for each round from fresh entropy",
                "fails" if self.noise.seeded else "holds",
                "derived from a seed that is fixed beforehand"
                if self.noise.seeded
                else "they depend on no model and no data",
            ),
        ]
        return found + self.sums.hypotheses()[1:]

    def forecast(self) -> Forecast:
        per_quotient = self.noise_std * math.sqrt(self.directions * self.direction_share)
        ratio = per_quotient / self.clip
        lines = {
            "noise on an averaged quotient over the clip": ratio,
            "expected cohort": self.sums.divisor,
        }
        warnings = []
        if ratio / math.sqrt(max(self.rounds, 1)) > 1.0:
            warnings.append(
                f"over the run the noise on a quotient exceeds the clip {ratio / math.sqrt(self.rounds):.1f} times: "
                "the model will move at random; use more clients, fewer rounds or directions, or a larger budget"
            )
        return Forecast(lines, tuple(warnings))

    def describe(self) -> dict[str, str | float | int]:
        sums = {
            key: value
            for key, value in self.sums.describe().items()
            if key not in ("mechanism", "clipping norm", "model coordinates", "grid steps per clip")
        }
        return {
            "mechanism": "Gaussian noise on summed two-point quotients (zeroth-order fine-tuning)",
            "directions K": self.directions,
            "kind of directions": self.kind,
            "clip of a quotient": self.clip,
            "smoothing xi": self.smoothing,
            "part of the noise along the directions": self.direction_share,
            "noise std sigma (mean quotient: sqrt(K beta) sigma)": self.noise_std,
            **sums,
            "model coordinates": self.dimension,
            "grid steps per sqrt(K) clips": self.sums.codec.clip_units,
        }
