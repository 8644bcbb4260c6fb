"""Integer Gaussian noise on the grid, from the operating system's entropy, and how it is shared out.

A draw is ``round(scale * Phi^-1(u))``. The uniform ``u`` is a 64-bit (sign + 63 bits) interval of the unit
interval, not a point: where the interval, widened by the error of the quantile function, does not determine
the integer, 64 more random bits are drawn and the quantile is evaluated with 50 digits. What is then left
undecided are intervals of probability 2^-127 around the at most 27 * scale boundaries between integers
within 13.2 standard deviations: the law of a draw differs from that of a rounded Gaussian by less than
scale * 2^-122 in total variation, tails included (no cut at 8.6 standard deviations as with 53-bit
Box-Muller). At a scale of 10^5 and 10^9 draws that is 2e-23, negligible beside any delta in use.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedpriv.accounting.validators import InvalidArgument, check_non_negative, check_positive

#: Smallest share, in grid steps: sums of rounded Gaussians of this scale are Gaussian up to 1e-300.
MIN_SHARE_UNITS = 16.0

#: Largest scale of a draw, in grid steps: draws stay exact in int64.
MAX_SHARE_UNITS = 2.0**52

# Relative error allowed to scipy's ndtri (its own tests claim about 1e-15; a test here checks 1e-14).
_QUANTILE_ERROR = 1e-13
_CHUNK = 1 << 20


class RandomSource(Protocol):
    """A stream of uniform 64-bit words."""

    secure: bool

    def words(self, count: int) -> np.ndarray:
        """Return ``count`` uniform uint64 words."""


class _ChaChaSource:
    def __init__(self, key: bytes) -> None:
        nonce = b"\0" * 16  # the key is used for this stream only
        self._encryptor = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()

    def words(self, count: int) -> np.ndarray:
        """Return ``count`` uniform uint64 words, the next ones of the key stream."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype="<u8")


class SecureSource(_ChaChaSource):
    """ChaCha20 key stream under a fresh key from ``os.urandom``; global seeds have no effect on it."""

    secure = True

    def __init__(self) -> None:
        super().__init__(os.urandom(32))


class KeyedSource(_ChaChaSource):
    """The streams of one secret key, told apart by an index: the same ones whenever they are asked for.

    Parameters
    ----------
    key : bytes
        32 bytes from ``os.urandom``, kept secret.
    index : int
        Number of the stream, >= 0.
    """

    secure = True

    def __init__(self, key: bytes, index: int) -> None:
        if len(key) != 32:
            raise InvalidArgument(f"key: {len(key)} bytes, 32 are needed")
        super().__init__(hmac.digest(key, b"fedpriv noise row" + index.to_bytes(8, "big"), "sha256"))


class SeededSource(_ChaChaSource):
    """Reproducible stream for simulations. Noise from it is **not private** and is reported as such.

    Parameters
    ----------
    *parts : int or str
        What the stream is derived from, for instance (seed, round, partition).
    """

    secure = False

    def __init__(self, *parts: int | str) -> None:
        text = "\x1f".join(str(part) for part in parts)
        super().__init__(hashlib.sha256(b"fedpriv seeded noise\x1f" + text.encode()).digest())


def _exact_draw(scale: float, word: int, source: RandomSource, center: float | None = None) -> int:
    """Decide one draw whose float evaluation was not conclusive, with 64 fresh low bits and 50 digits."""
    import mpmath  # only about one draw in 10^8 comes here

    low_bits = int(source.words(1)[0])
    negative, magnitude = word >> 63, word & (2**63 - 1)
    with mpmath.workdps(50):
        tail = mpmath.mpf(2 * ((magnitude << 64) + low_bits) + 1) / mpmath.mpf(2) ** 129  # in (0, 1/2)
        x = _tail_quantile(tail) if tail < 2.0**-20 else -mpmath.sqrt(2) * mpmath.erfinv(2 * tail - 1)
        if center is not None:
            return int(mpmath.floor(center + (-scale * x if negative else scale * x) + mpmath.mpf("0.5")))
        value = int(mpmath.floor(scale * x + mpmath.mpf("0.5")))
    return -value if negative else value


