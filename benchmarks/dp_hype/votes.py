"""Votes through the real strategy, the real client half and the in-process grid."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpriv.accounting import Accountant
from fedpriv.accounting.gaussian import gaussian_noise_multiplier
from fedpriv.clients import dp_hype_mod
from fedpriv.mechanisms import Ballot
from fedpriv.plans import VotePlan
from fedpriv.stages.planning import resolve_min_survivors
from fedpriv.strategies import DpHype, NoisedSum
from fedpriv.testing import LocalGrid


def voting_app(losses: np.ndarray, candidates: Sequence[Mapping[str, Any]]) -> ClientApp:
    """A ClientApp whose clients look their losses up.

    Parameters
    ----------
    losses : np.ndarray
        Shape (clients, candidates).
    candidates : sequence of mapping
        The grid, in the order of the columns.
    """
    columns = {json.dumps(dict(candidate), sort_keys=True): i for i, candidate in enumerate(candidates)}

    def evaluate(candidate: dict[str, Any], context: Context) -> float:
        client = int(context.node_config["partition-id"])
        return float(losses[client, columns[json.dumps(candidate, sort_keys=True)]])

    app = ClientApp()

    @app.train(mods=[dp_hype_mod(evaluate)])
    def train(msg: Message, context: Context) -> Message:
        raise RuntimeError("nothing but votes is asked for here")

    return app


def vote_plan(clients: int, candidates: int, votes: int, epsilon: float, delta: float) -> VotePlan:
    """The plan of a vote that spends (epsilon, delta) on its own under add_or_remove; infinity: no noise."""
    ballot = Ballot(candidates, votes)
    noise_multiplier = 0.0 if math.isinf(epsilon) else gaussian_noise_multiplier(epsilon, delta)
    least = resolve_min_survivors(0, clients)
    return VotePlan.build(ballot, "add_or_remove", clients, noise_multiplier, "distributed", least)


def accounted_epsilon(plan: VotePlan, delta: float) -> float:
    """Epsilon of the vote in the ``server`` view, by the accountant."""
    if plan.noise.total_std_units == 0:
        return math.inf
    return Accountant(plan.adjacency).compose(plan.events()["server"]).epsilon(delta).epsilon


def hold_votes(
    grid: LocalGrid, candidates: Sequence[Mapping[str, Any]], plan: VotePlan, repetitions: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hold a vote several times, with fresh noise from the operating system.

    Returns
    -------
    winners : np.ndarray
        Shape (repetitions,), the chosen candidates.
    tallies : np.ndarray
        Shape (candidates,), the tallies of the last vote.
    """
    # the votes are the object of study, not spent on anyone's data: no ledger
    sums = NoisedSum(None, mode="simulated")
    outcomes = [DpHype(candidates, plan, sums).vote(grid) for _ in range(repetitions)]
    return np.array([outcome.winner for outcome in outcomes]), outcomes[-1].tallies
