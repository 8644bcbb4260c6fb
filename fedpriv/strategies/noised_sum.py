"""One accounted release: reserve in the ledger, sum securely, add central noise if asked, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.ledger import Ledger, Reservation
from fedpriv.mechanisms import SecureSource, SeededSource, rounded_gaussian
from fedpriv.plans import NoiseModel, Plan
from fedpriv.secure_sum import (
    Ahead,
    NodeError,
    SecureSum,
    SecureSumAborted,
    SecureSumResult,
    SecureSumSettings,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NoisedSumResult:
    """A released sum.

    Parameters
    ----------
    total : np.ndarray
        Shape (length,), int64: the noised sum in grid steps.
    survivors : tuple of int
        Node ids that were summed.
    sum : SecureSumResult
        Drop-outs, errors, bytes and seconds.
    """

    total: np.ndarray
    survivors: tuple[int, ...]
    sum: SecureSumResult


@dataclass
class NoisedSum:
    """Makes releases of one run: the same ledger, the same secure-sum settings.

    Parameters
    ----------
    ledger : Ledger or None
        Where each release is reserved before any unmask request leaves, and committed afterwards. None only
        for code that does its own accounting.
    mode : {"protocol", "simulated"}
        Real SecAgg+ messages, or a plain sum of the same integers (simulation only).
    timeout : float
        Seconds to wait for the replies of one exchange.
    share_threshold, neighbours : int or None
        Secure-sum parameters, see :class:`fedpriv.secure_sum.SecureSumSettings`.
    seed : int or None
        Seed of central noise, for simulations that are declared not private; None for secure noise.

    Attributes
    ----------
    bytes_up, bytes_down : int
        Payload of all sums that were released.
    last : SecureSumResult or None
        The latest one, with its seconds per exchange; None when it was aborted.
    ahead : Ahead
        The next round's session, where its set-up went along with this round's messages.
    """

    ledger: Ledger | None
    mode: Literal["protocol", "simulated"] = "protocol"
    timeout: float = 300.0
    share_threshold: int | None = None
    neighbours: int | None = None
    seed: int | None = None
    bytes_up: int = field(default=0, init=False)
    bytes_down: int = field(default=0, init=False)
    last: SecureSumResult | None = field(default=None, init=False)
    ahead: Ahead = field(default_factory=Ahead, init=False)

    def release(
        self,
        grid: Grid,
        clients: Sequence[int],
        payload: RecordDict | Callable[[int], RecordDict],
        plan: Plan,
        noise: NoiseModel,
        *,
        stage: str,
        server_round: int,
        length: int,
        modulus_bits: int,
        purpose: str,
        magnitude: int | None = None,
        server_noise: Callable[[], np.ndarray] | None = None,
        repeats: bool = False,
    ) -> NoisedSumResult:
        """Run one secure sum and account for it.

        The charge is written durably before anything is sent, and stays if the process dies at any later
        instant. It is taken back only when the round ends before the first unmask request (then nothing but
        uniform masks has left the clients).

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        clients : sequence of int
            Node ids to ask.
        payload : RecordDict or callable
            What travels with the masked-input request, the same for all or by node id.
        plan : Plan
            What is charged.
        noise : NoiseModel
            The plan's noise.
        stage, server_round
            Under which the ledger charges the release.
        length : int
            Coordinates of the sum.
        modulus_bits : int
            Modulus of the secure sum.
        purpose : str
            Purpose of the secure sum.
        magnitude : int, optional
            Largest absolute value that a coordinate of the sum can have, noise included, when every client
            keeps to its range. A larger one is a client's fault and ends the round.
        server_noise : callable, optional
            Central noise of this release, shape (length,), int64, drawn when the sum is there; independent
            Gaussian noise of ``noise`` by default.
        repeats : bool
            Whether the next round will ask the same clients for the same sum: then it takes two exchanges.

        Raises
        ------
        BudgetExceeded
            Before anything is sent.
        InvalidArgument
            When the clients are more than the plan was made for, or the seed of central noise does not go
            with the plan; nothing was sent.
        SecureSumAborted
            When fewer than ``noise.min_survivors`` clients were left, or the sum is out of range; its
            ``released`` says whether the round was charged.
        """
        self.last = None
        self._check(clients, plan, noise)
        session = SecureSum(
            grid,
            SecureSumSettings(
                min_survivors=noise.min_survivors,
                share_threshold=self.share_threshold,
                neighbours=self.neighbours,
                modulus_bits=modulus_bits,
                timeout=self.timeout,
                mode=self.mode,
            ),
            self.ahead,
        )
        if len(clients) < noise.min_survivors:
            raise SecureSumAborted(
                wire.STAGE_KEYS,
                f"{len(clients)} clients to ask, min_survivors = {noise.min_survivors}",
                released=False,
            )
        reservation = None
        if self.ledger is not None:
            reservation = self.ledger.reserve(
                stage, server_round, plan.events(), plan.describe(), allow_infinite=plan.infinite_views()
            )

        def before_unmask(survivors: Sequence[int]) -> None:
            if reservation is not None:
                reservation.mark_released()

        try:
            result = session.run(
                list(clients),
                payload,
                length=length,
                purpose=purpose,
                before_unmask=before_unmask,
                repeats=repeats,
            )
            if magnitude is not None and int(np.max(np.abs(result.total))) > magnitude:
                raise SecureSumAborted(
                    wire.STAGE_UNMASK,
                    "a value of the sum is beyond what clients may send: some client did not keep its range",
                    released=True,
                    dropped=result.dropped,
                    errors=result.errors,
                )
        except SecureSumAborted as aborted:
            _log_faults(f"{stage} round {server_round}", aborted.errors, aborted.dropped)
            self._settle_aborted(reservation, aborted.stage, aborted.released)
            raise
        except Exception as error:
            self._settle_aborted(reservation, type(error).__name__, released=False)
            raise
        total = result.total
        if server_noise is not None:
            total = total + server_noise()
        elif noise.kind == "central":
            source = SecureSource() if self.seed is None else SeededSource(self.seed, stage, server_round)
            total = total + rounded_gaussian(noise.total_std_units, length, source)
        self.bytes_up += result.bytes_up
        self.bytes_down += result.bytes_down
        self.last = result
        survivors = len(result.survivors)
        if reservation is not None:
            shares = survivors if noise.kind == "distributed" else 0
            reservation.commit({"survivors": survivors, "noise-shares": shares})
        _log_faults(f"{stage} round {server_round}", result.errors, result.dropped)
        return NoisedSumResult(total, result.survivors, result)

    def _check(self, clients: Sequence[int], plan: Plan, noise: NoiseModel) -> None:
        if len(clients) > plan.num_clients:
            raise InvalidArgument(
                f"clients: {len(clients)} clients, but the plan (modulus, divisor, amplification) was made "
                f"for {plan.num_clients}; pass the clients that take part, or make the plan for all of them"
            )
        if noise.kind == "central" and (self.seed is not None) != noise.seeded:
            raise InvalidArgument(
                f"seed: {self.seed} does not go with central noise whose plan says seeded = {noise.seeded}"
            )

    @staticmethod
    def _settle_aborted(reservation: Reservation | None, why: str, released: bool) -> None:
        """Give the charge back only where no unmask request can have left."""
        if reservation is None:
            return
        if released or reservation.released:
            reservation.commit({"aborted": why})
        else:
            reservation.void(f"aborted at {why} before any unmask request")


def _log_faults(place: str, errors: Sequence[NodeError], dropped: Mapping[str, Sequence[int]]) -> None:
    """Name every node that failed or kept silent, in our own words: nothing that a node wrote is repeated."""
    for fault in errors:
        code = "" if fault.code is None else f" (code {fault.code})"
        who = "an unknown node" if fault.node_id is None else f"node {fault.node_id}"
        logger.warning("%s, exchange %r: %s: %s%s", place, fault.stage, who, fault.message, code)
    for exchange, nodes in dropped.items():
        told = {fault.node_id for fault in errors if fault.stage == exchange}
        for node in sorted(set(nodes) - told):
            logger.warning("%s, exchange %r: node %d: did not answer in time", place, exchange, node)
