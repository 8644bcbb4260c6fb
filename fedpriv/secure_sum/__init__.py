"""Secure sums (SecAgg+) over Flower's Message API.

Server: :class:`SecureSum` with :class:`SecureSumSettings`; it returns :class:`SecureSumResult` or raises
:class:`SecureSumAborted`. An :class:`Ahead`, shared by the rounds of a run, saves two of the four exchanges.
Client: :class:`SecureSumClient`, :func:`secure_sum_mod` or :func:`handle`.

Names are resolved when first used, because a client process must start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.secure_sum.ahead import Ahead
    from fedpriv.secure_sum.client import Refusal, SecureSumClient, handle, inside_simulation, secure_sum_mod
    from fedpriv.secure_sum.server import SecureSum
    from fedpriv.secure_sum.settings import NodeError, SecureSumAborted, SecureSumResult, SecureSumSettings

__all__ = [
    "Ahead",
    "NodeError",
    "Refusal",
    "SecureSum",
    "SecureSumAborted",
    "SecureSumClient",
    "SecureSumResult",
    "SecureSumSettings",
    "handle",
    "inside_simulation",
    "secure_sum_mod",
]

_HOME = {
    **dict.fromkeys(
        ("Refusal", "SecureSumClient", "handle", "inside_simulation", "secure_sum_mod"), "client"
    ),
    **dict.fromkeys(("NodeError", "SecureSumAborted", "SecureSumResult", "SecureSumSettings"), "settings"),
    "Ahead": "ahead",
    "SecureSum": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
