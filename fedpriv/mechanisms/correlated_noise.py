"""Streaming the noise ``C^-1 Z`` of a matrix mechanism, row by row, in memory of the matrix's band or buffers.

Row t of the noise is ``n_t = round(f_t + G_t)``: f_t is a linear function of the rows released before (the feedback),
and G_t a fresh Gaussian of standard deviation ``sigma / c_0``. With n real, that recursion is ``C n = Z``:

* banded C: ``f_t = -sum_{j>=1} (c_j / c_0) n_{t-j}``, the last p - 1 rows;
* banded inverse (``bisr``): ``f_t = sum_{j>=1} d_j z_{t-j}`` with ``z_t = (n_t - f_t) / d_0``, the last p - 1 of them;
* BLT: ``f_t = -sum_j w_j s_j`` and then ``s_j <- theta_j s_j + n_t``, one vector per buffer.

**Exact integers.** A row is an integer vector that is added to an integer sum S. Given the releases before and S,
the releases fix all n, hence f_t, and the release of row t is ``round(S_t + f_t + G_t)``: post-processing of a
continuous Gaussian with mean ``S_t + f_t``. Under two hypotheses about S those means differ by ``(C x)_t / c_0``, as
the matrix mechanism has it (Choquette-Choo et al. 2023, arXiv 2306.08153, for adaptive x). The rounding of a draw is
decided exactly (`noise.rounded_gaussian_around`); only the feedback is evaluated in float64, and what that can change
is bounded by `CorrelatedNoise.total_variation`.

**No row twice.** Row t is drawn from stream t of one secret key, so it can be recomputed to continue the matrix after a
restart; but an object gives each row once, in order. That no row is released a second time over *other* data (the
difference would show the data) is for the caller's ledger: see `fedpriv.strategies.MatrixFtrl`.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import Final

import numpy as np

from fedpriv.accounting.matrices import StrategyMatrix
from fedpriv.accounting.validators import InvalidArgument, check_integer, check_positive
from fedpriv.mechanisms.noise import KeyedSource, RandomSource, SeededSource, rounded_gaussian_around

KEY_BYTES: Final = 32
#: No coordinate of any row goes beyond this many standard deviations (chance below 1e-32 each).
_DEVIATIONS: Final = 12.0
_LARGEST: Final = 2.0**51


def new_noise_key() -> bytes:
    """A secret key of noise rows, from the operating system's entropy."""
    return os.urandom(KEY_BYTES)


