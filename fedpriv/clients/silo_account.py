"""The silo's own privacy account: a ledger on its own disk, over all runs that ever used its records.

The server keeps a ledger too; a silo does not have to believe it. The silo charges its own account durably before
it touches a record, and answers without touching one when its own limit, or that of the run, is used up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedpriv import wire
from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.vocabulary import VIEWS, Adjacency
from fedpriv.clients.silo_state import silo_folder
from fedpriv.ledger import Budget, BudgetExceeded, Ledger, LedgerLocked, Reservation
from fedpriv.secure_sum import Refusal
from fedpriv.wire import ErrorCode

FILE_NAME = "account.jsonl"
#: How long a request of one run waits for that of another one on the same silo.
_LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class SiloLimits:
    """What a silo accepts, from its own node config.

    Parameters
    ----------
    budget : Budget or None
        Over all runs on its records; None for no limit of its own.
    min_noise_multiplier : float
        Smallest noise of a step over the clip of a record.
    max_sampling_rate : float
        Largest rate of the batches of records.
    """

    budget: Budget | None = None
    min_noise_multiplier: float = 0.0
    max_sampling_rate: float = 1.0

    @classmethod
    def of(cls, context: Context) -> SiloLimits:
        """Read the node config.

        Raises
        ------
        Refusal
            For a value of the wrong type or out of range, or a ``max-epsilon`` without its ``delta``.
        """
        config = context.node_config
        epsilon = _number(config.get(wire.CONFIG_MAX_EPSILON), 0.0, math.inf)
        delta = _number(config.get(wire.CONFIG_DELTA), 0.0, 1.0)
        noise = _number(config.get(wire.CONFIG_MIN_NOISE_MULTIPLIER, 0.0), 0.0, math.inf)
        rate = _number(config.get(wire.CONFIG_MAX_SAMPLING_RATE, 1.0), 0.0, 1.0)
        # a limit at a delta that the server chooses would be none
        if noise is None or not rate or epsilon == 0.0 or (epsilon is not None and delta in (None, 0.0, 1.0)):
            raise Refusal(ErrorCode.SILO_MISCONFIGURED)
        budget = None if epsilon is None or delta is None else Budget(epsilon, delta, "server")
        return cls(budget, noise, rate)

    def check(self, noise_multiplier: float, sampling_rate: float) -> None:
        """Refuse noise that is too small or a rate that is too large."""
        if noise_multiplier < self.min_noise_multiplier * (1.0 - 1e-9):
            raise Refusal(ErrorCode.SILO_NOISE_TOO_SMALL)
        if sampling_rate > self.max_sampling_rate:
            raise Refusal(ErrorCode.SILO_RATE_TOO_LARGE)


@dataclass(frozen=True)
class SiloAccount:
    """A silo's ledger as one run uses it.

    Parameters
    ----------
    path : Path
        The ledger's file.
    adjacency : {"add_or_remove", "replace_one"}
        Of the run; an account has one for ever.
    run : str
        Name under which the run's releases are written.
    own : Budget or None
        The silo's limit, over all runs in the file.
    of_run : Budget or None
        The run's limit on its own releases.
    """

    path: Path
    adjacency: Adjacency
    run: str
    own: Budget | None = None
    of_run: Budget | None = None

    @contextmanager
    def paying(
        self, stage: str, server_round: int, event: PrivacyEvent, details: Mapping[str, Any]
    ) -> Iterator[Reservation]:
        """Reserve one release of the silo; on the disk before the body of the ``with`` runs.

        Parameters
        ----------
        stage, server_round
            Which release.
        event : PrivacyEvent
            All steps of the round, for every view.
        details : mapping
            For a reviewer; never data.

        Yields
        ------
        Reservation
            Counted unless it is voided.

        Raises
        ------
        BudgetExceeded
            The release does not fit the silo's limit or the run's; nothing was written for it.
        LedgerError, OSError
            The account cannot be used: no record may be touched.
        """
        with self._open() as ledger:
            self._check_run(ledger, stage, server_round, event)
            yield ledger.reserve(stage, server_round, dict.fromkeys(VIEWS, event), details)

    def check(self) -> None:
        """Open the account once, so that one that cannot be used is known before the run.

        Raises
        ------
        LedgerError, OSError
        """
        self._open().close()

    def _open(self) -> Ledger:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return Ledger.open(
                    self.path,
                    unit="record",
                    adjacency=self.adjacency,
                    run=self.run,
                    delta=None if self.own is None else self.own.delta,
                    budgets=() if self.own is None else self.own,
                )
            except LedgerLocked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def _check_run(self, ledger: Ledger, stage: str, server_round: int, event: PrivacyEvent) -> None:
        """The run's limit covers its own releases only; those of other runs are the silo's own affair."""
        limit = self.of_run
        if limit is None:
            return
        spent = ledger.totals(run=self.run)[limit.view]
        wanted = spent.copy().compose(event)
        if wanted.rdp_epsilon(limit.delta) <= limit.max_epsilon:
            return
        would_be = wanted.epsilon(limit.delta).epsilon
        if would_be > limit.max_epsilon:
            raise BudgetExceeded(
                spent=spent.epsilon(limit.delta).epsilon,
                would_be=would_be,
                allowed=limit.max_epsilon,
                view=limit.view,
                delta=limit.delta,
                stage=stage,
                round=server_round,
            )


def account_path(context: Context, simulation_folder: str) -> Path:
    """Where the silo's account is.

    Parameters
    ----------
    context : Context
        Its node config names the silo's folder (``state-path``).
    simulation_folder : str
        Folder that a simulation's server offers to its clients, which have no disk of their own; used inside a
        simulation only.

    Raises
    ------
    Refusal
        When there is no folder.
    """
    folder = silo_folder(context)
    if folder is not None:
        return folder / FILE_NAME
    if not simulation_folder:
        raise Refusal(ErrorCode.SILO_NO_ACCOUNT)
    partition = context.node_config.get("partition-id")
    name = partition if isinstance(partition, int) and not isinstance(partition, bool) else context.node_id
    return Path(simulation_folder) / f"silo-{name}" / FILE_NAME


def _number(value: Any, low: float, high: float) -> float | None:
    """A number in [low, high], None where the key is absent; refuses everything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refusal(ErrorCode.SILO_MISCONFIGURED)
    return float(value)
