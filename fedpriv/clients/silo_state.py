"""What a silo must remember beyond a restart: small secrets in files of its own, in a private folder.

The folder is named by the silo itself, in its node config (``state-path``). A simulation has no silo and no disk:
its clients keep the same bytes in ``Context.state``, which dies with the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fedpriv import wire
from fedpriv.secure_sum import Refusal, inside_simulation
from fedpriv.wire import ErrorCode

_CONTENT = "content"


class SiloFile(ABC):
    """One small file of a silo, replaced as a whole or not at all."""

    @abstractmethod
    def read(self) -> bytes | None:
        """The content; None when it was never written.

        Raises
        ------
        OSError, ValueError
            When there is something that cannot be read; never take that for a file that was never written.
        """

    @abstractmethod
    def write(self, content: bytes) -> None:
        """Replace the content durably: after this returns, a crash cannot lose it."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[SiloFile]:
        """Keep other processes of this silo from reading and writing meanwhile."""
        yield self


class _DiskFile(SiloFile):
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:  # any other error must not look like a file that was never written
            return None

    def write(self, content: bytes) -> None:
        temporary = self.path.with_name(self.path.name + ".part")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def locked(self) -> Iterator[SiloFile]:
        lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self
        finally:
            os.close(lock)


class _ContextFile(SiloFile):
    def __init__(self, context: Context, name: str) -> None:
        self._context, self._name = context, f"{wire.STATE_SILO_FILE}.{name}"

    def read(self) -> bytes | None:
        record = self._context.state.get(self._name)
        if record is None:
            return None
        content = record.get(_CONTENT) if isinstance(record, ConfigRecord) else None
        if not isinstance(content, bytes):
            raise ValueError("the record of a silo's file holds no bytes")
        return content

    def write(self, content: bytes) -> None:
        self._context.state[self._name] = ConfigRecord({_CONTENT: content})


def silo_folder(context: Context, simulation_folder: str = "") -> Path | None:
    """The silo's private folder, created with mode 0700; None in a simulation without one.

    Parameters
    ----------
    context : Context
        Its node config names the folder.
    simulation_folder : str
        In a simulation without ``state-path``: parent of one folder per partition, so that a simulated silo
        remembers across runs of the simulation. Ignored anywhere else.

    Raises
    ------
    Refusal
        Outside a simulation without the node config key ``state-path``, or when the folder cannot be used.
    """
    configured = context.node_config.get(wire.CONFIG_STATE_PATH, "")
    if configured == "" and inside_simulation(context):
        if simulation_folder == "":
            return None
        configured = str(Path(simulation_folder) / f"partition-{context.node_config.get('partition-id', 0)}")
    if not isinstance(configured, str) or configured == "":
        raise Refusal(ErrorCode.NO_STATE_PATH)
    folder = Path(configured).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise Refusal(ErrorCode.NO_STATE_PATH) from error
    return folder


def silo_file(context: Context, purpose: str, run: str, simulation_folder: str = "") -> SiloFile:
    """The file of one purpose in one run.

    Parameters
    ----------
    context : Context
        Its node config names the folder.
    purpose : str
        Letters and dashes; what the file is for.
    run : str
        Name of the run, as the server tells it: hashed, so that it cannot leave the folder.
    simulation_folder : str
        See `silo_folder`.
    """
    name = f"{purpose}-{hashlib.sha256(run.encode()).hexdigest()[:24]}"
    folder = silo_folder(context, simulation_folder)
    return _ContextFile(context, name) if folder is None else _DiskFile(folder / f"{name}.json")
