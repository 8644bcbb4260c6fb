"""Plan of a DP-HYPE vote."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.validators import check_choice
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency, View
from fedpriv.mechanisms import Ballot, GridCodec
from fedpriv.mechanisms.noise import MIN_SHARE_UNITS
from fedpriv.plans.base import Forecast, Hypothesis, Plan
from fedpriv.plans.noise import NoiseKind, NoiseModel


@dataclass(frozen=True)
class VotePlan(Plan):
    """One secure sum of all ballots.

    Parameters
    ----------
    ballot : Ballot
        Candidates and votes per client.
    adjacency : Adjacency
        Neighbouring relation.
    num_clients : int
        Clients in the federation.
    units_per_vote : int
        Grid steps that one vote counts (ballots are scaled so that a noise share spans many steps).
    noise : NoiseModel
        Noise of the summed ballots, in grid steps.
    """

    ballot: Ballot
    adjacency: Adjacency
    num_clients: int
    units_per_vote: int
    noise: NoiseModel

    def __post_init__(self) -> None:
        check_choice(ADJACENCIES, adjacency=self.adjacency)
        self.noise.check(self.num_clients)
        self.modulus_bits()  # refuses a grid that does not fit

    @classmethod
    def build(
        cls,
        ballot: Ballot,
        adjacency: Adjacency,
        num_clients: int,
        noise_multiplier: float,
        kind: NoiseKind,
        min_survivors: int,
        colluders: int = 0,
        seeded: bool = False,
    ) -> VotePlan:
        """Size grid and noise shares.

        Parameters
        ----------
        ballot : Ballot
            Candidates and votes per client.
        adjacency : Adjacency
            Neighbouring relation.
        num_clients : int
            Clients in the federation.
        noise_multiplier : float
            Guaranteed standard deviation of a tally's noise over the ballot's sensitivity; 0 for no noise at all.
        kind : {"distributed", "central"}
            Who adds the noise.
        min_survivors : int
            Fewest ballots whose sum is released.
        colluders : int
            Clients whose noise shares the adversary may know.
        seeded : bool
            True for a simulation with reproducible noise, which is not private.

        Raises
        ------
        InvalidArgument
            When the noise cannot be drawn on a grid, or the sum could wrap or never be released.
        """
        total_votes = noise_multiplier * ballot.sensitivity(adjacency)
        share_votes = NoiseModel(kind, total_votes, min_survivors, colluders).share_std_units
        smallest = total_votes if kind == "central" else share_votes
        units = 1 if smallest == 0 else max(1, math.ceil(4 * MIN_SHARE_UNITS / smallest))
        noise = NoiseModel(kind, total_votes * units, min_survivors, colluders, seeded)
        return cls(ballot, adjacency, num_clients, units, noise)

    @property
    def releases(self) -> int:
        """One vote."""
        return 1

    @property
    def sensitivity_units(self) -> float:
        """L2 sensitivity of the summed ballots in grid steps."""
        return self.units_per_vote * self.ballot.sensitivity(self.adjacency)

    @property
    def noise_std_votes(self) -> float:
        """Guaranteed noise of one tally, in votes."""
        return self.noise.total_std_units / self.units_per_vote

    def modulus_bits(self) -> int:
        """Modulus of the secure sum, wide enough never to wrap."""
        return self._codec().modulus_bits(self.num_clients, self.noise.share_std_units)

    def magnitude(self) -> int:
        """Largest absolute value of a summed tally, noise included, in grid steps."""
        return self._codec().magnitude(self.num_clients, self.noise.share_std_units)

    def _codec(self) -> GridCodec:
        return GridCodec(1.0, self.units_per_vote)

    def events(self) -> dict[View, PrivacyEvent]:
        """A Gaussian release, the same for every view that sees the noised tallies."""
        noised = self.noise.gaussian(self.sensitivity_units)
        return {"server": self.noise.server_event(noised), "participants": noised, "release": noised}

    def hypotheses(self) -> list[Hypothesis]:
        return [
            Hypothesis(
                f"a ballot has at most {self.ballot.votes} ones among {self.ballot.candidates} entries",
                "holds",
                "built by the client half; a client that cannot evaluate sends zeros and its noise share",
            ),
            *self.noise.hypotheses(),
        ]

    def forecast(self) -> Forecast:
        realised = self.noise.realised_std_units(self.num_clients) / self.units_per_vote
        lines = {
            "noise of a tally (votes)": realised,
            "largest possible tally (votes)": float(self.num_clients),
            "noise against the largest tally": realised / self.num_clients,
        }
        warnings = []
        if realised > self.num_clients / 4:
            warnings.append(
                f"the vote's noise ({realised:.1f} votes) is more than a quarter of the largest possible "
                f"tally ({self.num_clients}): the winner will be close to random; use more clients, a larger "
                "tune-share, fewer votes, or tune on public data"
            )
        return Forecast(lines, tuple(warnings))

    def describe(self) -> dict[str, str | float | int]:
        return {
            "mechanism": "Gaussian noise on summed approval ballots (DP-HYPE)",
            "candidates": self.ballot.candidates,
            "votes per client": self.ballot.votes,
            "L2 sensitivity (votes)": self.ballot.sensitivity(self.adjacency),
            "noise": self.noise.kind,
            "noise multiplier (on the sensitivity)": self.noise.total_std_units / self.sensitivity_units,
            "guaranteed noise std (votes)": self.noise_std_votes,
            "noise shares guaranteed": self.noise.shares.counted_shares
            if self.noise.kind == "distributed"
            else "none (server)",
            "grid steps per vote": self.units_per_vote,
            "releases": 1,
        }
