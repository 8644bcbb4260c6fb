"""Keys, masks and sealed shares of one secure-sum session.

All secrets come from the operating system. Two X25519 key pairs per client and session: one for the
pairwise masks, derived from a 128-bit seed so that the seed is the Shamir secret (one block of GF(2^128));
one for the channel that carries the shares. Every derived key is HKDF-SHA256 with the session's digest as
salt and the use, the stage and the ordered pair of node ids as info: keys of two sessions, uses or
directions never coincide.

Sources: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning"; RFC
7748 (X25519), RFC 5869 (HKDF), NIST SP 800-38A (counter mode), SP 800-38D (GCM).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpriv.wire import SCHEMA, SESSION_BYTES, SHARE_BYTES

SEED_BYTES = SHARE_BYTES

USE_PAIR_MASK = b"masked-input/pair"
USE_SELF_MASK = b"masked-input/self"
USE_MASK_KEY = b"keys/mask"
USE_SHARE = b"shares/seal"

_CHUNK = 1 << 18  # bytes of keystream at a time: stays in cache and bounds the memory of a long vector

_sequence_lock = threading.Lock()
_last_sequence = 0


def new_session_id() -> bytes:
    """Draw a session id: 8 bytes that only grow (the clock in nanoseconds), then 16 random bytes.

    A client remembers the first part of the newest id alone and refuses whatever is not newer, so "a session
    that it has seen" costs constant state.

    Returns
    -------
    bytes
        ``SESSION_BYTES`` bytes.
    """
    global _last_sequence
    with _sequence_lock:
        _last_sequence = max(_last_sequence + 1, time.time_ns())
        return _last_sequence.to_bytes(8, "big") + os.urandom(SESSION_BYTES - 8)


def session_sequence(session_id: bytes) -> int:
    """Growing part of a session id."""
    return int.from_bytes(session_id[:8], "big")


@dataclass(frozen=True)
class Session:
    """What all parties of one secure sum agree on; its digest salts every key.

    Parameters
    ----------
    session_id : bytes
        From :func:`new_session_id`.
    purpose : str
        What is summed, in the caller's words.
    length : int
        Coordinates of the vectors.
    modulus_bits : int
        b: sums are mod 2^b, 2 <= b <= 64.
    """

    session_id: bytes
    purpose: str
    length: int
    modulus_bits: int

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over an unambiguous encoding of all fields, shape (32,) bytes."""
        text = self.purpose.encode()
        head = struct.pack(">HQHI", SCHEMA, self.length, self.modulus_bits, len(text))
        return hashlib.sha256(b"fedpriv secure-sum|" + self.session_id + head + text).digest()

    @property
    def dtype(self) -> np.dtype:
        """Little-endian unsigned type of the vectors on the wire: 4 bytes up to b = 32, else 8."""
        return np.dtype("<u4") if self.modulus_bits <= 32 else np.dtype("<u8")


def derive_key(secret: bytes, session: Session, use: bytes, first: int, second: int) -> bytes:
    """HKDF-SHA256 of a secret for one use and one ordered pair of nodes.

    Parameters
    ----------
    secret : bytes
        Input key material.
    session : Session
        Its digest is the salt.
    use : bytes
        One of the ``USE_`` constants: stage and purpose of the key.
    first, second : int
        Node ids in order (owner and owner for a key of one node).

    Returns
    -------
    bytes
        32 bytes.
    """
    info = b"fedpriv/secure-sum|" + use + b"|" + struct.pack(">QQ", first, second)
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=session.digest, info=info).derive(secret)


def random_seed() -> bytes:
    """128 random bits from the operating system, the size of one Shamir block."""
    return os.urandom(SEED_BYTES)


def mask_private_key(seed: bytes, session: Session, node: int) -> X25519PrivateKey:
    """X25519 key for pairwise masks that belongs to a 128-bit seed."""
    return X25519PrivateKey.from_private_bytes(derive_key(seed, session, USE_MASK_KEY, node, node))


def public_bytes(private_key: X25519PrivateKey) -> bytes:
    """Raw public key, 32 bytes."""
    return private_key.public_key().public_bytes_raw()


def agree(private_key: X25519PrivateKey, peer: bytes) -> bytes:
    """X25519 shared secret.

    Raises
    ------
    ValueError
        If the peer's key has the wrong size or is a point of low order.
    """
    return private_key.exchange(X25519PublicKey.from_public_bytes(peer))


