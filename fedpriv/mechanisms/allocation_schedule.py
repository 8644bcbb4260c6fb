"""Balls in bins: each client takes part once per epoch, in a round that it, or the server, draws in secret.

An epoch has b rounds. A client's bin is drawn uniformly from the operating system's entropy and is never moved: in
its round the client is there or it is not, and in every other round it contributes zeros. A client that comes in the
middle of an epoch draws over all b bins like everybody else; if its bin is past it is silent until bins are drawn
again. Drawing only among the rounds that are left would make late rounds likelier and cost more than is charged.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedpriv.accounting.validators import InvalidArgument, check_choice, check_integer

Drawer = Literal["self", "server"]
DRAWERS: tuple[Drawer, ...] = get_args(Drawer)


@dataclass(frozen=True)
class RandomAllocationSchedule:
    """Which rounds belong to which bin, and how bins are drawn.

    Parameters
    ----------
    bins : int
        b >= 1, rounds per epoch.
    epochs : int
        k >= 1.
    redrawn : bool
        False: a bin is kept over all epochs. True: it is drawn again each epoch; only with noise that starts afresh
        each epoch (`fedpriv.plans.MatrixPlan` refuses anything else).
    drawn_by : {"self", "server"}
        *self*: every client draws its own bin and answers every round, with its update or with zeros; nobody else
        learns it. *server*: the server draws, and knows.
    """

    bins: int
    epochs: int = 1
    redrawn: bool = False
    drawn_by: Drawer = "self"

    def __post_init__(self) -> None:
        check_integer(1, bins=self.bins, epochs=self.epochs)
        check_choice(DRAWERS, drawn_by=self.drawn_by)

    @property
    def rounds(self) -> int:
        """N = b k."""
        return self.bins * self.epochs

    def epoch_of(self, server_round: int) -> int:
        """Epoch of a round (rounds from 1, epochs from 0)."""
        self._check(server_round)
        return (server_round - 1) // self.bins

    def draw_of(self, server_round: int) -> int:
        """Number of the draw that decides a round: the epoch where bins are redrawn, else 0."""
        return self.epoch_of(server_round) if self.redrawn else 0

    def bin_of(self, server_round: int) -> int:
        """Bin whose clients take part in a round, 0 to b - 1."""
        self._check(server_round)
        return (server_round - 1) % self.bins

    def draw(self) -> int:
        """One bin, uniform over all b, from the operating system's entropy."""
        return secrets.randbelow(self.bins)

    def expected_cohort(self, num_clients: int) -> float:
        """Fixed, public divisor of the summed update: n / b."""
        return num_clients / self.bins

    def _check(self, server_round: int) -> None:
        check_integer(1, server_round=server_round)
        if server_round > self.rounds:
            raise InvalidArgument(f"server_round: {server_round} is beyond the last of {self.rounds} rounds")


@dataclass
class ServerAllocation:
    """Bins that the server drew for the clients it knows, for one draw after the other.

    Parameters
    ----------
    schedule : RandomAllocationSchedule
        With ``drawn_by = "server"``.
    draw : int
        Number of the draw that ``assigned`` belongs to; -1 before the first.
    assigned : dict of int to int or None
        Node id -> bin; None for a client that must stay silent in this draw.

    Notes
    -----
    Guarantees: a bin is drawn once per client and draw and never changed; a draw that has passed never comes back.
    The caller stores the allocation durably whenever `assign` says that it grew, *before* anybody is asked.
    """

    schedule: RandomAllocationSchedule
    draw: int = -1
    assigned: dict[int, int | None] | None = None

    def __post_init__(self) -> None:
        self.assigned = {} if self.assigned is None else self.assigned

    def assign(self, server_round: int, clients: Iterable[int], *, newcomers_draw: bool = True) -> bool:
        """Draw a bin for every client that has none in this round's draw.

        Parameters
        ----------
        server_round : int
            From 1.
        clients : iterable of int
            Node ids.
        newcomers_draw : bool
            False where a client without a bin may be one that drew before under another node id: it is silent
            until bins are drawn again.

        Returns
        -------
        bool
            Whether something is new and must be stored before it is used.

        Raises
        ------
        InvalidArgument
            For a round of an earlier draw, whose bins are gone.
        """
        assert self.assigned is not None
        number, before = self.schedule.draw_of(server_round), len(self.assigned)
        if number < self.draw:
            raise InvalidArgument(
                f"server_round: {server_round} belongs to draw {number}, but bins were drawn again since "
                f"(draw {self.draw}); a client would take part twice"
            )
        changed = number > self.draw
        if changed:
            self.draw, self.assigned, before = number, {}, 0
        for client in clients:
            if client not in self.assigned:
                self.assigned[client] = self.schedule.draw() if newcomers_draw or changed else None
        return changed or len(self.assigned) > before

    def cohort(self, server_round: int, clients: Sequence[int]) -> list[int]:
        """Clients of the round's bin, in the order given."""
        assert self.assigned is not None
        here = self.schedule.bin_of(server_round)
        return [client for client in clients if self.assigned.get(client) == here]

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it back. It is secret."""
        return {"draw": self.draw, "assigned": {str(node): b for node, b in (self.assigned or {}).items()}}

    @classmethod
    def from_json(cls, schedule: RandomAllocationSchedule, data: Mapping[str, Any]) -> ServerAllocation:
        """Rebuild from `to_json`."""
        return cls(schedule, int(data["draw"]), {int(node): b for node, b in data["assigned"].items()})
