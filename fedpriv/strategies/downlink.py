"""How the model reaches the clients: whole, or as the public steps since a model that a client has."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.mechanisms.directions import SEED_BYTES, Directions
from fedpriv.mechanisms.model_identity import model_identity
from fedpriv.mechanisms.zeroth_order import PublicStep
from fedpriv.secure_sum import NodeError

#: Times that a client may fail to rebuild a model before it always gets the whole one.
MOST_FAILURES = 2


def direction_fields(directions: Directions) -> dict[str, bytes | str | list[float]]:
    """What a client needs to expand a round's directions, and to notice that it expands them otherwise."""
    return {
        wire.ZEROTH_ORDER_SEED: directions.seed,
        wire.ZEROTH_ORDER_KIND: directions.kind,
        wire.ZEROTH_ORDER_FINGERPRINT: directions.fingerprint(),
        wire.ZEROTH_ORDER_NORMS: list(directions.norms),
    }


class Downlink:
    """Makes the payload of every client and remembers which model each of them keeps.

    Parameters
    ----------
    steps_only : bool
        Whether models follow from their predecessors by public steps alone (no noise at the server, no
        projection). Then a client that has a model gets the steps since; one that has none, or for which the
        steps would be larger, gets the model.
    kind : {"orthonormal", "independent", "signs"}
        Of the directions of all steps.
    initial : bytes, optional
        `fedpriv.mechanisms.model_identity` of the model that every client can build by itself: no client is
        ever sent that one.
    """

    def __init__(self, steps_only: bool, kind: str, initial: bytes = b"") -> None:
        self.steps_only, self._kind, self._initial = steps_only, kind, initial
        self._steps: list[PublicStep] = []
        self._kept: dict[int, int] = {}
        self._failures: Counter[int] = Counter()
        self._no_initial: set[int] = set()
        self._start = self._current = self._history = b""

    def start_round(self, arrays: dict[str, np.ndarray]) -> None:
        """Take the round's model; it must be the last one that :meth:`stepped` led to, or begins a history."""
        identity = model_identity(arrays)
        if identity != self._current:
            # another model than the history leads to: nobody can rebuild it
            self._start, self._history = identity, secrets.token_bytes(wire.HISTORY_BYTES)
            self._steps, self._kept = [], {}
        self._current = identity
        self._arrays = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        self._model_bytes = sum(array.nbytes for array in arrays.values())

    def payload(self, node: int) -> RecordDict:
        """Records that bring the round's model to a client."""
        base = self._base(node)
        steps = [] if base is None else self._steps[base:]
        record = ConfigRecord(
            {
                wire.MODEL_ID: self._current,
                wire.MODEL_KEEP: self.steps_only,
                wire.MODEL_HISTORY: self._history,
                wire.MODEL_POSITION: len(self._steps) if base is None else base,
                wire.MODEL_SEEDS: b"".join(step.seed for step in steps),
                wire.MODEL_COEFFICIENTS: [c for step in steps for c in step.coefficients],
                wire.MODEL_NORMS: [norm for step in steps for norm in step.norms or ()],
                wire.ZEROTH_ORDER_KIND: self._kind,
            }
        )
        content = RecordDict({wire.RECORD_MODEL: record})
        if base is None:
            content["arrays"] = self._arrays
        return content

    def _base(self, node: int) -> int | None:
        """Position of a model from which the client can go on by itself; None when it gets the round's model."""
        if not self.steps_only or self._failures[node] >= MOST_FAILURES:
            return None
        base = self._kept.get(node)
        if base is None and self._start == self._initial and node not in self._no_initial:
            base = 0
        if base is None:
            return None
        size = sum(
            SEED_BYTES + 8 * len(step.coefficients) + 8 * len(step.norms or ()) for step in self._steps[base:]
        )
        return None if size >= self._model_bytes else base

    def finish_round(
        self, asked: Sequence[int], answered: Sequence[int], errors: Sequence[NodeError] | None = None
    ) -> None:
        """Note who certainly keeps the round's model now.

        Parameters
        ----------
        asked, answered : sequence of int
            Node ids. One that did not answer may have got the request or not: it can go on from what it kept.
        errors : sequence of NodeError, optional
            Of the round. A client that says that it cannot rebuild the model gets the next one whole; so does
            every client that did not answer where the errors are not known.
        """
        lost = set(asked) - set(answered)
        if errors is not None:
            lost &= {error.node_id for error in errors if error.code == wire.ErrorCode.MODEL_UNKNOWN}
        for node in lost:
            if self._kept.pop(node, None) is None:
                self._no_initial.add(node)
            self._failures[node] += errors is not None
        if self.steps_only:
            self._kept.update(dict.fromkeys(answered, len(self._steps)))

    def stepped(self, step: PublicStep, arrays: dict[str, np.ndarray]) -> None:
        """Add the step that led to the next model."""
        if self.steps_only:
            self._steps.append(step)
            self._current = model_identity(arrays)
