"""The stages that a run can compose. A new algorithm adds one line here."""

from __future__ import annotations

import importlib

from fedpriv.settings import SettingsError
from fedpriv.stages.base import Stage

#: Value in the ``stages`` key -> module and class.
STAGES: dict[str, tuple[str, str]] = {
    "tune": ("fedpriv.stages.tune", "TuneStage"),
    "train": ("fedpriv.stages.train", "TrainStage"),
    "zeroth-order": ("fedpriv.stages.zeroth_order", "ZerothOrderStage"),
    "paczero": ("fedpriv.stages.pac_zero", "PacZeroStage"),
}


def stage_class(name: str) -> type[Stage]:
    """Look up a stage.

    Raises
    ------
    SettingsError
        Naming the stages that exist.
    """
    if name not in STAGES:
        raise SettingsError(f"run config: stages = {name!r}: should be among {', '.join(STAGES)}")
    module, attribute = STAGES[name]
    found: type[Stage] = getattr(importlib.import_module(module), attribute)
    return found
