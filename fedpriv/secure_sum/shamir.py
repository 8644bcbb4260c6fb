"""Shamir shares of one 128-bit block.

Splitting handles secrets and uses pycryptodome's ``Crypto.Protocol.SecretSharing`` (constant-time field
arithmetic). Recovering runs on the server, on values that it learns anyway, and must serve hundreds of secrets:
it interpolates at zero in the same field, GF(2^128) with x^128 + x^7 + x^2 + x + 1, and is tested against
pycryptodome. Shamir 1979, "How to share a secret".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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

    return [share for _, share in Shamir.split(threshold, holders, secret)]


def recover(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Secret from exactly as many shares as the threshold.

    Parameters
    ----------
    shares : sequence of (x, share)
        Distinct points x >= 1 and their 16-byte shares.

    Returns
    -------
    bytes
        16 bytes: the secret, if every share is right; nothing here can tell (compare with a commitment).
    """
    weights = _weights_at_zero(tuple(x for x, _ in shares))
    value = 0
    for weight, (_, share) in zip(weights, shares, strict=True):
        value ^= _multiply(weight, int.from_bytes(share, "big"))
    return value.to_bytes(SHARE_BYTES, "big")


@lru_cache(maxsize=256)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights prod_{m != j} x_m / (x_j - x_m); points are small, so their products are cheap."""
    if len(set(points)) != len(points) or min(points, default=0) < 1:
        raise ValueError("points must be distinct and at least 1")
    product = 1
    for x in points:
        product = _multiply(product, x)
    weights = []
    for x in points:
        denominator = x
        for other in points:
            if other != x:
                denominator = _multiply(denominator, x ^ other)
        weights.append(_multiply(product, _inverse(denominator)))
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
    u, v, p, q = a, _POLYNOMIAL, 1, 0
    while u != 1:
        shift = u.bit_length() - v.bit_length()
        if shift < 0:
            u, v, p, q, shift = v, u, q, p, -shift
        u ^= v << shift
        p ^= q << shift
    return p
