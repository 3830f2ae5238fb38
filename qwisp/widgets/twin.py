"""The static twin of the lab: what it would show at many times, written into one page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qwisp.charts.lab_page import Shown, slider_page
from qwisp.widgets.figures import picture
from qwisp.widgets.lab_state import LabState
from qwisp.widgets.moment import Moment, moments

MAX_ROWS = 12


def save_html(state: LabState, path: str | Path, num_times: int = 120) -> Path:
    """Write a page with a slider over `num_times` times of the state's window; return its path.

    It works from a file. Raises `QwispError` for a scenario that cannot be replayed.
    """
    path = Path(path)
    path.write_text(_page(state, num_times), encoding="utf-8")
    return path


def _page(state: LabState, num_times: int) -> str:
    runs, window = state.runs, state.window()
    times = np.linspace(*window, num_times).round(3).tolist()
    found = [moments(run, times) for run in runs.values()]
    shown = [_shown(dict(zip(runs, now, strict=True))) for now in zip(*found, strict=True)]
    run, comparison = state.run_a, state.comparison()
    summary = f"{run.summary.verdict} at {float(run.rate):g}x: {run.summary.why}."
    if comparison is not None:
        summary = f"{comparison.finding}."
    scenario = state.scenario
    title = f"{scenario.model} on {scenario.machine}, {run.trace.name}: {scenario.layout}"
    return slider_page(
        picture(state, window),
        shown,
        start=int(np.argmin(np.abs(np.array(times) - state.at_s))),
        title=f"{title} (A), {scenario.b.layout} (B)" if len(runs) == 2 else title,
        summary=summary,
        commands=state.commands(),
        scenario=scenario.to_string(),
    )


def wait_rows(now: dict[str, Moment]) -> list[list[str]]:
    """Return the rows of the table of waiting requests: policy, id, state, seconds, why."""
    return [
        [
            policy,
            str(wait.id),
            wait.state,
            f"{moment.at_s - wait.since_s:,.1f}",
            wait.resource,
            wait.detail,
        ]
        for policy, moment in now.items()
        for wait in moment.waits
    ]


def num_stuck(now: dict[str, Moment]) -> int:
    """Return how many requests wait or are paused, over all policies."""
    return sum(moment.num_waiting + moment.num_paused for moment in now.values())


def _shown(now: dict[str, Moment]) -> Shown:
    rows = wait_rows(now)[:MAX_ROWS]
    names = [f"{policy}: " if len(now) > 1 else "" for policy in now]
    return Shown(
        at_s=next(iter(now.values())).at_s,
        finding="\n".join(
            name + moment.finding for name, moment in zip(names, now.values(), strict=True)
        ),
        waits=rows,
        more=num_stuck(now) - len(rows),
    )
