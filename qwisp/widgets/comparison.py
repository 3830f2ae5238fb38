"""Two policies on the same requests: who was answered sooner, and how the queues differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from qwisp.sim.run import Run


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`requests`: `id`, `arrival_s`, `ttft_a_s`, `ttft_b_s`, `difference_s` (B less A to the
    millisecond, negative is sooner under B). `queue`: `time_s`, `waiting_a`, `waiting_b`,
    `difference`.
    """

    requests: pl.DataFrame
    queue: pl.DataFrame
    finding: str


def compare(a: Run, b: Run) -> Comparison:
    """Return B against A. The traces must be the same; requests are joined by id."""
    requests = _joined(a, b)
    queue = _queues(a.load, b.load)
    return Comparison(requests=requests, queue=queue, finding=_finding(a, b, requests, queue))


def _joined(a: Run, b: Run) -> pl.DataFrame:
    columns = ("id", "arrival_s", "ttft_s")
    left = a.requests.select(columns).rename({"ttft_s": "ttft_a_s"})
    right = b.requests.select("id", pl.col("ttft_s").alias("ttft_b_s"))
    return left.join(right, on="id", how="left", maintain_order="left").with_columns(
        difference_s=(pl.col("ttft_b_s") - pl.col("ttft_a_s")).round(3)
    )


def _queues(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    time = np.union1d(a["time_s"].to_numpy(), b["time_s"].to_numpy())

    def at(load: pl.DataFrame) -> np.ndarray:
        last = np.searchsorted(load["time_s"].to_numpy(), time, side="right") - 1
        return np.where(last < 0, 0, load["waiting"].to_numpy()[np.maximum(last, 0)])

    waiting_a, waiting_b = at(a), at(b)
    return pl.DataFrame(
        {
            "time_s": time,
            "waiting_a": waiting_a,
            "waiting_b": waiting_b,
            "difference": waiting_b - waiting_a,
        }
    )


def _finding(a: Run, b: Run, requests: pl.DataFrame, queue: pl.DataFrame) -> str:
    both = requests.drop_nulls("difference_s")["difference_s"]
    sooner, later = int((both < 0).sum()), int((both > 0).sum())
    lost_a, lost_b = a.summary.lost, b.summary.lost
    if not sooner and not later and lost_a == lost_b and not (queue["difference"] != 0).any():
        return "A and B do not differ: every request is answered at the same time under both"
    p95 = [run.summary.ttft_s.p95 or 0.0 for run in (a, b)]
    return (
        f"First token within {p95[0]:,.1f} s under A and {p95[1]:,.1f} s under B (p95); "
        f"B answers {sooner:,} sooner, {later:,} later, {len(both) - sooner - later:,} at the same "
        f"time; lost: {lost_a:,} under A, {lost_b:,} under B"
    )
