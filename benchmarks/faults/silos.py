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
ROUND, VICTIM = 2, 1


@dataclass(frozen=True)
class SiloOutcome:
    """What the loss of one silo in one exchange cost.

    Parameters
    ----------
    what : str
        What died.
    exchange : str
        In which exchange of the second round.
    silos, min_survivors : int
        Size of the federation, and how many a sum needs.
    survivors : int
        Silos in the second round's sum; 0 when it was not released.
    status : str
        The round's line in the ledger.
    next_survivors : int
        Silos in the third round's sum.
    """

    what: str
    exchange: str
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
        self.round, self.strike = 0, ("", "")
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
        arrays = ArrayRecord({"w": Array(np.zeros(4))})
        outcome = self.strategy.train_round(self.grid, self.round, arrays)
        return outcome.survivors if outcome.arrays is not None else 0

    def _note(self, silo: int, request: Message) -> None:
        if silo == VICTIM:
            self.seen.append((self.round, wire.stage_of(request) or ""))

    def _reply(self, silo: int, request: Message, reply: Message) -> list[Message]:
        what, exchange = self.strike
        if silo != VICTIM or self.seen[-1] != (ROUND, exchange):
            return [reply]
        if what == "SuperNode":
            self.grid.restart_node(VICTIM)  # its restart policy starts it again, without Context.state
        return [Message(Error(code=DEATHS[what], reason=""), reply_to=request)]


def exchanges() -> list[str]:
    """Exchanges of a round that is not the first."""
    probe = _Federation(3, 3)
    probe.play()
    probe.play()
    return [exchange for number, exchange in probe.seen if number == ROUND]


def lose_a_silo(what: str, exchange: str, silos: int, min_survivors: int, folder: Path) -> SiloOutcome:
    """Three rounds; a silo dies in one exchange of the second and is there again in the third."""
    file = folder / f"{what}-{exchange}-{silos}.jsonl"
    with Ledger.open(file, unit="client", adjacency="add_or_remove", run="run") as ledger:
        federation = _Federation(silos, min_survivors, ledger)
        federation.strike = (what, exchange)
        federation.play()
        survivors, after = federation.play(), federation.play()
    status = next(entry.status for entry in read_ledger(file).entries if entry.round == ROUND)
    return SiloOutcome(what, exchange, silos, min_survivors, survivors, status, after)
