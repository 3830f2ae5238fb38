"""The main job: which sessions for this model, machine, memory and traffic, and why."""

from qwisp.planner.candidates import Candidate, replay_layout
from qwisp.planner.plan import Plan, make_plan
from qwisp.planner.question import Question, read_question

__all__ = ["Candidate", "Plan", "Question", "make_plan", "read_question", "replay_layout"]
