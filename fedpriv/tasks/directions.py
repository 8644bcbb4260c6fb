"""Which directions the zeroth-order stages search along: decided once, for the plan and for a client's trial."""

from __future__ import annotations

from fedpriv.mechanisms.directions import Kind, kind_of_law
from fedpriv.settings import PacZeroSettings, ZerothOrderSettings


def direction_kind(own: ZerothOrderSettings | PacZeroSettings, dimension: int) -> Kind:
    """Kind of directions for a model of so many coordinates.

    Hidden-state bounds need isotropic noise, so that without it, and for PACZero, signs lose nothing.
    """
    if isinstance(own, PacZeroSettings):
        return kind_of_law(own.direction_kind, dimension, 1, may_amplify=False)
    return kind_of_law(own.direction_kind, dimension, own.directions, may_amplify=own.direction_share < 1.0)
