"""From a scenario's text to a finished run: read as the command line reads it, and kept."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from qwisp.cli.replay_options import Question
from qwisp.errors import BadInput, NotCalibrated
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import parse_layout
from qwisp.sim.replay import replay
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


def ask(scenario: Scenario) -> tuple[Question, str]:
    """Return what a scenario asks, read and checked, and the remarks of reading.

    Where times are unknown, what can be said of the memory is part of the `NotCalibrated` raised.
    """
    remarks = io.StringIO()
    try:
        with redirect_stdout(remarks), redirect_stderr(remarks):
            question = _question(scenario)
    except NotCalibrated as error:
        known = " ".join(remarks.getvalue().split())
        raise NotCalibrated("; ".join(filter(None, (error.what, known))), error.todo) from None
    return question, remarks.getvalue().strip()


def _question(scenario: Scenario) -> Question:
    return Question.ask(
        model=scenario.model.strip(),
        machine=scenario.machine.strip(),
        memory=scenario.memory.strip() or None,
        trace=scenario.trace_path,
        lenient=False,
        context=scenario.context.strip() or None,
        order=scenario.order.strip(),
        budget=scenario.budget.strip() or None,
        grow=scenario.grow.strip() or None,
        rate=scenario.rate.strip() or None,
        max_new=scenario.max_new.strip(),
    )


@lru_cache(maxsize=4)
def _asked(scenario: Scenario, stamp: int) -> tuple[Question, str]:
    return ask(scenario)


@lru_cache(maxsize=8)
def _replayed(scenario: Scenario, stamp: int) -> tuple[Run, str]:
    question, remarks = _asked(_without_layout(scenario), stamp)
    text = scenario.layout
    if len(text) > MAX_SESSION_LIST_CHARS:
        raise BadInput(
            f"the layout has {len(text):,} characters",
            f"write equal sessions as CONTEXTxN, in at most {MAX_SESSION_LIST_CHARS:,} characters",
        )
    size = SessionBytes(question.model, chunk_tokens=question.settings.chunk_tokens)
    layout = parse_layout(
        text,
        size=size,
        memory_bytes=question.memory_bytes,
        model_context_tokens=question.model.context_max_tokens,
        own_context_tokens=question.own_context_tokens,
        machine_bytes=question.machine.memory_bytes,
    )
    needed = layout.num_bytes(size)
    if needed > question.memory_bytes:
        raise BadInput(
            f"layout {text.strip()} takes {format_bytes(needed)}, above the "
            f"{format_bytes(question.memory_bytes)} for sessions",
            "give more memory, or fewer and smaller sessions",
        )
    run = replay(
        question.trace,
        layout,
        size,
        question.cost,
        question.settings,
        rate=question.rate or Fraction(1),
        max_new=question.max_new,
    )
    return run, remarks


def _without_layout(scenario: Scenario) -> Scenario:
    """The part that is read from files: the same for every cut of the memory."""
    return replace(scenario, layout="")
