"""The file format: one JSON object per line, each ending in the running hash of all lines up to it.

A line is ``BODY,"hash":"HEX"}`` where ``BODY`` is the object's text without its closing brace and

    HEX = SHA-256( HEX of the line before, as 64 ASCII characters  ||  BODY )

with 64 zeros before the first line. The hash covers the bytes as they stand in the file, so nothing depends
on how a JSON library orders keys or prints numbers. It finds damage and edits in the middle; it is not a
signature: whoever can rewrite the whole file can make a new chain. Keep the last hash elsewhere (the report
does) to find that out, or to notice that whole lines were cut off the end.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.ledger.errors import LedgerCorrupted

FORMAT = "fedpriv-ledger"
VERSION = 1
GENESIS = "0" * 64

#: Every ledger starts with these bytes; anything else is some other file and is never truncated.
HEADER_START = f'{{"seq":0,"type":"header","format":"{FORMAT}",'.encode()

_HASH_KEY = b',"hash":"'
_TAIL_LENGTH = len(_HASH_KEY) + 64 + len(b'"}')


def encode_line(record: Mapping[str, Any], previous_hash: str) -> tuple[bytes, str]:
    """Write one record as a line.

    Parameters
    ----------
    record : mapping
        JSON-able, not empty, without the key ``hash``.
    previous_hash : str
        Hash of the line before, ``GENESIS`` for the first.

    Returns
    -------
    (bytes, str)
        The line with its newline, and its hash.

    Raises
    ------
    TypeError, ValueError
        When the record is not JSON (NaN and infinities are not).
    """
    body = json.dumps(record, separators=(",", ":"), allow_nan=False)[:-1].encode("ascii")
    digest = _digest(previous_hash, body)
    return body + _HASH_KEY + digest.encode() + b'"}\n', digest


def _digest(previous_hash: str, body: bytes) -> str:
    return hashlib.sha256(previous_hash.encode("ascii") + body).hexdigest()


@dataclass(frozen=True)
class ParsedFile:
    """What a file holds.

    Parameters
    ----------
    records : tuple of dict
        The records in order, each with its ``hash``.
    good_bytes : int
        Length of the prefix made of valid lines.
    torn_bytes : int
        Bytes after it: a last line that was being written when the machine stopped. 0 when there is none.
    missing_newline : bool
        The last line is whole and valid but for its newline (it counts).
    head : str
        Hash of the last valid line, ``GENESIS`` when there is none.
    """

    records: tuple[dict[str, Any], ...]
    good_bytes: int
    torn_bytes: int
    missing_newline: bool
    head: str


def parse(data: bytes, path: Path) -> ParsedFile:
    """Check the chain and read the records.

    Only what follows the last newline may be damaged: an append that never finished, so the release it would
    have paid for was never made. Damage anywhere else is an error.

    Raises
    ------
    LedgerCorrupted
        With the number of the first bad line.
    """
    *lines, fragment = data.split(b"\n")
    records: list[dict[str, Any]] = []
    head, good = GENESIS, 0
    for number, line in enumerate(lines, start=1):
        record, why = _check_line(line, head, len(records))
        if record is None:
            raise LedgerCorrupted(path, number, why)
        records.append(record)
        head = record["hash"]
        good += len(line) + 1
    if fragment:
        # A whole line that only lacks its newline is kept: dropping it could under-count (an editor may have
        # stripped the newline of a line that was durable).
        record, _ = _check_line(fragment, head, len(records))
        if record is not None:
            return ParsedFile((*records, record), good + len(fragment), 0, True, record["hash"])
        if not records and not _may_be_header(fragment):
            raise LedgerCorrupted(path, 1, "this is not a fedpriv ledger")
    return ParsedFile(tuple(records), good, len(fragment), False, head)


def _may_be_header(fragment: bytes) -> bool:
    common = min(len(fragment), len(HEADER_START))
    return fragment[:common] == HEADER_START[:common] or not fragment.strip(b"\0")


def _check_line(line: bytes, previous_hash: str, seq: int) -> tuple[dict[str, Any] | None, str]:
    """The record of a line, or None and what is wrong."""
    if seq == 0 and not line.startswith(HEADER_START):
        return None, "this is not a fedpriv ledger"
    if len(line) <= _TAIL_LENGTH or line[-_TAIL_LENGTH:][: len(_HASH_KEY)] != _HASH_KEY or line[-2:] != b'"}':
        return None, "the line has no hash at its end"
    body, claimed = line[:-_TAIL_LENGTH], line[-66:-2]
    if _digest(previous_hash, body).encode() != claimed:
        return None, "the hash does not continue the chain: this line or one before it was changed or removed"
    try:
        record = json.loads(line)
    except ValueError as error:
        return None, f"not JSON: {error}"
    if not isinstance(record, dict) or record.get("seq") != seq or not isinstance(record.get("type"), str):
        return None, f"expected an object with seq {seq} and a type"
    return record, ""


def jsonable(value: Any, where: str) -> Any:
    """Turn plain data with numpy scalars, arrays and tuples into JSON values.

    Parameters
    ----------
    value : object
        None, bool, int, float, str, numpy scalar or array, or a list, tuple or mapping of those.
    where : str
        Name used in the error message.

    Raises
    ------
    TypeError
        For any other type, naming where it sits.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has no infinities; a word is kept rather than a line that other readers refuse.
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "tolist") and type(value).__module__.split(".")[0] == "numpy":
        return jsonable(value.tolist(), where)
    raise TypeError(
        f"{where} is a {type(value).__name__}; allowed: None, bool, int, float, str, lists, mappings, "
        "numpy values"
    )
