"""The page of reproduced claims says what its results say, and a verdict follows from its checks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reproduction.__main__ import CLAIMS, PAGE, RESULTS, main, stored_page
from benchmarks.reproduction.allocation import sampled_delta
from benchmarks.reproduction.claim import PAPERS, Check, Finding
from benchmarks.reproduction.iteration import last_models, most_that_an_attack_can_win
from benchmarks.reproduction.votes import noise_std
from fedpriv.accounting import gaussian_delta


def finding(*holds: bool) -> Finding:
    return Finding([Check("words", held, "figure") for held in holds])


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [((True, True), "reproduced"), ((True, False), "partly"), ((False,), "not"), ((False, False), "not")],
)
def test_a_verdict_follows_from_the_checks(holds: tuple[bool, ...], verdict: str) -> None:
    assert finding(*holds).verdict == verdict


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    assert PAGE.read_text() == stored_page(RESULTS)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_every_claim_has_a_stored_result_whose_verdict_fits_its_checks(claim) -> None:  # type: ignore[no-untyped-def]
    stored = json.loads((RESULTS / f"{claim.key}.json").read_text())
    assert claim.paper in PAPERS
    assert stored["verdict"] == finding(*(check["holds"] for check in stored["checks"])).verdict
    assert (
        stored["checks"] and stored["rows"] and all(len(r) == len(stored["header"]) for r in stored["rows"])
    )
    if claim.draw is not None:
        assert (RESULTS / f"{claim.key}.png").stat().st_size > 5000


def test_a_quick_run_of_cheap_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["votes-against-tally", "vote-noise", "iteration-bound", "--quick", "--output", str(tmp_path)])
    assert "vote-noise: reproduced" in capsys.readouterr().out
    page = (tmp_path / PAGE.name).read_text()
    assert "## iteration-bound" in page and "does **not** hold: the published rule" in page
    assert (tmp_path / "votes-against-tally.png").exists()


def test_claims_that_read_other_benchmarks_name_them(tmp_path: Path) -> None:
    main(["vote-utility", "pac-zero-plateau", "--output", str(tmp_path)])
    for key, source in (("vote-utility", "benchmarks/dp_hype"), ("pac-zero-plateau", "benchmarks/finetune")):
        assert json.loads((tmp_path / f"{key}.json").read_text())["source"] == source


@pytest.mark.parametrize("arguments", [["no-such-claim"], ["--quick"]])
def test_what_cannot_be_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)


def test_the_vote_noise_is_that_of_the_analytic_gaussian() -> None:
    assert gaussian_delta(noise_std(4, 100, 0.25) / 2, 0.25) == pytest.approx(1e-5, rel=1e-6)


def test_sampling_with_one_bin_finds_the_gaussian() -> None:
    seen, error = sampled_delta(0.5, 1, 1.0, 200_000, np.random.default_rng(1))
    assert abs(seen - gaussian_delta(1.0, 0.5)) < 5 * error


def test_the_attacked_chain_stays_in_its_ball_and_the_member_moves_it() -> None:
    rng = np.random.default_rng(0)
    inside, outside = (last_models(16, 1.0, member, 2000, rng) for member in (True, False))
    assert np.linalg.norm(inside, axis=1).max() <= 0.5 * (1 + 1e-12)
    gap = outside[:, 0].mean() - inside[:, 0].mean()
    assert gap > 5 * inside[:, 0].std() / np.sqrt(2000)


def test_the_limit_of_an_attack_falls_with_the_noise() -> None:
    assert 0.5 < most_that_an_attack_can_win(16) < most_that_an_attack_can_win(1) < 1
