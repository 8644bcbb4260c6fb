"""A plan couples sampler, mechanism and noise, and derives from them the event that the ledger charges.

What runs and what is accounted come from one object: strategies take their parameters from the plan, and the
ledger takes ``plan.events()``; no privacy number is typed in twice.
"""

from fedpriv.plans.base import AnyPlan, Forecast, Hypothesis, PacPlan, Plan
from fedpriv.plans.calibrate import CalibratedPlans, calibrate_plans
from fedpriv.plans.dpsgd_dc import DpsgdDcPlan
from fedpriv.plans.evaluation import EvaluationPlan
from fedpriv.plans.hidden_state import HiddenState, TrainingFacts, hidden_state
from fedpriv.plans.matrix import MatrixPlan
from fedpriv.plans.noise import NoiseModel
from fedpriv.plans.pac_zero import PacZeroPlan
from fedpriv.plans.record_level import RecordLevelPlan
from fedpriv.plans.record_zeroth_order import RecordZerothOrderPlan
from fedpriv.plans.vote import VotePlan
from fedpriv.plans.zeroth_order import ZerothOrderPlan

__all__ = [
    "AnyPlan",
    "CalibratedPlans",
    "DpsgdDcPlan",
    "EvaluationPlan",
    "Forecast",
    "HiddenState",
    "Hypothesis",
    "MatrixPlan",
    "NoiseModel",
    "PacPlan",
    "PacZeroPlan",
    "Plan",
    "RecordLevelPlan",
    "RecordZerothOrderPlan",
    "TrainingFacts",
    "VotePlan",
    "ZerothOrderPlan",
    "calibrate_plans",
    "hidden_state",
]
