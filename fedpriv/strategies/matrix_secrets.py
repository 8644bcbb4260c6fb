"""What the server must remember of a run with correlated noise, on its disk before the first use.

The noise key: another one would break off the matrix. The bins that the server dealt: others would let a client take
part twice. Both are small; the rows drawn so far follow from the key, and a checkpoint only saves drawing them again.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import RandomAllocationSchedule
from fedpriv.mechanisms.allocation_schedule import ServerAllocation
from fedpriv.mechanisms.correlated_noise import KEY_BYTES, new_noise_key


@dataclass
class MatrixSecrets:
    """Key, name of the allocation, and the bins that the server dealt.

    Parameters
    ----------
    key : bytes
        Secret of the noise rows.
    allocation : str
        Public, random name under which clients keep the bins that they drew for this run.
    dealt : ServerAllocation
        Bins drawn by the server; empty where clients draw their own.
    path : Path or None
        File of mode 0600; None for experiments that need not survive a crash.
    """

    key: bytes
    allocation: str
    dealt: ServerAllocation
    path: Path | None = None

    @classmethod
    def in_memory(cls, schedule: RandomAllocationSchedule) -> MatrixSecrets:
        """Fresh secrets that die with the process: for experiments. A run must not be continued after a crash."""
        return cls(new_noise_key(), secrets.token_hex(16), ServerAllocation(schedule))

    @classmethod
    def open(cls, path: Path, schedule: RandomAllocationSchedule) -> MatrixSecrets:
        """Read the secrets of a run, or draw and store them.

        Raises
        ------
        InvalidArgument
            When the file is there and cannot be read: fresh secrets would break the guarantee.
        """
        if not path.exists():
            found = cls.in_memory(schedule)
            found.path = path
            found.store()
            return found
        try:
            data = json.loads(path.read_text())
            key, allocation = bytes.fromhex(data["key"]), str(data["allocation"])
            dealt = ServerAllocation.from_json(schedule, data["dealt"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"{path} cannot be read ({type(error).__name__}); it holds the noise key of the run, without which "
                "the run cannot go on"
            ) from None
        if len(key) != KEY_BYTES or not allocation:
            raise InvalidArgument(f"{path} holds no noise key of {KEY_BYTES} bytes and name of an allocation")
        return cls(key, allocation, dealt, path)

    def store(self) -> None:
        """Replace the file; on the disk when this returns."""
        if self.path is None:
            return
        data = {"key": self.key.hex(), "allocation": self.allocation, "dealt": self.dealt.to_json()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".part")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(data))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
