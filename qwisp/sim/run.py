"""What a replay leaves behind: frames and a summary, computed when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from qwisp.cost import CostModel
from qwisp.scheduling.contract import LogEntry
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.sim.cost_executor import CostExecutor
from qwisp.trace.request import Trace

if TYPE_CHECKING:
    import polars as pl

    from qwisp.sim.summary import Summary


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished replay. Times of frames are seconds from the first arrival of the trace."""

    trace: Trace
    layout: Layout
    size: SessionSize
    cost: CostModel
    settings: Settings
    rate: Fraction
    max_new: int | str
    scheduler: Scheduler
    executor: CostExecutor

    @property
    def counts(self) -> dict[str, int]:
        """Requests submitted, finished, refused, failed, cancelled."""
        return dict(self.scheduler.counts)

    @cached_property
    def log(self) -> list[LogEntry]:
        """Every decision, by round."""
        return self.scheduler.log

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row a request: waits, first token, pace, stalls, end, sessions held."""
        from qwisp.sim.frames import requests_frame

        return requests_frame(self)

    @cached_property
    def rounds(self) -> pl.DataFrame:
        """One row a run of equal rounds: when, how many, how wide, how long."""
        from qwisp.sim.frames import rounds_frame

        return rounds_frame(self)

    @cached_property
    def segments(self) -> pl.DataFrame:
        """One row a stretch of a stream in a session: slot, phase, start and end."""
        from qwisp.sim.frames import segments_frame

        return segments_frame(self)

    @cached_property
    def load(self) -> pl.DataFrame:
        """One row a change: waiting, running and paused requests, rows used, bytes held."""
        from qwisp.sim.frames import load_frame

        return load_frame(self)

    @cached_property
    def summary(self) -> Summary:
        """The run in a few numbers and a verdict word."""
        from qwisp.sim.summary import summarize

        return summarize(self)
