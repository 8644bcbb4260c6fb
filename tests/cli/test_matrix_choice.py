"""``fedpriv calibrate allocation --matrix all``: every noise meets the target, and the best matrix is recommended."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpriv.accounting.allocation import RandomAllocation, allocation_epsilon, compare_matrices, run_errors
from fedpriv.accounting.matrices import bsr, make_matrix
from fedpriv.cli import calibrate

COMMAND = "allocation --target-epsilon 2 --bins 2 --epochs 2 --matrix all --delta 1e-4 --buffers 1"


def run(text: str) -> Any:
    return CliRunner().invoke(calibrate.app, text.split())


@pytest.fixture(scope="module")
def choice() -> dict[str, Any]:
    result = run(f"{COMMAND} --json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_every_matrix_meets_the_target_with_hardly_any_noise_to_spare(choice: dict[str, Any]) -> None:
    assert sorted(m["matrix"] for m in choice["matrices"]) == ["bandmf", "bisr", "blt", "bsr", "identity"]
    for entry in choice["matrices"]:
        band = int(entry["size"].split()[-1]) if entry["size"].startswith("band") else 4
        matrix = make_matrix(entry["matrix"], 2, 2, band, 1)
        event = RandomAllocation(
            2, entry["noise_multiplier"], 2, matrix=None if entry["matrix"] == "identity" else matrix
        )
        found = allocation_epsilon(event, 1e-4)
        assert 1.999 < found.epsilon == entry["epsilon"] <= 2.0
        assert entry["bound"] == found.bound
        dense = np.tril(np.ones((4, 4))) @ np.linalg.inv(matrix.dense())
        rmse = entry["noise_multiplier"] * math.sqrt(float(np.sum(dense**2)) / 4)
        assert entry["rmse"] == pytest.approx(rmse)
        assert entry["max_error"] == pytest.approx(
            entry["noise_multiplier"] * float(np.linalg.norm(dense, axis=1).max())
        )


def test_the_recommended_one_has_the_smallest_error(choice: dict[str, Any]) -> None:
    errors = {m["matrix"]: m["rmse"] for m in choice["matrices"]}
    assert errors[choice["recommended"]] == min(errors.values())
    assert list(errors.values()) == sorted(errors.values())


def test_the_band_is_the_best_of_those_tried() -> None:
    (best,) = compare_matrices(4, 1, 2.0, 1e-4, ("bsr",), bands=(2, 4))
    each = [compare_matrices(4, 1, 2.0, 1e-4, ("bsr",), band)[0] for band in (2, 4)]
    assert best.rmse <= 1.01 * min(other.rmse for other in each)  # the search is on a coarse grid
    assert best.rmse in [other.rmse for other in each]


def test_redrawn_bins_sum_up_the_errors_of_their_epochs() -> None:
    matrix = bsr(4, 2)
    inverse = np.linalg.inv(matrix.dense())
    dense = np.tril(np.ones((12, 12))) @ np.kron(np.eye(3), inverse)
    rmse, largest = run_errors(matrix, 3)
    assert rmse == pytest.approx(math.sqrt(float(np.sum(dense**2)) / 12))
    assert largest == pytest.approx(float(np.linalg.norm(dense, axis=1).max()))
    (found,) = compare_matrices(4, 3, 2.0, 1e-4, ("bsr",), 2, redraw=True)
    event = RandomAllocation(4, found.noise_multiplier, 3, True, matrix)
    assert allocation_epsilon(event, 1e-4).epsilon == found.epsilon.epsilon <= 2.0
    assert found.rmse == pytest.approx(found.noise_multiplier * rmse)


def test_conditional_composition_is_tried_on_request() -> None:
    (found,) = compare_matrices(4, 1, 1.0, 1e-4, ("identity",), conditional=True)
    assert "conditional" in found.epsilon.candidates
    assert found.epsilon.epsilon == min(found.epsilon.candidates.values()) <= 1.0 + 1e-9


def test_text_for_people(choice: dict[str, Any]) -> None:
    from fedpriv.cli.matrix_choice import matrix_choice_text

    text = matrix_choice_text(choice)
    assert f"* recommended: {choice['recommended']}" in text
    for word in (
        "noise",
        "RMSE",
        "bound",
        "by rdp",
        "by grouping",
        "by profile",
        "Poisson sampling at rate 1/2",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COMMAND.replace("1e-4", "0"), "delta"),
        (COMMAND.replace("-epsilon 2", "-epsilon 0"), "--target-epsilon"),
        (COMMAND + " --adjacency replace_one", "add_or_remove"),
        (COMMAND + " --view release", "leave --view out"),
        (COMMAND.replace(" all", " bsr") + " --conditional", "--matrix all only"),
        (COMMAND.replace(" all", " none"), "matrix"),
    ],
)
def test_bad_calls_are_one_line_and_exit_code_2(text: str, message: str) -> None:
    result = run(text)
    assert result.exit_code == 2
    assert message in result.output
