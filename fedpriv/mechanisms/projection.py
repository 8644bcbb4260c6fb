"""Projection of the model on a ball: the second clip of DPSGD-DC (arXiv 2502.17772)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedpriv.accounting.validators import check_positive


@dataclass(frozen=True)
class Ball:
    """The closed L2 ball on which the server keeps the model.

    Parameters
    ----------
    radius : float
        Radius R > 0 (bounds that speak of a diameter use D = 2 R).
    center : np.ndarray or None
        Shape (d,); None is the origin.
    """

    radius: float
    center: np.ndarray | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_positive(radius=self.radius)

    @property
    def diameter(self) -> float:
        """Largest distance between two models, 2 R."""
        return 2.0 * self.radius

    def project(self, model: np.ndarray) -> np.ndarray:
        """Return the point of the ball nearest to ``model`` (shape (d,)); a model inside is unchanged."""
        offset = model if self.center is None else model - self.center
        norm = float(np.linalg.norm(offset))
        if norm <= self.radius:
            return model
        inside = offset * (self.radius / norm)
        return inside if self.center is None else inside + self.center
