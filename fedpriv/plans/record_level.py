"""Plan of record-level training: noised steps inside every silo, averaged once a round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.validators import InvalidArgument, check_integer
from fedpriv.accounting.vocabulary import VIEWS, Adjacency, Unit, View
from fedpriv.mechanisms.local_steps import NoisedSteps
from fedpriv.mechanisms.model_average import ModelGrid
from fedpriv.plans.base import Forecast, Hypothesis, Plan
from fedpriv.plans.noise import NoiseModel


@dataclass(frozen=True)
class RecordLevelPlan(Plan):
    """Rounds of DP-SGD inside the silos; the average of the projected models is released.

    Parameters
    ----------
    steps : NoisedSteps
        What a silo does in a round, the same for all; its event is what is charged.
    grid : ModelGrid
        Ball and grid of the models that are summed.
    num_clients : int
        Silos.
    min_survivors : int
        Fewest silos in a sum.
    rounds : int
        Planned number of rounds.
    length : int
        Number of model coordinates d.
    seeded : bool
        Reproducible noise and batches: nothing is private.
    records : tuple of int
        Sizes of the silos, public by declaration; empty while they are not known. For the forecast only.

    Notes
    -----
    Formal guarantee: differential privacy for one record of any one silo, against everybody else together:
    the silo's own noise is counted, nobody else's, so neither the secure sum nor other silos' honesty is
    needed for it. Every view sees functions of the silos' noised sums and of public numbers, hence composition
    over all steps of all rounds. Not claimed: amplification by iteration (no theorem at hand covers the release
    of an average of projected local chains), and amplification by a silo's absence from rounds.

    The server's ledger charges every released round once: that is the cost of a silo that took part in all of
    them, the largest there is. Each silo keeps an account of its own, over all runs on its records.
    """

    steps: NoisedSteps
    grid: ModelGrid
    num_clients: int
    min_survivors: int
    rounds: int
    length: int
    seeded: bool = False
    records: tuple[int, ...] = ()

    unit: ClassVar[Unit] = "record"

    def __post_init__(self) -> None:
        check_integer(0, rounds=self.rounds)
        check_integer(1, length=self.length, num_clients=self.num_clients)
        check_integer(2, min_survivors=self.min_survivors)  # a secure sum of one silo is that silo's model
        if self.min_survivors > self.num_clients:
            raise InvalidArgument(
                f"min_survivors: {self.min_survivors} is above {self.num_clients}, the number of silos"
            )
        self.modulus_bits()  # refuses a grid that could wrap

    @classmethod
    def build(
        cls,
        *,
        sampling_rate: float,
        clipping_norm: float,
        noise_multiplier: float,
        local_steps: int,
        adjacency: Adjacency,
        radius: float,
        weighted: bool,
        num_clients: int,
        min_survivors: int,
        rounds: int,
        length: int,
        seeded: bool = False,
    ) -> RecordLevelPlan:
        """Choose the grids of a step and of the sum of models.

        Parameters
        ----------
        sampling_rate : float
            Rate in (0, 1] at which a record joins a step, unseen by everybody but its silo.
        clipping_norm : float
            L2 bound on the gradient of one record.
        noise_multiplier : float
            Standard deviation of the noise of a step's sum over the clip; every silo adds all of it.
        local_steps : int
            Steps per round.
        adjacency : Adjacency
            Neighbouring relation between a silo's records.
        radius : float
            L2 radius of the ball that keeps the model.
        weighted : bool
            Whether a silo's model counts by its number of records.
        num_clients : int
            Silos.
        min_survivors : int
            Fewest silos whose sum is released.
        rounds : int
            Rounds, one release each.
        length : int
            Coordinates of the model.
        seeded : bool
            True for a simulation with reproducible noise, which is not private.

        Raises
        ------
        InvalidArgument
            When an argument is out of range or the sum could wrap.
        """
        steps = NoisedSteps.build(
            sampling_rate=sampling_rate,
            clipping_norm=clipping_norm,
            noise_multiplier=noise_multiplier,
            steps=local_steps,
            length=length,
            adjacency=adjacency,
        )
        grid = ModelGrid.choose(radius, num_clients, weighted=weighted)
        return cls(steps, grid, num_clients, min_survivors, rounds, length, seeded)

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        """That of the steps."""
        return self.steps.adjacency

    @property
    def releases(self) -> int:
        """One release per round."""
        return self.rounds

    @property
    def sum_noise(self) -> NoiseModel:
        """Of the secure sum: none, the models are private before they are summed."""
        return NoiseModel("distributed", 0.0, self.min_survivors)

    def modulus_bits(self) -> int:
        """Modulus of the secure sum, wide enough never to wrap."""
        return self.grid.modulus_bits(self.num_clients)

    def events(self) -> dict[View, PrivacyEvent]:
        """One round: all steps of a silo, for every view."""
        event = self.steps.event()
        return dict.fromkeys(VIEWS, event)

    def infinite_views(self) -> tuple[View, ...]:
        return ()

    def visibility(self, view: View) -> str:
        sampled = (
            f", but not which records a silo drew: charged with amplification by sampling at rate "
            f"{self.steps.sampling_rate:g}"
            if self.steps.sampling_rate < 1
            else "; every record is in every step"
        )
        return f"{sampled}, by composition over all steps of all rounds."

    def hypotheses(self) -> list[Hypothesis]:
        sampled = self.steps.sampling_rate < 1
        found = [
            Hypothesis(
                "one record moves the sum of a step by at most "
                + ("the clip" if self.adjacency == "add_or_remove" else "twice the clip"),
                "holds",
                "every gradient is clipped and rounded toward zero by itself, its integer norm is checked",
            ),
            Hypothesis(
                "the sum of a step is divided by a fixed public number",
                "holds",
                "sampling rate times the number of records of the silo, which this run declares public",
            ),
            Hypothesis(
                "the gradient of a record depends on that record alone",
                "assumed",
                "holds by construction up to the rounding of floating-point numbers, which may differ with the "
                "batch that a record is computed in",
            ),
            Hypothesis(
                "every silo adds all of its noise itself",
                "holds",
                "nobody else's noise is counted: server and other silos may work together",
            ),
            Hypothesis(
                "whoever is protected has one record, in one silo",
                "assumed",
                "a person with k records has the guarantee of a group of k",
            ),
        ]
        if sampled:
            found.append(
                Hypothesis(
                    "nobody but the silo learns which records it drew",
                    "assumed",
                    "drawn in the silo from the operating system's entropy and never sent; how long a silo "
                    "works is taken to say nothing about it",
                )
            )
        if self.seeded:
            found.append(
                Hypothesis(
                    "noise and batches come from the operating system's entropy",
                    "fails",
                    "seeded noise: not private",
                )
            )
        else:
            found.append(Hypothesis("noise and batches come from the operating system's entropy", "holds"))
        return found

    def noise_over_signal(self, records: float) -> float:
        """Norm of the noise of a whole run over the largest possible signal, for silos of ``records`` records."""
        steps = max(self.rounds * self.steps.steps, 1)
        per_step = self.steps.noise_multiplier * math.sqrt(self.length) / (self.steps.sampling_rate * records)
        return per_step / math.sqrt(steps * self.num_clients)

    def forecast(self) -> Forecast:
        steps = self.rounds * self.steps.steps
        lines = {
            "steps per silo": float(steps),
            "noise multiplier of a step": self.steps.noise_multiplier,
            "records per silo at which noise equals signal, whole run": self.noise_over_signal(1.0),
        }
        if not self.records:
            return Forecast(lines)
        smallest = min(self.records)
        ratio = self.noise_over_signal(smallest)
        lines["noise norm over signal, whole run"] = ratio
        warnings: tuple[str, ...] = ()
        if ratio > 1.0:
            warnings = (
                f"the smallest silo has {smallest} records: over the run the noise exceeds the largest possible "
                f"signal {ratio:.1f} times; use more records, fewer parameters or a larger budget",
            )
        return Forecast(lines, warnings)

    def with_records(self, records: tuple[int, ...]) -> RecordLevelPlan:
        """The same plan with the sizes of the silos."""
        return replace(self, records=records)

    @property
    def sizes(self) -> str:
        """Records per silo, in words."""
        return ", ".join(map(str, self.records)) if self.records else "not known before the run"

    def describe(self) -> dict[str, str | float | int]:
        steps = self.steps
        weights = (
            "uniform"
            if self.grid.max_weight == 1
            else f"by records, declared public, at most {self.grid.max_weight} each"
        )
        return {
            "mechanism": "Gaussian noise on sums of clipped record gradients inside each silo (record-level "
            "DPSGD-DC), average of the silos' projected models",
            "clipping norm (record)": steps.codec.clipping_norm,
            "normalisation": "sum of a step divided by sampling rate times the silo's records",
            "records per silo (public)": self.sizes,
            "sampling rate (records)": steps.sampling_rate,
            "local steps per round": steps.steps,
            "rounds planned": self.rounds,
            "noise": "each silo, in every step",
            "noise multiplier (on the clip)": steps.noise_multiplier,
            "sensitivity (clips)": 1 if self.adjacency == "add_or_remove" else 2,
            "average": weights,
            "projection": f"ball of radius {self.grid.radius:g}, after every step",
            "min survivors": self.min_survivors,
            "model coordinates": self.length,
            "grid steps per clip": steps.codec.clip_units,
            "grid steps per radius": self.grid.radius_units,
            "modulus bits": self.modulus_bits(),
        }
