"""Strategy matrices of correlated noise: their definitions, what one unit moves, and the error of prefix sums.

A matrix mechanism releases ``C X + Z`` with Z i.i.d. Gaussian, or equivalently ``X + C^-1 Z``: row t of X is the sum
of contributions of round t. All matrices here are N x N, lower triangular, Toeplitz and entrywise non-negative:
``C[t, u] = c_{t-u}``. The inverse is Toeplitz too, and can be streamed (`StrategyMatrix.inverse_column`):

* banded C (``bsr``, ``bandmf``): ``out_t = (z_t - sum_{j=1}^{p-1} c_j out_{t-j}) / c_0``, the last p - 1 outputs;
* banded inverse (``bisr``): ``out_t = sum_{j<p} d_j z_{t-j}``, the last p noises;
* ``blt``: with one state per buffer, ``out_t = z_t / c_0 - sum_j w_j s_j``, then ``s_j <- theta_j s_j + out_t``.

A unit of bin i takes part in the rounds i, i + b, i + 2 b, ... and its mean vector m_i is the sum of those columns.
The factories scale C so that its first column has norm 1; then the noise multiplier is relative to one participation.

Sources: BSR: Kalinin and Lampert 2024 (arXiv 2405.13763); BISR: Kalinin, McKenna, Upadhyay, Lampert 2025 (arXiv
2505.12128); banded matrices: Choquette-Choo et al. 2023 (arXiv 2306.08153); BLT: Dvijotham, McMahan, Pillutla,
Steinke, Thakurta 2024 (arXiv 2404.16706) and McMahan, Xu, Zhang 2024 (arXiv 2408.08868).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np

from fedpriv.accounting.ratio_law import FloatArray
from fedpriv.accounting.validators import InvalidArgument, check_choice, check_integer

MatrixKind = Literal["identity", "bsr", "bisr", "bandmf", "blt", "toeplitz"]
MATRIX_KINDS: Final[tuple[MatrixKind, ...]] = get_args(MatrixKind)


@dataclass(frozen=True)
class StrategyMatrix:
    """A lower-triangular, non-negative Toeplitz strategy matrix.

    Parameters
    ----------
    kind : {"identity", "bsr", "bisr", "bandmf", "blt", "toeplitz"}
        Family; use the factories `identity`, `bsr`, `bisr`, `bandmf`, `blt` and `toeplitz`.
    rounds : int
        N, number of rows.
    coefficients : tuple of float
        c_0..c_{p-1} of a banded matrix; d_0..d_{p-1} of the inverse for ``bisr``; (c_0,) for ``blt``.
    decays, weights : tuple of float
        theta_j in [0, 1) and w_j >= 0 of a BLT: ``c_t = c_0 sum_j w_j theta_j^(t-1)`` for t >= 1.

    Notes
    -----
    Formal guarantees: every entry of C is >= 0 and c_0 > 0 (anything else is refused); C times the matrix of
    `inverse_column` is the identity.
    """

    kind: MatrixKind
    rounds: int
    coefficients: tuple[float, ...] = (1.0,)
    decays: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_choice(MATRIX_KINDS, kind=self.kind)
        check_integer(1, rounds=self.rounds)
        for name in ("coefficients", "decays", "weights"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if (
            not self.coefficients
            or not all(map(math.isfinite, self.coefficients))
            or self.coefficients[0] <= 0
        ):
            raise InvalidArgument(
                f"coefficients must be finite and start with a number > 0, got {self.coefficients}"
            )
        if len(self.decays) != len(self.weights):
            raise InvalidArgument(
                f"decays and weights must have one length, got {self.decays}, {self.weights}"
            )
        if any(not 0 <= decay < 1 for decay in self.decays):
            raise InvalidArgument(f"decays must be in [0, 1), got {self.decays}")
        column = _column(self)
        if not (np.isfinite(column).all() and (column >= 0).all()):
            raise InvalidArgument(
                f"every entry of the strategy matrix must be finite and >= 0, got {float(column.min())}"
            )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "StrategyMatrix":
        """Rebuild a matrix from the dictionary of its fields."""
        arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**arguments)

    @property
    def band(self) -> int | None:
        """p when C has p diagonals (1: a multiple of the identity), None when it is dense."""
        return None if self.kind in ("bisr", "blt") else min(len(self.coefficients), self.rounds)

    @property
    def memory(self) -> int:
        """Number of past vectors that streaming the noise needs."""
        return len(self.decays) if self.kind == "blt" else len(self.coefficients) - 1

    def column(self) -> FloatArray:
        """c_0..c_{N-1}, the first column of C (read-only)."""
        return _column(self)

    def inverse_column(self) -> FloatArray:
        """d_0..d_{N-1}, the first column of the inverse of C (read-only)."""
        return _inverse_column(self)

    def dense(self) -> FloatArray:
        """C as an array of shape (N, N)."""
        return toeplitz_matrix(self.column())

    def prefix_coefficients(self) -> FloatArray:
        """First column of ``A C^-1``, A the matrix of prefix sums: the error of the n-th sum is made of the first n."""
        return np.cumsum(self.inverse_column())

    def prefix_rmse(self) -> float:
        """Root mean square over rounds of the error of the prefix sums, for Z of standard deviation 1."""
        squares = self.prefix_coefficients() ** 2
        return math.sqrt(float(squares @ np.arange(self.rounds, 0, -1)) / self.rounds)

    def prefix_max_error(self) -> float:
        """Largest standard deviation of a prefix sum's error, for Z of standard deviation 1."""
        return math.sqrt(float((self.prefix_coefficients() ** 2).sum()))


