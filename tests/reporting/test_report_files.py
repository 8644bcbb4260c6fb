"""report.json, report.md and the claim in its first line."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedpriv.accounting import VIEWS
from fedpriv.ledger import read_ledger
from fedpriv.reporting import (
    CLEAR_METRICS,
    SEEDED_NOISE,
    SIMULATED_SUM,
    Hypothesis,
    PacRecord,
    RoundRecord,
    RunReport,
    StageReport,
    ViewReport,
    VoteRecord,
    Warning,
    claim,
    format_epsilon,
    read_report,
    write_report,
)
from fedpriv.reporting.claim import format_nats
from fedpriv.reporting.markdown import format_bytes, format_orders, to_markdown


def changed(report: RunReport, **updates) -> RunReport:
    return report.model_copy(update=updates, deep=True)


def views(server: float, participants: float, release: float, bound: str = "rdp") -> dict[str, ViewReport]:
    values = zip(VIEWS, (server, participants, release), strict=True)
    return {view: ViewReport(epsilon=e, bound="none" if math.isinf(e) else bound) for view, e in values}


def test_the_first_line_is_the_claim(report):
    text = to_markdown(report, {})
    first = text.splitlines()[0]
    assert first == claim(report)
    epsilon = report.views["server"].epsilon
    for part in (
        "Client-level",
        "add_or_remove",
        "delta 0.001",
        f"epsilon {format_epsilon(epsilon)} for the server",
    ):
        assert part in first
    assert all(f"the {view} view" in first for view in VIEWS)
    assert "exact Gaussian accountant" in first


def test_each_view_gets_its_own_number_and_accountant(report):
    mixed = views(8.0, 6.0, 1.5) | {"release": ViewReport(epsilon=1.5, bound="pld")}
    line = claim(changed(report, views=mixed))
    assert re.search(r"epsilon 8\.000 for the server view \([^)]*Rényi accountant\)", line)
    assert re.search(r"epsilon 6\.000 for the participants view", line)
    assert re.search(r"epsilon 1\.500 for the release view \([^)]*loss distribution accountant\)", line)


def test_a_view_without_a_guarantee_is_said_in_words(report):
    line = claim(changed(report, views=views(math.inf, 6.0, 1.5)))
    assert "no guarantee for the server view" in line
    assert "epsilon 6.000 for the participants view" in line
    nothing = claim(changed(report, views=views(math.inf, math.inf, math.inf)))
    assert nothing.startswith("No differential privacy is claimed in any view")


def test_seeded_noise_takes_the_claim_back(report):
    line = claim(changed(report, warnings=[SEEDED_NOISE]))
    assert line.startswith("NO PRIVACY IN THIS RUN (seeded noise: not private).")


def test_severe_warnings_end_the_claim_and_open_the_report(report):
    warned = changed(
        report, warnings=[Warning(text="small print"), SIMULATED_SUM, CLEAR_METRICS, SEEDED_NOISE]
    )
    first, _, *rest = to_markdown(warned, {}).splitlines()
    assert "metrics released without noise: no guarantee covers them" in first
    assert "secure sum was simulated" in first
    assert "small print" not in first
    assert rest[0] == "- **Warning: seeded noise: not private**"
    assert rest[1].startswith("- **Warning: secure sum was simulated")
    assert rest[2].startswith("- **Warning: metrics released without noise")
    assert rest[3] == "- Note: small print"
    assert next(line for line in rest if line.startswith("#")) == f"# {report.title}"


@given(st.floats(1e-9, 1e5))
def test_a_printed_epsilon_never_claims_more_than_the_number(value):
    printed = float(format_epsilon(value))
    assert value * (1 - 1e-9) - 1e-10 <= printed <= value * 1.01 + 1e-3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.2781, "7.279"),
        (7.28, "7.280"),
        (0.0, "0"),
        (math.inf, "infinite"),
        (None, "-"),
        (3.362e-5, "0.0000337"),
    ],
)
def test_epsilons_are_rounded_up(value, text):
    assert format_epsilon(value) == text


def test_json_round_trip_keeps_everything_infinities_included(report):
    odd = changed(report, views=views(math.inf, 6.0, 0.0), pac=[PacRecord(stage="p", silo="a", nats=1e-7)])
    odd.stages[0].table = {"noise": math.inf, "flag": True, "nothing": None, "count": 3, "rate": 0.1}
    assert odd.stages[0].table["noise"] == "inf"
    for made in (report, odd):
        again = RunReport.from_json(made.to_json())
        assert again == made
        assert again.to_json() == made.to_json()
    strict = json.loads(odd.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert strict["views"]["server"]["epsilon"] == "Infinity"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda r: changed(r).model_copy(), None),
        (lambda r: RunReport(**(r.model_dump() | {"delta": 1.0})), "delta"),
        (
            lambda r: RunReport(**(r.model_dump() | {"views": {"server": r.views["server"].model_dump()}})),
            "release",
        ),
        (lambda r: RunReport(**(r.model_dump() | {"losses": [1.0]})), "losses"),
        (lambda r: ViewReport(epsilon=math.nan, bound="rdp"), "epsilon"),
        (lambda r: ViewReport(epsilon=-0.1, bound="rdp"), "epsilon"),
        (lambda r: Hypothesis(name="smooth", status="maybe"), "status"),
        (lambda r: RoundRecord(round=1, accuracy=89.0), "accuracy"),
        (lambda r: RoundRecord(round=1, epsilon={"clients": 1.0}), "epsilon"),
        (
            lambda r: VoteRecord(
                candidates=[{"lr": 1}],
                tallies=[1.0, 2.0],
                chosen=0,
                votes_per_client=1,
                voters=3,
                noise_std=1.0,
            ),
            "2 tallies for 1 candidates",
        ),
        (
            lambda r: VoteRecord(
                candidates=[{"lr": 1}], tallies=[1.0], chosen=1, votes_per_client=1, voters=3, noise_std=1.0
            ),
            "chosen",
        ),
    ],
)
def test_bad_data_is_refused_by_name(report, make, field):
    if field is None:
        assert make(report) == report
        return
    with pytest.raises(ValidationError, match=field):
        make(report)


def test_sections_stand_in_their_order(report):
    text = to_markdown(report, {"epsilon_over_rounds": "figures/e.png", "tallies": "figures/t.png"})
    places = [
        text.index(part)
        for part in (
            "## What was leaked to whom",
            "![Epsilon over releases, per view](figures/e.png)",
            "## Assumptions",
            "## Stage tune",
            "![Noisy tallies of tune](figures/t.png)",
            "## Stage train",
            "## Accuracy",
            "## How the data was split",
            "## Time and traffic",
            "## How to recompute this",
            "## Load the model",
            "## Settings",
        )
    ]
    assert places == sorted(places)
    assert "- *holds* (tune) every client adds its noise share: 50 of 50" in text
    assert "- *assumed* (tune) fewer than 17 clients collude" in text
    assert "- *fails* (train) smooth loss with a proven constant: CNN" in text


def test_a_reviewer_finds_what_to_recompute(report):
    text = to_markdown(report, {})
    for part in (
        "| clip norm | 1 |",
        "| normalisation | sum divided by the fixed number of clients, 50 |",
        "| sampling rate | 1 |",
        "| rounds | 15 |",
        "| noise multiplier | 2.45 |",
        "| noise shares guaranteed / realised | 33 / 48 to 50 |",
        "| dp-accounting | 0.6.0 |",
        "| commit | 0123abc |",
        "1.1 to 11 by 0.1, 12 to 63 by 1, 128, 256, 512, 1024",
        f"fedpriv ledger verify ledger.jsonl --head {report.ledger.head}",
        "fedpriv ledger show ledger.jsonl --delta 0.001",
        "22 of 34 clients needed",
        "Budget: epsilon 8 in the server view; left: ",
        "learning-rate 0.1, local-steps 5, clip-norm 1 (**chosen**) | 38.40 |",
    ):
        assert part in text, part


def test_tables_are_rectangular_whatever_they_hold(report):
    odd = changed(report, settings={"note": "a | b\nc", "grid": {"lr": [0.1, 0.2]}, "off": None})
    text = to_markdown(odd, {})
    assert "a \\| b c" in text and "lr = 0.1, 0.2" in text
    widths: list[int] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(widths)) <= 1
            widths = []


def test_pac_nats_are_reported_apart(report):
    text = to_markdown(changed(report, pac=[PacRecord(stage="one-bit", silo="ward-7", nats=0.25)]), {})
    assert "This is not differential privacy" in text
    assert "| one-bit | ward-7 | 0.25 | - | - |" in text
    assert "ward-7" not in claim(report)


def test_a_run_under_pac_privacy_alone_claims_no_epsilon(report):
    record = PacRecord(stage="paczero", silo="each", nats=0.11, success=0.7311, comparison_epsilon=1.0)
    stage = StageReport(
        name="paczero",
        kind="one bit a round",
        rounds=[RoundRecord(round=i, nats=0.055 * i, diagnostics={"unanimous silos": i % 2}) for i in (1, 2)],
    )
    alone = changed(report, stages=[stage], pac=[record], private=False, budget=None)
    assert claim(alone).startswith("PAC privacy of paczero, not differential privacy: ")
    assert "at most 0.11 nats" in claim(alone)
    assert "at most 73.11 %" in claim(alone)
    assert "epsilon" not in claim(alone)
    text = to_markdown(alone, {"diagnostics_paczero": "figures/diagnostics_paczero.png"})
    assert "What was leaked to whom" not in text
    assert "| paczero | each | 0.11 | 73.11 % | 1.000 |" in text
    assert "unanimous silos (simulation only)" in text
    assert "figures/diagnostics_paczero.png" in text


def test_a_vote_before_a_pac_stage_is_claimed_alone(report):
    record = PacRecord(stage="train", silo="each", nats=0.0, success=0.5)
    sentence = claim(changed(report, pac=[record]))
    assert sentence.startswith("Client-level differential privacy of tune alone, ")
    assert (
        "PAC privacy of train, not differential privacy: all releases of a silo together carry at most 0 nats"
        in sentence
    )


def test_long_stages_fold_their_rounds(report):
    stage = StageReport(
        name="train", kind="x", rounds=[RoundRecord(round=i, seconds=0.1) for i in range(1, 101)]
    )
    text = to_markdown(changed(report, stages=[stage], final_accuracy=None), {})
    assert "<summary>100 rounds</summary>" in text
    assert "Not evaluated" in text


def test_write_report_leaves_the_files_and_replaces_them(report, tmp_path):
    files = write_report(tmp_path / "run", report)
    assert [path.relative_to(tmp_path / "run").as_posix() for path in files] == [
        "report.md",
        "report.html",
        "report.json",
        "figures/epsilon_over_rounds.png",
        "figures/accuracy_over_rounds.png",
        "figures/tallies.png",
    ]
    text = files[0].read_text(encoding="utf-8")
    for path in files[3:]:
        assert f"]({path.relative_to(tmp_path / 'run').as_posix()})" in text
    assert read_report(tmp_path / "run") == read_report(files[2]) == report
    write_report(tmp_path / "run", changed(report, title="another"))
    assert read_report(tmp_path / "run").title == "another"
    assert not list((tmp_path / "run").glob("*.tmp"))


def test_the_report_and_the_ledger_state_the_same_numbers(report, tmp_path_factory):
    ledgers = [p for p in tmp_path_factory.getbasetemp().glob("made*/ledger.jsonl")]
    ledger = read_ledger(ledgers[0])
    assert ledger.head == report.ledger.head
    for view in VIEWS:
        assert report.views[view].epsilon == ledger.epsilon(view, report.delta).epsilon
        assert report.epsilon_curves[view][-1].epsilon == report.views[view].epsilon
    assert sum(entry.charged for entry in ledger.entries) == 15


def test_small_formats():
    assert format_orders([2, 3]) == "2, 3"
    assert format_orders([]) == ""
    assert (format_bytes(0), format_bytes(12_345), format_bytes(7_000_000_000)) == (
        "0 B",
        "12.35 kB",
        "7.00 GB",
    )


def test_an_infinite_epsilon_has_no_bound_and_a_void_run_says_so_at_its_numbers(report):
    text = to_markdown(changed(report, views=views(math.inf, 6.0, 1.5)), {})
    (row,) = [line for line in text.splitlines() if line.startswith("| server |")]
    assert "**infinite** | none |" in row
    assert "None of these numbers is true" not in text
    void = to_markdown(changed(report, warnings=[SEEDED_NOISE]), {})
    place = void.index("None of these numbers is true of this run")
    assert void.index("## What was leaked to whom") < place < void.index("| server |")


def test_words_of_the_tables(report):
    text = to_markdown(report, {})
    assert "| epsilon so far, at most (all views) |" in text
    assert "| epsilon of this stage alone, all views |" in text
    assert "\n\nAll 15 rounds ran; one of them released nothing.\n\n" in text
    stage = report.stages[0].model_copy(
        update={
            "epsilon": {"server": 2.0, "participants": 2.0, "release": 1.0},
            "vote": report.stages[0].vote.model_copy(update={"votes_per_client": 1}),
        }
    )
    mixed = to_markdown(changed(report, stages=[stage], outcome="stopped early"), {})
    assert "| epsilon of this stage alone, server and participants views | 2.000 |" in mixed
    assert "| epsilon of this stage alone, release view | 1.000 |" in mixed
    assert "50 clients cast 1 vote each" in mixed
    assert "\n\nStopped early.\n\n" in mixed


@given(st.floats(1e-12, 1e4))
def test_printed_nats_never_claim_more_than_the_number(value):
    printed = float(format_nats(value))
    assert value * (1 - 1e-9) <= printed <= value * 1.002
