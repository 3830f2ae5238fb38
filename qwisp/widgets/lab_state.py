"""The scheduler lab without a view: a scenario, a time, and everything one may ask about them.

Plain Python: no widget, no chart. A view sets fields and reads frames and sentences; what a user
typed wrongly is `error`, two lines of text, and never an exception on the way to a screen.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
import polars as pl

from qwisp.errors import BadInput, QwispError
from qwisp.sim.run import Run
from qwisp.widgets.comparison import Comparison, compare
from qwisp.widgets.life import Event, life
from qwisp.widgets.moment import Moment, moments
from qwisp.widgets.question import replay_scenario
from qwisp.widgets.scenario import Scenario

MAX_BARS = 2000  # in one picture; beyond it the window gets narrower
_TIME = re.compile(r"(.*)&t=([0-9]{1,12}(?:\.[0-9]{1,6})?)")


class LabState:
    """A scenario and a time of it, in seconds from the first arrival.

    >>> state = LabState(Scenario(layout="16384x4"))
    >>> state.run_a.summary.requests, state.error
    (373, '')
    >>> state.set(layout="0x3")
    >>> print(state.error)
    item 1 of the session list (column 1) is '0x3': zero is no session
    give at least one token, once
    """

    def __init__(self, scenario: Scenario | None = None, at_s: float = 0.0) -> None:
        self.scenario = scenario or Scenario()
        self.at_s = at_s

    def set(self, **changes: str) -> None:
        """Change fields of the scenario. Raises `BadInput` for a name that is none."""
        unknown = changes.keys() - {f.name for f in fields(Scenario)}
        if unknown:
            known = ", ".join(f.name for f in fields(Scenario))
            raise BadInput(f"no field {sorted(unknown)[0]!r}", f"use one of {known}")
        self.scenario = replace(self.scenario, **changes)

    # ---- runs --------------------------------------------------------------------------------

    @property
    def run_a(self) -> Run:
        """The replay under policy A, computed once per scenario. Raises `QwispError`."""
        return replay_scenario(self.scenario)[0]

    @property
    def run_b(self) -> Run | None:
        """The replay under policy B, None when only one policy is asked for."""
        return replay_scenario(self.scenario.b)[0] if self.scenario.has_b else None

    @property
    def runs(self) -> dict[str, Run]:
        """The runs by policy: A, and B where it is asked for."""
        both = {"A": self.run_a, "B": self.run_b}
        return {name: run for name, run in both.items() if run is not None}

    @property
    def error(self) -> str:
        """What is wrong with the scenario, in two lines; empty when it can be replayed."""
        try:
            _ = self.runs
        except QwispError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename}: {error.strerror}\ncheck the path and its permissions"
        return ""

    @property
    def remarks(self) -> str:
        """What reading the trace left out, if anything."""
        return replay_scenario(self.scenario)[1]

    @property
    def span_s(self) -> float:
        """Seconds until the last run has ended."""
        return max(run.executor.rounds.end_ps for run in self.runs.values()) / 1e12

    # ---- a time ------------------------------------------------------------------------------

    def at(self, at_s: float | None = None, policy: str = "A") -> Moment:
        """Return who sits where, who waits, and why, at a time (default: the state's own)."""
        return moments(self._run(policy), [self.at_s if at_s is None else at_s])[0]

    def finding(self) -> str:
        """Return the state's own time in one sentence a policy."""
        found = {name: self.at(policy=name).finding for name in self.runs}
        if len(found) == 1:
            return found["A"]
        return "\n".join(f"{name}: {text}" for name, text in found.items())

    def life(self, request_id: int, policy: str = "A") -> tuple[Event, ...]:
        """Return the decisions about one request, in order, and what it waited for."""
        return life(self._run(policy), request_id)

    # ---- frames ------------------------------------------------------------------------------

    def window(self, width_s: float | None = None) -> tuple[float, float]:
        """Return the stretch of time to draw around the state's own.

        It starts at a multiple of its width, so that it stays while the time moves within it, and
        is halved until it holds at most 2,000 bars.
        """
        span_s = self.span_s or 1.0
        width_s = min(width_s or span_s, span_s)
        while True:
            # The end of the last window belongs to it.
            number = min(self.at_s // width_s, max(0, -(-span_s // width_s) - 1))
            begin_s, end_s = number * width_s, (number + 1) * width_s
            bars = sum(_within(r.segments, begin_s, end_s).height for r in self.runs.values())
            if bars <= MAX_BARS or width_s < 1e-3:
                return begin_s, end_s
            width_s /= 2

    def segments(self, window: tuple[float, float], policy: str = "A") -> pl.DataFrame:
        """Return the stretches of streams in sessions, cut to a window.

        `moved` says that the stream came from another session.
        """
        begin_s, end_s = window
        slot = pl.col("slot")
        moved = (slot != slot.shift()).over("id").fill_null(False)
        frame = self._run(policy).segments.with_columns(
            moved=moved & (pl.col("begin_s") >= begin_s)
        )
        return _within(frame, begin_s, end_s).with_columns(
            pl.col("begin_s").clip(lower_bound=begin_s), pl.col("end_s").clip(upper_bound=end_s)
        )

    def load(self, window: tuple[float, float], policy: str = "A") -> pl.DataFrame:
        """Return waiting requests and bytes over time, from the last change before a window on."""
        return from_window(self._run(policy).load, window)

    def ttft(self) -> pl.DataFrame:
        """Return `policy`, `ttft_s` and `share` of all requests answered within it."""
        frames = []
        for name, run in self.runs.items():
            answered = run.requests.drop_nulls("ttft_s").select("ttft_s").sort("ttft_s")
            share = np.arange(1, answered.height + 1) / run.requests.height
            frames.append(answered.with_columns(share=share, policy=pl.lit(name)))
        return pl.concat(frames)

    def comparison(self) -> Comparison | None:
        """Return B against A, None when only one policy is asked for."""
        return compare(self.run_a, self.run_b) if self.run_b is not None else None

    def sessions(self, policy: str = "A") -> list[str]:
        """Return the contexts of the sessions, in words, in the order of their slots."""
        return [f"{context:,}" for context in self._run(policy).layout.contexts]

    # ---- sharing -----------------------------------------------------------------------------

    def to_string(self) -> str:
        """Return scenario and time, safe in a link."""
        text = self.scenario.to_string()
        return f"{text}&t={self.at_s:.6g}" if 1e-3 <= self.at_s < 1e6 else text

    @classmethod
    def from_string(cls, text: str) -> LabState:
        """Return the state of `to_string`. Raises `BadInput`."""
        match = _TIME.fullmatch(text.strip())
        if match is None:
            return cls(Scenario.from_string(text))
        return cls(Scenario.from_string(match[1]), at_s=float(match[2]))

    def commands(self) -> list[str]:
        """Return the command line of each policy."""
        sides = [self.scenario.a, *([self.scenario.b] if self.scenario.has_b else [])]
        return [side.command() for side in sides]

    def _run(self, policy: str) -> Run:
        runs = self.runs
        if policy not in runs:
            raise BadInput(f"no policy {policy!r} is asked for", f"use {' or '.join(runs)}")
        return runs[policy]


def from_window(frame: pl.DataFrame, window: tuple[float, float]) -> pl.DataFrame:
    """Return the rows by `time_s` in a window, the last one before it as of its start."""
    before = frame.filter(pl.col("time_s") <= window[0]).tail(1)
    inside = frame.filter((pl.col("time_s") > window[0]) & (pl.col("time_s") <= window[1]))
    return pl.concat([before.with_columns(time_s=pl.lit(window[0])), inside])


def _within(segments: pl.DataFrame, begin_s: float, end_s: float) -> pl.DataFrame:
    return segments.filter((pl.col("end_s") > begin_s) & (pl.col("begin_s") < end_s))
