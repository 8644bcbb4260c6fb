"""Plan of zeroth-order fine-tuning whose unit is the record: K noised numbers of every silo, averaged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.validators import check_integer, check_positive
from fedpriv.accounting.vocabulary import Adjacency, Unit, View
from fedpriv.mechanisms.directions import Kind, best_kind
from fedpriv.plans.base import Forecast, Hypothesis, Plan
from fedpriv.plans.record_level import RecordLevelPlan

#: Silos cut the K means that they send to this many clips in L2 norm; it is far beyond signal and noise.
RANGE_IN_CLIPS = 64.0


@dataclass(frozen=True)
class RecordZerothOrderPlan(Plan):
    """In a round every silo releases the noised mean of its records' K clipped quotients.

    A record's K quotients, each clipped to Delta, are a vector of L2 norm at most ``sqrt(K) Delta``: a round is one
    noised step of :class:`RecordLevelPlan` with this vector in the place of a gradient, and so are batches, noise,
    accounts and events.

    Parameters
    ----------
    silos : RecordLevelPlan
        One step a round over K coordinates, clip ``sqrt(K) Delta``.
    dimension : int
        d, model coordinates.
    smoothing : float
        xi > 0.
    kind : {"orthonormal", "independent"}
        Of the directions.

    Notes
    -----
    Formal guarantee: that of the rounds' composition, for every view. No hidden state is claimed.
    """

    silos: RecordLevelPlan
    dimension: int
    smoothing: float
    kind: Kind

    unit: ClassVar[Unit] = "record"

    def __post_init__(self) -> None:
        check_integer(1, dimension=self.dimension)
        check_positive(smoothing=self.smoothing)

    @classmethod
    def build(
        cls,
        *,
        dimension: int,
        directions: int,
        clip: float,
        smoothing: float,
        sampling_rate: float,
        noise_multiplier: float,
        adjacency: Adjacency,
        weighted: bool,
        num_clients: int,
        min_survivors: int,
        rounds: int,
        seeded: bool = False,
        direction_kind: Kind | None = None,
    ) -> RecordZerothOrderPlan:
        """Choose the grids.

        Parameters
        ----------
        dimension : int
            Coordinates of the model.
        directions : int
            Directions K of a round.
        clip : float
            Delta, bound on every two-point quotient of a record.
        smoothing : float
            Distance xi of the two points from the model.
        sampling_rate : float
            Rate in (0, 1] at which a record joins a round.
        noise_multiplier : float
            Standard deviation of a silo's noise, per direction, over ``sqrt(K) Delta``.
        adjacency : Adjacency
            Neighbouring relation between a silo's records.
        weighted : bool
            Whether a silo counts by its number of records.
        num_clients : int
            Silos.
        min_survivors : int
            Fewest silos whose sum is released.
        rounds : int
            Rounds, one release each.
        seeded : bool
            True for a simulation with reproducible noise, which is not private.
        direction_kind : {"orthonormal", "independent", "signs"}, optional
            By default :func:`fedpriv.mechanisms.directions.best_kind`.

        Raises
        ------
        InvalidArgument
            When an argument is out of range or the sum could wrap.
        """
        check_integer(1, directions=directions)
        check_positive(clip=clip)
        norm = clip * math.sqrt(directions)
        silos = RecordLevelPlan.build(
            sampling_rate=sampling_rate,
            clipping_norm=norm,
            noise_multiplier=noise_multiplier,
            local_steps=1,
            adjacency=adjacency,
            radius=RANGE_IN_CLIPS * norm,
            weighted=weighted,
            num_clients=num_clients,
            min_survivors=min_survivors,
            rounds=rounds,
            length=directions,
            seeded=seeded,
        )
        return cls(silos, dimension, smoothing, direction_kind or best_kind(dimension, directions))

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        """Neighbouring relation."""
        return self.silos.adjacency

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        """Silos."""
        return self.silos.num_clients

    def with_records(self, records: tuple[int, ...]) -> RecordZerothOrderPlan:
        """The same plan with the sizes of the silos."""
        return replace(self, silos=self.silos.with_records(records))

    @property
    def sizes(self) -> str:
        """Records per silo, in words."""
        return self.silos.sizes

    @property
    def records(self) -> tuple[int, ...]:
        """Sizes of the silos, where they are known."""
        return self.silos.records

    @property
    def rounds(self) -> int:
        """Rounds planned."""
        return self.silos.rounds

    @property
    def releases(self) -> int:
        return self.silos.releases

    @property
    def directions(self) -> int:
        """K."""
        return self.silos.length

    @property
    def clip(self) -> float:
        """Delta."""
        return self.silos.steps.codec.clipping_norm / math.sqrt(self.directions)

    def events(self) -> dict[View, PrivacyEvent]:
        """One round, the same for every view."""
        return self.silos.events()

    def infinite_views(self) -> tuple[View, ...]:
        return ()

    def visibility(self, view: View) -> str:
        return self.silos.visibility(view)

    def hypotheses(self) -> list[Hypothesis]:
        first, divisor, _, *others = self.silos.hypotheses()
        return [
            Hypothesis(
                f"one record moves the sum of {self.directions} quotients by at most "
                + ("" if self.adjacency == "add_or_remove" else "twice ")
                + "the clip times sqrt(K)",
                first.status,
                "every quotient of a record is clipped by itself, all of them are rounded toward zero, and their "
                "integer norm is checked",
            ),
            divisor,
            Hypothesis(
                "the loss of a record depends on that record alone",
                "assumed",
                "up to the rounding of floating-point numbers, which may differ with the batch that a record is "
                "computed in",
            ),
            *others,
        ]

    def forecast(self) -> Forecast:
        lines = dict(self.silos.forecast().lines)
        del lines["steps per silo"]
        return Forecast(lines, self.silos.forecast().warnings)

    def describe(self) -> dict[str, str | float | int]:
        left_out = (
            "mechanism",
            "clipping norm (record)",
            "local steps per round",
            "projection",
            "model coordinates",
            "grid steps per radius",
        )
        rest = {key: value for key, value in self.silos.describe().items() if key not in left_out}
        return {
            "mechanism": "Gaussian noise on sums of clipped two-point quotients of records inside each silo "
            "(record-level zeroth-order fine-tuning), average over silos",
            "directions K": self.directions,
            "kind of directions": self.kind,
            "clip of a record's quotient": self.clip,
            "smoothing xi": self.smoothing,
            **rest,
            "model coordinates": self.dimension,
        }
