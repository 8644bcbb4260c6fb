"""Noise and error of every matrix at equal epsilon, under three ways to account."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fedpriv.accounting import calibrate_noise_multiplier, gaussian_noise_multiplier
from fedpriv.accounting.allocation import FAMILIES, MatrixChoice, compare_matrices, run_errors
from fedpriv.accounting.events import PoissonGaussian
from fedpriv.accounting.matrices import identity, make_matrix
from fedpriv.accounting.matrix_gram import gram_lags

SCHEDULES = ((16, 1), (64, 4), (100, 10))
TARGETS = (0.5, 2.0, 8.0)
DELTA = 1e-6
BUFFERS = 3

Row = dict[str, Any]


def bands_up_to(bins: int) -> list[int]:
    """2, 4, 8, ... up to the bins, at most 32."""
    return [p for p in (2, 4, 8, 16, 32) if p <= bins]


def measure(
    schedules: Iterable[tuple[int, int]],
    targets: Iterable[float],
    delta: float = DELTA,
    known: Iterable[Row] = (),
    done: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """One row per schedule, target and matrix.

    Parameters
    ----------
    known : iterable of dict
        Rows of an interrupted run, which are not computed again.
    done : callable
        Told of every new row.
    """
    found = {_place(row): row for row in known}
    for bins, epochs in schedules:
        for target in targets:
            poisson: dict[str, float] = {}
            for family in FAMILIES:
                place = (bins, epochs, target, family)
                if place not in found:
                    poisson = poisson or _poisson(bins, epochs, target, delta)
                    found[place] = _row(bins, epochs, target, delta, family) | poisson
                    done(found[place])
    return list(found.values())


def _place(row: Row) -> tuple[int, int, float, str]:
    return row["bins"], row["epochs"], row["target"], row["matrix"]


def _row(bins: int, epochs: int, target: float, delta: float, family: Any) -> Row:
    (choice,) = compare_matrices(
        bins, epochs, target, delta, (family,), buffers=BUFFERS, bands=bands_up_to(bins)
    )
    plain_noise, plain_rmse, plain_size = _unamplified(bins, epochs, target, delta, family)
    same = math.sqrt(float(gram_lags(choice.matrix, bins)[0])) * gaussian_noise_multiplier(target, delta)
    return {
        "bins": bins,
        "epochs": epochs,
        "target": target,
        "matrix": family,
        "size": _size(choice),
        "noise": choice.noise_multiplier,
        "rmse": choice.rmse,
        "bound": choice.bound,
        "epsilon": choice.epsilon.epsilon,
        "lower": choice.epsilon.lower,
        "candidates": choice.epsilon.candidates,
        "same_matrix_unamplified_noise": same,
        "unamplified_noise": plain_noise,
        "unamplified_rmse": plain_rmse,
        "unamplified_size": plain_size,
    }


def _size(choice: MatrixChoice) -> str:
    if choice.name == "identity":
        return ""
    return f"{BUFFERS} buffers" if choice.name == "blt" else f"band {len(choice.matrix.coefficients)}"


def _unamplified(
    bins: int, epochs: int, target: float, delta: float, family: Any
) -> tuple[float, float, str]:
    """The best of the family where everybody knows the bins."""
    sizes = bands_up_to(bins) if family in ("bsr", "bisr", "bandmf") else [0]
    unit, best = gaussian_noise_multiplier(target, delta), (math.inf, math.inf, "")
    for size in sizes:
        matrix = make_matrix(family, bins, epochs, max(size, 1), BUFFERS)
        noise = unit * math.sqrt(float(gram_lags(matrix, bins)[0]))
        rmse = noise * run_errors(matrix)[0]
        if rmse < best[1]:
            best = noise, rmse, f"band {size}" if size else ""
    return best


def _poisson(bins: int, epochs: int, target: float, delta: float) -> dict[str, float]:
    """Independent noise where every client joins every round with probability 1/b."""
    noise = calibrate_noise_multiplier(
        lambda z: [(PoissonGaussian(1.0 / bins, z), bins * epochs)], target, delta, "add_or_remove"
    ).noise_multiplier
    return {"poisson_noise": noise, "poisson_rmse": noise * run_errors(identity(bins * epochs))[0]}


def violations(rows: list[Row]) -> list[str]:
    """What cannot be: every line is a fault of the accounting, none is expected.

    * the epsilon at the calibrated noise meets the target, with less than a thousandth to spare, and lies above the
      lower bound;
    * a larger epsilon needs less noise and gives a smaller error;
    * amplification never costs: the same matrix needs more noise where the bins are known;
    * the best correlated matrix without amplification is never worse than independent noise without it.
    """
    found = []
    for row in rows:
        place = f"b {row['bins']}, k {row['epochs']}, epsilon {row['target']:g}, {row['matrix']}"
        if not 0.998 * row["target"] < row["epsilon"] <= row["target"]:
            found.append(f"{place}: epsilon {row['epsilon']} at the calibrated noise")
        if row["lower"] > row["epsilon"]:
            found.append(f"{place}: lower bound {row['lower']} above {row['epsilon']}")
        if row["noise"] > row["same_matrix_unamplified_noise"] * (1 + 1e-3):
            found.append(f"{place}: needs more noise than without amplification")
        for other in rows:
            same = all(row[key] == other[key] for key in ("bins", "epochs", "matrix"))
            if same and other["target"] > row["target"]:
                for key in ("rmse", "unamplified_rmse", "poisson_rmse"):
                    if other[key] >= row[key]:
                        found.append(f"{place}: {key} does not fall with epsilon {other['target']:g}")
                if other["size"] == row["size"] and other["noise"] >= row["noise"]:
                    found.append(f"{place}: noise does not fall with epsilon {other['target']:g}")
    for row in rows:
        peers = [r for r in rows if all(r[k] == row[k] for k in ("bins", "epochs", "target"))]
        plain = next(r for r in peers if r["matrix"] == "identity")
        if row["matrix"] == "bandmf" and row["unamplified_rmse"] > plain["unamplified_rmse"]:
            found.append(f"b {row['bins']}, k {row['epochs']}: bandmf is worse than independent noise")
    return found