def _tail_quantile(tail: Any) -> Any:
    """Solve Phi(-x) = tail for a tiny u by Newton's method on the logarithm (50 digits)."""
    import mpmath

    x = mpmath.sqrt(-2 * mpmath.log(tail))
    for _ in range(60):
        survival = mpmath.erfc(x / mpmath.sqrt(2)) / 2
        density = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)
        change = (mpmath.log(survival) - mpmath.log(tail)) * survival / density
        x += change
        if abs(change) < mpmath.mpf(10) ** -45:
            break
    return x


def rounded_gaussian(scale: float, size: int, source: RandomSource | None = None) -> np.ndarray:
    """Draw integers ``round(N(0, scale^2))``.

    Parameters
    ----------
    scale : float
        Standard deviation in grid steps, at least 16 (0 gives zeros: no noise was asked for).
    size : int
        Number of draws.
    source : RandomSource, optional
        Where the randomness comes from; a fresh :class:`SecureSource` by default.

    Returns
    -------
    np.ndarray
        Shape (size,), int64. Never clipped.

    Raises
    ------
    InvalidArgument
        When the scale is negative, not finite, or between 0 and 16 steps.
    """
    if scale == 0:
        return np.zeros(size, dtype=np.int64)
    check_positive(scale=scale)
    if scale < MIN_SHARE_UNITS:
        raise InvalidArgument(
            f"scale: {scale} grid steps; a noise share needs at least {MIN_SHARE_UNITS:g}, use a finer grid"
        )
    if scale > MAX_SHARE_UNITS:
        raise InvalidArgument(f"scale: {scale} grid steps exceeds 2**52, use a coarser grid")
    source = SecureSource() if source is None else source
    draws = np.empty(size, dtype=np.int64)
    for start in range(0, size, _CHUNK):
        count = min(_CHUNK, size - start)
        draws[start : start + count] = _draw_chunk(scale, source.words(count), source)
    return draws


def rounded_gaussian_around(
    center: np.ndarray, scale: float, source: RandomSource | None = None
) -> np.ndarray:
    """Draw integers ``round(center + N(0, scale^2))``, decided exactly like those of :func:`rounded_gaussian`.

    Rounding commutes with adding an integer, so ``total + draw`` is the rounding of a continuous Gaussian
    release with mean ``total + center``: post-processing of it, whatever the real numbers in ``center`` are.

    Parameters
    ----------
    center : np.ndarray
        Shape (d,), float64, below 2**51 in absolute value.
    scale : float
        Standard deviation in grid steps, > 0 and at most 2**52.
    source : RandomSource, optional
        Where the randomness comes from; a fresh :class:`SecureSource` by default.

    Returns
    -------
    np.ndarray
        Shape (d,), int64.

    Raises
    ------
    InvalidArgument
        When the scale or a centre is out of range.
    """
    check_positive(scale=scale)
    largest = float(np.max(np.abs(center), initial=0.0))
    if scale > MAX_SHARE_UNITS or not largest < MAX_SHARE_UNITS / 2:
        raise InvalidArgument(
            f"scale, center: {scale} and {largest} grid steps; allowed: at most 2**52, and below 2**51"
        )
    source = SecureSource() if source is None else source
    draws = np.empty(center.size, dtype=np.int64)
    for start in range(0, center.size, _CHUNK):
        part = np.asarray(center[start : start + _CHUNK], dtype=np.float64)
        draws[start : start + part.size] = _draw_chunk_around(part, scale, source.words(part.size), source)
    return draws


def _draw_chunk_around(
    center: np.ndarray, scale: float, words: np.ndarray, source: RandomSource
) -> np.ndarray:
    scaled, tolerance = _scaled_quantiles(scale, words)
    signed = np.where(words >> np.uint64(63), -scaled, scaled)
    shifted = center + signed
    tolerance += 2.0**-52 * np.abs(shifted)
    floor = np.floor(shifted)
    draws = np.floor(shifted + 0.5).astype(np.int64)
    for index in np.flatnonzero(np.abs(shifted - floor - 0.5) <= tolerance):
        draws[index] = _exact_draw(scale, int(words[index]), source, float(center[index]))
    return draws