def identity(rounds: int) -> StrategyMatrix:
    """Independent noise in every round."""
    return StrategyMatrix("identity", rounds)


def toeplitz(coefficients: tuple[float, ...], rounds: int) -> StrategyMatrix:
    """A banded Toeplitz matrix with the given first column, as it is (not normalised)."""
    return StrategyMatrix("toeplitz", rounds, tuple(coefficients))


def bsr(rounds: int, band: int) -> StrategyMatrix:
    """Banded square root: the first p coefficients of ``(1 - x)^(-1/2)``, normalised."""
    check_integer(1, rounds=rounds, band=band)
    return StrategyMatrix("bsr", rounds, _normalised(_square_root(min(band, rounds))))


def bisr(rounds: int, band: int) -> StrategyMatrix:
    """Banded inverse square root: C^-1 has the first p coefficients of ``(1 - x)^(1/2)``; C normalised."""
    check_integer(1, rounds=rounds, band=band)
    root = _square_root(min(band, rounds))
    inverse = -root / (2 * np.arange(root.size) - 1)
    scale = float(np.linalg.norm(_reciprocal(inverse, rounds)))
    return StrategyMatrix("bisr", rounds, tuple(inverse * scale))


@lru_cache(maxsize=64)
def bandmf(rounds: int, band: int) -> StrategyMatrix:
    """Banded Toeplitz matrix with the smallest root-mean-square error of prefix sums at column norm 1.

    Its coefficients are found by L-BFGS-B over ``c_1..c_{p-1} >= 0``, from the banded square root. For units that
    take part at least p rounds apart the sensitivity depends on the column norm alone.
    """
    check_integer(1, rounds=rounds, band=band)
    start = _square_root(min(band, rounds))
    if start.size == 1:
        return StrategyMatrix("bandmf", rounds)
    from scipy import optimize

    shares = np.arange(rounds, 0, -1) / rounds

    def objective(free: FloatArray) -> tuple[float, FloatArray]:
        c = np.concatenate([[1.0], free])
        inverse = _reciprocal(c, rounds)
        prefix = np.cumsum(inverse)
        weighted = shares * prefix
        error, norm = float(weighted @ prefix), float(c @ c)
        # The derivative of prefix in c_j is minus (prefix * inverse) shifted by j.
        product = _divided(prefix, c)
        slopes = np.array([weighted[j:] @ product[: rounds - j] for j in range(1, c.size)])
        return math.log(error) + math.log(norm), -2 * slopes / error + 2 * free / norm

    found = optimize.minimize(
        objective, start[1:], jac=True, method="L-BFGS-B", bounds=[(0, None)] * (start.size - 1)
    )
    return StrategyMatrix("bandmf", rounds, _normalised(np.concatenate([[1.0], found.x])))


