"""Shamir shares of one 128-bit block.

Splitting handles secrets and uses pycryptodome's ``Crypto.Protocol.SecretSharing`` (constant-time field
arithmetic). Recovering runs on the server, on values that it learns anyway, and must serve hundreds of
secrets: it interpolates in the same field, GF(2^128) modulo x^128 + x^7 + x^2 + x + 1, and is tested
against pycryptodome.

Source: Shamir 1979, "How to share a secret".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fedpriv.wire import SHARE_BYTES

_POLYNOMIAL = (1 << 128) | 0b10000111


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Shares of a secret; the share at position i belongs to the point x = i + 1.

    Parameters
    ----------
    secret : bytes
        16 bytes.
    threshold : int
        Shares needed to recover it.
    holders : int
        Shares made.

    Returns
    -------
    list of bytes
        16 bytes each.
    """
    from Crypto.Protocol.SecretSharing import Shamir

    scheme: Any = Shamir
    return [share for _, share in scheme.split(threshold, holders, secret)]


def recover(shares: Sequence[tuple[int, bytes]], at: int = 0) -> bytes:
    """Value of the sharing polynomial: the secret at 0, or the share of another point.

    Parameters
    ----------
    shares : sequence of (x, share)
        Exactly as many as the threshold: distinct points x >= 1 and their 16-byte shares.
    at : int
        Point to evaluate at.

    Returns
    -------
    bytes
        16 bytes, right if every share is right; nothing here can tell (compare with a commitment).

    Raises
    ------
    ValueError
        If points are repeated or below 1.
    """
    weights = _weights(tuple(x for x, _ in shares), at)
    value = 0
    for weight, (_, share) in zip(weights, shares, strict=True):
        value ^= _multiply(weight, int.from_bytes(share, "big"))
    return value.to_bytes(SHARE_BYTES, "big")


@lru_cache(maxsize=256)
def _weights(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Lagrange weights prod_{m != j} (at - x_m) / (x_j - x_m); small points make cheap products."""
    if len(set(points)) != len(points) or min(points, default=0) < 1:
        raise ValueError("points must be distinct and at least 1")
    weights = []
    for x in points:
        numerator = denominator = 1
        for other in points:
            if other != x:
                numerator = _multiply(numerator, at ^ other)
                denominator = _multiply(denominator, x ^ other)
        weights.append(_multiply(numerator, _inverse(denominator)))
    return tuple(weights)


def _multiply(a: int, b: int) -> int:
    if b > a:
        a, b = b, a
    result = 0
    while b:
        if b & 1:
            result ^= a
        a <<= 1
        if a >> 128:
            a ^= _POLYNOMIAL
        b >>= 1
    return result


def _inverse(a: int) -> int:
    """Extended Euclid over polynomials."""
    u, v, p, q = a, _POLYNOMIAL, 1, 0
    while u != 1:
        shift = u.bit_length() - v.bit_length()
        if shift < 0:
            u, v, p, q, shift = v, u, q, p, -shift
        u ^= v << shift
        p ^= q << shift
    return p