def _scaled_quantiles(scale: float, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Absolute values of Gaussian draws, and how far each may be from the exact one."""
    magnitude = (words & np.uint64(2**63 - 1)).astype(np.float64)
    tail = (magnitude + 0.5) * 2.0**-64  # half of a uniform on (0, 1): the tail probability of |x|
    x = _upper_quantile(tail)
    scaled = scale * x
    # du / density(x) <= (du / u) * min(1/x, 1.2534): the Mills ratio bounds how far u's width moves x
    width = 1.26 * (2.0**-52 + 2.0**-63 / tail)
    return scaled, scale * (x * _QUANTILE_ERROR + width) + 2.0**-52 * scaled


def _upper_quantile(tail: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri  # here: a client process that only exchanges keys starts without it

    return np.asarray(-ndtri(tail))


def _draw_chunk(scale: float, words: np.ndarray, source: RandomSource) -> np.ndarray:
    scaled, tolerance = _scaled_quantiles(scale, words)
    distance = np.abs(scaled - np.floor(scaled) - 0.5)
    draws = np.floor(scaled + 0.5).astype(np.int64)
    negative = (words >> np.uint64(63)).astype(bool)
    draws[negative] *= -1
    for index in np.flatnonzero(distance <= tolerance):
        draws[index] = _exact_draw(scale, int(words[index]), source)
    return draws


def gaussian(std: float, size: int, source: RandomSource | None = None) -> np.ndarray:
    """Draw continuous Gaussian noise in float64, for the release view's hidden-state bound only.

    It is added to a model that was already released to server and participants; their guarantees rest on the
    integer noise of the sum, never on this.

    Parameters
    ----------
    std : float
        Standard deviation, >= 0.
    size : int
        Number of draws.
    source : RandomSource, optional
        A fresh :class:`SecureSource` by default.

    Returns
    -------
    np.ndarray
        Shape (size,), float64.
    """
    check_non_negative(std=std)
    words = (SecureSource() if source is None else source).words(size)
    tail = ((words & np.uint64(2**63 - 1)).astype(np.float64) + 0.5) * 2.0**-64
    x = _upper_quantile(tail)
    return std * np.where(words >> np.uint64(63), -x, x)


@dataclass(frozen=True)
class NoiseShares:
    """How the noise of a secure sum is split over the clients.

    Each client adds variance total_std^2 / (min_survivors - 1 - colluders), so that the sum of any
    ``min_survivors`` clients carries at least ``total_std`` after the shares of one client (whose noise may
    be known to the adversary, since every participant knows its own) and of ``colluders`` more are
    discounted.

    Parameters
    ----------
    total_std : float
        Standard deviation that the sum is guaranteed to carry, in the units of the summed vectors.
    min_survivors : int
        Fewest clients whose sum is ever released.
    colluders : int
        Clients that may pool their knowledge with the adversary.

    Examples
    --------
    >>> shares = NoiseShares(total_std=200.0, min_survivors=18, colluders=1)
    >>> shares.counted_shares, shares.share_std
    (16, 50.0)
    >>> shares.realised_std(25)
    250.0
    """

    total_std: float
    min_survivors: int
    colluders: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total_std) and self.total_std >= 0):
            raise InvalidArgument(f"total_std: {self.total_std} is not a finite number >= 0")
        if self.colluders < 0:
            raise InvalidArgument(f"colluders: {self.colluders} is negative")
        if self.counted_shares < 1:
            raise InvalidArgument(
                f"min_survivors: {self.min_survivors} with {self.colluders} colluders leaves no noise share "
                f"that counts; at least {self.colluders + 2} survivors are needed"
            )

    @property
    def counted_shares(self) -> int:
        """Shares that are guaranteed to be in the sum and unknown to the adversary."""
        return self.min_survivors - 1 - self.colluders

    @property
    def share_std(self) -> float:
        """Standard deviation of each client's share."""
        return self.total_std / math.sqrt(self.counted_shares)

    def realised_std(self, survivors: int) -> float:
        """Standard deviation of the noise in a sum of ``survivors`` clients (utility, never privacy)."""
        return self.share_std * math.sqrt(survivors)
