"""Options that `plan` and `replay` share, and the question they spell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from qwisp.cli import output
from qwisp.errors import NotCalibrated
from qwisp.planner.question import Question, read_question

_OPTIONS = (
    click.option("--model", help="Catalog name, config.json or folder."),
    click.option("--machine", help="Machine name, or `this`."),
    click.option("--memory", help="Bytes for sessions, like 12GiB or 20%."),
    click.option("--trace", help="Trace file; formats are recognised."),
    click.option("--lenient", is_flag=True, help="Skip lines that cannot be read, and count them."),
    click.option("--context", help="The engine's own session beside a list, like 32K."),
    click.option(
        "--order", default="fcfs", show_default=True, help="fcfs, first_fit, sjf or a .py."
    ),
    click.option("--budget", help="Prefill tokens a round; 0 prefills each prompt in one go."),
    click.option("--grow", help="Reply tokens a first session must hold (8192)."),
    click.option("--prefix", help="Bytes of a prefix store beside the sessions, like 8GiB."),
    click.option("--prefix-boundary", help="Tokens between captures (the trace's key step)."),
    click.option("--rate", help="Scale of the arrivals, like 0.04x."),
    click.option(
        "--max-new", default="unset", show_default=True, help="unset, N, or oracle (clairvoyant)."
    ),
)


def replay_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the function receives them by name, as text for `ask`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def ask(output_format: str, asked: Mapping[str, Any]) -> Question:
    """Return the question that the options spell, and say what reading it had to remark.

    Raises `QwispError`; without times it first says what is known beside `output_format`.
    """
    try:
        question = read_question(**asked)
    except NotCalibrated as error:
        for line in error.remarks:
            output.note(line, output_format)
        raise
    for line in question.remarks:
        output.note(line, "stderr")
    return question
