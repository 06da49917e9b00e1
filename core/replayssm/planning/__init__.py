"""What ReplaySSM would cost and save in a model, counted from its layout. Bytes, never times."""

from replayssm.planning.plan import Plan, make_plan
from replayssm.planning.settings import PlanSettings

__all__ = ["Plan", "PlanSettings", "make_plan"]
