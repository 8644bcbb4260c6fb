"""Who adds the noise of a secure sum: every client a share, or the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpriv.accounting.events import Gaussian, NonPrivate, PrivacyEvent
from fedpriv.accounting.validators import InvalidArgument, check_integer, check_non_negative
from fedpriv.accounting.vocabulary import View
from fedpriv.mechanisms import NoiseShares
from fedpriv.mechanisms.noise import MAX_SHARE_UNITS, MIN_SHARE_UNITS
from fedpriv.plans.base import Hypothesis

NoiseKind = Literal["distributed", "central"]


@dataclass(frozen=True)
class NoiseModel:
    """Gaussian noise on an integer sum of bounded vectors.

    Parameters
    ----------
    kind : {"distributed", "central"}
        *distributed*: each client adds a share before masking. *central*: the server adds all of it after an
        un-noised secure sum, so nothing is promised against the server.
    total_std_units : float
        Guaranteed standard deviation of the noise of the sum, in grid steps.
    min_survivors : int
        Fewest clients whose sum is released.
    colluders : int
        Clients whose noise shares the adversary may know (distributed only).
    seeded : bool
        True when the noise is reproducible; then nothing is private.
    """

    kind: NoiseKind
    total_std_units: float
    min_survivors: int
    colluders: int = 0
    seeded: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("distributed", "central"):
            raise InvalidArgument(f"noise: {self.kind!r} is not one of 'distributed', 'central'")
        check_non_negative(total_std_units=self.total_std_units)
        check_integer(1, min_survivors=self.min_survivors)
        check_integer(0, colluders=self.colluders)
        if self.kind == "distributed":
            _ = self.shares  # validates

    @property
    def shares(self) -> NoiseShares:
        """The split of the noise over the clients."""
        return NoiseShares(self.total_std_units, self.min_survivors, self.colluders)

    @property
    def share_std_units(self) -> float:
        """Standard deviation that each client adds, in grid steps (0 with central noise)."""
        return self.shares.share_std if self.kind == "distributed" else 0.0

    @property
    def infinite_views(self) -> tuple[View, ...]:
        """Views that are openly promised nothing: the server's, when it adds the noise itself."""
        return ("server",) if self.kind == "central" else ()

    def check(self, num_clients: int) -> None:
        """Refuse noise that could not be drawn, or a sum that could never be released.

        Parameters
        ----------
        num_clients : int
            Most clients that a sum may hold.

        Raises
        ------
        InvalidArgument
            When one draw spans too few or too many grid steps, or ``min_survivors`` is out of reach.
        """
        check_integer(1, num_clients=num_clients)
        if self.min_survivors > num_clients:
            raise InvalidArgument(
                f"min_survivors: {self.min_survivors} is above {num_clients}, the most clients that a sum "
                "may hold; nothing would ever be released"
            )
        drawn = self.share_std_units if self.kind == "distributed" else self.total_std_units
        if drawn != 0 and not MIN_SHARE_UNITS <= drawn <= MAX_SHARE_UNITS:
            raise InvalidArgument(
                f"noise: one draw has a standard deviation of {drawn:.3g} grid steps, which is outside "
                f"{MIN_SHARE_UNITS:g} .. {MAX_SHARE_UNITS:g}; the noise multiplier is too "
                f"{'small' if drawn < MIN_SHARE_UNITS else 'large'} for this grid"
            )

    def realised_std_units(self, survivors: int) -> float:
        """Standard deviation that a sum of ``survivors`` clients really carries, in grid steps."""
        return self.shares.realised_std(survivors) if self.kind == "distributed" else self.total_std_units

    def gaussian(self, sensitivity_units: float) -> PrivacyEvent:
        """The release of the noised sum, for a view that sees it, with the guaranteed noise."""
        if self.total_std_units == 0:
            return NonPrivate("a secure sum without noise")
        return Gaussian(self.total_std_units / sensitivity_units)

    def server_event(self, noised: PrivacyEvent) -> PrivacyEvent:
        """What the server sees: the noised sum, or the bare sum when the noise is its own."""
        if self.kind == "central":
            return NonPrivate("central noise: the server sees the sum before it adds the noise")
        return noised

    def hypotheses(self) -> list[Hypothesis]:
        """Conditions on the noise."""
        found = []
        if self.kind == "distributed":
            found.append(
                Hypothesis(
                    f"each of the summed clients adds its own noise share; {self.shares.counted_shares} "
                    "shares are counted",
                    "assumed",
                    f"at least {self.min_survivors} clients are summed or nothing is released (enforced); "
                    f"one share and those of {self.colluders} colluders are not counted",
                )
            )
        else:
            found.append(
                Hypothesis(
                    "the server adds the noise and is trusted with the exact sum",
                    "assumed",
                    "noise = central: the server view has no guarantee",
                )
            )
        if self.seeded:
            found.append(
                Hypothesis(
                    "noise comes from the operating system's entropy", "fails", "seeded noise: not private"
                )
            )
        else:
            found.append(Hypothesis("noise comes from the operating system's entropy", "holds"))
        return found
