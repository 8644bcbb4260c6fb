"""Stages: strategy, plan and ledger behind one interface, and the run that composes them."""

from fedpriv.stages.base import Run, RunState, Stage
from fedpriv.stages.planning import RunPlans, make_plans
from fedpriv.stages.registry import STAGES, stage_class

__all__ = ["STAGES", "Run", "RunPlans", "RunState", "Stage", "make_plans", "stage_class"]
