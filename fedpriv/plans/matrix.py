"""Plan of training with correlated noise under random allocation: schedule, matrix and noise in one object."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedpriv.accounting.events import Gaussian, NonPrivate, NoRelease, PrivacyEvent
from fedpriv.accounting.matrices import StrategyMatrix
from fedpriv.accounting.matrix_gram import gram_lags
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_integer
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency, View
from fedpriv.mechanisms import GridCodec, RandomAllocationSchedule
from fedpriv.plans.base import Forecast, Hypothesis, Plan
from fedpriv.plans.noise import NoiseModel

if TYPE_CHECKING:
    from fedpriv.accounting.allocation_events import RandomAllocation
    from fedpriv.mechanisms.correlated_noise import CorrelatedNoise

#: Float64 rounding of the feedback is not charged while it stays below this total variation over the whole run.
NEGLIGIBLE = 1e-8


@dataclass(frozen=True)
class MatrixPlan(Plan):
    """Rounds of clipped, securely summed updates with the server's correlated noise.

    The run is **one** release: its event covers all N = b k rounds, whichever of them are played. It is charged whole
    with the first round that reaches the ledger (`events`), and the rounds after it cost nothing more
    (`paid` is True). A run that stops early has paid for all of it: over-counted, never under-counted.

    Parameters
    ----------
    schedule : RandomAllocationSchedule
        Bins, epochs, and who draws.
    matrix : StrategyMatrix
        C; of ``schedule.rounds`` rows for kept bins, of ``schedule.bins`` rows for redrawn ones.
    codec : GridCodec
        Clipping norm and grid.
    noise : NoiseModel
        Central; its total is the standard deviation of Z, the independent noise behind ``C^-1 Z``.
    adjacency : Adjacency
        ``add_or_remove``; random allocation is analysed for nothing else.
    num_clients : int
        Clients in the federation.
    length : int
        Number of model coordinates d.
    idle_clients_train : bool
        Clients outside their bin train all the same and throw the result away, so that the time of a reply does not
        reveal the bin. Where they do not, `participants` is charged without amplification.
    paid : bool
        Whether the ledger holds the run's event already.
    stream : str
        Public name of the noise stream, for the ledger.

    Notes
    -----
    Guarantees:

    * a client takes part at most once per epoch, in a bin drawn uniformly over all b;
    * the noise of a round does not depend on who takes part, and a round never ends because of who was drawn;
    * a view is charged with amplification only if it cannot see the bins: ``self`` gives it to `participants` and
      `release`, ``server`` to `release` alone; the `server` view has no guarantee, since it adds the noise;
    * redrawn bins go with noise that starts afresh each epoch, anything else is refused.
    """

    schedule: RandomAllocationSchedule
    matrix: StrategyMatrix
    codec: GridCodec
    noise: NoiseModel
    adjacency: Adjacency
    num_clients: int
    length: int
    idle_clients_train: bool = True
    paid: bool = False
    stream: str = ""

    def __post_init__(self) -> None:
        check_choice(ADJACENCIES, adjacency=self.adjacency)
        check_integer(1, length=self.length, num_clients=self.num_clients)
        if self.adjacency != "add_or_remove":
            raise InvalidArgument(
                f"adjacency: random allocation is accounted under add_or_remove only, got {self.adjacency!r}"
            )
        if self.noise.kind != "central":
            raise InvalidArgument(
                f"noise: {self.noise.kind!r}; correlated noise is drawn by the server, so the plan needs "
                "noise = central (shares of correlated noise are not offered)"
            )
        self._whole_run(1.0)  # matrix and schedule fit, or this says why not
        self.noise.check(self.num_clients)
        self.codec.check_modulus(62, self.num_clients, 0.0)

    @classmethod
    def build(
        cls,
        *,
        schedule: RandomAllocationSchedule,
        matrix: StrategyMatrix,
        clipping_norm: float,
        noise_multiplier: float,
        num_clients: int,
        min_survivors: int,
        length: int,
        adjacency: Adjacency = "add_or_remove",
        seeded: bool = False,
        idle_clients_train: bool = True,
    ) -> MatrixPlan:
        """Choose the grid for a noise multiplier.

        Parameters
        ----------
        noise_multiplier : float
            Standard deviation of Z over the clipping norm.
        """
        codec = GridCodec.choose(clipping_norm, length, noise_multiplier * clipping_norm)
        noise = NoiseModel("central", noise_multiplier * codec.clip_units, min_survivors, 0, seeded)
        return cls(schedule, matrix, codec, noise, adjacency, num_clients, length, idle_clients_train)

    def with_clipping_norm(self, clipping_norm: float) -> MatrixPlan:
        """The same plan for another clip: noise and grid scale with it, so the event does not change."""
        return replace(self, codec=replace(self.codec, clipping_norm=clipping_norm))

    @property
    def releases(self) -> int:
        """One: the run as a whole."""
        return 1

    @property
    def num_rounds(self) -> int:
        """N = b k."""
        return self.schedule.rounds

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of Z over the clipping norm."""
        return self.noise.total_std_units / self.codec.clip_units

    @property
    def divisor(self) -> float:
        """Fixed, public number by which a sum is divided: n / b."""
        return self.schedule.expected_cohort(self.num_clients)

    def modulus_bits(self) -> int:
        """Modulus of the secure sum, wide enough never to wrap."""
        return self.codec.modulus_bits(self.num_clients, 0.0)

    def magnitude(self) -> int:
        """Largest absolute value of one coordinate of the sum that clients send, in grid steps."""
        return self.codec.magnitude(self.num_clients, 0.0)

    def make_noise(self, key: bytes, seed: str | None = None) -> CorrelatedNoise:
        """The noise of the run under a secret key."""
        from fedpriv.mechanisms.correlated_noise import CorrelatedNoise

        if (seed is not None) != self.noise.seeded:
            raise InvalidArgument(f"seed: {seed!r} does not go with noise.seeded = {self.noise.seeded}")
        epochs = self.schedule.epochs if self.schedule.redrawn else 1
        return CorrelatedNoise(
            self.matrix, self.length, self.noise.total_std_units, key, epochs=epochs, seed=seed
        )

    def amplified(self) -> PrivacyEvent:
        """The whole run for a view that cannot see the bins."""
        return self._whole_run(self.noise_multiplier)

    def unamplified(self) -> PrivacyEvent:
        """The whole run for a view that sees the bins: a Gaussian release of all that the worst bin touches."""
        square = float(gram_lags(self.matrix, self.schedule.bins)[0])
        if self.schedule.redrawn:
            square *= self.schedule.epochs
        return Gaussian(self.noise_multiplier / math.sqrt(square))

    def events(self) -> dict[View, PrivacyEvent]:
        """The run as a whole, or nothing more where it is paid for already."""
        if self.noise.total_std_units == 0:
            bare = NonPrivate("a secure sum without noise")
            return {"server": bare, "participants": bare, "release": bare}
        server = self.noise.server_event(NoRelease())
        if self.paid:
            return {"server": server, "participants": NoRelease(), "release": NoRelease()}
        hidden = self.schedule.drawn_by == "self" and self.idle_clients_train
        return {
            "server": server,
            "participants": self.amplified() if hidden else self.unamplified(),
            "release": self.amplified(),
        }

    def visibility(self, view: View) -> str:
        if view == "release" or (self.schedule.drawn_by == "self" and self.idle_clients_train):
            return (
                ", but not in which round of an epoch a client takes part: charged with amplification by random "
                f"allocation to {self.schedule.bins} bins."
            )
        why = (
            "may know the bins" if self.schedule.drawn_by == "server" else "may tell a bin by a reply's time"
        )
        return f" and {why}: charged without amplification."

    def hypotheses(self) -> list[Hypothesis]:
        schedule = self.schedule
        found = [
            Hypothesis(
                "one client moves a sum by at most the clip, once per epoch",
                "holds",
                "clipped over the whole update, rounded toward zero, integer norm checked by the client half; "
                "outside its bin a client sends zeros, and an absence is never made up for",
            ),
            Hypothesis(
                "the sum is divided by a fixed public number",
                "holds",
                f"{self.divisor:g}, whatever cohort answers; examples are not weighed",
            ),
            *self.noise.hypotheses(),
            Hypothesis(
                "no row of the noise is released over two sets of data",
                "holds",
                "the noise key is stored before its first use, and a round that the ledger holds is never run again",
            ),
            self._rounding(),
            Hypothesis(
                "bins are uniform over all rounds of an epoch, and a restart keeps them",
                "holds" if schedule.drawn_by == "self" else "assumed",
                "each client draws its own and stores it on its own disk before using it"
                if schedule.drawn_by == "self"
                else "the server draws and stores them before using them; it knows clients by their node ids, which "
                "must survive a client's restart (SuperNode authentication)",
            ),
        ]
        if schedule.drawn_by == "self":
            found.append(
                Hypothesis(
                    "nobody but the client learns its bin",
                    "holds" if self.idle_clients_train else "fails",
                    "every client answers every round with an update or zeros, both masked; "
                    + (
                        "idle clients train too, so the time of a reply says nothing"
                        if self.idle_clients_train
                        else "but idle clients skip the training, so the time of a reply tells: participants are "
                        "charged without amplification"
                    ),
                )
            )
        else:
            found.append(
                Hypothesis(
                    "the server draws the bins and, like the neighbours in the secure sum, knows them",
                    "holds",
                    "participants are charged without amplification",
                )
            )
        if not (schedule.drawn_by == "self" and self.idle_clients_train):
            found.append(
                Hypothesis(
                    "which clients drop out, and whether a round ends early, does not depend on the draw",
                    "assumed",
                    "the draw itself never ends a round; losses on the way are taken to be the network's",
                )
            )
        found.append(
            Hypothesis(
                "release view: a hidden-state bound",
                "fails",
                "noise that is correlated over rounds has none; every view is charged for all rounds",
            )
        )
        return found

    def forecast(self) -> Forecast:
        noise = self.noise_multiplier * math.sqrt(self.length)
        inverse = float((self.matrix.inverse_column() ** 2).sum()) ** 0.5
        epochs = self.schedule.epochs if self.schedule.redrawn else 1
        last = noise * self.matrix.prefix_max_error() * math.sqrt(epochs)
        run = last / max(self.divisor * self.num_rounds, 1e-300)
        lines = {
            "noise norm over signal, per round": noise * inverse / max(self.divisor, 1e-300),
            "noise norm over signal, whole run": run,
            "RMSE of prefix sums (clips, per coordinate)": self.noise_multiplier * self.matrix.prefix_rmse(),
            "expected cohort": self.divisor,
        }
        warnings = []
        if run > 1.0:
            warnings.append(
                f"{self.num_clients} clients at client level: over the run the noise exceeds the largest possible "
                f"signal {run:.1f} times; use more clients, fewer parameters or a larger budget"
            )
        return Forecast(lines, tuple(warnings))

    def describe(self) -> dict[str, str | float | int]:
        schedule, matrix = self.schedule, self.matrix
        found: dict[str, str | float | int] = {
            "mechanism": "correlated Gaussian noise on sums of clipped client updates (matrix mechanism, DP-FTRL)",
            "clipping norm": self.codec.clipping_norm,
            "normalisation": f"sum divided by the fixed expected cohort, {self.divisor:g}",
            "sampling": f"random allocation, drawn by {schedule.drawn_by}",
            "bins (rounds per epoch)": schedule.bins,
            "epochs": schedule.epochs,
            "bins between epochs": "redrawn, noise starts afresh" if schedule.redrawn else "kept",
            "rounds planned": schedule.rounds,
            "matrix": matrix.kind,
            "noise": "central",
            "noise multiplier (of Z, on the clip)": self.noise_multiplier,
            "RMSE of prefix sums (clips)": self.noise_multiplier * matrix.prefix_rmse(),
            "charged": "once for all rounds, with the first of them",
            "min survivors": self.noise.min_survivors,
            "model coordinates": self.length,
            "grid steps per clip": self.codec.clip_units,
            "modulus bits": self.modulus_bits(),
        }
        if matrix.band is not None and matrix.kind != "identity":
            found["band"] = matrix.band
        elif matrix.kind == "bisr":
            found["band of the inverse"] = len(matrix.coefficients)
        elif matrix.kind == "blt":
            found["buffers"] = len(matrix.decays)
        if self.stream:
            found["noise stream"] = self.stream
        return found

    def _rounding(self) -> Hypothesis:
        if self.noise.total_std_units == 0:
            return Hypothesis("rounding of the noise is accounted for", "fails", "there is no noise")
        bound = self.make_noise(bytes(32), "0" if self.noise.seeded else None).total_variation()
        return Hypothesis(
            "rounding of the noise changes nothing that must be charged",
            "holds" if bound <= NEGLIGIBLE else "fails",
            "rows are integers, their rounding is post-processing of continuous noise; float64 feedback is within "
            f"{bound:.1g} of exact in total variation over the run",
        )

    def _whole_run(self, noise_multiplier: float) -> RandomAllocation:
        from fedpriv.accounting.allocation_events import RandomAllocation

        schedule = self.schedule
        rows = schedule.bins if schedule.redrawn else schedule.rounds
        if self.matrix.rounds != rows:
            more = " (redrawn bins need noise that starts afresh each epoch)" if schedule.redrawn else ""
            raise InvalidArgument(f"matrix: {self.matrix.rounds} rows, the schedule needs {rows}{more}")
        return RandomAllocation(
            schedule.bins,
            noise_multiplier,
            schedule.epochs,
            schedule.redrawn,
            None if self.matrix.kind == "identity" else self.matrix,
        )
