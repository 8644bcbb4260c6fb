"""Plan of PACZero: the nats that all bits of a silo may carry, and what they bound (arXiv 2605.06505)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.accounting.pac import membership_success, pure_dp_epsilon_with_equal_posterior
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_integer,
    check_non_negative,
    check_positive,
)
from fedpriv.mechanisms.directions import KINDS, Kind
from fedpriv.mechanisms.sign_release import VARIANTS, Variant
from fedpriv.plans.base import Forecast, Hypothesis, PacPlan


@dataclass(frozen=True)
class PacZeroPlan(PacPlan):
    """One bit per silo and round.

    Parameters
    ----------
    variant : {"zpl", "mi"}
        Zero leakage, or a budget of mutual information.
    budget_nats : float
        For ``mi``: nats per silo and run, > 0; 0 for ``zpl``.
    subsets : int
        M, even.
    rounds : int
        T.
    num_silos : int
        Silos, at least 1.
    min_survivors : int
        Fewest bits that a round needs.
    dimension : int
        d, model coordinates.
    clip : float
        Bound on every record's quotient, for stability.
    smoothing : float
        xi.
    seeded : bool
        True when secrets are reproducible; then nothing is private.
    kind : {"orthonormal", "independent", "signs"}
        Of the public direction; the guarantee does not depend on it.
    """

    variant: Variant
    budget_nats: float
    subsets: int
    rounds: int
    num_silos: int
    min_survivors: int
    dimension: int
    clip: float
    smoothing: float
    seeded: bool = False
    kind: Kind = "orthonormal"

    def __post_init__(self) -> None:
        check_choice(VARIANTS, variant=self.variant)
        check_choice(KINDS, kind=self.kind)
        check_non_negative(budget_nats=self.budget_nats)
        check_integer(1, rounds=self.rounds, num_silos=self.num_silos, min_survivors=self.min_survivors)
        check_integer(2, subsets=self.subsets)
        check_integer(1, dimension=self.dimension)
        check_positive(clip=self.clip, smoothing=self.smoothing)
        if self.subsets % 2:
            raise InvalidArgument(
                f"subsets: {self.subsets} is odd; every record must be in exactly half of them"
            )
        if (self.variant == "zpl") != (self.budget_nats == 0.0):
            raise InvalidArgument(
                f"nats: {self.budget_nats} does not go with variant = {self.variant!r}; zpl spends 0, mi more"
            )
        if self.min_survivors > self.num_silos:
            raise InvalidArgument(f"min_survivors: {self.min_survivors} is above {self.num_silos} silos")

    def with_values(self, *, clip: float, smoothing: float) -> PacZeroPlan:
        """The same plan for another clip and smoothing, which cost nothing."""
        return replace(self, clip=clip, smoothing=smoothing)

    @property
    def releases(self) -> int:
        return self.rounds

    @property
    def nats(self) -> float:
        return min(self.budget_nats, math.log(self.subsets))

    @property
    def posterior_success(self) -> float:
        return membership_success(self.nats)

    @property
    def comparison_epsilon(self) -> float:
        return pure_dp_epsilon_with_equal_posterior(self.nats)

    def hypotheses(self) -> list[Hypothesis]:
        return [
            Hypothesis(
                "every record of a silo is in exactly half of its subsets",
                "holds",
                "random halves and their complements",
            ),
            Hypothesis(
                "the secret subset is uniform, drawn once from the operating system's entropy, and kept by the silo",
                "fails" if self.seeded else "holds",
                "seeded secrets: not private"
                if self.seeded
                else "in the silo's own folder, before a bit leaves",
            ),
            Hypothesis(
                "one bit leaves a silo per round, and bits with an equal sign of all subsets cost nothing",
                "holds",
                "a fair coin where the subsets differ"
                if self.variant == "zpl"
                else "where the subsets differ, the sign plus noise of the round's part of the budget",
            ),
            Hypothesis(
                "the records of a silo are fixed before the first round",
                "holds",
                "their number, and a fingerprint where the objective has one, are checked in every round",
            ),
            Hypothesis(
                "the attacker may know all records and all subsets, but nothing about which subset is the secret",
                "assumed",
                "the guarantee is about the choice of the subset, per silo and run; it is no differential privacy",
            ),
        ]

    def forecast(self) -> Forecast:
        lines = {
            "mutual information per silo (nats)": self.nats,
            "membership attack succeeds, at most": self.posterior_success,
        }
        warnings = []
        if self.nats > 0.5:
            warnings.append(
                f"{self.nats:.3g} nats let a membership attack succeed with probability up to "
                f"{self.posterior_success:.3f}: little is promised"
            )
        return Forecast(lines, tuple(warnings))

    def describe(self) -> dict[str, str | float | int]:
        return {
            "mechanism": "sign of a secret subset's mean quotient, one bit per silo and round (PACZero)",
            "variant": "zero leakage (fair coin on disagreement)"
            if self.variant == "zpl"
            else "mutual information (noisy sign on disagreement)",
            "nats per silo": self.nats,
            "subsets M": self.subsets,
            "rounds planned": self.rounds,
            "silos": self.num_silos,
            "min survivors": self.min_survivors,
            "clip of a record's quotient": self.clip,
            "smoothing xi": self.smoothing,
            "model coordinates": self.dimension,
            "kind of directions": self.kind,
        }
