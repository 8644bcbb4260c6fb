"""From scenarios to one row per task, number of clients, partition and epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.dp_hype.scenarios import Scenario
from benchmarks.dp_hype.votes import accounted_epsilon, hold_votes, vote_plan, voting_app
from fedpriv.accounting.votes import vote_regret_probability
from fedpriv.settings import Settings
from fedpriv.testing import LocalGrid


@dataclass(frozen=True)
class Cell:
    """All votes over one scenario at one epsilon.

    Parameters
    ----------
    seed : int
        Seed of the scenario.
    winners : list of int
        Chosen candidates, one per repetition.
    optimum, random : float
        Accuracy of the best candidate and mean over the candidates.
    accuracies : list of float
        Accuracy of the winners.
    tallies : list of float
        The votes that every candidate really has.
    opt_chosen : float
        Part of the votes whose winner has the accuracy of the best candidate.
    bound, observed : dict of str to float
        Per gamma (in votes): predicted lower bound on the chance that the winner's true tally is within gamma of
        the best, and the part of the votes in which it was.
    """

    seed: int
    winners: list[int]
    optimum: float
    random: float
    accuracies: list[float]
    tallies: list[float]
    opt_chosen: float
    bound: dict[str, float]
    observed: dict[str, float]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    task: str
    clients: int
    partition: str
    epsilon: float
    delta: float
    accounted: float
    guaranteed_std: float
    realised_std: float
    cells: list[Cell] = field(default_factory=list)

    def values(self, name: str) -> np.ndarray:
        """A figure of every cell."""
        return np.array([getattr(cell, name) for cell in self.cells])

    @property
    def utility(self) -> np.ndarray:
        """Shape (seeds,): mean accuracy of the vote."""
        return np.array([np.mean(cell.accuracies) for cell in self.cells])

    @property
    def spread(self) -> float:
        """Standard deviation that the noise alone causes: pooled over the seeds."""
        return math.sqrt(float(np.mean([np.var(cell.accuracies) for cell in self.cells])))

    def mean_of(self, name: str, gamma: str) -> float:
        """Mean over the seeds of the bound or of the observed part, for one gamma."""
        return float(np.mean([getattr(cell, name)[gamma] for cell in self.cells]))

    def to_json(self) -> dict[str, Any]:
        """Plain data; an infinite epsilon is a word."""
        return {
            key: repr(value) if isinstance(value, float) and math.isinf(value) else value
            for key, value in asdict(self).items()
        }


def gammas(clients: int) -> dict[str, float]:
    """Tolerated losses in votes, by name: none, and a tenth of the clients."""
    return {"0": 0.0, "n/10": clients / 10}


def measure_group(
    scenarios: Sequence[Scenario], settings: Settings, epsilons: Sequence[float], repetitions: int
) -> list[Row]:
    """Hold all votes over the scenarios of one task, number of clients and partition.

    Parameters
    ----------
    scenarios : sequence of Scenario
        One per seed.
    settings : Settings
        Their common settings (grid, votes, delta).
    epsilons : sequence of float
        Privacy of the votes; infinity for no noise.
    repetitions : int
        Votes per scenario and epsilon.

    Returns
    -------
    list of Row
        In the order of ``epsilons``.
    """
    case, tune, delta = scenarios[0].case, settings.tune, settings.run.resolved_delta
    candidates = tune.candidates
    grids = [
        LocalGrid(voting_app(scenario.losses, candidates), case.clients, raise_client_errors=True)
        for scenario in scenarios
    ]
    silent = vote_plan(case.clients, len(candidates), tune.resolved_votes, math.inf, delta)
    tallies = [hold_votes(grid, candidates, silent, 1)[1] for grid in grids]
    rows = []
    for epsilon in epsilons:
        plan = vote_plan(case.clients, len(candidates), tune.resolved_votes, epsilon, delta)
        spent = accounted_epsilon(plan, delta)
        # the multiplier comes from the exact Gaussian curve: the accountant has to agree with it
        if not math.isinf(epsilon) and not 0.99 * epsilon <= spent <= 1.001 * epsilon:
            raise RuntimeError(f"the plan for epsilon {epsilon} is accounted as {spent}")
        rows.append(
            Row(
                case.task,
                case.clients,
                case.partition,
                epsilon,
                delta,
                spent,
                plan.noise_std_votes,
                plan.noise.realised_std_units(case.clients) / plan.units_per_vote,
            )
        )
        for scenario, grid, exact in zip(scenarios, grids, tallies, strict=True):
            winners, _ = hold_votes(grid, candidates, plan, repetitions)
            rows[-1].cells.append(_cell(scenario, exact, winners, rows[-1].realised_std))
    return rows


def _cell(scenario: Scenario, tallies: np.ndarray, winners: np.ndarray, noise_std: float) -> Cell:
    accuracies, lost = scenario.accuracies, tallies.max() - tallies
    tolerated = gammas(scenario.case.clients)
    return Cell(
        seed=scenario.case.seed,
        winners=winners.tolist(),
        optimum=float(accuracies.max()),
        random=float(accuracies.mean()),
        accuracies=accuracies[winners].tolist(),
        tallies=tallies.tolist(),
        opt_chosen=float(np.mean(accuracies[winners] == accuracies.max())),
        bound={name: vote_regret_probability(tallies, noise_std, gamma) for name, gamma in tolerated.items()},
        observed={name: float(np.mean(lost[winners] <= gamma)) for name, gamma in tolerated.items()},
    )
