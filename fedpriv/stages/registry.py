"""The stages that a run can compose. A new algorithm adds one line here."""

from __future__ import annotations

import importlib

from fedpriv.accounting.vocabulary import Unit
from fedpriv.settings import SettingsError
from fedpriv.stages.base import Stage

#: Value in the ``stages`` key -> module and class.
STAGES: dict[str, tuple[str, str]] = {
    "tune": ("fedpriv.stages.tune", "TuneStage"),
    "train": ("fedpriv.stages.train", "TrainStage"),
    "zeroth-order": ("fedpriv.stages.zeroth_order", "ZerothOrderStage"),
    "paczero": ("fedpriv.stages.pac_zero", "PacZeroStage"),
    "matrix": ("fedpriv.stages.matrix", "MatrixStage"),
}

#: The same where the unit of the run is the record. PAC privacy is of records whatever the unit.
RECORD_STAGES: dict[str, tuple[str, str]] = {
    "train": ("fedpriv.stages.record", "RecordTrainStage"),
    "zeroth-order": ("fedpriv.stages.record_zeroth_order", "RecordZerothOrderStage"),
    "paczero": STAGES["paczero"],
}


def stage_class(name: str, unit: Unit = "client") -> type[Stage]:
    """Look up a stage by its name and the unit of the run.

    Raises
    ------
    SettingsError
        Naming the stages that exist.
    """
    known = STAGES if unit == "client" else RECORD_STAGES
    if name not in known:
        raise SettingsError(
            f"run config: stages = {name!r} with unit = {unit!r}: should be among {', '.join(known)}"
        )
    module, attribute = known[name]
    found: type[Stage] = getattr(importlib.import_module(module), attribute)
    return found
