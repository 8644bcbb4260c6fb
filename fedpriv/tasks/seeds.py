"""Seeds for what must be repeatable (data order, splits, initial weights), and for nothing secret."""

from __future__ import annotations

import hashlib
import json
from numbers import Integral


def derive_seed(*parts: int | str | float | bool | None) -> int:
    """Derive a seed from its parts, such as ``derive_seed(run_seed, "order", server_round, partition_id)``.

    The seed is the first 63 bits of the SHA-256 digest of the parts as JSON, so that different parts give
    unrelated streams (unlike ``seed + round``, where client 1 in round 2 repeats client 2 in round 1), on
    every platform and in every process. It is not secret: never use it for noise, keys or who takes part.

    Parameters
    ----------
    *parts : int, str, float, bool or None
        What the stream depends on. The order and the type matter: ``1`` and ``"1"`` differ.

    Returns
    -------
    int
        In [0, 2**63), which torch and numpy both accept.

    Raises
    ------
    TypeError
        If a part is of another type.

    Examples
    --------
    >>> derive_seed(7, 1, 2) == derive_seed(7, 1, 2), derive_seed(7, 1, 2) == derive_seed(7, 2, 1)
    (True, False)
    """
    plain = []
    for part in parts:
        # numpy's integers are not int; the same number must give the same seed wherever it comes from.
        value = int(part) if isinstance(part, Integral) and not isinstance(part, bool) else part
        if value is not None and not isinstance(value, int | str | float):
            raise TypeError(f"parts of a seed must be int, str, float, bool or None, got {part!r}")
        plain.append(value)
    digest = hashlib.sha256(json.dumps(plain, separators=(",", ":")).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
