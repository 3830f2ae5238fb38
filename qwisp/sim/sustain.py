"""The highest arrival rate a layout sustains: bisection on the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from qwisp.sim.run import Run
from qwisp.trace.request import Trace

SAMPLE_REQUESTS = 2000
MAX_REPLAYS = 12
LOWEST_SHARE = 256  # of the rate at which load meets capacity; below it nothing is called serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """`rate` is the largest arrival scale found stable (0 when none was), 2 % apart from failure.

    `confirmed` says that a replay of all requests at that rate was stable too.
    """

    rate: Fraction
    confirmed: bool
    num_replays: int
    num_requests: int


def sustain(
    trace: Trace, load_ratio: float | None, run_at: Callable[[Trace, Fraction], Run]
) -> Sustained:
    """Return the highest sustained rate of `run_at(trace, rate)`.

    Bisects on the first 2,000 requests to 2 % in at most 12 replays, then confirms on all, stepping
    down by a tenth while that fails. The search starts at the rate at which load meets capacity
    (`load_ratio` is that of 1x): nothing above it can be stable.
    """
    sample = replace(trace, requests=trace.requests[:SAMPLE_REQUESTS])
    replays = 0

    def stable(some: Trace, rate: Fraction) -> bool:
        nonlocal replays
        replays += 1
        return run_at(some, rate).summary.verdict == "stable"

    high = _rounded(1 / load_ratio if load_ratio else 1.0)
    low, lowest = Fraction(0), high / LOWEST_SHARE
    if stable(sample, high):
        low = high
    while replays < MAX_REPLAYS and (low == 0 or high > low * Fraction(51, 50)):
        middle = _rounded(float(high) / 4 if low == 0 else float(low * high) ** 0.5)
        if middle in (low, high) or middle < lowest:
            break
        if stable(sample, middle):
            low = middle
        else:
            high = middle
    confirmed = low > 0 and (len(sample.requests) == len(trace.requests) or stable(trace, low))
    while low > 0 and not confirmed and replays < 2 * MAX_REPLAYS:
        low = _rounded(float(low) * 0.9)
        confirmed = stable(trace, low)
    return Sustained(
        rate=low, confirmed=confirmed, num_replays=replays, num_requests=len(trace.requests)
    )


def _rounded(rate: float) -> Fraction:
    """Return the rate to three significant digits, so that it can be typed and repeated."""
    return Fraction(f"{rate:.2e}")
