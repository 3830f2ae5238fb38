"""Goodput: requests that were answered in full and in time."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from qwisp.errors import BadInput
from qwisp.sim.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A promise to users: seconds to the first token, and mean seconds a further token."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise BadInput(f"{name} is {value}", f"set {name} to seconds above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests within the promise: their number, share of all, and rate over the makespan."""

    slo: Slo
    requests: int
    share: float
    requests_per_s: float


def goodput(run: Run, slo: Slo) -> Goodput:
    """Return the goodput of a run. A reply cut by its maximum counts for nothing.

    A reply of one token has no further token to be late.
    """
    good = run.requests.filter(
        (pl.col("outcome") == "finished")
        & ~pl.col("truncated")
        & (pl.col("ttft_s") <= slo.ttft_s)
        & (pl.col("tpot_s").fill_null(0.0) <= slo.tpot_s)
    ).height
    makespan_s = run.executor.rounds.end_ps / 1e12
    total = max(1, run.counts["submitted"])
    return Goodput(
        slo=slo,
        requests=good,
        share=good / total,
        requests_per_s=good / makespan_s if makespan_s else 0.0,
    )
