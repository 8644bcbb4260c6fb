"""The mathematics of privacy: curves, events, composition, calibration. Usable without Flower.

Importing this package needs numpy only; ``scipy`` and ``dp_accounting`` are imported when first
needed, and so are the modules of the families below (hidden state, random allocation, PAC, Flower).
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.calibration import Calibration, calibrate_noise_multiplier
from fedpriv.accounting.curves import (
    DEFAULT_ORDERS,
    ConvertedEpsilon,
    DirectionalCurves,
    RdpCurve,
    gaussian_curve,
    infinite_curve,
    zero_curve,
)
from fedpriv.accounting.events import (
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    NoRelease,
    PoissonGaussian,
    PrivacyEvent,
    event_from_json,
    register_event,
)
from fedpriv.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.accounting.vocabulary import ADJACENCIES, UNITS, VIEWS, Adjacency, Unit, View
from fedpriv.accounting.votes import vote_regret_probability, vote_sensitivity

if TYPE_CHECKING:
    from fedpriv.accounting.allocation import allocation_epsilon, calibrate_allocation, compare_matrices
    from fedpriv.accounting.allocation_events import RandomAllocation
    from fedpriv.accounting.amplification_by_iteration import (
        AmplificationByIteration,
        calibrate_amplification_by_iteration,
    )
    from fedpriv.accounting.dp_events import Laplace, ZeroConcentrated, events_from_dp_event
    from fedpriv.accounting.dpsgd_dc import dpsgd_dc_event, linear_model_smoothness, pseudo_gradient_lipschitz
    from fedpriv.accounting.flower import FlowerAccountant
    from fedpriv.accounting.matrices import StrategyMatrix, make_matrix
    from fedpriv.accounting.pac import (
        PacBudget,
        SubsetPosterior,
        binary_channel_information,
        binary_channel_noise_std,
        membership_success,
        mutual_information_for_success,
        pure_dp_epsilon_with_equal_posterior,
    )
    from fedpriv.accounting.zeroth_order import (
        ZerothOrderHiddenState,
        calibrate_zeroth_order,
        zeroth_order_event,
    )

_LAZY = {
    "allocation": (
        "allocation_epsilon",
        "calibrate_allocation",
        "compare_matrices",
    ),
    "allocation_events": ("RandomAllocation",),
    "amplification_by_iteration": (
        "AmplificationByIteration",
        "calibrate_amplification_by_iteration",
    ),
    "dp_events": (
        "Laplace",
        "ZeroConcentrated",
        "events_from_dp_event",
    ),
    "dpsgd_dc": (
        "dpsgd_dc_event",
        "linear_model_smoothness",
        "pseudo_gradient_lipschitz",
    ),
    "flower": ("FlowerAccountant",),
    "matrices": (
        "StrategyMatrix",
        "make_matrix",
    ),
    "pac": (
        "PacBudget",
        "SubsetPosterior",
        "binary_channel_information",
        "binary_channel_noise_std",
        "membership_success",
        "mutual_information_for_success",
        "pure_dp_epsilon_with_equal_posterior",
    ),
    "zeroth_order": (
        "ZerothOrderHiddenState",
        "calibrate_zeroth_order",
        "zeroth_order_event",
    ),
}
"""Public names of modules that are imported when first asked for."""

_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "ADJACENCIES",
    "DEFAULT_ORDERS",
    "UNITS",
    "VIEWS",
    "Accountant",
    "Adjacency",
    "AmplificationByIteration",
    "Calibration",
    "ConvertedEpsilon",
    "DirectionalCurves",
    "Epsilon",
    "FixedSizeGaussian",
    "FlowerAccountant",
    "Gaussian",
    "InvalidArgument",
    "Laplace",
    "NoRelease",
    "NonPrivate",
    "PacBudget",
    "PoissonGaussian",
    "PrivacyEvent",
    "RandomAllocation",
    "RdpCurve",
    "StrategyMatrix",
    "SubsetPosterior",
    "Unit",
    "View",
    "ZeroConcentrated",
    "ZerothOrderHiddenState",
    "allocation_epsilon",
    "binary_channel_information",
    "binary_channel_noise_std",
    "calibrate_allocation",
    "calibrate_amplification_by_iteration",
    "calibrate_noise_multiplier",
    "calibrate_zeroth_order",
    "compare_matrices",
    "dpsgd_dc_event",
    "event_from_json",
    "events_from_dp_event",
    "gaussian_curve",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "infinite_curve",
    "linear_model_smoothness",
    "make_matrix",
    "membership_success",
    "mutual_information_for_success",
    "pseudo_gradient_lipschitz",
    "pure_dp_epsilon_with_equal_posterior",
    "register_event",
    "vote_regret_probability",
    "vote_sensitivity",
    "zero_curve",
    "zeroth_order_event",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
