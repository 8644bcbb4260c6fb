"""The cohort of one round, filled up where amplification needs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.mechanisms import FixedSizeCohort, PoissonCohort
from fedpriv.plans import DpsgdDcPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cohort:
    """Who is asked in a round.

    Parameters
    ----------
    asked : list of int
        Node ids, those outside the cohort included.
    outside : frozenset of int
        Those that are asked for zeros, see :meth:`fedpriv.mechanisms.PoissonCohort.filled_up`.
    """

    asked: list[int]
    outside: frozenset[int] = frozenset()


def draw_cohort(plan: DpsgdDcPlan, clients: Sequence[int], stage: str, server_round: int) -> Cohort | None:
    """Draw a round's cohort; None when a cohort of fixed size cannot be drawn from the planned number."""
    sampler = plan.sampler
    if isinstance(sampler, FixedSizeCohort) and len(clients) != plan.num_clients:
        # the amplification is that of sampler.size out of plan.num_clients
        logger.warning(
            "%s round %d is left out: %d clients are there, a cohort of fixed size is drawn from %d",
            stage,
            server_round,
            len(clients),
            plan.num_clients,
        )
        return None
    cohort = sampler.asked(clients)
    outside: list[int] = []
    if isinstance(sampler, PoissonCohort):
        fewest = max(plan.noise.min_survivors, sampler.expected_asked(plan.num_clients))
        outside = sampler.filled_up(cohort, clients, fewest)
    return Cohort([*cohort, *outside], frozenset(outside))
