"""A report as a real run would make it: a vote among 12 candidates, then 15 rounds of full participation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpriv.accounting import DEFAULT_ORDERS, VIEWS, Gaussian, View
from fedpriv.ledger import Budget, Ledger
from fedpriv.reporting import (
    PER_RUN_LEDGER,
    BudgetRecord,
    EpsilonPoint,
    Hypothesis,
    LedgerRecord,
    RoundRecord,
    RunReport,
    StageReport,
    ViewReport,
    VoteRecord,
)

DELTA = 1e-3
CANDIDATES = [
    {"learning-rate": lr, "local-steps": steps, "clip-norm": clip}
    for lr in (0.05, 0.1, 0.5)
    for steps in (1, 5)
    for clip in (0.5, 1.0)
]


def make_report(folder: Path) -> RunReport:
    """Spend from a real ledger in `folder` and describe it."""
    rng = np.random.default_rng(5)
    budget = Budget(8.0, DELTA, "server")
    with Ledger.open(
        folder / "ledger.jsonl",
        unit="client",
        adjacency="add_or_remove",
        run="digits-1",
        delta=DELTA,
        budgets=budget,
    ) as ledger:
        vote, update = Gaussian(2.0), Gaussian(2.45)
        ledger.reserve("tune", 1, dict.fromkeys(VIEWS, vote)).commit({"noise_shares": 50})
        rounds = []
        for number in range(1, 16):
            reservation = ledger.reserve("train", number, dict.fromkeys(VIEWS, update))
            survivors = 50 - int(rng.integers(0, 3))
            if number == 9:
                reservation.void("two few survivors")
            else:
                reservation.mark_released()
                reservation.commit({"noise_shares": survivors})
            rounds.append(
                RoundRecord(
                    round=number,
                    released=number != 9,
                    accuracy=None if number == 9 else round(0.9 - 0.7 * float(np.exp(-number / 3.5)), 4),
                    asked=50,
                    survivors=survivors if number != 9 else 22,
                    noise_shares=survivors if number != 9 else None,
                    epsilon={v: ledger.epsilon(v, DELTA, use_pld=False).epsilon for v in VIEWS},
                    seconds=4.0 + 0.5 * float(rng.random()),
                    note="22 of 34 clients needed" if number == 9 else "",
                )
            )
        totals = {view: ledger.epsilon(view, DELTA) for view in VIEWS}
        statements = {
            "server": "sees every secure sum; no amplification, every client takes part in every round",
            "participants": "see every broadcast model, which is computed from the secure sums",
            "release": "sees the final model only; composition of all rounds",
        }
        views: dict[View, ViewReport] = {
            view: ViewReport(
                epsilon=e.epsilon,
                bound=e.bound,
                rdp_epsilon=e.rdp_epsilon,
                pld_epsilon=e.pld_epsilon,
                order=e.order,
                statement=statements[view],
                notes=list(e.notes),
            )
            for view, e in totals.items()
        }
        tallies = [3.1, 9.7, 14.2, 21.9, 8.8, 17.3, 25.6, 38.4, -1.2, 4.0, 2.3, 5.9]
        stages = [
            StageReport(
                name="tune",
                kind="DP-HYPE vote",
                table={
                    "mechanism": "one secure sum of 0/1 ballots with distributed Gaussian noise",
                    "votes per client k": 3,
                    "sensitivity": 1.7320508,
                    "noise multiplier": 2.0,
                    "noise shares guaranteed / realised": "33 / 50",
                    "events": "1 x gaussian(2.0)",
                },
                rounds=[RoundRecord(round=1, asked=50, survivors=50, noise_shares=50, seconds=18.2)],
                vote=VoteRecord(
                    candidates=CANDIDATES,
                    tallies=tallies,
                    chosen=7,
                    votes_per_client=3,
                    voters=50,
                    noise_std=4.26,
                ),
                hypotheses=[
                    Hypothesis(name="every client adds its noise share", status="holds", detail="50 of 50"),
                    Hypothesis(name="fewer than 17 clients collude", status="assumed"),
                ],
                seconds=18.2,
                bytes_up=412_000,
                bytes_down=655_300,
                epsilon={v: ledger.epsilon_by_stage(v, DELTA)["tune"].epsilon for v in VIEWS},
            ),
            StageReport(
                name="train",
                kind="client-level DPSGD-DC",
                table={
                    "mechanism": "flat clip, grid, distributed Gaussian noise, secure sum",
                    "clip norm": 1.0,
                    "normalisation": "sum divided by the fixed number of clients, 50",
                    "sampling": "full",
                    "sampling rate": 1.0,
                    "rounds": 15,
                    "noise multiplier": 2.45,
                    "noise shares guaranteed / realised": "33 / 48 to 50",
                    "events": "14 x gaussian(2.45)",
                },
                rounds=rounds,
                hypotheses=[
                    Hypothesis(name="plain SGD clients with a fixed data order", status="holds"),
                    Hypothesis(name="smooth loss with a proven constant", status="fails", detail="CNN"),
                ],
                seconds=64.7,
                bytes_up=9_812_000,
                bytes_down=14_002_000,
                epsilon={v: ledger.epsilon_by_stage(v, DELTA)["train"].epsilon for v in VIEWS},
            ),
        ]
        return RunReport(
            title="digits, 50 clients, Dirichlet 0.5",
            unit="client",
            adjacency="add_or_remove",
            delta=DELTA,
            views=views,
            stages=stages,
            warnings=[PER_RUN_LEDGER],
            settings={"stages": "tune,train", "num-clients": 50, "target-epsilon": 8.0, "delta": DELTA},
            environment={"fedpriv": "0.1.0", "dp-accounting": "0.6.0", "commit": "0123abc"},
            orders=[float(order) for order in DEFAULT_ORDERS],
            epsilon_curves={
                view: [
                    EpsilonPoint(stage=p.stage, round=p.round, epsilon=p.epsilon, release=p.release)
                    for p in ledger.epsilon_curve(DELTA, view)
                ]
                for view in VIEWS
            },
            budget=BudgetRecord(view="server", max_epsilon=8.0),
            outcome="All 15 rounds ran; one of them released nothing.",
            final_accuracy=0.8903,
            ledger=LedgerRecord(
                lines=ledger.num_lines, head=ledger.head, runs=list(ledger.runs), notes=list(ledger.notes)
            ),
            partition_figure="figures/partition.png",
            model_file="model.safetensors",
            created="2026-01-05T10:00:00+00:00",
        )


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return make_report(tmp_path_factory.mktemp("made"))
