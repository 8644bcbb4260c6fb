"""``fedpriv calibrate allocation --matrix all``: which strategy matrix to train with."""

from __future__ import annotations

from typing import Any

from fedpriv.accounting.allocation import compare_matrices
from fedpriv.accounting.matrices import StrategyMatrix
from fedpriv.cli.epsilon_families import neighbours_sentence
from fedpriv.cli.epsilon_output import short, table

BOUNDS = ("rdp", "profile", "grouping", "conditional", "unamplified")


def matrix_choice(
    *,
    target_epsilon: float,
    delta: float,
    bins: int,
    epochs: int,
    fixed: bool,
    band: int | None,
    buffers: int,
    conditional: bool,
) -> dict[str, Any]:
    """Calibrate all matrices, and training by Poisson sampling for comparison.

    Parameters
    ----------
    band : int or None
        None tries 2, 4, 8, ... up to the bins for each banded family.

    Returns
    -------
    dict
        Plain data: ``matrices``, the best one first, ``recommended``, ``poisson``.
    """
    bands = [2**i for i in range(1, 20) if 2**i <= max(bins, 2)] if band is None else [band]
    found = compare_matrices(
        bins,
        epochs,
        target_epsilon,
        delta,
        bands=bands,
        buffers=buffers,
        redraw=not fixed,
        conditional=conditional,
    )
    matrices = [
        {
            "matrix": choice.name,
            "size": _size(choice.matrix),
            "noise_multiplier": choice.noise_multiplier,
            "bound": choice.bound,
            "epsilon": choice.epsilon.epsilon,
            "epsilon_by_bound": choice.epsilon.candidates,
            "epsilon_lower": choice.epsilon.lower,
            "rmse": choice.rmse,
            "max_error": choice.max_error,
        }
        for choice in found
    ]
    return {
        "target_epsilon": target_epsilon,
        "delta": delta,
        "bins": bins,
        "epochs": epochs,
        "schedule": "fixed" if fixed else "redraw",
        "matrices": matrices,
        "recommended": matrices[0]["matrix"],
        "poisson": _poisson(target_epsilon, delta, bins, epochs),
    }


def _size(matrix: StrategyMatrix) -> str:
    if matrix.kind == "blt":
        return f"buffers {len(matrix.decays)}"
    return "-" if matrix.kind == "identity" else f"band {len(matrix.coefficients)}"


def _poisson(target_epsilon: float, delta: float, bins: int, epochs: int) -> dict[str, float]:
    """Independent noise where every client joins every round with probability 1/b instead."""
    from fedpriv.accounting.allocation import run_errors
    from fedpriv.accounting.calibration import calibrate_noise_multiplier
    from fedpriv.accounting.events import Gaussian, PoissonGaussian, PrivacyEvent
    from fedpriv.accounting.matrices import identity

    rounds = bins * epochs

    def event(z: float) -> PrivacyEvent:
        return PoissonGaussian(1.0 / bins, z) if bins > 1 else Gaussian(z)

    z = calibrate_noise_multiplier(
        lambda z: [(event(z), rounds)], target_epsilon, delta, "add_or_remove"
    ).noise_multiplier
    return {"noise_multiplier": z, "rmse": z * run_errors(identity(rounds))[0]}


def matrix_choice_text(data: dict[str, Any]) -> str:
    """The comparison as a table for people."""
    kept = "kept over all epochs" if data["schedule"] == "fixed" else "drawn again each epoch, noise afresh"
    lines = [
        f"random allocation to {data['bins']} bins, {data['epochs']} epochs, bins {kept}",
        f"target epsilon {data['target_epsilon']:g} at delta {data['delta']:g}, for a view that cannot see the bins",
        "",
    ]
    tried = [name for name in BOUNDS if any(name in m["epsilon_by_bound"] for m in data["matrices"])]
    rows = [["matrix", "size", "noise", "RMSE", "max error", "bound", *(f"by {name}" for name in tried)]]
    for entry in data["matrices"]:
        values = [short(entry["epsilon_by_bound"].get(name)) for name in tried]
        name = f"{entry['matrix']} *" if entry["matrix"] == data["recommended"] else entry["matrix"]
        numbers = [f"{entry[key]:.5g}" for key in ("noise_multiplier", "rmse", "max_error")]
        rows.append([name, entry["size"], *numbers, entry["bound"], *values])
    poisson = data["poisson"]
    best = data["matrices"][0]
    lines += table(rows)
    lines += [
        "",
        f"* recommended: {best['matrix']} ({best['size']}), the smallest root-mean-square error of the prefix sums",
        f"for comparison, independent noise under Poisson sampling at rate 1/{data['bins']}: noise "
        f"{poisson['noise_multiplier']:.5g}, RMSE {poisson['rmse']:.5g}",
        "",
        "noise: standard deviation of Z over the clip norm; errors: standard deviation of the released sums over the "
        "clip norm, per coordinate",
        neighbours_sentence("add_or_remove"),
    ]
    return "\n".join(lines)
