"""Random directions that server and clients expand from one public seed, block by block.

A direction is a unit vector of d coordinates, K of them a round. Nobody holds the d x K matrix where it is large:
every block of every direction comes from its own place in a counter-based generator (Philox, Salmon et al.
2011: the counter is (block, direction), the key the round seed), so that blocks can be made in any order, again
and again, and by whoever knows the seed. The directions are public; nothing here is a secret.

Philox' integers are fixed by its definition. How numpy turns them into normal numbers is fixed within a version
of numpy only (NEP 19), so that both sides compare :meth:`Directions.fingerprint` before they trust one another.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpriv.accounting.validators import InvalidArgument, check_integer

Kind = Literal["orthonormal", "independent"]

SEED_BYTES = 16
#: Coordinates of a block: 256 KiB of float32.
BLOCK = 2**16
#: Largest d * K whose orthonormal basis is computed and kept (128 MiB of float64 while it is computed).
DENSE_LIMIT = 2**24


def best_kind(dimension: int, count: int) -> Kind:
    """``orthonormal`` where it can be had: one direction, or a d x K matrix that fits in memory."""
    if count == 1 or (count <= dimension and dimension * count <= DENSE_LIMIT):
        return "orthonormal"
    return "independent"


class Directions:
    """K unit vectors of a round.

    ``orthonormal`` directions are uniform on the Stiefel manifold: the Q of a QR decomposition of a d x K matrix
    of independent normal numbers, with the signs that make the diagonal of R positive (Mezzadri 2007, Notices of
    the AMS 54). ``independent`` ones are independent and uniform on the sphere each; hidden-state bounds do not
    cover them for K > 1.

    Parameters
    ----------
    seed : bytes
        16 bytes, drawn for the round independently of everything before it. Public.
    dimension : int
        d, coordinates of the model.
    count : int
        K.
    kind : {"orthonormal", "independent"}, optional
        The best that can be had by default, see :func:`best_kind`.

    Raises
    ------
    InvalidArgument
        For a seed of another length, or orthonormal directions that do not exist (K > d) or do not fit.
    """

    def __init__(self, seed: bytes, dimension: int, count: int, kind: Kind | None = None) -> None:
        check_integer(1, dimension=dimension, count=count)
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            raise InvalidArgument(f"seed: {SEED_BYTES} bytes are needed")
        best = best_kind(dimension, count)
        if kind not in (None, "orthonormal", "independent"):
            raise InvalidArgument(f"kind: {kind!r} is none of 'orthonormal', 'independent'")
        if kind == "orthonormal" and best != "orthonormal":
            raise InvalidArgument(
                f"count: {count} orthonormal directions of {dimension} coordinates do not exist or exceed "
                f"{DENSE_LIMIT} numbers; use kind = 'independent'"
            )
        self.seed, self.dimension, self.count = seed, dimension, count
        self.kind: Kind = kind or best

    def blocks(self, index: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (offset, block) of one direction, in order; a block is float32 of at most ``BLOCK`` numbers."""
        if not 0 <= index < self.count:
            raise InvalidArgument(f"index: {index} is outside 0 .. {self.count - 1}")
        if self._dense:
            column = self._basis[index]
            for start in range(0, self.dimension, BLOCK):
                yield start, column[start : start + BLOCK]
            return
        scale = np.float32(1.0 / self._norms[index])
        for number, start in enumerate(range(0, self.dimension, BLOCK)):
            yield start, self._normal(index, number, np.float32) * scale

    def direction(self, index: int) -> NDArray[np.float32]:
        """One whole direction, shape (d,)."""
        return np.concatenate([block for _, block in self.blocks(index)])

    def combine(self, coefficients: ArrayLike) -> NDArray[np.float64]:
        """The sum of c_k u_k, shape (d,), in memory of one vector and a block.

        Parameters
        ----------
        coefficients : array_like
            Shape (K,).
        """
        values = np.asarray(coefficients, dtype=np.float64)
        if values.shape != (self.count,):
            raise InvalidArgument(f"coefficients: shape {values.shape}, expected ({self.count},)")
        total = np.zeros(self.dimension)
        for index, value in enumerate(values):
            if value != 0.0:
                for start, block in self.blocks(index):
                    total[start : start + block.size] += value * block.astype(np.float64)
        return total

    def fingerprint(self) -> bytes:
        """8 bytes by which two sides tell that they expand seeds alike."""
        _, block = next(self.blocks(0))
        return hashlib.sha256(np.ascontiguousarray(block[:256]).tobytes()).digest()[:8]

    @property
    def _dense(self) -> bool:
        return self.kind == "orthonormal" and self.count > 1

    def _normal(self, index: int, number: int, kind: type) -> NDArray:
        size = min(BLOCK, self.dimension - number * BLOCK)
        # A block draws far fewer than 2^64 integers, so that streams of different (number, index) never meet.
        counter = np.array([0, 0, number, index], dtype=np.uint64)
        generator = np.random.Generator(
            np.random.Philox(key=int.from_bytes(self.seed, "little"), counter=counter)
        )
        return generator.standard_normal(size, dtype=np.float32).astype(kind, copy=False)

    @functools.cached_property
    def _norms(self) -> list[float]:
        found = []
        for index in range(self.count):
            squares = 0.0
            for number in range(-(-self.dimension // BLOCK)):
                block = self._normal(index, number, np.float64)
                squares += float(np.dot(block, block))
            found.append(squares**0.5)
        return found

    @functools.cached_property
    def _basis(self) -> NDArray[np.float32]:
        gaussian = np.empty((self.dimension, self.count))
        for index in range(self.count):
            for number, start in enumerate(range(0, self.dimension, BLOCK)):
                gaussian[start : start + BLOCK, index] = self._normal(index, number, np.float64)
        q, r = np.linalg.qr(gaussian)
        return np.ascontiguousarray((q * np.sign(np.diag(r))).T.astype(np.float32))