def pair_mask_key(private_key: X25519PrivateKey, peer_key: bytes, session: Session, a: int, b: int) -> bytes:
    """Key of the mask that nodes a and b share; the same from both ends."""
    return derive_key(agree(private_key, peer_key), session, USE_PAIR_MASK, min(a, b), max(a, b))


def self_mask_key(seed: bytes, session: Session, node: int) -> bytes:
    """Key of the mask that a node adds for itself."""
    return derive_key(seed, session, USE_SELF_MASK, node, node)


def add_mask(vector: np.ndarray, key: bytes, sign: int) -> None:
    """Add or subtract a keystream in place, modulo the word size.

    AES-256 in counter mode from a zero counter; the key is never used for anything else. The stream is
    uniform on words, hence on their low b bits: a power of two needs no rejection.

    Parameters
    ----------
    vector : numpy.ndarray of unsigned integers, shape (length,)
        Changed in place.
    key : bytes
        32 bytes.
    sign : int
        +1 or -1.
    """
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    step = _CHUNK // vector.itemsize
    for start in range(0, vector.size, step):
        part = vector[start : start + step]
        stream = np.frombuffer(encryptor.update(bytes(part.nbytes)), dtype=vector.dtype)
        if sign > 0:
            part += stream
        else:
            part -= stream


def pair_sign(node: int, peer: int) -> int:
    """Sign of the mask shared with a peer: the node with the larger id adds it, the other subtracts it."""
    return 1 if node > peer else -1


def commit_seed(seed: bytes, session: Session, node: int) -> bytes:
    """Hash that lets the server recognise a rightly reconstructed self-mask seed.

    The seed has 128 bits of entropy, so its hash hides it.
    """
    return hashlib.sha256(b"fedpriv commitment|" + session.digest + struct.pack(">Q", node) + seed).digest()


def same(a: bytes, b: bytes) -> bool:
    """Constant-time comparison."""
    return hmac.compare_digest(a, b)


def _associated_data(session: Session, sender: int, receiver: int, threshold: int) -> bytes:
    return session.digest + struct.pack(">QQI", sender, receiver, threshold)


def seal_shares(
    key: bytes, session: Session, sender: int, receiver: int, threshold: int, shares: tuple[bytes, bytes]
) -> bytes:
    """Encrypt the two shares that a node gives a neighbour (AES-256-GCM, bound to session, pair, threshold).

    Parameters
    ----------
    key : bytes
        From :func:`derive_key` with ``USE_SHARE`` and (sender, receiver).
    session, sender, receiver, threshold
        Authenticated with the shares.
    shares : tuple of bytes
        Share of the self-mask seed and share of the mask-key seed.

    Returns
    -------
    bytes
        Nonce, ciphertext and tag, ``SEALED_SHARE_BYTES`` long.
    """
    nonce = os.urandom(12)
    data = _associated_data(session, sender, receiver, threshold)
    return nonce + AESGCM(key).encrypt(nonce, shares[0] + shares[1], data)


def open_shares(
    key: bytes, session: Session, sender: int, receiver: int, threshold: int, sealed: bytes
) -> tuple[bytes, bytes] | None:
    """Decrypt what :func:`seal_shares` sealed; None if it does not authenticate."""
    data = _associated_data(session, sender, receiver, threshold)
    try:
        plain = AESGCM(key).decrypt(sealed[:12], sealed[12:], data)
    except InvalidTag:
        return None
    return plain[:SHARE_BYTES], plain[SHARE_BYTES:]


def to_residues(values: np.ndarray, session: Session) -> np.ndarray:
    """Signed integers to residues mod 2^b in the session's word type, shape (length,)."""
    residues = np.ascontiguousarray(values, dtype=np.int64).astype(session.dtype)
    return reduce_residues(residues, session)


def reduce_residues(vector: np.ndarray, session: Session) -> np.ndarray:
    """Drop the bits of each word above b, in place; returns the vector."""
    if session.modulus_bits < 8 * vector.itemsize:
        vector &= vector.dtype.type((1 << session.modulus_bits) - 1)
    return vector


def centred(residues: np.ndarray, modulus_bits: int) -> np.ndarray:
    """Representatives in [-2^(b-1), 2^(b-1)) of residues mod 2^b, int64, shape (length,)."""
    spare = 64 - modulus_bits  # moves the sign bit of the residue to the top, and back with its sign
    return (residues.astype(np.uint64) << np.uint64(spare)).view(np.int64) >> np.int64(spare)
