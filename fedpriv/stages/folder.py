"""The run folder: configuration, checkpoint, metrics; every file is replaced as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord

if TYPE_CHECKING:
    from fedpriv.stages.base import RunState


class RunFolder:
    """``<run-dir>/<name>/`` and the files in it.

    Parameters
    ----------
    path : Path
        The folder; created when missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.path.mkdir(parents=True, exist_ok=True)

    @property
    def config(self) -> Path:
        """Resolved configuration."""
        return self.path / "config.toml"

    @property
    def resume(self) -> Path:
        """The same, as the run configuration that continues the run."""
        return self.path / "resume.toml"

    @property
    def ledger(self) -> Path:
        """Ledger of the run, unless an account is named."""
        return self.path / "ledger.jsonl"

    @property
    def model(self) -> Path:
        """The model, in safetensors."""
        return self.path / "model.safetensors"

    @property
    def metrics(self) -> Path:
        """One JSON object per finished round."""
        return self.path / "metrics.jsonl"

    @property
    def figures(self) -> Path:
        """Pictures."""
        folder = self.path / "figures"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def _state(self) -> Path:
        return self.path / "checkpoint.npz"

    def write_text(self, path: Path, text: str) -> None:
        """Replace a text file atomically."""
        self._replace(path, text.encode())

    def claim(self, config: str) -> bool:
        """Write the configuration of a new run; False where the folder holds one already.

        Of two processes that claim one folder at the same time, one gets it.
        """
        temporary = self.path / f"config.{os.getpid()}.part"
        temporary.write_text(config)
        try:
            os.link(temporary, self.config)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def append_metrics(self, values: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def complete_metrics(self, state: RunState) -> None:
        """Drop a torn last line, and add the checkpoint's round where the run ended before it was written."""
        text = self.metrics.read_text() if self.metrics.exists() else ""
        lines = text.splitlines()[: text.count("\n")]
        report = next((report for report in state.reports if report.name == state.stage), None)
        if report is not None and report.rounds and state.round == report.rounds[-1].round:
            last = json.dumps(report.rounds[-1].model_dump(mode="json"))
            lines += [last] if lines[-1:] != [last] else []
        self._replace(self.metrics, "".join(line + "\n" for line in lines).encode())

    def save_checkpoint(self, state: RunState) -> None:
        """Write model, optimizer and position in one file, so that they always belong together."""
        import io

        position = {
            "stage": state.stage,
            "round": state.round,
            "candidate": state.candidate,
            "stopped": state.stopped,
            "names": list(state.arrays),
            "reports": [report.model_dump(mode="json") for report in state.reports],
        }
        values: dict[str, Any] = {
            f"model:{index}": array.numpy() for index, array in enumerate(state.arrays.values())
        }
        values |= {f"optimizer:{name}": value for name, value in state.optimizer.items()}
        buffer = io.BytesIO()
        np.savez(buffer, position=np.frombuffer(json.dumps(position).encode(), dtype=np.uint8), **values)
        # a stage's state may hold noise that was drawn and not yet released
        self._replace(self._state, buffer.getvalue(), mode=0o600)

    def load_checkpoint(self) -> RunState | None:
        """Read the last checkpoint; None when the run had not reached one."""
        from fedpriv.reporting import StageReport
        from fedpriv.stages.base import RunState

        if not self._state.exists():
            return None
        with np.load(self._state, allow_pickle=False) as stored:
            position = json.loads(bytes(stored["position"]))
            arrays = {name: Array(stored[f"model:{index}"]) for index, name in enumerate(position["names"])}
            optimizer = {
                key.removeprefix("optimizer:"): stored[key]
                for key in stored.files
                if key.startswith("optimizer:")
            }
        return RunState(
            ArrayRecord(arrays),
            candidate=position["candidate"],
            stage=position["stage"],
            round=int(position["round"]),
            optimizer=optimizer,
            reports=[StageReport.model_validate(report) for report in position["reports"]],
            stopped=position["stopped"],
        )

    def save_model(self, arrays: ArrayRecord) -> None:
        """Write ``model.safetensors``."""
        from safetensors.numpy import save

        self._replace(self.model, save({name: np.ascontiguousarray(a.numpy()) for name, a in arrays.items()}))

    @staticmethod
    def _replace(path: Path, data: bytes, mode: int = 0o666) -> None:
        temporary = path.with_name(path.name + ".part")
        temporary.unlink(missing_ok=True)  # left by a process that was killed while it wrote
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
