"""The main job: which sessions for this model, machine, memory and traffic, and why."""

from qwisp.planner.plan import Candidate, Plan, make_plan

__all__ = ["Candidate", "Plan", "make_plan"]
