"""The highest arrival rate a layout sustains: bisection on the verdict."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from qwisp.sim.run import Run
from qwisp.trace.request import Trace

SAMPLE_REQUESTS = 2000
MAX_REPLAYS = 12
LOWEST_SHARE = 256  # of the rate at which load meets capacity; below it nothing is called serving
STEPS_DOWN = 12

T = TypeVar("T")
# Hands out what to replay and takes the run: so no replay is nested in the steps of the search.
Search = Generator[tuple[Trace, Fraction], Run, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """`rate` is the highest arrival scale at which all requests were replayed stable, 0 if none.

    Where there is none, `why` says what was wrong at the lowest rate tried, and `part_rate` is the
    highest at which the first `part_requests` requests, those before the last burst, were replayed
    stable (0: not even these).
    """

    rate: Fraction
    num_replays: int
    num_requests: int
    why: str = ""
    part_rate: Fraction = Fraction(0)
    part_requests: int = 0

    def __str__(self) -> str:
        if self.rate:
            return (
                f"sustains {float(self.rate):g}x ({self.num_replays} replays, confirmed on all "
                f"{self.num_requests:,} requests)"
            )
        text = (
            f"no rate keeps all {self.num_requests:,} requests stable ({self.num_replays} replays):"
            f" {self.why}"
        )
        if self.part_rate:
            text += (
                f"; the first {self.part_requests:,}, before the last burst, are stable at "
                f"{float(self.part_rate):g}x"
            )
        return text


def sustain(trace: Trace, load_ratio: float | None, run_at: Callable[..., Run]) -> Sustained:
    """Return the highest rate of `run_at(trace, rate=...)` confirmed on all, or that there is none.

    Bisects on the first 2,000 requests to 2 % in at most 12 replays, then confirms on all, stepping
    down by a tenth while that fails and the lowest rate tried is stable. The search starts at the
    rate at which load meets capacity (`load_ratio` is that of 1x): nothing above it can be stable.
    """
    search, run, num_replays = _search(trace, load_ratio), None, 0
    while True:
        try:
            some, rate = search.send(run)
        except StopIteration as end:
            return replace(end.value, num_replays=num_replays)
        run, num_replays = run_at(some, rate=rate), num_replays + 1


def _search(trace: Trace, load_ratio: float | None) -> Search[Sustained]:
    """Return what is sustained, the replays not counted."""
    high = _rounded(1 / load_ratio if load_ratio else 1.0)
    rate, slowest = yield from _highest(trace, high)
    part = replace(trace, requests=() if slowest is None else before_last_burst(slowest))
    part_rate = (yield from _highest(part, high))[0] if part.requests else Fraction(0)
    return Sustained(
        rate=rate,
        num_replays=0,
        num_requests=len(trace.requests),
        why="" if slowest is None else f"at {float(slowest.rate):g}x {slowest.summary.why}",
        part_rate=part_rate,
        part_requests=len(part.requests),
    )


def _highest(trace: Trace, high: Fraction) -> Search[tuple[Fraction, Run | None]]:
    """Return the highest rate confirmed on all, or 0 and the run at the lowest one."""
    sample = replace(trace, requests=trace.requests[:SAMPLE_REQUESTS])
    lowest = _rounded(float(high) / LOWEST_SHARE)
    low = yield from _bisected(sample, lowest, high)
    is_whole = len(sample.requests) == len(trace.requests)
    confirmed = low > 0 and (is_whole or (yield from _stable(trace, low)))
    if confirmed:
        return low, None
    slowest = yield trace, lowest
    if slowest.summary.verdict != "stable":
        return Fraction(0), slowest
    for _ in range(STEPS_DOWN if low > 0 else 0):
        low = _rounded(float(low) * 0.9)
        if low > lowest and (yield from _stable(trace, low)):
            return low, None
    return lowest, None


def _stable(trace: Trace, rate: Fraction) -> Search[bool]:
    run = yield trace, rate
    return run.summary.verdict == "stable"


def _bisected(sample: Trace, lowest: Fraction, high: Fraction) -> Search[Fraction]:
    """Return the highest rate found stable on the sample, at most 2 % below one that was not, or 0.

    From `high` down by four until one is stable, then the geometric mean of both ends.
    """
    low, replays = Fraction(0), 1
    if (yield from _stable(sample, high)):
        low = high
    while replays < MAX_REPLAYS and (low == 0 or high > low * Fraction(51, 50)):
        middle = _rounded(float(high) / 4 if low == 0 else float(low * high) ** 0.5)
        middle = max(middle, lowest)
        if middle in (low, high):
            break
        replays += 1
        if (yield from _stable(sample, middle)):
            low = middle
        else:
            high = middle
    return low


def before_last_burst(run: Run) -> tuple:
    """Return the requests that came before the last busy time of a run began, in order."""
    records = run.executor.records
    ended_ps, num = 0, 0
    for at, request in enumerate(run.trace.requests):
        record = records[request.id]
        if record.admitted_ps < 0:
            continue  # it never ran, so it kept nobody waiting
        if record.arrival_ps >= ended_ps:
            num = at
        ended_ps = max(ended_ps, record.end_ps)
    return run.trace.requests[:num]


def _rounded(rate: float) -> Fraction:
    """Return the rate to three significant digits, so that it can be typed and repeated."""
    return Fraction(f"{rate:.2e}")