class CorrelatedNoise:
    """The rows of ``C^-1 Z`` for one run, one vector at a time.

    Parameters
    ----------
    matrix : StrategyMatrix
        C.
    length : int
        Number of coordinates d.
    std : float
        Standard deviation of Z in grid steps, > 0.
    key : bytes
        Secret of 32 bytes (`new_noise_key`). Whoever holds it can take the noise off.
    epochs : int
        The matrix is used this many times, each time afresh: for bins that are redrawn. 1 for kept bins.
    seed : str, optional
        Instead of the key, for simulations that are declared not private; the key is then ignored.

    Notes
    -----
    Guarantees:

    * the rows are those of the dense ``C^-1 Z``, rounded to integers without changing later rows' law;
    * memory: ``matrix.memory`` vectors of length d between rows, whatever the number of rows;
    * `state` and `load_state` continue the same rows, bit by bit;
    * a row is given once: `row` refuses one that was given or passed over before.
    """

    def __init__(
        self,
        matrix: StrategyMatrix,
        length: int,
        std: float,
        key: bytes,
        *,
        epochs: int = 1,
        seed: str | None = None,
    ) -> None:
        check_integer(1, length=length, epochs=epochs)
        check_positive(std=std)
        if len(key) != KEY_BYTES:
            raise InvalidArgument(f"key: {len(key)} bytes, {KEY_BYTES} are needed")
        self.matrix, self.length, self.std, self.epochs = matrix, length, std, epochs
        self._key, self._seed = key, seed
        self._scale = std / float(matrix.column()[0])
        if _DEVIATIONS * max(self._largest_std(), self._scale) >= _LARGEST:
            raise InvalidArgument(
                f"std: {std} grid steps; a row of this matrix could leave the integers below 2**51; use a "
                "coarser grid"
            )
        kind, c = matrix.kind, matrix.coefficients
        used = c[: matrix.rounds]
        if kind == "blt":
            self._weights = tuple(-w for w in matrix.weights)
        elif kind == "bisr":
            self._weights = used[1:]
        else:
            self._weights = tuple(-value / used[0] for value in used[1:])
        self._next = 0
        self._vectors: list[np.ndarray] = []
        self._restart()

    @property
    def rows(self) -> int:
        """Number of rows in all."""
        return self.matrix.rounds * self.epochs

    @property
    def next_row(self) -> int:
        """The first row that was neither given nor passed over."""
        return self._next

    @property
    def secure(self) -> bool:
        """Whether the noise is secret (no seed)."""
        return self._seed is None

    @property
    def stream(self) -> str:
        """Public name of the secret stream: tells two keys apart and says nothing about either."""
        material = self._key if self._seed is None else self._seed.encode()
        return hashlib.sha256(b"fedpriv noise stream" + material).hexdigest()[:16]

    def row(self, index: int) -> np.ndarray:
        """Draw one row.

        Parameters
        ----------
        index : int
            Counted from 0; rows in between are drawn and thrown away, so that the matrix continues.

        Returns
        -------
        np.ndarray
            Shape (d,), int64, in grid steps.

        Raises
        ------
        InvalidArgument
            For a row that was given or passed over before, or beyond the last one.
        """
        check_integer(0, index=index)
        if index >= self.rows:
            raise InvalidArgument(f"index: row {index} of a matrix with {self.rows} rows")
        if index < self._next:
            raise InvalidArgument(
                f"index: row {index} was drawn before (the next one is {self._next}); the same noise on other "
                "data would show the data"
            )
        while self._next < index:
            self._draw()
        return self._draw()

    def pass_over(self, index: int) -> None:
        """Continue behind row ``index`` without giving it away; nothing happens where that is behind already."""
        check_integer(0, index=index)
        if index >= self.rows:
            raise InvalidArgument(f"index: row {index} of a matrix with {self.rows} rows")
        while self._next <= index:
            self._draw()

    def state(self) -> dict[str, np.ndarray]:
        """Arrays for a checkpoint. They are secret: with them, rows to come can be predicted in part."""
        vectors = np.stack(self._vectors) if self._vectors else np.zeros((0, self.length))
        return {"noise-next": np.array([self._next]), "noise-vectors": vectors}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a checkpoint of the same matrix, length, standard deviation and key.

        Raises
        ------
        InvalidArgument
            When the arrays are those of another matrix or length, or lie behind this object's own position.
        """
        vectors, position = state["noise-vectors"], int(state["noise-next"][0])
        if vectors.shape != (len(self._vectors), self.length) or not 0 <= position <= self.rows:
            raise InvalidArgument(
                f"noise-vectors: shape {vectors.shape} at row {position}, this noise has "
                f"{(len(self._vectors), self.length)} and {self.rows} rows"
            )
        if position < self._next:
            raise InvalidArgument(f"noise-next: row {position} is behind row {self._next}, which is next")
        self._next = position
        self._vectors = [vector.copy() for vector in vectors]

    def total_variation(self) -> float:
        """Bound on the total variation between all rows and those of a computation without float64 rounding.

        The feedback of a row differs from its exact value by at most ``e`` per coordinate, so by ``e sqrt(N d)`` in
        norm over the run, and Gaussians of deviation s whose means are h apart are at most ``h / (2 s)`` apart
        (Pinsker). ``e`` follows from the number of operations, the largest rows within 12 deviations, and how far
        the recursion carries an error.
        """
        size = math.sqrt(self.rows * self.length)
        return 0.5 * self._feedback_error() * size / self._scale

    def _feedback_error(self) -> float:
        unit = 2.0**-53
        weights = np.abs(self._weights)
        if not weights.size:
            return 0.0
        inverse = self.matrix.inverse_column()
        operations = weights.size + 2
        if self.matrix.kind == "blt":
            error = 0.0
            for weight, decay in zip(weights, self.matrix.decays, strict=True):
                response = _filtered(inverse, decay)
                largest = _DEVIATIONS * self.std * float(np.linalg.norm(response))
                carried = min(self.matrix.rounds, 1.0 / max(1.0 - decay, 1e-300))
                error += float(weight) * largest * unit * (operations + 2 * carried)
            return error
        if self.matrix.kind == "bisr":
            local = operations * unit * _DEVIATIONS * self.std * float(weights.sum() + abs(inverse[0]))
            column = self.matrix.column()
            return local * (1.0 + float(weights.sum()) * float(column.sum() / column[0]) / abs(inverse[0]))
        return operations * unit * _DEVIATIONS * self._largest_std() * float(weights.sum())

    def _largest_std(self) -> float:
        """Standard deviation of the largest row, or of a buffer where that is larger."""
        inverse = self.matrix.inverse_column()
        largest = float(np.linalg.norm(inverse))
        for decay in self.matrix.decays:
            largest = max(largest, float(np.linalg.norm(_filtered(inverse, decay))))
        return self.std * largest

    def _draw(self) -> np.ndarray:
        if self._next % self.matrix.rounds == 0:
            self._restart()
        feedback = np.zeros(self.length)
        for weight, vector in zip(self._weights, self._vectors, strict=True):
            feedback += weight * vector
        drawn = rounded_gaussian_around(feedback, self._scale, self._source(self._next))
        self._remember(drawn, feedback)
        self._next += 1
        return drawn

    def _source(self, row: int) -> RandomSource:
        return KeyedSource(self._key, row) if self._seed is None else SeededSource(self._seed, "row", row)

    def _restart(self) -> None:
        self._vectors = [np.zeros(self.length) for _ in self._weights]

    def _remember(self, drawn: np.ndarray, feedback: np.ndarray) -> None:
        if not self._vectors:
            return
        if self.matrix.kind == "blt":
            for decay, vector in zip(self.matrix.decays, self._vectors, strict=True):
                vector *= decay
                vector += drawn
            return
        newest = self._vectors.pop()
        np.copyto(newest, drawn)
        if self.matrix.kind == "bisr":
            newest -= feedback
            newest /= self.matrix.coefficients[0]
        self._vectors.insert(0, newest)


def _filtered(series: np.ndarray, decay: float) -> np.ndarray:
    """``sum_k decay^k series_{t-k}`` for every t."""
    from scipy.signal import lfilter

    found: np.ndarray = lfilter([1.0], [1.0, -decay], series)
    return found
