"""One picture of a lab state: sessions, queue, bytes over the same seconds, first tokens below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from qwisp.charts import bytes_over_time, lab, queue_depth, thinned
from qwisp.widgets.lab_state import LabState, from_window

if TYPE_CHECKING:
    from altair import VConcatChart

_SEGMENT_COLUMNS = ("id", "slot", "phase", "begin_s", "end_s", "moved")


def picture(state: LabState, window: tuple[float, float]) -> VConcatChart:
    """Return the charts of a state over a window. Raises `QwispError` when it has no run."""
    two = state.run_b is not None
    charts: list = [
        lab.sessions_at(
            _short(state.segments(window, name).select(_SEGMENT_COLUMNS)),
            sessions=state.sessions(name),
            policy=name,
            named=two,
        )
        for name in state.runs
    ]
    loads = {name: _short(thinned(state.load(window, name))) for name in state.runs}
    below = [lab.ttft_curve(_short(state.ttft()))]
    comparison = state.comparison()
    if comparison is None:
        charts.append(queue_depth(loads["A"]))
    else:
        queue = thinned(from_window(comparison.queue, window))
        # Of the drawn lines: thinning keeps peaks, and those of a difference point both ways.
        queue = queue.with_columns(difference=pl.col("waiting_b") - pl.col("waiting_a"))
        charts.append(lab.two_queues(queue))
        below.append(lab.ttft_difference(_short(comparison.requests)))
    for name, load in loads.items():
        chart = bytes_over_time(load)
        charts.append(chart.properties(title=f"{name}: {chart.title}") if two else chart)
    return lab.over_time(charts, at_s=state.at_s, window=window, below=below)


def _short(frame: pl.DataFrame) -> pl.DataFrame:
    """Round to milliseconds: no eye sees more, and the page is a third smaller."""
    seconds = [name for name in frame.columns if name.endswith("_s")]
    return frame.with_columns(pl.col(seconds).round(3))
