"""How the model reaches the clients: whole, or as the public steps since the model that a client keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.mechanisms.directions import Kind
from fedpriv.mechanisms.model_identity import model_identity
from fedpriv.mechanisms.zeroth_order import PublicStep

_STEP_BYTES = 16  # seed of a step


class Downlink:
    """Makes the payload of every client and remembers which model each of them keeps.

    Parameters
    ----------
    steps_only : bool
        Whether models follow from their predecessors by public steps alone (no noise at the server, no
        projection). Then a client that kept a model gets the steps since; one that did not, or for which the
        steps would be larger, gets the model.
    smoothing : float
        xi, on which the grids of the parameters depend.
    kind : {"orthonormal", "independent"}
        Of the directions of all steps.
    """

    def __init__(self, steps_only: bool, smoothing: float, kind: Kind) -> None:
        self.steps_only, self._smoothing, self._kind = steps_only, smoothing, kind
        self._steps: list[PublicStep] = []
        self._position: dict[bytes, int] = {}
        self._kept: dict[int, bytes] = {}
        self._current = b""

    def start_round(self, arrays: dict[str, np.ndarray]) -> None:
        """Take the round's model; it must be the last one that :meth:`stepped` led to, or begins a history."""
        identity = model_identity(arrays)
        if identity != self._current:
            # another model than the history leads to: nobody can rebuild it
            self._steps, self._position, self._kept = [], {identity: 0}, {}
        self._current = identity
        self._arrays = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        self._model_bytes = sum(array.nbytes for array in arrays.values())

    def payload(self, node: int) -> RecordDict:
        """Records that bring the round's model to a client."""
        base = self._kept.get(node, b"")
        steps = self._steps[self._position[base] :] if base in self._position else []
        size = sum(_STEP_BYTES + 8 * len(step.coefficients) for step in steps)
        if base not in self._position or size >= self._model_bytes:
            base, steps = b"", []
        record = ConfigRecord(
            {
                wire.MODEL_ID: self._current,
                wire.MODEL_BASE_ID: base,
                wire.MODEL_KEEP: self.steps_only,
                wire.MODEL_SEEDS: b"".join(step.seed for step in steps),
                wire.MODEL_COEFFICIENTS: [c for step in steps for c in step.coefficients],
                wire.ZEROTH_ORDER_SMOOTHING: self._smoothing,
                wire.ZEROTH_ORDER_KIND: self._kind,
            }
        )
        content = RecordDict({wire.RECORD_MODEL: record})
        if not base:
            content["arrays"] = self._arrays
        return content

    def finish_round(self, asked: Sequence[int], answered: Sequence[int]) -> None:
        """Note who certainly keeps the round's model now; the others get the next one whole."""
        for node in asked:
            self._kept.pop(node, None)
        if self.steps_only:
            self._kept.update(dict.fromkeys(answered, self._current))

    def stepped(self, step: PublicStep, arrays: dict[str, np.ndarray]) -> None:
        """Add the step that led to the next model."""
        if self.steps_only:
            self._steps.append(step)
            self._current = model_identity(arrays)
            self._position[self._current] = len(self._steps)
