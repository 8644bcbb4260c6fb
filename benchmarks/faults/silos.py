"""A silo that dies in the middle of a round, over the in-process grid: what its round is worth and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import wire
from fedpriv.clients import client_level_dp_mod
from fedpriv.ledger import Ledger, read_ledger
from fedpriv.mechanisms import FullParticipation
from fedpriv.plans import DpsgdDcPlan
from fedpriv.strategies import DpsgdDc, NoisedSum
from fedpriv.testing import LocalGrid

#: What dies, and how Flower tells the server: the code of the error reply.
DEATHS = {"SuperNode": 5, "ClientApp": 8}
ROUNDS, VICTIM = 2, 1
#: A silo that is restarted while it has nothing to do has lost what was exchanged ahead for the next round.
BETWEEN = "between two rounds"


@dataclass(frozen=True)
class SiloOutcome:
    """What the loss of one silo in one exchange cost.

    Parameters
    ----------
    what : str
        What died.
    exchange : str
        In which exchange.
    round : int
        Of which round: the first one sets everything up, the second one begins where that left off.
    silos, min_survivors : int
        Size of the federation, and how many a sum needs.
    survivors : int
        Silos in that round's sum; 0 when it was not released.
    status : str
        The round's line in the ledger.
    next_survivors : int
        Silos in the sum of the round after it.
    """

    what: str
    exchange: str
    round: int
    silos: int
    min_survivors: int
    survivors: int
    status: str
    next_survivors: int


class _Federation:
    """Rounds of training of a constant update, and the exchanges that the victim saw."""

    def __init__(self, silos: int, min_survivors: int, ledger: Ledger | None = None) -> None:
        app = ClientApp()

        @app.train(mods=[client_level_dp_mod])
        def train(msg: Message, context: Context) -> Message:
            model = msg.content.array_records["arrays"]["w"].numpy() - 0.1
            return Message(RecordDict({"arrays": ArrayRecord({"w": Array(model)})}), reply_to=msg)

        self.seen: list[tuple[int, str]] = []
        self.round, self.strike = 0, ("", 0, "")
        self.grid = LocalGrid(app, silos, drop=self._note, intercept=self._reply)
        plan = DpsgdDcPlan.build(
            sampler=FullParticipation(),
            clipping_norm=1.0,
            noise_multiplier=1.0,
            kind="distributed",
            adjacency="add_or_remove",
            num_clients=silos,
            min_survivors=min_survivors,
            rounds=3,
            length=4,
        )
        self.strategy = DpsgdDc(plan, NoisedSum(ledger))

    def play(self) -> int:
        """One round; how many silos are in the released sum."""
        self.round += 1
        if self.strike == ("SuperNode", self.round, BETWEEN):
            self.grid.restart_node(VICTIM)
        arrays = ArrayRecord({"w": Array(np.zeros(4))})
        outcome = self.strategy.train_round(self.grid, self.round, arrays)
        return outcome.survivors if outcome.arrays is not None else 0

    def _note(self, silo: int, request: Message) -> None:
        if silo == VICTIM:
            self.seen.append((self.round, wire.stage_of(request) or ""))

    def _reply(self, silo: int, request: Message, reply: Message) -> list[Message]:
        what, *place = self.strike
        if silo != VICTIM or self.seen[-1] != tuple(place):
            return [reply]
        if what == "SuperNode":
            self.grid.restart_node(VICTIM)  # its restart policy starts it again, without Context.state
        return [Message(Error(code=DEATHS[what], reason=""), reply_to=request)]


def exchanges() -> list[tuple[int, str]]:
    """Round and exchange of every message to a silo, in the last of two rounds that has such an exchange."""
    probe = _Federation(3, 3)
    for _ in range(ROUNDS):
        probe.play()
    last = {exchange: number for number, exchange in probe.seen}
    return [(number, exchange) for exchange, number in last.items()]


def places(what: str) -> list[tuple[int, str]]:
    """Where a death of this kind is tried."""
    between = [(ROUNDS, BETWEEN)] if what == "SuperNode" else []
    return [*exchanges(), *between]


def lose_a_silo(
    what: str, number: int, exchange: str, silos: int, min_survivors: int, folder: Path
) -> SiloOutcome:
    """Rounds until one after that in which a silo dies; it is there again afterwards."""
    file = folder / f"{what}-{number}-{exchange}-{silos}.jsonl"
    with Ledger.open(file, unit="client", adjacency="add_or_remove", run="run") as ledger:
        federation = _Federation(silos, min_survivors, ledger)
        federation.strike = (what, number, exchange)
        *_, survivors, after = (federation.play() for _ in range(number + 1))
    status = next(entry.status for entry in read_ledger(file).entries if entry.round == number)
    return SiloOutcome(what, exchange, number, silos, min_survivors, survivors, status, after)
