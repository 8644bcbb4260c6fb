"""Objectives whose losses are linear in the model: every two-point quotient is known beforehand. Imports torch."""

from __future__ import annotations

import numpy as np
import torch


class ManyLinearLosses:
    """Records with linear losses.

    Parameters
    ----------
    arrays : dict of str to np.ndarray
        The model.
    slopes : np.ndarray
        Shape (records, d).
    """

    def __init__(self, arrays: dict[str, np.ndarray], slopes: np.ndarray) -> None:
        self.parameters = [torch.from_numpy(np.array(array)) for array in arrays.values()]
        self.num_records = len(slopes)
        self._slopes = slopes

    def losses(self, records: np.ndarray | None = None) -> np.ndarray:
        """One loss per record."""
        flat = np.concatenate([parameter.numpy().reshape(-1) for parameter in self.parameters])
        with np.errstate(all="ignore"):
            found = self._slopes @ flat.astype(np.float64)
        return found if records is None else found[records]


class LinearLosses(ManyLinearLosses):
    """One record with a linear loss.

    Parameters
    ----------
    arrays : dict of str to np.ndarray
        The model.
    slope : np.ndarray
        Shape (d,).
    """

    def __init__(self, arrays: dict[str, np.ndarray], slope: np.ndarray) -> None:
        super().__init__(arrays, slope[None, :])
