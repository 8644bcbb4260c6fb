"""Projection of the model on a ball: the second clip of DPSGD-DC (arXiv 2502.17772)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedpriv.accounting.validators import InvalidArgument, check_positive
from fedpriv.mechanisms.clipping import clip_to_norm


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
        """Return the point of the ball nearest to ``model`` (shape (d,)); a model inside is unchanged.

        Raises
        ------
        InvalidArgument
            When the model is not finite: it has no nearest point.
        """
        offset = model if self.center is None else model - self.center
        if not np.all(np.isfinite(offset)):
            raise InvalidArgument("model: not finite, so it cannot be projected on the ball")
        nearest = clip_to_norm(offset, self.radius)
        if not nearest.clipped:
            return model
        return nearest.vector if self.center is None else nearest.vector + self.center
