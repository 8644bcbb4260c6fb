"""Server half of PACZero (arXiv 2605.06505): a sum of bits, a majority, a step along a public direction."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_positive
from fedpriv.mechanisms import ArrayLayout
from fedpriv.mechanisms.directions import SEED_BYTES, Directions
from fedpriv.mechanisms.parameter_grid import check_resolution
from fedpriv.mechanisms.zeroth_order import PublicStep, replay
from fedpriv.plans.pac_zero import PacZeroPlan
from fedpriv.secure_sum import SecureSum, SecureSumAborted, SecureSumSettings
from fedpriv.strategies.base import TrainingStrategy
from fedpriv.strategies.downlink import Downlink, direction_fields
from fedpriv.strategies.dpsgd_dc import RoundOutcome
from fedpriv.strategies.noised_sum import NoisedSum

logger = logging.getLogger(__name__)

Aggregate = Literal["majority", "mean"]

#: Fewest silos for a secure sum: a sum over fewer shows each silo the other's bit anyway.
FEWEST_FOR_SECURE_SUM = 3


@dataclass(frozen=True)
class PacZeroOutcome(RoundOutcome):
    """One round.

    Parameters
    ----------
    nats : float
        What all bits of one silo may carry, the coming rounds included.
    total : int
        Sum of the bits.
    """

    nats: float = 0.0
    total: int = 0


class PacZero(TrainingStrategy):
    """Fine-tunes a model by one bit per silo and round.

    The client half is :func:`fedpriv.clients.pac_zero_mod`. The bits' sum comes from a secure sum where at least
    three silos are asked; one or two answer by the bit itself, which is what each silo's guarantee covers. The step
    is ``w <- w - lr Y u`` with a unit direction u and Y the majority of the bits (a tie: a coin) or their mean.

    The whole budget of a silo is charged in the ledger before the first round, on PAC lines, in nats.

    Parameters
    ----------
    plan : PacZeroPlan
        Variant, budget, subsets, rounds.
    sums : NoisedSum
        Ledger and secure-sum settings; no noise is added to the sum of bits.
    run : str
        Name of the run, to which the silos' secrets belong.
    learning_rate : float
        Length of a step.
    schedule : callable, optional
        Factor on the learning rate by round; 1 by default.
    aggregate : {"majority", "mean"}
        What becomes of the bits.
    seed : int or None
        Seed of secrets, coins and directions; only for simulations that are declared not private.
    diagnostics : str
        Simulation only: folder for the silos' lines about unanimity.
    simulation_folder : str
        Simulation only: folder in which silos without ``state-path`` keep their secrets, so that a simulation
        can be resumed; without it they keep them in ``Context.state``.
    stage : str
        Name under which the ledger charges the rounds.
    """

    def __init__(
        self,
        plan: PacZeroPlan,
        sums: NoisedSum,
        *,
        run: str,
        learning_rate: float,
        schedule: Callable[[int], float] | None = None,
        aggregate: Aggregate = "majority",
        seed: int | None = None,
        diagnostics: str = "",
        simulation_folder: str = "",
        stage: str = "paczero",
    ) -> None:
        super().__init__(plan)
        check_positive(learning_rate=learning_rate)
        check_choice(("majority", "mean"), aggregate=aggregate)
        if not run:
            raise InvalidArgument("run: a name is needed, to which the silos' secrets belong")
        if (seed is not None) != plan.seeded:
            raise InvalidArgument(f"seed: {seed} does not go with a plan whose seeded = {plan.seeded}")
        self.plan, self.sums, self.run, self.seed, self.stage = plan, sums, run, seed, stage
        self.learning_rate, self.aggregate, self.diagnostics = learning_rate, aggregate, diagnostics
        self.simulation_folder = simulation_folder
        self.schedule = schedule or (lambda server_round: 1.0)
        self.downlink = Downlink(True, plan.kind)

    def train_round(
        self,
        grid: Grid,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord | None = None,
        clients: Sequence[int] | None = None,
    ) -> PacZeroOutcome:
        """Run one round and return the new model.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        server_round : int
            Starting from 1.
        arrays : ArrayRecord
            The current model: its trainable parameters.
        config : ConfigRecord, optional
            Not used: clients are told all they need by the plan.
        clients : sequence of int, optional
            The silos; all nodes that are online by default.

        Raises
        ------
        InvalidArgument
            When the arrays, the silos or the round are not those that the plan was made for.
        """
        plan = self.plan
        if not 1 <= server_round <= plan.rounds:
            raise InvalidArgument(f"server_round: {server_round} is outside 1 .. {plan.rounds}")
        given = {name: array.numpy() for name, array in arrays.items()}
        layout = ArrayLayout.of(given)
        if layout.size != plan.dimension:
            raise InvalidArgument(
                f"arrays: {layout.size} coordinates, the plan was made for {plan.dimension}"
            )
        clients = list(grid.get_node_ids()) if clients is None else list(clients)
        if len(clients) > plan.num_silos:
            raise InvalidArgument(f"clients: {len(clients)} silos, the plan was made for {plan.num_silos}")
        check_resolution(given, plan.smoothing)
        directions = Directions(self._direction_seed(server_round), plan.dimension, 1, plan.kind)
        self.downlink.start_round(given)
        self._charge(server_round)
        began = time.monotonic()
        total, answered = self._bits(grid, clients, directions, server_round)
        seconds = time.monotonic() - began
        self.downlink.finish_round(clients, answered)
        if len(answered) < plan.min_survivors:
            logger.warning(
                "%s round %d: %d silos answered, %d are needed",
                self.stage,
                server_round,
                len(answered),
                plan.min_survivors,
            )
            return PacZeroOutcome(None, len(answered), len(clients), False, seconds, plan.nats)
        coefficient = (
            self.learning_rate
            * self.schedule(server_round)
            * self._decision(total, len(answered), server_round)
        )
        step = PublicStep(directions.seed, plan.kind, (coefficient,), directions.norms)
        found = replay(given, [step])
        self.downlink.stepped(step, found)
        released = ArrayRecord({name: Array(value) for name, value in found.items()})
        return PacZeroOutcome(released, len(answered), len(clients), True, seconds, plan.nats, total)

    def _charge(self, server_round: int) -> None:
        """Charge every silo's whole budget once, before the first bit of the run is asked for."""
        ledger = self.sums.ledger
        if ledger is None or (self.stage, "each") in ledger.pac_totals(run=ledger.run):
            return
        reservation = ledger.reserve_pac(
            self.stage, server_round, "each", self.plan.nats, self.plan.describe()
        )
        reservation.mark_released()
        reservation.commit({"charged": "the budget of all rounds"})

    def _bits(
        self, grid: Grid, clients: Sequence[int], directions: Directions, server_round: int
    ) -> tuple[int, tuple[int, ...]]:
        """Sum of the bits, and whose they are."""

        def payload(node: int) -> RecordDict:
            content = self.downlink.payload(node)
            content[wire.RECORD_PAC_ZERO] = self._record(directions, server_round)
            return content

        if len(clients) < FEWEST_FOR_SECURE_SUM:
            return self._bits_alone(grid, clients, payload)
        session = SecureSum(
            grid,
            SecureSumSettings(
                min_survivors=max(2, self.plan.min_survivors),
                share_threshold=self.sums.share_threshold,
                neighbours=self.sums.neighbours,
                modulus_bits=32,
                timeout=self.sums.timeout,
                mode=self.sums.mode,
            ),
            self.sums.ahead,
        )
        try:
            result = session.run(
                list(clients),
                payload,
                length=1,
                purpose=wire.PURPOSE_PAC_ZERO,
                magnitude_limit=1,
                repeats=server_round < self.plan.rounds,
            )
        except SecureSumAborted as aborted:
            logger.warning("%s round %d released nothing: %s", self.stage, server_round, aborted)
            return 0, ()
        self.sums.bytes_up += result.bytes_up
        self.sums.bytes_down += result.bytes_down
        total = int(result.total[0])
        if abs(total) > len(result.survivors) or (total - len(result.survivors)) % 2:
            logger.warning("%s round %d: the sum is no sum of bits", self.stage, server_round)
            return 0, ()
        return total, tuple(result.survivors)

    def _bits_alone(
        self, grid: Grid, clients: Sequence[int], payload: Callable[[int], RecordDict]
    ) -> tuple[int, tuple[int, ...]]:
        messages = [
            Message(payload(client), dst_node_id=client, message_type=wire.MESSAGE_TYPE) for client in clients
        ]
        self.sums.bytes_down += sum(wire.content_bytes(message.content) for message in messages)
        bits: dict[int, int] = {}
        for reply in grid.send_and_receive(messages, timeout=self.sums.timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                logger.warning("node %d: %s", node, wire.error_words(reply.error.code))
                continue
            self.sums.bytes_up += wire.content_bytes(reply.content)
            record = reply.content.get(wire.RECORD_PAC_ZERO)
            bit = record.get(wire.PAC_BIT) if isinstance(record, ConfigRecord) else None
            if node in clients and node not in bits and bit in (1, -1) and not isinstance(bit, bool):
                bits[node] = int(bit)  # type: ignore[arg-type]
            else:
                logger.warning("node %d: the reply is no bit, or comes twice", node)
        return sum(bits.values()), tuple(bits)

    def _decision(self, total: int, answered: int, server_round: int) -> float:
        if self.aggregate == "mean":
            return total / answered
        if total == 0:
            if self.seed is None:
                return 1.0 if secrets.randbits(1) else -1.0
            return 1.0 if hashlib.sha256(f"{self.seed}:tie:{server_round}".encode()).digest()[0] & 1 else -1.0
        return float(np.sign(total))

    def _direction_seed(self, server_round: int) -> bytes:
        if self.seed is None:
            return secrets.token_bytes(SEED_BYTES)
        return hashlib.sha256(f"{self.seed}:directions:{server_round}".encode()).digest()[:SEED_BYTES]

    def _record(self, directions: Directions, server_round: int) -> ConfigRecord:
        plan = self.plan
        return ConfigRecord(
            {
                wire.PAC_RUN: self.run,
                wire.PAC_VARIANT: plan.variant,
                wire.PAC_SUBSETS: plan.subsets,
                wire.PAC_NATS: plan.budget_nats,
                wire.PAC_ROUNDS: plan.rounds,
                wire.PAC_DIAGNOSTICS: self.diagnostics,
                wire.SILO_SIMULATION_FOLDER: self.simulation_folder,
                **direction_fields(directions),
                wire.ZEROTH_ORDER_SMOOTHING: plan.smoothing,
                wire.ZEROTH_ORDER_CLIP: plan.clip,
                wire.ZEROTH_ORDER_BATCH: 0,
                wire.UPDATE_SAMPLING_RATE: 1.0,
                wire.UPDATE_ROUND: server_round,
                wire.NOISE_SEED: "" if self.seed is None else str(self.seed),
            }
        )
