"""The benchmark of the audit runs, and covers every plan that has an audit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.audit.__main__ import main
from benchmarks.audit.cases import cases
from fedpriv.audit.targets import TARGETS


def test_quick_run_of_one_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--only", "DP-HYPE vote", "--output", str(tmp_path)])
    assert "| DP-HYPE vote | server | many runs |" in capsys.readouterr().out
    found = json.loads((tmp_path / "audit.json").read_text())
    assert not found["refuted"] and len(found["rows"]) >= 2
    assert (tmp_path / "audit.png").stat().st_size > 5000


def test_every_audited_plan_has_a_case() -> None:
    plans = {type(case.make().configured).__name__ for case in cases()}  # type: ignore[attr-defined]
    assert plans == set(TARGETS)
