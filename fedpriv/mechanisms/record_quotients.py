"""Two-point quotients record by record, as the rows of a noised step.

Imports torch through the perturbation: only loaded for a model's work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.perturbation import Objective, two_point_quotients
from fedpriv.mechanisms.zeroth_order import clipped_quotients


class RecordQuotients:
    """Every record's K quotients, each clipped: rows of L2 norm at most ``sqrt(K) clip``.

    Has the interface of :class:`fedpriv.mechanisms.per_example.RecordGradients`; the weights that it is asked at
    are K zeros and are not used, the model is in the objective.

    Parameters
    ----------
    objective : Objective
        Losses per record; restored to the last bit.
    directions : Directions
        u_1 .. u_K.
    smoothing, clip : float
        xi and Delta.
    """

    def __init__(self, objective: Objective, directions: Directions, smoothing: float, clip: float) -> None:
        self._objective, self._directions = objective, directions
        self._smoothing, self._clip = smoothing, clip

    @property
    def num_records(self) -> int:
        """Records of the silo."""
        return self._objective.num_records

    def gradients(self, weights: NDArray[np.float64], records: NDArray[np.int64]) -> NDArray[np.float64]:
        """Clipped quotients of some records, shape (m, K)."""
        quotients = two_point_quotients(self._objective, self._directions, self._smoothing, records)
        return clipped_quotients(quotients, self._clip).T
