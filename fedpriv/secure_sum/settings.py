"""What a caller decides about a secure sum, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedpriv import wire

Mode = Literal["protocol", "simulated"]
MODES = ("protocol", "simulated")


@dataclass(frozen=True)
class SecureSumSettings:
    """Settings of a secure sum, the same for every session of a run.

    Parameters
    ----------
    min_survivors : int
        Summed clients that a session needs, at least 2 (1 when simulated): below it the session aborts before
        anything is revealed. Noise shares are sized for it.
    share_threshold : int or None
        Shares that recover a secret, in (m/2, m] for a neighbourhood of m holders (the node and its
        neighbours). None is two thirds of m plus one. A node that lost more than m - threshold holders ends
        the session.
    neighbours : int or None
        Neighbours per node, at least 1. None is a complete graph up to 16 nodes and beyond that the number of
        :func:`fedpriv.secure_sum.graph.neighbours_for`.
    modulus_bits : int
        b, 2 to 64: sums are exact mod 2^b. Vectors travel as 4-byte words up to 32 and 8-byte words above.
    timeout : float
        Seconds that one exchange may take; a session has four, or two after one that set it up ahead.
    mode : {"protocol", "simulated"}
        "simulated" asks simulated clients for their integers in the clear, in one exchange, and gives the
        same sum; a client outside a simulation refuses it.

    Raises
    ------
    ValueError
        With the setting, its value and what is allowed.
    """

    min_survivors: int
    share_threshold: int | None = None
    neighbours: int | None = None
    modulus_bits: int = 32
    timeout: float = 300.0
    mode: Mode = "protocol"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode = {self.mode!r}: must be one of {MODES}")
        least = 2 if self.mode == "protocol" else 1
        _check_int("min_survivors", self.min_survivors, least, None)
        if self.share_threshold is not None:
            _check_int("share_threshold", self.share_threshold, 2, None)
        if self.neighbours is not None:
            _check_int("neighbours", self.neighbours, 1, None)
        _check_int("modulus_bits", self.modulus_bits, wire.MIN_MODULUS_BITS, wire.MAX_MODULUS_BITS)
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout = {self.timeout!r}: must be a finite number of seconds above 0")


def _check_int(name: str, value: object, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} = {value!r}: must be an integer")
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} = {value}: must be {allowed}")


@dataclass(frozen=True)
class NodeError:
    """A node's fault in one stage: an error reply, or a reply that does not fit.

    Parameters
    ----------
    node_id : int or None
        The node; None where the reply named none that was asked.
    stage : str
        One of ``wire.STAGES``.
    code : int or None
        Code of the node's error reply; None where the server found the fault.
    message : str
        Our own words.
    """

    node_id: int | None
    stage: str
    code: int | None
    message: str


@dataclass(frozen=True, eq=False)
class SecureSumResult:
    """Outcome of one session.

    Parameters
    ----------
    total : numpy.ndarray of int64, shape (length,)
        Representative in [-2^(b-1), 2^(b-1)) of the survivors' sum mod 2^b.
    survivors : tuple of int
        Node ids whose vectors are in the sum, sorted.
    dropped : dict
        Stage -> node ids that were asked and did not answer properly (those lost in "unmask" are summed).
    errors : tuple of NodeError
        Faults that were seen; silence leaves none.
    bytes_up, bytes_down : int
        Payload bytes from clients and to clients over all exchanges (:func:`fedpriv.wire.content_bytes`).
    seconds : dict
        Stage -> wall seconds of its exchange.
    neighbours, share_threshold : int
        Neighbours per node and Shamir threshold that were used; 0 when simulated.
    mode : str
        "protocol" or "simulated".
    """

    total: np.ndarray
    survivors: tuple[int, ...]
    dropped: dict[str, tuple[int, ...]]
    errors: tuple[NodeError, ...]
    bytes_up: int
    bytes_down: int
    seconds: dict[str, float]
    neighbours: int = 0
    share_threshold: int = 0
    mode: str = "protocol"


class SecureSumAborted(RuntimeError):
    """A session ended without a sum.

    Parameters
    ----------
    stage : str
        Stage in which it ended.
    message : str
        Why.
    released : bool
        Whether an unmask request had left the server: then the release counts as made. Always False when
        simulated, as the protocol would have revealed nothing in the same case.
    dropped : dict
        As in :class:`SecureSumResult`, up to the abort.
    errors : tuple of NodeError
        As in :class:`SecureSumResult`, up to the abort.
    """

    def __init__(
        self,
        stage: str,
        message: str,
        released: bool,
        dropped: dict[str, tuple[int, ...]] | None = None,
        errors: tuple[NodeError, ...] = (),
    ) -> None:
        state = "an unmask request had left" if released else "nothing was revealed"
        super().__init__(f"secure sum aborted in stage {stage!r}: {message} ({state})")
        self.stage, self.message, self.released = stage, message, released
        self.dropped, self.errors = dict(dropped or {}), tuple(errors)