@lru_cache(maxsize=64)
def blt(bins: int, epochs: int = 1, buffers: int = 3) -> StrategyMatrix:
    """Buffered linear Toeplitz matrix for N = bins * epochs rounds, optimised for one participation per epoch.

    Minimises the root-mean-square error of prefix sums times ``|m_0|`` over decays and weights (L-BFGS-B from fixed
    starting points).
    """
    check_integer(1, bins=bins, epochs=epochs, buffers=buffers)
    from scipy import optimize

    rounds = bins * epochs
    shares = np.arange(rounds, 0, -1) / rounds

    def unpack(x: FloatArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
        decays = 1 / (1 + np.exp(-np.clip(x[:buffers], -30, 30)))
        return tuple(np.minimum(decays, 1 - 1e-9)), tuple(np.exp(np.clip(x[buffers:], -30, 3)))

    def objective(x: FloatArray) -> float:
        column, inverse = _blt_columns(1.0, *unpack(x), rounds)
        with np.errstate(over="ignore", invalid="ignore"):
            error = float(shares @ np.cumsum(inverse) ** 2)
        if not math.isfinite(error) or error > 1e100:
            return 300.0
        return math.log(error) + 2 * math.log(np.linalg.norm(first_bin_of(column, bins)))

    starts = []
    for spread in (1.0, 0.5):
        # Time constants spread geometrically between one round and the whole run.
        constants = np.exp(np.linspace(0.5, max(spread * math.log(rounds + 1), 0.6), buffers))
        decays = np.exp(-1 / constants)
        weights = 0.5 / (buffers * np.sqrt(constants))
        starts.append(np.concatenate([np.log(decays / (1 - decays)), np.log(weights)]))
    if buffers > 1:
        # The best matrix with one buffer less, and a buffer that hardly counts.
        fewer = blt(bins, epochs, buffers - 1)
        decays = np.clip(np.append(fewer.decays, 0.5), 1e-12, 1 - 1e-9)
        weights = np.maximum(np.append(fewer.weights, 1e-6), 1e-13)
        starts.append(np.concatenate([np.log(decays / (1 - decays)), np.log(weights)]))
    found = [
        optimize.minimize(objective, start, method="L-BFGS-B", options={"maxiter": 300}) for start in starts
    ]
    best = min(found, key=lambda result: float(result.fun))
    decays_found, weights_found = unpack(best.x)
    norm = float(np.linalg.norm(_blt_columns(1.0, decays_found, weights_found, rounds)[0]))
    return StrategyMatrix("blt", rounds, (1 / norm,), decays_found, weights_found)


def make_matrix(
    kind: MatrixKind, bins: int, epochs: int = 1, band: int = 4, buffers: int = 3
) -> StrategyMatrix:
    """The strategy matrix of a family for ``bins * epochs`` rounds.

    Parameters
    ----------
    kind : {"identity", "bsr", "bisr", "bandmf", "blt"}
        ``toeplitz`` is a form of matrix, not a family.
    bins : int
        Rounds per epoch, b >= 1.
    epochs : int
        k >= 1.
    band : int
        Band of bsr, bisr and bandmf.
    buffers : int
        Buffers of blt.

    Raises
    ------
    InvalidArgument
        When the kind is none of these, or a number is out of range.
    """
    check_integer(1, bins=bins, epochs=epochs)
    rounds = bins * epochs
    factories = {
        "identity": lambda: identity(rounds),
        "bsr": lambda: bsr(rounds, band),
        "bisr": lambda: bisr(rounds, band),
        "bandmf": lambda: bandmf(rounds, band),
        "blt": lambda: blt(bins, epochs, buffers),
    }
    check_choice(tuple(factories), kind=kind)
    return factories[kind]()


def toeplitz_matrix(column: FloatArray) -> FloatArray:
    """Lower-triangular Toeplitz matrix with the given first column."""
    size = column.size
    padded = np.concatenate([np.zeros(size - 1), column])
    return np.lib.stride_tricks.sliding_window_view(padded, size)[:, ::-1].copy()


def first_bin_of(column: FloatArray, bins: int) -> FloatArray:
    """Sum of the columns of the rounds 0, b, 2b, ... of a Toeplitz matrix."""
    return np.cumsum(column.reshape(-1, bins), axis=0).ravel()


def _square_root(size: int) -> FloatArray:
    """First coefficients of ``(1 - x)^(-1/2)``: ``prod_{j<=k} (2 j - 1) / (2 j)``."""
    j = np.arange(1, size)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def _normalised(coefficients: FloatArray) -> tuple[float, ...]:
    return tuple(float(value) for value in coefficients / np.linalg.norm(coefficients))


def _divided(series: FloatArray, polynomial: FloatArray) -> FloatArray:
    """Coefficients of a power series over a polynomial (its constant term not 0), as many as the series has."""
    from scipy.linalg import blas

    degree = min(polynomial.size, series.size)
    diagonals = np.asfortranarray(np.repeat(polynomial[:degree, None], series.size, axis=1))
    return blas.dtbsv(degree - 1, diagonals, series, lower=1)


def _reciprocal(coefficients: FloatArray, size: int) -> FloatArray:
    """First coefficients of one over a polynomial."""
    impulse = np.zeros(size)
    impulse[0] = 1.0
    return _divided(impulse, coefficients)


def _blt_columns(
    first: float, decays: tuple[float, ...], weights: tuple[float, ...], rounds: int
) -> tuple[FloatArray, FloatArray]:
    """Columns of a BLT, ``c(x) = first (1 + sum_j w_j x / (1 - theta_j x))``, and of its inverse."""
    denominator = np.ones(1)
    for decay in decays:
        denominator = np.convolve(denominator, [1.0, -decay])
    numerator = denominator.copy()
    for j, weight in enumerate(weights):
        others = np.ones(1)
        for i, decay in enumerate(decays):
            if i != j:
                others = np.convolve(others, [1.0, -decay])
        numerator[1:] += weight * others
    powers = np.arange(rounds - 1)
    tail = sum((w * d**powers for w, d in zip(weights, decays, strict=True)), np.zeros(rounds - 1))
    series = np.zeros(rounds)
    used = min(rounds, denominator.size)
    series[:used] = denominator[:used]
    with np.errstate(all="ignore"):
        inverse = _divided(series, numerator)
    return first * np.concatenate([[1.0], tail]), inverse / first


@lru_cache(maxsize=128)
def _column(matrix: StrategyMatrix) -> FloatArray:
    if matrix.kind == "blt":
        result = _blt_columns(matrix.coefficients[0], matrix.decays, matrix.weights, matrix.rounds)[0]
    elif matrix.kind == "bisr":
        result = _reciprocal(np.array(matrix.coefficients), matrix.rounds)
    else:
        result = _padded(matrix)
    result.setflags(write=False)
    return result


@lru_cache(maxsize=128)
def _inverse_column(matrix: StrategyMatrix) -> FloatArray:
    if matrix.kind == "blt":
        result = _blt_columns(matrix.coefficients[0], matrix.decays, matrix.weights, matrix.rounds)[1]
    elif matrix.kind == "bisr":
        result = _padded(matrix)
    else:
        result = _reciprocal(np.array(matrix.coefficients[: matrix.rounds]), matrix.rounds)
    result.setflags(write=False)
    return result


def _padded(matrix: StrategyMatrix) -> FloatArray:
    result = np.zeros(matrix.rounds)
    used = min(len(matrix.coefficients), matrix.rounds)
    result[:used] = matrix.coefficients[:used]
    return result
