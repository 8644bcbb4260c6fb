"""Typed, validated run configuration: one model per stage; the documented table is made from them."""

from fedpriv.settings.base import SettingsError, SettingsModel
from fedpriv.settings.matrix import MatrixSettings
from fedpriv.settings.pac_zero import PacZeroSettings
from fedpriv.settings.resolve import Settings, resolve_settings
from fedpriv.settings.run import RunSettings
from fedpriv.settings.train import TrainSettings
from fedpriv.settings.tune import TuneSettings
from fedpriv.settings.zeroth_order import ZerothOrderSettings

__all__ = [
    "MatrixSettings",
    "PacZeroSettings",
    "RunSettings",
    "Settings",
    "SettingsError",
    "SettingsModel",
    "TrainSettings",
    "TuneSettings",
    "ZerothOrderSettings",
    "resolve_settings",
]
