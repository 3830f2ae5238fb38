"""Replay a trace through the scheduler against a cost model: the question `what happens then?`."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Literal

from qwisp.cost import CostModel
from qwisp.errors import BadInput
from qwisp.policies import scheduler_for, space_for
from qwisp.scheduling.contract import Ask, Executor, Refusal, make
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.sizing import size_request
from qwisp.scheduling.wrappers import Stepwise
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.run import Run
from qwisp.trace.no_gc import no_gc
from qwisp.trace.request import Trace

MaxNew = int | Literal["unset", "oracle"]


def parse_max_new(text: str) -> MaxNew:
    """Return `unset`, `oracle` or a whole number above zero. Raises `BadInput`."""
    if text in ("unset", "oracle"):
        return text
    if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0:
        return int(text)
    raise BadInput(
        f"max-new {text!r} is not known", "use unset, oracle or a whole number above zero"
    )


def settings_for(cost: CostModel, **changes: object) -> Settings:
    """Return settings with the legal chunk of the engine that was measured."""
    fixed = {"chunk_tokens": cost.chunk_tokens, "chunk_rule": cost.chunk_rule}
    return Settings(**{**fixed, **changes})  # type: ignore[arg-type]


def arrivals(
    trace: Trace, rate: Fraction = Fraction(1), max_new: MaxNew = "unset"
) -> list[tuple[int, Ask, int]]:
    """Return `(time_ps, ask, actual output tokens)` with arrivals `rate` times as fast.

    The ask carries the trace's own maximum where it has one; else `max_new` decides, and `oracle`
    gives the actual length away (clairvoyant).
    """
    up, down = 1000 * rate.denominator, rate.numerator
    asks = []
    for request_id, arrival_ns, prompt_tokens, output_tokens, limit, prefix in trace.requests:
        if max_new == "oracle":
            limit = output_tokens
        elif limit is None and max_new != "unset":
            limit = max_new
        ask = make(Ask, (request_id, prompt_tokens, limit, prefix, 0, 0))
        asks.append((arrival_ns * up // down, ask, output_tokens))
    return asks


def runnable(
    trace: Trace, layout: Layout, size: SessionSize, settings: Settings, max_new: MaxNew = "unset"
) -> Trace:
    """Return `trace` without the requests that `layout` refuses on arrival: these can never run."""
    space = space_for(layout, size)
    asks = (ask for _, ask, _ in arrivals(trace, max_new=max_new))
    kept = tuple(
        request
        for request, ask in zip(trace.requests, asks, strict=True)
        if not isinstance(size_request(ask, space, settings), Refusal)
    )
    return trace if len(kept) == len(trace.requests) else dataclasses.replace(trace, requests=kept)


def replay(
    trace: Trace,
    layout: Layout,
    size: SessionSize,
    cost: CostModel,
    settings: Settings | None = None,
    *,
    rate: Fraction = Fraction(1),
    max_new: MaxNew = "unset",
    stepwise: bool = False,
) -> Run:
    """Return the run of `trace` under `layout`; the same inputs give the same run, everywhere.

    Raises `NotCalibrated` when the cost model lacks prefill or decode.
    """
    cost.require()
    settings = settings or settings_for(cost)
    with no_gc():
        scheduler = scheduler_for(layout, size, settings)
        inner = CostExecutor(arrivals(trace, rate, max_new), cost, size)
        executor: Executor = Stepwise(inner) if stepwise else inner
        drive(scheduler, executor)
    return Run(
        trace=trace,
        layout=layout,
        size=size,
        cost=cost,
        settings=settings,
        rate=rate,
        max_new=max_new,
        scheduler=scheduler,
        executor=inner,
    )
