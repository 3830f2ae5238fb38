"""From a scenario's text to a finished run, which is kept."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from qwisp.errors import BadInput, NotCalibrated
from qwisp.planner.candidates import replay_layout
from qwisp.planner.question import Question, read_question
from qwisp.sim.run import Run
from qwisp.units import format_bytes
from qwisp.widgets.scenario import Scenario

MAX_SESSION_LIST_CHARS = 2000


def replay_scenario(scenario: Scenario) -> tuple[Run, str]:
    """Return the run of a scenario's policy A, and what reading it had to say.

    Equal scenarios on an unchanged trace file share one run. Raises `QwispError`, among them
    `BadInput` for a layout that does not fit the memory.
    """
    path = Path(scenario.trace_path)
    try:
        stamp = path.stat().st_mtime_ns
    except (OSError, ValueError):
        stamp = 0  # reading it will say what is wrong
    return _replayed(scenario.a, stamp)


def question_of(scenario: Scenario) -> Question:
    """Return what a scenario asks, read and checked.

    Where times are unknown, what can be said of the memory is part of the `NotCalibrated` raised.
    """
    try:
        return read_question(
            model=scenario.model.strip(),
            machine=scenario.machine.strip(),
            memory=scenario.memory.strip() or None,
            trace=scenario.trace_path,
            context=scenario.context.strip() or None,
            order=scenario.order.strip(),
            budget=scenario.budget.strip() or None,
            grow=scenario.grow.strip() or None,
            rate=scenario.rate.strip() or None,
            max_new=scenario.max_new.strip(),
        )
    except NotCalibrated as error:
        raise NotCalibrated("; ".join((error.what, *error.remarks)), error.todo) from None


@lru_cache(maxsize=4)
def _asked(scenario: Scenario, stamp: int) -> Question:
    return question_of(scenario)


@lru_cache(maxsize=8)
def _replayed(scenario: Scenario, stamp: int) -> tuple[Run, str]:
    # What is read from files is the same for every cut of the memory.
    question = _asked(replace(scenario, layout=""), stamp)
    text = scenario.layout
    if len(text) > MAX_SESSION_LIST_CHARS:
        raise BadInput(
            f"the layout has {len(text):,} characters",
            f"write equal sessions as CONTEXTxN, in at most {MAX_SESSION_LIST_CHARS:,} characters",
        )
    found = replay_layout(question, text)
    if found.run is None:
        raise BadInput(
            f"layout {text.strip()} takes {format_bytes(found.num_bytes)}, above the "
            f"{format_bytes(question.memory_bytes)} for sessions",
            "give more memory, or fewer and smaller sessions",
        )
    return found.run, "\n".join(question.remarks)
