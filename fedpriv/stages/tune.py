"""The tuning stage: one DP-HYPE vote."""

from __future__ import annotations

import time

from fedpriv.ledger import BudgetExceeded
from fedpriv.mechanisms import Ballot
from fedpriv.plans import VotePlan
from fedpriv.reporting import RoundRecord, StageReport, VoteRecord
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.settings import Settings
from fedpriv.stages.base import Run, RunState, Stage, report_hypotheses
from fedpriv.stages.planning import Planner, min_survivors_of_all
from fedpriv.strategies import DpHype


class TuneStage(Stage):
    """Let the clients vote; the winner's values replace the train settings."""

    name = "tune"
    kind = "DP-HYPE vote"

    @classmethod
    def planner(cls, settings: Settings, length: int) -> Planner:
        run, tune = settings.run, settings.tune

        def build(noise_multiplier: float) -> VotePlan:
            return VotePlan.build(
                Ballot(len(tune.candidates), tune.resolved_votes),
                run.adjacency,
                run.num_clients,
                noise_multiplier,
                run.noise,
                min_survivors_of_all(settings),
                run.colluders,
                run.seeded_noise,
            )

        return Planner(build, tune.noise_multiplier, "tune.noise-multiplier")

    def run(self, run: Run, state: RunState) -> StageReport:
        """Hold the vote; a budget that does not cover it or an aborted sum leaves the configured values."""
        plan = run.plans.stages[self.name]
        assert isinstance(plan, VotePlan)
        sums = run.sums()
        strategy = DpHype(run.settings.tune.candidates, plan, sums, seed=run.noise_seed, stage=self.name)
        started = time.monotonic()
        table: dict[str, str | int | float | bool | None] = dict(plan.describe())
        record, vote = RoundRecord(round=1, asked=len(run.clients)), None
        try:
            outcome = strategy.vote(run.grid, run.clients)
        except BudgetExceeded as exceeded:
            record.released, record.note = False, str(exceeded)
            run.progress.warn(f"the vote is not held: {exceeded}")
        except SecureSumAborted as aborted:
            record.released, record.note = aborted.released, str(aborted)
            run.progress.warn(f"the vote released nothing: {aborted}")
        else:
            survivors = len(outcome.result.survivors)
            state.candidate = outcome.candidate
            record.survivors = survivors
            record.noise_shares = survivors if plan.noise.kind == "distributed" else 0
            table["noise shares realised"] = record.noise_shares
            vote = VoteRecord(
                candidates=strategy.candidates,
                tallies=[float(tally) for tally in outcome.tallies],
                chosen=outcome.winner,
                votes_per_client=plan.ballot.votes,
                voters=survivors,
                noise_std=plan.noise.realised_std_units(survivors) / plan.units_per_vote,
            )
        record.epsilon = run.epsilon_by_view()
        record.seconds = time.monotonic() - started
        run.progress.round(
            self.name,
            1,
            1,
            epsilon=record.epsilon[run.settings.run.budget_view],
            epsilon_left=run.settings.run.resolved_max_epsilon - record.epsilon[run.settings.run.budget_view],
            view=run.settings.run.budget_view,
            survivors=record.survivors,
            asked=record.asked,
            seconds=record.seconds,
            note=f"chose {state.candidate}" if vote is not None else "no candidate was chosen",
        )
        return StageReport(
            name=self.name,
            kind=self.kind,
            table=table,
            rounds=[record],
            vote=vote,
            hypotheses=report_hypotheses(plan),
            seconds=record.seconds,
            bytes_up=sums.bytes_up,
            bytes_down=sums.bytes_down,
        )
