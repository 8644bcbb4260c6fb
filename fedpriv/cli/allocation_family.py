"""Random allocation for ``fedpriv eps``, ``calibrate`` and ``curve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.accounting.accountant import Epsilon
from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_delta,
    check_integer,
    check_non_negative,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, VIEWS, View
from fedpriv.cli.epsilon_families import Family, neighbours_sentence, same_for_all_views

if TYPE_CHECKING:
    from fedpriv.accounting.allocation_events import RandomAllocation


@dataclass(frozen=True)
class AllocationFamily(Family):
    """Random allocation: asks every bound of the allocation modules, and reports a lower value beside."""

    def epsilons(self, delta: float, use_pld: bool = True) -> dict[View, Epsilon]:
        """The smallest bound, for any view that cannot see the bins."""
        from fedpriv.accounting.allocation import allocation_epsilon

        check_delta(delta=delta)
        found = allocation_epsilon(self._event(delta), delta)
        losses = [value for name, value in found.candidates.items() if name != "rdp"]
        notes = found.notes
        if 0 < found.lower < float("inf"):
            notes = (*notes, f"no analysis of this mechanism can prove less than {found.lower:.6g}")
        epsilon = Epsilon(
            found.epsilon,
            delta,
            found.bound,
            None,
            found.candidates.get("rdp", found.epsilon),
            min(losses) if losses else None,
            notes,
        )
        return {view: epsilon for view in VIEWS}

    def calibrated(self, target_epsilon: float, delta: float, view: View) -> Family:
        """The same mechanism with the smallest noise that meets the target."""
        from fedpriv.accounting.allocation import calibrate_allocation

        return self.with_noise(
            calibrate_allocation(self._event(delta), target_epsilon, delta).noise_multiplier
        )

    def _event(self, delta: float) -> RandomAllocation:
        from fedpriv.accounting.allocation_events import RandomAllocation

        event = self.build(self.noise, self.rounds, delta)["release"][0][0]
        assert isinstance(event, RandomAllocation)
        return event


def allocation_family(
    *,
    noise_multiplier: float,
    bins: int,
    epochs: int,
    fixed: bool,
    matrix: str,
    band: int,
    buffers: int,
    adjacency: str,
) -> Family:
    """Balls in bins, with independent or correlated noise."""
    check_choice(ADJACENCIES, adjacency=adjacency)
    if adjacency != "add_or_remove":
        raise InvalidArgument(f"adjacency must be add_or_remove for random allocation, got {adjacency!r}")
    check_non_negative(noise_multiplier=noise_multiplier)
    check_integer(1, bins=bins, epochs=epochs, band=band, buffers=buffers)
    check_choice(("identity", "bsr", "bisr", "bandmf", "blt"), matrix=matrix)

    def event(noise: float, count: int) -> PrivacyEvent:
        from fedpriv.accounting.allocation_events import RandomAllocation
        from fedpriv.accounting.matrices import make_matrix

        strategy = None
        if matrix != "identity":
            strategy = make_matrix(matrix, bins, count if fixed else 1, band, buffers)  # type: ignore[arg-type]
        return RandomAllocation(bins, noise, count, not fixed, strategy)

    event(noise_multiplier, epochs)
    parameters: dict[str, Any] = {
        "noise_multiplier": noise_multiplier,
        "bins": bins,
        "epochs": epochs,
        "schedule": "fixed" if fixed else "redraw",
        "matrix": matrix,
    }
    if matrix in ("bsr", "bisr", "bandmf"):
        parameters["band"] = band
    if matrix == "blt":
        parameters["buffers"] = buffers
    return AllocationFamily(
        "allocation",
        parameters,
        "add_or_remove",
        "noise_multiplier",
        noise_multiplier,
        epochs,
        lambda noise, count, _: same_for_all_views([(event(noise, count), 1)]),
        (
            "the noise multiplier is the standard deviation of the independent noise Z over the clip norm",
            neighbours_sentence("add_or_remove"),
            "every unit keeps its bin over all epochs"
            if fixed
            else "every unit draws a new bin each epoch, and the noise starts afresh with it",
        ),
        "epochs",
    )
