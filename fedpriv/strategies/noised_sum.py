"""One accounted release: reserve in the ledger, sum securely, add central noise if asked, commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedpriv.ledger import Ledger
from fedpriv.mechanisms import SecureSource, SeededSource, rounded_gaussian
from fedpriv.plans import NoiseModel, Plan
from fedpriv.secure_sum import SecureSum, SecureSumAborted, SecureSumResult, SecureSumSettings

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
    """

    ledger: Ledger | None
    mode: str = "protocol"
    timeout: float = 300.0
    share_threshold: int | None = None
    neighbours: int | None = None
    seed: int | None = None
    bytes_up: int = field(default=0, init=False)
    bytes_down: int = field(default=0, init=False)

    def release(
        self,
        grid: Grid,
        clients: Sequence[int],
        payload: RecordDict,
        plan: Plan,
        noise: NoiseModel,
        *,
        stage: str,
        server_round: int,
        length: int,
        modulus_bits: int,
        purpose: str,
    ) -> NoisedSumResult:
        """Run one secure sum and account for it.

        The charge is written durably before anything is sent, and stays if the process dies at any later
        instant. It is taken back only when the round aborts before the first unmask request (then nothing but
        uniform masks has left the clients).

        Raises
        ------
        BudgetExceeded
            Before anything is sent.
        SecureSumAborted
            When fewer than ``noise.min_survivors`` clients were left; its ``released`` says whether the round
            was charged.
        """
        reservation = None
        if self.ledger is not None:
            reservation = self.ledger.reserve(
                stage, server_round, plan.events(), plan.describe(), allow_infinite=plan.infinite_views()
            )

        def before_unmask(survivors: Sequence[int]) -> None:
            if reservation is not None:
                reservation.mark_released()

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
        )
        try:
            result = session.run(
                list(clients), payload, length=length, purpose=purpose, before_unmask=before_unmask
            )
        except SecureSumAborted as aborted:
            if reservation is not None and not reservation.released and not aborted.released:
                reservation.void(f"aborted at {aborted.stage} before any unmask request")
            elif reservation is not None:
                reservation.commit({"aborted": aborted.stage})
            raise
        total = result.total
        if noise.kind == "central":
            source = SecureSource() if self.seed is None else SeededSource(self.seed, stage, server_round)
            total = total + rounded_gaussian(noise.total_std_units, length, source)
        self.bytes_up += result.bytes_up
        self.bytes_down += result.bytes_down
        survivors = len(result.survivors)
        if reservation is not None:
            shares = survivors if noise.kind == "distributed" else 0
            reservation.commit({"survivors": survivors, "noise-shares": shares})
        for error in result.errors:
            logger.warning("%s round %d: %s", stage, server_round, error)
        return NoisedSumResult(total, result.survivors, result)
