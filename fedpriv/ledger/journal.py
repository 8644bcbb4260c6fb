"""A locked file that only grows, where an append has reached the disk when the call returns."""

from __future__ import annotations

import fcntl
import io
import os
from pathlib import Path

from fedpriv.ledger.errors import LedgerError, LedgerLocked


def sync_file(descriptor: int) -> None:
    """Flush a file or directory to the disk itself."""
    # On macOS fsync stops at the drive's cache; F_FULLFSYNC does not.
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        fcntl.fcntl(descriptor, full_sync)
    else:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Flush a directory, so that a file created in it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Create a directory and its parents, each durably."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


class Journal:
    """One writer's hold on an append-only file.

    The lock (``flock``) belongs to this open file: it ends when the journal is closed or its process dies,
    however it dies. It keeps out other processes and other journals of this process. A process forked from
    the holder is refused too.

    Parameters
    ----------
    path : Path
        Created with mode 0600 when it does not exist, parents included.

    Raises
    ------
    LedgerLocked
        Another writer holds the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_directories(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = io.FileIO(descriptor, "r+")
        self._owner = os.getpid()
        self._failed = ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise LedgerLocked(
                f"{path} is being written by another run; two runs cannot spend from one ledger at the same "
                "time. Wait for that run to end, or give this one its own account."
            ) from error
        self.data = self._file.readall()
        self._size = len(self.data)
        self._check_place()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def append(self, line: bytes) -> None:
        """Write bytes at the end and return once they are on the disk.

        Raises
        ------
        LedgerError
            When the file was replaced, moved, grown by somebody else, or could not be written. After a failed
            write the journal accepts nothing more: what reached the disk is unknown until it is opened again.
        """
        self.check_usable()
        try:
            self._write(line)
            sync_file(self._file.fileno())
        except OSError as error:
            self._failed = str(error)
            raise LedgerError(
                f"{self.path} could not be written ({error}); the release must not be made"
            ) from error
        self._size += len(line)

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes, durably."""
        self.check_usable()
        self._file.truncate(size)
        sync_file(self._file.fileno())
        self._size = size

    def sync_directory(self) -> None:
        """Make the file's name durable."""
        sync_directory(self.path.parent)

    def close(self) -> None:
        """Give up the lock. Closing twice is allowed."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        view, offset = memoryview(line), self._size
        while view:
            written = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[written:], offset + written

    def check_usable(self) -> None:
        """Raise unless a write now would go to the right file and be this process's own."""
        if self.closed:
            raise LedgerError(f"{self.path} was closed")
        if self._failed:
            raise LedgerError(f"{self.path} failed earlier ({self._failed}); open it again")
        if os.getpid() != self._owner:
            raise LedgerError(f"{self.path} is held by process {self._owner}, not by this copy of it")
        self._check_place()

    def _check_place(self) -> None:
        """Refuse to write into a file that nobody will find again, or that somebody else wrote to."""
        held = os.fstat(self._file.fileno())
        try:
            named = self.path.stat()
        except OSError as error:
            raise LedgerError(f"{self.path} was moved or deleted while it was in use") from error
        if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
            raise LedgerError(f"{self.path} was replaced while it was in use")
        if held.st_size != self._size:
            raise LedgerError(f"{self.path} was changed by somebody else while it was in use")
