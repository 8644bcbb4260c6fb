"""Random directions that server and clients expand from one public seed, block by block.

A direction is a unit vector of d coordinates, K of them a round. Nobody holds the d x K matrix where it is large:
every block of every direction comes from its own place in a counter-based generator (Philox, Salmon et al.
2011: the counter is (block, direction), the key the round seed), so that blocks can be made in any order, again
and again, and by whoever knows the seed. The directions are public; nothing here is a secret.

Philox' integers are fixed by its definition. How numpy turns them into normal numbers is fixed within a version
of numpy only (NEP 19), so that both sides compare :meth:`Directions.fingerprint` before they trust one another.
Norms are sums whose order depends on the machine; the server sends its own (:attr:`Directions.norms`), which
also spares the clients one pass. The QR decomposition of several orthonormal directions may differ in the last
bit of few numbers between machines: who rebuilds a model with them checks its hash.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpriv.accounting.validators import InvalidArgument, check_choice, check_integer

Kind = Literal["orthonormal", "independent", "signs"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Law = Literal["auto", "uniform", "signs"]
T = TypeVar("T")

SEED_BYTES = 16
#: Coordinates of a block: 256 KiB of float32.
BLOCK = 2**16
#: Largest d * K whose orthonormal basis is computed and kept (128 MiB of float64 while it is computed).
DENSE_LIMIT = 2**24
#: Coordinates from which on normal numbers cost as much as the passes of a small batch.
LARGE = 2**24
#: Blocks from which on a direction is worth threads, and most threads.
THREADED_BLOCKS, MAX_THREADS = 8, 8


def best_kind(dimension: int, count: int) -> Kind:
    """``orthonormal`` where it can be had: one direction, or a d x K matrix that fits in memory."""
    if count == 1 or (count <= dimension and dimension * count <= DENSE_LIMIT):
        return "orthonormal"
    return "independent"


def kind_of_law(law: Law, dimension: int, count: int, *, may_amplify: bool) -> Kind:
    """Kind of directions that a setting asks for.

    Parameters
    ----------
    law : {"auto", "uniform", "signs"}
        ``auto``: signs for more than ``LARGE`` coordinates where nothing is lost by them, uniform otherwise.
    dimension, count : int
        d and K.
    may_amplify : bool
        Whether a hidden-state bound could hold with uniform directions; ``auto`` then keeps them.
    """
    check_choice(get_args(Law), law=law)
    if law == "signs" or (law == "auto" and dimension > LARGE and not may_amplify):
        return "signs"
    return best_kind(dimension, count)


class Directions:
    """K unit vectors of a round.

    ``orthonormal`` directions are uniform on the Stiefel manifold: the Q of a QR decomposition of a d x K matrix
    of independent normal numbers, with the signs that make the diagonal of R positive (Mezzadri 2007, Notices of
    the AMS 54). ``independent`` ones are independent and uniform on the sphere each; hidden-state bounds do not
    cover them for K > 1. ``signs`` are independent, every coordinate ``+-1/sqrt(d)`` with equal chances (Spall
    1992, IEEE Trans. Automat. Contr. 37): a bit per coordinate makes them far quicker, and no hidden-state bound
    covers them.

    Parameters
    ----------
    seed : bytes
        16 bytes, drawn for the round independently of everything before it. Public.
    dimension : int
        d, coordinates of the model.
    count : int
        K.
    kind : {"orthonormal", "independent", "signs"}, optional
        By default :func:`best_kind`.
    norms : sequence of float, optional
        :attr:`norms` as somebody else computed them; computed in a first pass by default.

    Raises
    ------
    InvalidArgument
        For a seed of another length, orthonormal directions that do not exist (K > d) or do not fit, or norms
        that are not those of K directions.
    """

    def __init__(
        self,
        seed: bytes,
        dimension: int,
        count: int,
        kind: Kind | None = None,
        norms: Sequence[float] | None = None,
    ) -> None:
        check_integer(1, dimension=dimension, count=count)
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            raise InvalidArgument(f"seed: {SEED_BYTES} bytes are needed")
        best = best_kind(dimension, count)
        if kind is not None and kind not in KINDS:
            raise InvalidArgument(f"kind: {kind!r} is none of {', '.join(KINDS)}")
        if kind == "orthonormal" and best != "orthonormal":
            raise InvalidArgument(
                f"count: {count} orthonormal directions of {dimension} coordinates do not exist or exceed "
                f"{DENSE_LIMIT} numbers; use kind = 'independent'"
            )
        self.seed, self.dimension, self.count = seed, dimension, count
        self.kind: Kind = kind or best
        if norms is not None:
            needed = count if self._normalised else 0
            if len(norms) != needed or not all(math.isfinite(norm) and norm > 0 for norm in norms):
                raise InvalidArgument(f"norms: {needed} positive numbers are needed")
            self.norms = tuple(float(norm) for norm in norms)

    def blocks(self, index: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (offset, block) of one direction, in order; a block is float32 of at most ``BLOCK`` numbers."""
        if not 0 <= index < self.count:
            raise InvalidArgument(f"index: {index} is outside 0 .. {self.count - 1}")
        made = self._ahead(lambda number: self._block(index, number))
        yield from zip(range(0, self.dimension, BLOCK), made, strict=True)

    def sign_blocks(self, index: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """The blocks of a direction of signs as +-1, without its length 1/sqrt(d): float32."""
        if self.kind != "signs" or not 0 <= index < self.count:
            raise InvalidArgument(f"index: {index} is no direction of signs in 0 .. {self.count - 1}")
        made = self._ahead(lambda number: _signs(self.seed, self.dimension, index, number, 1.0))
        yield from zip(range(0, self.dimension, BLOCK), made, strict=True)

    def direction(self, index: int) -> NDArray[np.float32]:
        """One whole direction, shape (d,)."""
        return np.concatenate([block for _, block in self.blocks(index)])

    def combined_blocks(self, coefficients: ArrayLike) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield (offset, block) of the sum of c_k u_k, in order, in memory of some blocks.

        Parameters
        ----------
        coefficients : array_like
            Shape (K,).
        """
        values = np.asarray(coefficients, dtype=np.float64)
        if values.shape != (self.count,):
            raise InvalidArgument(f"coefficients: shape {values.shape}, expected ({self.count},)")

        def combined(number: int) -> NDArray[np.float64]:
            total = np.zeros(min(BLOCK, self.dimension - number * BLOCK))
            for index, value in enumerate(values):
                if value != 0.0:
                    total += value * self._block(index, number).astype(np.float64)
            return total

        yield from zip(range(0, self.dimension, BLOCK), self._ahead(combined), strict=True)

    def combine(self, coefficients: ArrayLike) -> NDArray[np.float64]:
        """The sum of c_k u_k, shape (d,)."""
        return np.concatenate([block for _, block in self.combined_blocks(coefficients)])

    def fingerprint(self) -> bytes:
        """8 bytes by which two sides tell that they expand seeds alike."""
        _, block = next(self.blocks(0))
        return hashlib.sha256(np.ascontiguousarray(block[:256]).tobytes()).digest()[:8]

    @property
    def _dense(self) -> bool:
        return self.kind == "orthonormal" and self.count > 1

    @property
    def _normalised(self) -> bool:
        return self.kind != "signs" and not self._dense

    def _block(self, index: int, number: int) -> NDArray[np.float32]:
        if self._dense:
            return self._basis[index, number * BLOCK : (number + 1) * BLOCK].copy()
        if self.kind == "signs":
            return _signs(self.seed, self.dimension, index, number, sign_length(self.dimension))
        return self._normal(index, number) * np.float32(1.0 / self.norms[index])

    def _normal(self, index: int, number: int) -> NDArray[np.float32]:
        return _normal(self.seed, self.dimension, index, number)

    @functools.cached_property
    def norms(self) -> tuple[float, ...]:
        """Norms of the K normal vectors that were divided by them; none where nothing was."""
        if not self._normalised:
            return ()

        def square(index: int, number: int) -> float:
            block = self._normal(index, number).astype(np.float64)
            return float(np.dot(block, block))

        return tuple(
            math.sqrt(math.fsum(self._ahead(functools.partial(square, index)))) for index in range(self.count)
        )

    @property
    def _basis(self) -> NDArray[np.float32]:
        return _orthonormal(self.seed, self.dimension, self.count)

    def _ahead(self, make: Callable[[int], T]) -> Iterator[T]:
        """``make(block)`` for every block, in order, some ahead of time: numpy draws without the GIL."""
        count = -(-self.dimension // BLOCK)
        workers = min(_num_cpus(), MAX_THREADS)
        if count < THREADED_BLOCKS or workers < 2 or not self._normalised:
            yield from map(make, range(count))
            return
        with ThreadPoolExecutor(workers) as pool:
            waiting: deque[Future[T]] = deque()
            try:
                for number in range(count):
                    waiting.append(pool.submit(make, number))
                    if len(waiting) > 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def _stream(seed: bytes, index: int, number: int) -> np.random.Philox:
    # A block draws far fewer than 2^64 integers, so that streams of different (number, index) never meet.
    counter = np.array([0, 0, number, index], dtype=np.uint64)
    return np.random.Philox(key=int.from_bytes(seed, "little"), counter=counter)


def _size(dimension: int, number: int) -> int:
    return min(BLOCK, dimension - number * BLOCK)


def _normal(seed: bytes, dimension: int, index: int, number: int) -> NDArray[np.float32]:
    generator = np.random.Generator(_stream(seed, index, number))
    return generator.standard_normal(_size(dimension, number), dtype=np.float32)


def sign_length(dimension: int) -> float:
    """Absolute value of every coordinate of a direction of signs, as a float32."""
    return float(np.float32(1.0 / math.sqrt(dimension)))


def _signs(seed: bytes, dimension: int, index: int, number: int, length: float) -> NDArray[np.float32]:
    size = _size(dimension, number)
    words = _stream(seed, index, number).random_raw(-(-size // 64)).astype("<u8")
    return _signs_of_bytes(length).take(words.view(np.uint8), axis=0).reshape(-1)[:size]


@functools.lru_cache(maxsize=4)
def _signs_of_bytes(length: float) -> NDArray[np.float32]:
    """The eight coordinates of every byte, shape (256, 8)."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.float32(length), np.float32(-length))


@functools.lru_cache(maxsize=1)  # the clients of a simulated round share a process
def _orthonormal(seed: bytes, dimension: int, count: int) -> NDArray[np.float32]:
    """K orthonormal rows, read-only."""
    gaussian = np.empty((dimension, count))
    for index in range(count):
        for number, start in enumerate(range(0, dimension, BLOCK)):
            gaussian[start : start + BLOCK, index] = _normal(seed, dimension, index, number)
    q, r = np.linalg.qr(gaussian)
    basis = np.ascontiguousarray((q * np.sign(np.diag(r))).T.astype(np.float32))
    basis.flags.writeable = False
    return basis


def _num_cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
