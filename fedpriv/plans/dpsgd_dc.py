"""Plan of client-level DPSGD-DC training: one noised sum of clipped updates a round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, NonPrivate, PoissonGaussian, PrivacyEvent
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_integer
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency, View
from fedpriv.mechanisms import (
    FixedSizeCohort,
    FullParticipation,
    GridCodec,
    PoissonCohort,
    Sampler,
    SelfSampling,
)
from fedpriv.plans.base import Forecast, Hypothesis, Plan
from fedpriv.plans.noise import NoiseKind, NoiseModel


@dataclass(frozen=True)
class DpsgdDcPlan(Plan):
    """Rounds of clipped, noised, securely summed client updates.

    Parameters
    ----------
    sampler : Sampler
        Who contributes to a round.
    codec : GridCodec
        Clipping norm and grid.
    noise : NoiseModel
        Noise of the sum, in grid steps.
    adjacency : Adjacency
        Neighbouring relation.
    num_clients : int
        Clients in the federation.
    rounds : int
        Planned number of rounds.
    length : int
        Number of model coordinates d.
    idle_clients_train : bool
        With self-sampling: a client whose coin says no trains all the same and throws the result away, so
        that the time of its reply does not reveal the coin. Where it does not, whoever sees rounds come and
        go (``server``, ``participants``) is charged as if every client took part.

    Notes
    -----
    Guarantees, per round:

    * sensitivity of the sum is the clipping norm (add_or_remove, in the zero-out sense) or twice it
      (replace_one), in exact integer arithmetic on the grid;
    * the mean divides by a fixed public number, never by the realised cohort or by examples;
    * a view is charged with amplification by sampling only if it cannot see who took part: every view with
      ``self`` sampling (while idle clients train too); the final model only with ``server`` sampling, and
      then only when the noise does not depend on the cohort (fixed size, or central noise);
    * a round never ends because of who was drawn: a small Poisson cohort is filled up with clients that send
      zeros (:meth:`PoissonCohort.filled_up`), and a fixed-size cohort has always the same size;
    * Poisson sampling goes with add_or_remove, a fixed-size cohort with replace_one at sensitivity 2C; the
      other two pairs are refused.
    """

    sampler: Sampler
    codec: GridCodec
    noise: NoiseModel
    adjacency: Adjacency
    num_clients: int
    rounds: int
    length: int
    idle_clients_train: bool = True

    def __post_init__(self) -> None:
        check_choice(ADJACENCIES, adjacency=self.adjacency)
        check_integer(0, rounds=self.rounds)
        check_integer(1, length=self.length, num_clients=self.num_clients)
        poisson = isinstance(self.sampler, SelfSampling | PoissonCohort)
        if poisson and self.adjacency != "add_or_remove":
            raise InvalidArgument(
                "adjacency: Poisson sampling (sampling = self) is accounted under add_or_remove only, got "
                f"{self.adjacency!r}; use sampling = full or server with replace_one"
            )
        if isinstance(self.sampler, FixedSizeCohort):
            if self.adjacency != "replace_one":
                raise InvalidArgument(
                    "adjacency: a fixed-size cohort is accounted under replace_one only, got "
                    f"{self.adjacency!r}; with add_or_remove the server draws a Poisson cohort"
                )
            if self.sampler.size > self.num_clients:
                raise InvalidArgument(
                    f"size: a cohort of {self.sampler.size} out of {self.num_clients} clients"
                )
        self.noise.check(self.largest_sum)
        self.codec.check_modulus(62, self.num_clients, self.noise.share_std_units)

    @classmethod
    def build(
        cls,
        *,
        sampler: Sampler,
        clipping_norm: float,
        noise_multiplier: float,
        kind: NoiseKind,
        adjacency: Adjacency,
        num_clients: int,
        min_survivors: int,
        rounds: int,
        length: int,
        colluders: int = 0,
        seeded: bool = False,
        idle_clients_train: bool = True,
        rounding_share: float = 0.01,
    ) -> DpsgdDcPlan:
        """Choose the grid for a noise multiplier on the clip and size the noise shares.

        Parameters
        ----------
        sampler : Sampler
            Who takes part in a round, and who can see it.
        clipping_norm : float
            L2 bound on a client's whole update.
        noise_multiplier : float
            Guaranteed noise standard deviation of the sum over the clipping norm.
        kind : {"distributed", "central"}
            Who adds the noise.
        adjacency : Adjacency
            Neighbouring relation.
        num_clients : int
            Clients in the federation.
        min_survivors : int
            Fewest clients whose sum is released.
        rounds : int
            Rounds, one release each.
        length : int
            Coordinates of the model.
        colluders : int
            Clients whose noise shares the adversary may know.
        seeded : bool
            True for a simulation with reproducible noise, which is not private.
        idle_clients_train : bool
            Whether a client whose coin says no trains and discards, so that its time does not tell.
        rounding_share : float
            Largest acceptable typical rounding error as a part of the clip, see :meth:`GridCodec.choose`.

        Raises
        ------
        InvalidArgument
            When the noise cannot be drawn on a grid, or the sum could wrap or never be released.
        """
        total = noise_multiplier * clipping_norm
        share = NoiseModel(kind, total, min_survivors, colluders).share_std_units
        codec = GridCodec.choose(
            clipping_norm, length, share if kind == "distributed" else total, rounding_share
        )
        noise = NoiseModel(kind, noise_multiplier * codec.clip_units, min_survivors, colluders, seeded)
        return cls(sampler, codec, noise, adjacency, num_clients, rounds, length, idle_clients_train)

    def with_clipping_norm(self, clipping_norm: float) -> DpsgdDcPlan:
        """The same plan for another clip: noise and grid scale with it, so the events do not change."""
        return replace(self, codec=replace(self.codec, clipping_norm=clipping_norm))

    @property
    def releases(self) -> int:
        """One release per round."""
        return self.rounds

    @property
    def sensitivity_units(self) -> int:
        """L2 sensitivity of the sum to one client, in grid steps."""
        return self.codec.clip_units * (1 if self.adjacency == "add_or_remove" else 2)

    @property
    def noise_multiplier(self) -> float:
        """Guaranteed noise of the sum over the clipping norm."""
        return self.noise.total_std_units / self.codec.clip_units

    @property
    def largest_sum(self) -> int:
        """Most clients that one sum may hold."""
        return self.sampler.size if isinstance(self.sampler, FixedSizeCohort) else self.num_clients

    @property
    def divisor(self) -> float:
        """Fixed, public number by which the sum is divided."""
        return self.sampler.expected_cohort(self.num_clients)

    def modulus_bits(self) -> int:
        """Modulus of the secure sum, wide enough never to wrap."""
        return self.codec.modulus_bits(self.num_clients, self.noise.share_std_units)

    def magnitude(self) -> int:
        """Largest absolute value of one coordinate of the sum, noise included, in grid steps."""
        return self.codec.magnitude(self.num_clients, self.noise.share_std_units)

    def events(self) -> dict[View, PrivacyEvent]:
        """One round, per view."""
        plain = self.noise.gaussian(self.sensitivity_units)
        if isinstance(plain, NonPrivate):
            return {"server": plain, "participants": plain, "release": plain}
        assert isinstance(plain, Gaussian)
        sampler, nm = self.sampler, plain.noise_multiplier
        participants: PrivacyEvent = plain
        release: PrivacyEvent = plain
        if isinstance(sampler, SelfSampling):
            release = PoissonGaussian(sampler.rate, nm)
            # an idle client that answers at once shows its coin to whoever watches the rounds
            participants = release if self.idle_clients_train else plain
        elif isinstance(sampler, PoissonCohort) and self.noise.kind == "central":
            # with distributed noise the number of shares would depend on the cohort: not amplified
            release = PoissonGaussian(sampler.rate, nm)
        elif isinstance(sampler, FixedSizeCohort):
            release = FixedSizeGaussian(self.num_clients, sampler.size, nm)
        server = self.noise.server_event(participants if sampler.hides_cohort else plain)
        return {"server": server, "participants": participants, "release": release}

    def visibility(self, view: View) -> str:
        sampler, events = self.sampler, self.events()
        if isinstance(sampler, SelfSampling):
            if isinstance(events[view], Gaussian):
                return (
                    " and may tell by the time of a reply who took part: charged as if the client always did."
                )
            return (
                f", but not who took part: charged with amplification by sampling at rate {sampler.rate:g}."
            )
        if sampler.name == "server":
            if view != "release":
                return " and may know the cohort: every round is charged as if the client took part."
            amplified = events["release"] != events["participants"]
            return " does not know the cohorts: " + (
                "charged with amplification by sampling."
                if amplified
                else "not amplified, because the number of noise shares depends on the cohort."
            )
        return "; every client takes part in every round, nothing is sampled."

    def hypotheses(self) -> list[Hypothesis]:
        found = [
            Hypothesis(
                "one client moves the sum by at most "
                + ("the clip" if self.adjacency == "add_or_remove" else "twice the clip"),
                "holds",
                "clipped over the whole update, rounded toward zero, integer norm checked by the client half",
            ),
            Hypothesis(
                "the sum is divided by a fixed public number",
                "holds",
                f"{self.divisor:g}, whatever cohort answers; examples are not weighed",
            ),
            *self.noise.hypotheses(),
        ]
        if isinstance(self.sampler, SelfSampling):
            found.append(
                Hypothesis(
                    "nobody but the client learns whether it took part",
                    "holds" if self.idle_clients_train else "fails",
                    "every client answers every round with an update or zeros, both noised and masked; "
                    + (
                        "idle clients train too, so the time of a reply says nothing"
                        if self.idle_clients_train
                        else "but idle clients skip the training, so the time of a reply tells: server and "
                        "participants are charged without amplification"
                    ),
                )
            )
        amplified = not isinstance(self.events()["release"], Gaussian)
        if self.sampler.name == "server":
            found.append(
                Hypothesis(
                    "the server draws the cohort and, like the neighbours in the secure sum, knows it",
                    "holds",
                    "server and participants are charged without amplification; the final model is "
                    + (
                        "amplified"
                        if amplified
                        else "not amplified either: the number of noise shares depends on the cohort"
                    ),
                )
            )
        # clients that all do the same work, whatever their coin says, cannot be lost because of it
        same_work = isinstance(self.sampler, SelfSampling) and self.idle_clients_train
        if amplified and not same_work:
            found.append(
                Hypothesis(
                    "which clients drop out, and whether a round ends early, does not depend on the draw",
                    "assumed",
                    "the draw itself never ends a round; losses on the way are taken to be the network's",
                )
            )
        return found

    def forecast(self) -> Forecast:
        asked = self.sampler.expected_asked(self.num_clients)
        noise = self.noise.realised_std_units(asked) / self.codec.clip_units * math.sqrt(self.length)
        per_round = noise / max(self.divisor, 1e-300)
        run = per_round / math.sqrt(max(self.rounds, 1))
        lines = {
            "noise norm over signal, per round": per_round,
            "noise norm over signal, whole run": run,
            "noise norm per round (clips)": noise,
            "expected cohort": self.divisor,
        }
        warnings = []
        if run > 1.0:
            warnings.append(
                f"{self.num_clients} clients at client level: over the run the noise exceeds the largest "
                f"possible signal {run:.1f} times; use unit = record inside each silo, "
                "more clients, fewer parameters or a larger budget"
            )
        return Forecast(lines, tuple(warnings))

    def describe(self) -> dict[str, str | float | int]:
        distributed = self.noise.kind == "distributed"
        sampler: dict[str, str | float | int] = {"sampling": self.sampler.name}
        if isinstance(self.sampler, FullParticipation):
            sampler["sampling rate"] = 1.0
        elif isinstance(self.sampler, FixedSizeCohort):
            sampler["cohort"] = f"{self.sampler.size} of {self.num_clients}, without replacement"
        elif isinstance(self.sampler, SelfSampling | PoissonCohort):
            sampler["sampling rate"] = self.sampler.rate
        return {
            "mechanism": "Gaussian noise on the sum of clipped client updates (client-level DPSGD-DC)",
            "clipping norm": self.codec.clipping_norm,
            "normalisation": f"sum divided by the fixed expected cohort, {self.divisor:g}",
            **sampler,
            "rounds planned": self.rounds,
            "noise": self.noise.kind,
            "noise multiplier (on the clip)": self.noise_multiplier,
            "sensitivity (clips)": self.sensitivity_units // self.codec.clip_units,
            "noise shares guaranteed": self.noise.shares.counted_shares if distributed else "none (server)",
            "min survivors": self.noise.min_survivors,
            "model coordinates": self.length,
            "grid steps per clip": self.codec.clip_units,
            "modulus bits": self.modulus_bits(),
        }
