"""The whole app is killed with SIGKILL at every point and resumed; what left is compared with what was charged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.points import POINTS

ROOT = Path(__file__).resolve().parents[2]
#: Points after which the resumed run repeats a release that the ledger had charged.
TWICE = ("vote", "reserved", "masking", "masked", "marked", "unmasked", "committed", "evaluated", "part",
         "silo paid", "silos sent")  # fmt: skip
#: Of those, points at which no unmask request had left: charged all the same, since a crash cannot prove it.
OVER = ("reserved", "masking", "masked", "marked", "silo paid", "silos sent")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Figures of one run of the script that makes the table of docs/deployment.md."""
    folder = tmp_path_factory.mktemp("faults")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults", "--output", str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    data: dict[str, Any] = json.loads((folder / "faults.json").read_text())
    data["server"] = {point.key: row for point, row in zip(POINTS, data["server"], strict=True)}
    return data


@pytest.mark.parametrize("key", [point.key for point in POINTS])
def test_a_server_killed_here_resumes_and_never_under_counts(found: dict[str, Any], key: str) -> None:
    row = found["server"][key]
    assert row["problems"] == []
    assert row["charged_before"] - row["sent_before"] == (1 if key in OVER else 0)
    assert row["charged"] - row["sent"] == (1 if key in OVER else 0)
    assert (row["repeated"] == "nothing") == (key not in TWICE)
    assert row["rounds"] == ("3 of 4" if key in TWICE else "4 of 4")  # the budget pays for the repeated round
    assert row["epsilon"] <= 8.0


def test_what_is_lost_is_what_no_checkpoint_holds(found: dict[str, Any]) -> None:
    lost = {key: row["lost"] for key, row in found["server"].items()}
    assert lost["vote"] == "the vote"
    assert lost["committed"] == lost["part"] == lost["reserved"] == "round 2"
    assert lost["saved"] == lost["unreserved"] == lost["torn"] == lost["report"] == "nothing"


def test_a_silos_own_account_survives_and_never_under_counts(found: dict[str, Any]) -> None:
    paid, sent = found["server"]["silo paid"], found["server"]["silos sent"]
    assert (paid["account_before"], paid["models_before"]) == (2, 1)  # it paid for a model that never left
    assert (paid["account"], paid["models"]) == (4, 3)
    assert (sent["account_before"], sent["models_before"]) == (2, 2)
    assert (sent["account"], sent["models"]) == (4, 4)


def test_a_silo_that_dies_costs_its_round_only(found: dict[str, Any]) -> None:
    assert len(found["silos"]) >= 2 * 2 * 2  # what dies, exchanges, federations
    for row in found["silos"]:
        assert row["next_survivors"] == row["silos"]
        last = row["exchange"] == "unmask"
        if row["silos"] > row["min_survivors"]:
            assert (row["survivors"], row["status"]) == (row["silos"] - (not last), "committed")
        else:  # too few are left: nothing is released, and nothing charged before an unmask request has left
            assert (row["survivors"], row["status"]) == (0, "committed" if last else "void")


def test_the_documented_table_is_that_of_the_script(found: dict[str, Any]) -> None:
    """Words and counts of every row; the figures themselves are written by the script."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    for row in found["server"].values():
        cells = [row["words"], row["at_restart"]]
        if row["models"]:
            cells += [
                f"{row['account_before']} / {row['models_before']}",
                f"{row['account']} / {row['models']}",
            ]
        else:
            cells += [row["lost"], f"{row['charged_before']} / {row['sent_before']}"]
        cells += [f"{row['charged']} / {row['sent']}"]
        assert "| " + " | ".join([*cells, row["rounds"]]) + " |" in text, row["words"]
    for row in found["silos"]:
        assert (
            f"| {row['what']} | {row['exchange']} | {row['round']} | {row['silos']} | {row['min_survivors']} |"
            in text
        )
