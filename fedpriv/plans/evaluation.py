"""Plan of private evaluation: noised counts of correct predictions and of examples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.validators import check_choice, check_integer
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency, View
from fedpriv.mechanisms import GridCodec
from fedpriv.mechanisms.noise import MIN_SHARE_UNITS
from fedpriv.plans.base import Forecast, Hypothesis, Plan
from fedpriv.plans.noise import NoiseKind, NoiseModel


@dataclass(frozen=True)
class EvaluationPlan(Plan):
    """Every client adds its two counts, each capped, to one secure sum per evaluation.

    Parameters
    ----------
    cap : int
        Public cap on the number of examples that a client may count.
    adjacency : Adjacency
        Neighbouring relation.
    num_clients : int
        Clients in the federation.
    evaluations : int
        Planned number of evaluations.
    units_per_example : int
        Grid steps per counted example.
    noise : NoiseModel
        Noise of each summed count, in grid steps.

    Notes
    -----
    A client's pair (correct, examples) lies in {0 <= correct <= examples <= cap}; the largest distance
    between two such pairs, and of one from (0, 0), is cap * sqrt(2): that is the sensitivity under either
    adjacency.
    """

    cap: int
    adjacency: Adjacency
    num_clients: int
    evaluations: int
    units_per_example: int
    noise: NoiseModel

    def __post_init__(self) -> None:
        check_choice(ADJACENCIES, adjacency=self.adjacency)
        check_integer(1, cap=self.cap, units_per_example=self.units_per_example)
        check_integer(0, evaluations=self.evaluations)
        self.noise.check(self.num_clients)
        self.modulus_bits()  # refuses a grid that does not fit

    @classmethod
    def build(
        cls,
        *,
        cap: int,
        noise_multiplier: float,
        kind: NoiseKind,
        adjacency: Adjacency,
        num_clients: int,
        min_survivors: int,
        evaluations: int,
        colluders: int = 0,
        seeded: bool = False,
    ) -> EvaluationPlan:
        """Size grid and noise shares.

        Parameters
        ----------
        cap : int
            Most examples that a client counts.
        noise_multiplier : float
            Guaranteed standard deviation of a count's noise over the sensitivity, cap * sqrt(2).
        kind : {"distributed", "central"}
            Who adds the noise.
        adjacency : Adjacency
            Neighbouring relation.
        num_clients : int
            Clients in the federation.
        min_survivors : int
            Fewest clients whose sum is released.
        evaluations : int
            How many are planned.
        colluders : int
            Clients whose noise shares the adversary may know.
        seeded : bool
            True for a simulation with reproducible noise, which is not private.

        Raises
        ------
        InvalidArgument
            When the noise cannot be drawn on a grid, or the sum could wrap or never be released.
        """
        check_integer(1, cap=cap)
        total = noise_multiplier * cap * math.sqrt(2.0)
        share = NoiseModel(kind, total, min_survivors, colluders).share_std_units
        smallest = total if kind == "central" else share
        units = 1 if smallest == 0 else max(1, math.ceil(4 * MIN_SHARE_UNITS / smallest))
        noise = NoiseModel(kind, total * units, min_survivors, colluders, seeded)
        return cls(cap, adjacency, num_clients, evaluations, units, noise)

    @property
    def releases(self) -> int:
        return self.evaluations

    @property
    def sensitivity_units(self) -> float:
        """L2 sensitivity in grid steps."""
        return self.units_per_example * self.cap * math.sqrt(2.0)

    def _codec(self) -> GridCodec:
        return GridCodec(float(self.cap), self.cap * self.units_per_example)

    def modulus_bits(self) -> int:
        """Modulus of the secure sum, wide enough never to wrap."""
        return self._codec().modulus_bits(self.num_clients, self.noise.share_std_units)

    def magnitude(self) -> int:
        """Largest absolute value of a summed count, noise included, in grid steps."""
        return self._codec().magnitude(self.num_clients, self.noise.share_std_units)

    def events(self) -> dict[View, PrivacyEvent]:
        """A Gaussian release per evaluation for every view: all clients take part, none is sampled."""
        noised = self.noise.gaussian(self.sensitivity_units)
        return {"server": self.noise.server_event(noised), "participants": noised, "release": noised}

    def hypotheses(self) -> list[Hypothesis]:
        return [
            Hypothesis(
                f"a client counts at most {self.cap} examples in an evaluation",
                "holds",
                "capped by the client half before encoding",
            ),
            *self.noise.hypotheses(),
        ]

    def forecast(self) -> Forecast:
        realised = self.noise.realised_std_units(self.num_clients) / self.units_per_example
        largest = float(self.num_clients * self.cap)
        warnings: tuple[str, ...] = ()
        if realised > largest / 20:
            warnings = (
                f"private evaluation: the noise of a count ({realised:.0f} examples) exceeds 5 % of the "
                f"largest possible count ({largest:.0f}); the accuracy it reports will be coarse",
            )
        return Forecast(
            {"noise of a count (examples)": realised, "largest count (examples)": largest}, warnings
        )

    def describe(self) -> dict[str, str | float | int]:
        return {
            "mechanism": "Gaussian noise on summed counts (private evaluation)",
            "cap (examples per client)": self.cap,
            "evaluations planned": self.evaluations,
            "noise": self.noise.kind,
            "noise multiplier (on the sensitivity)": self.noise.total_std_units / self.sensitivity_units,
            "noise shares guaranteed": self.noise.shares.counted_shares
            if self.noise.kind == "distributed"
            else "none (server)",
        }
