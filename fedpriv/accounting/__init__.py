"""The mathematics of privacy: curves, events, composition, calibration. Usable without Flower.

Importing this package needs numpy and ``scipy.special`` only; ``dp_accounting`` is imported when first
needed.
"""

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

__all__ = [
    "ADJACENCIES",
    "DEFAULT_ORDERS",
    "UNITS",
    "VIEWS",
    "Accountant",
    "Adjacency",
    "Calibration",
    "ConvertedEpsilon",
    "DirectionalCurves",
    "Epsilon",
    "FixedSizeGaussian",
    "Gaussian",
    "InvalidArgument",
    "NoRelease",
    "NonPrivate",
    "PoissonGaussian",
    "PrivacyEvent",
    "RdpCurve",
    "Unit",
    "View",
    "calibrate_noise_multiplier",
    "event_from_json",
    "gaussian_curve",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "infinite_curve",
    "register_event",
    "vote_regret_probability",
    "vote_sensitivity",
    "zero_curve",
]
