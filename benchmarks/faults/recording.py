"""An in-process grid that writes down, before it sends, what leaves the server."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedpriv import wire
from fedpriv.testing import LocalGrid
from fedpriv.testing.local_grid import RUN_ID, SERVER_NODE_ID

_STAGES = {
    wire.PURPOSE_VOTE: "tune",
    wire.PURPOSE_UPDATE: "train",
    wire.PURPOSE_RECORD_LEVEL: "train",
    wire.PURPOSE_EVALUATE: "evaluate",
}
#: Name of a line that says whose masked vectors have come in.
ANSWERED = "answered"


@dataclass(frozen=True)
class Exchange:
    """One exchange.

    Parameters
    ----------
    exchange : str
        Stage of the secure sum.
    session : str
        Which sum.
    stage, round
        What was summed, as the ledger names it; round 0 before the first request that says it.
    model : str
        Digest of the model that was sent; "" where none was.
    partitions : list of int
        Clients whose masked vectors came in; only on a line named ``ANSWERED``.
    """

    exchange: str
    session: str
    stage: str
    round: int
    model: str = ""
    partitions: list[int] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, int]:
        """Stage and round."""
        return self.stage, self.round


def digest(arrays: Mapping[str, Any]) -> str:
    """Fingerprint of a model, whatever holds its arrays."""
    found = hashlib.sha256()
    for name, value in arrays.items():
        array = np.ascontiguousarray(value.numpy() if hasattr(value, "numpy") else value)
        found.update(name.encode() + array.dtype.str.encode() + array.tobytes())
    return found.hexdigest()


class RecordingGrid(LocalGrid):
    """``LocalGrid`` that appends one line per exchange to a file before anything is delivered."""

    def __init__(self, file: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file, self._place, self._round = file, ("", 0), 0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Record, then deliver."""
        messages = list(messages)
        return self.exchange(self._describe(messages[0].content), messages)

    def exchange(self, found: Exchange, messages: list[Message]) -> list[Message]:
        """One exchange."""
        self._write(found)
        replies = super().send_and_receive(messages)
        if found.exchange == wire.STAGE_MASKED_INPUT:
            sources = [
                self.partition_of(reply.metadata.src_node_id) for reply in replies if reply.has_content()
            ]
            self._write(replace(found, exchange=ANSWERED, model="", partitions=sources))
        return replies

    def _write(self, found: Exchange) -> None:
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, json.dumps(asdict(found)).encode() + b"\n")
        os.close(descriptor)

    def _describe(self, content: RecordDict) -> Exchange:
        record = content.get(wire.RECORD_SECURE_SUM)
        if not isinstance(record, ConfigRecord):
            return Exchange("check", "", "train", 0)  # of silos, before the first round
        stage = _STAGES.get(str(record.get(wire.FIELD_PURPOSE, "")), self._place[0])
        update = content.get(wire.RECORD_UPDATE) or content.get(wire.RECORD_RECORD_LEVEL)
        if isinstance(update, Mapping):
            self._round = int(str(update[wire.UPDATE_ROUND]))
            self._place = stage, self._round
        elif stage != self._place[0]:
            self._place = stage, {"tune": 1, "evaluate": self._round}.get(stage, 0)
        arrays = content.array_records.get("arrays")
        session = record[wire.FIELD_SESSION]
        assert isinstance(session, bytes)
        return Exchange(
            str(record[wire.FIELD_STAGE]), session.hex(), *self._place, digest(arrays) if arrays else ""
        )


def read_exchanges(file: Path) -> list[Exchange]:
    """What was recorded, in order."""
    return [Exchange(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def run_recorded(file: Path, config: dict[str, Any]) -> None:
    """Run the whole app in this process over a recording grid; silos keep their accounts beside the file."""
    from client_app.app import app as client
    from server_app.app import app as server

    def silo(partition: int) -> dict[str, Any]:
        return {wire.CONFIG_STATE_PATH: str(file.parent / "silos" / f"silo-{partition}")}

    grid = RecordingGrid(file, client, int(config["num-clients"]), config, node_config=silo)
    server(grid, Context(RUN_ID, SERVER_NODE_ID, {}, RecordDict(), dict(config)))
