"""A DP-HYPE vote under attack: a canary client whose ballot the adversary knows.

Everybody else abstains. The federation is the canary and one client that adds no noise, so that the tallies carry
exactly the noise that the guarantee counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from flwr.app import Context

from fedpriv.accounting.vocabulary import View
from fedpriv.audit.grid import AuditGrid, RecordedSums, colluding_mod, make_app, partition_of
from fedpriv.audit.ledger_check import Watch
from fedpriv.audit.one_run import OneRun
from fedpriv.audit.target import ABORTED, NoiseSample, PlanTarget, Probes, Setup, few_clients, finer_by
from fedpriv.audit.targets.updates import QUIET_NOISE_UNITS, noise_shares
from fedpriv.clients import dp_hype_mod
from fedpriv.ledger import Ledger
from fedpriv.mechanisms import Ballot
from fedpriv.plans import VotePlan
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.strategies import DpHype

Losses = Callable[[int, int], float]
"""From partition and candidate to a loss; NaN abstains."""

#: Candidates and votes of the noise probe.
NOISE_CANDIDATES, NOISE_VOTES = 2_500, 8
_QUIET_UNITS = 2**24


class _Voters:
    def __init__(self, candidates: int, clients: int, honest: int, watch: Watch | None = None) -> None:
        self.losses: Losses = lambda client, candidate: float("nan")
        self.candidates = [{"index": index} for index in range(candidates)]
        app = make_app([colluding_mod(honest), dp_hype_mod(self._evaluate)])
        self.grid = AuditGrid(app, clients, watch=watch)

    def _evaluate(self, candidate: dict[str, Any], context: Context) -> float:
        return self.losses(partition_of(context), int(candidate["index"]))

    def tallies(self, plan: VotePlan, stage: str = "tune") -> tuple[np.ndarray, int]:
        """Released integers of one vote, and how many voted."""
        seed = 0 if plan.noise.seeded else None
        sums = RecordedSums(None, mode="simulated", seed=seed)
        DpHype(self.candidates, plan, sums, seed=seed, stage=stage).vote(self.grid)
        return sums.totals[0], sums.summed[0]


def _approves(votes: int, first: bool, candidates: int) -> Callable[[int], float]:
    """Losses with which a client approves the first (or the last) ``votes`` candidates."""
    return lambda candidate: float(candidate if first else candidates - candidate)


class VoteTarget(PlanTarget):
    """One vote of `DpHype`.

    Parameters
    ----------
    setup : Setup
        Configured stage.
    """

    kind = "DP-HYPE vote"
    code = "DpHype.vote, NoisedSum.release, SecureSum (simulated), dp_hype_mod, through Flower messages in process"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.plan, VotePlan)
        helpers = 1 if setup.plan.noise.kind == "distributed" else 0
        noise = few_clients(setup.plan.noise, 1, helpers)
        self.plan = replace(setup.plan, num_clients=1 + helpers, noise=noise)
        self._voters = _Voters(self.plan.ballot.candidates, 1 + helpers, 1)

    @classmethod
    def of(cls, setup: Setup) -> VoteTarget:
        return cls(setup)

    def views(self) -> tuple[View, ...]:
        """The tallies are what every view sees; with central noise the server sees more, and is promised nothing."""
        return ("server",) if self.configured.noise.kind == "distributed" else ("server", "participants")

    def play(self, present: bool) -> dict[View, np.ndarray]:
        """One vote with the canary's ballot or an abstention (replace_one: the opposite ballot)."""
        plan = self.plan
        ballot, both = plan.ballot, plan.adjacency == "replace_one"

        def losses(client: int, candidate: int) -> float:
            if client != 0 or not (present or both):
                return float("nan")
            return _approves(ballot.votes, present, ballot.candidates)(candidate)

        self._voters.losses = losses
        try:
            tallies, _ = self._voters.tallies(plan, self.stage)
        except SecureSumAborted:  # because of the canary: everybody sees it
            return dict.fromkeys(self.views(), np.full(2, ABORTED))
        approved = np.zeros(ballot.candidates)
        approved[: ballot.votes] += 1.0
        if both:
            approved[ballot.candidates - ballot.votes :] -= 1.0
        noised = tallies / plan.noise.total_std_units
        # the second statistic would see a canary that approves more candidates than it may
        statistics = np.array([noised @ approved, noised.sum()])
        return dict.fromkeys(self.views(), statistics)

    def has_one_run(self, view: View) -> bool:
        """Under add_or_remove."""
        return self.configured.adjacency == "add_or_remove"

    def one_run(self, view: View, canaries: int) -> OneRun:
        """Every canary approves candidates of its own."""
        plan, votes = self.configured, self.plan.ballot.votes
        assert isinstance(plan, VotePlan)
        candidates = canaries * votes
        included = np.random.default_rng().random(canaries) < 0.5
        noise = few_clients(plan.noise, canaries, 0)
        factor = finer_by(noise)
        plan = replace(
            plan,
            ballot=Ballot(candidates, votes),
            num_clients=canaries,
            units_per_vote=factor * plan.units_per_vote,
            noise=replace(noise, total_std_units=factor * noise.total_std_units),
        )
        voters = _Voters(candidates, canaries, canaries)

        def losses(client: int, candidate: int) -> float:
            return float(candidate // votes != client) if included[client] else float("nan")

        voters.losses = losses
        tallies, _ = voters.tallies(plan, self.stage)
        return OneRun(included, tallies.reshape(canaries, votes).sum(axis=1).astype(np.float64))

    def probes(self) -> VoteProbes:
        assert isinstance(self.configured, VotePlan)
        return VoteProbes(self.configured)


#: Worst-case losses of a voter, from the candidate's index and the number of candidates.
WORST_LOSSES: dict[str, Callable[[int, int], float]] = {
    "all losses differ": lambda candidate, count: float(candidate),
    "all losses are equal": lambda candidate, count: 0.0,
    "one finite loss": lambda candidate, count: 0.0 if candidate == count - 1 else float("inf"),
    "NaN for the second half": lambda candidate, count: float("nan") if 2 * candidate >= count else -1.0,
    "minus infinity": lambda candidate, count: -float("inf") if candidate == 0 else 0.0,
    "largest numbers": lambda candidate, count: (-1.0) ** candidate * 1e308,
}


class VoteProbes(Probes):
    """Small experiments on a vote.

    Parameters
    ----------
    plan : VotePlan
        As configured.
    """

    def __init__(self, plan: VotePlan) -> None:
        self.plan: VotePlan = plan

    def noise(self, *, counted: bool) -> NoiseSample:
        """Votes of four abstaining clients, or of one and another that adds no noise."""
        distributed = self.plan.noise.kind == "distributed"
        honest, helpers = (1, 1 if distributed else 0) if counted else (4, 0)
        noise = few_clients(self.plan.noise, honest, helpers)
        ballot = Ballot(NOISE_CANDIDATES, min(self.plan.ballot.votes, NOISE_CANDIDATES))
        plan = replace(self.plan, ballot=ballot, num_clients=honest + helpers, noise=noise)
        voters = _Voters(NOISE_CANDIDATES, honest + helpers, honest)
        found = [voters.tallies(plan) for _ in range(NOISE_VOTES)]
        expected = [
            plan.noise.total_std_units if counted else plan.noise.realised_std_units(voted)
            for _, voted in found
        ]
        draws = np.array([tallies for tallies, _ in found], dtype=np.float64)
        return NoiseSample(draws, np.array(expected), plan.noise.total_std_units, counted)

    def play_with(self, ledger: Ledger, watch: Watch) -> None:
        """Two votes in the protocol's messages."""
        plan = replace(self.plan, num_clients=4, noise=few_clients(self.plan.noise, 4, 0))
        voters = _Voters(plan.ballot.candidates, 4, 4, watch=watch)
        seed = 0 if plan.noise.seeded else None
        mode: Literal["protocol", "simulated"] = "protocol" if seed is None else "simulated"
        for stage in ("tune", "tune-again"):
            sums = RecordedSums(ledger, mode=mode, seed=seed)
            DpHype(voters.candidates, plan, sums, seed=seed, stage=stage).vote(voters.grid)

    def shifts(self) -> dict[str, float]:
        """Ballots against abstentions (replace_one: against the ballot for the others)."""
        ballot = self.plan.ballot
        noise = few_clients(self.plan.noise, 3, 0)
        noise = replace(noise, total_std_units=QUIET_NOISE_UNITS * noise_shares(noise) ** 0.5)
        plan = replace(self.plan, num_clients=3, units_per_vote=_QUIET_UNITS, noise=noise)
        voters = _Voters(ballot.candidates, 3, 3)

        def released(canary: Callable[[int, int], float]) -> np.ndarray:
            def losses(client: int, candidate: int) -> float:
                return float(candidate) if client else canary(candidate, ballot.candidates)

            voters.losses = losses
            try:
                return voters.tallies(plan)[0] / plan.units_per_vote
            except SecureSumAborted:
                return np.full(ballot.candidates, np.inf)

        def reversed_(losses: Callable[[int, int], float]) -> Callable[[int, int], float]:
            return lambda candidate, count: losses(count - 1 - candidate, count)

        absent, found = released(lambda candidate, count: float("nan")), {}
        for name, losses in WORST_LOSSES.items():
            cast = released(losses)
            moved = float(np.linalg.norm(cast - absent))
            if plan.adjacency == "replace_one":
                moved = max(moved, float(np.linalg.norm(cast - released(reversed_(losses)))))
            found[name] = moved / ballot.sensitivity(plan.adjacency)
        return found
