"""The Python blocks of docs/reuse.md and of the README run, and print what they say they print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import promises, python_blocks, run_block
from flwr.app import Array, ArrayRecord

from fedpriv.testing import LocalGrid


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_the_blocks_of_reuse_run_in_order(in_a_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = "docs/reuse.md"
    blocks = python_blocks(document)
    assert len(blocks) == 12
    namespace: dict[str, Any] = {}
    promised: list[str] = []
    for line, code in blocks:
        run_block(document, line, code, namespace)
        promised += promises(code)
    # A promise inside a function is kept when a later block calls it.
    printed = [text for text in capsys.readouterr().out.splitlines() if text in promised]
    assert sorted(printed) == sorted(promised)
    assert len(promised) >= 10
    for name in ("training", "vote", "counts", "own", "records"):
        assert (in_a_folder / f"{name}.jsonl").exists()


def test_the_blocks_of_the_readme_run_in_order(in_a_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = "README.md"
    (first_line, client), (second_line, server) = python_blocks(document)
    namespace: dict[str, Any] = {}
    run_block(document, first_line, client, namespace)
    namespace["grid"] = LocalGrid(namespace["app"], num_nodes=50)
    namespace["initial_arrays"] = ArrayRecord({"weights": Array(np.zeros(650, dtype=np.float32))})
    shorter = server.replace(
        "num_rounds=15", "num_rounds=1"
    )  # fifteen rounds of fifty clients take half a minute
    assert shorter != server
    run_block(document, second_line, shorter, namespace)
    assert namespace["result"].train_metrics_clientapp[1]["survivors"] == 50
    assert "epsilon=" in capsys.readouterr().out
