"""Offered load against capacity: how many such machines a trace needs, before any replay.

Times of requests are whole picoseconds, exactly: 64-bit where they provably fit, else Python's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from qwisp.cost.model import PS_PER_S, CostModel
from qwisp.errors import BadTrace
from qwisp.scheduling.chunking import num_rounds
from qwisp.trace.request import Trace

_LARGEST_PS = 2**62  # a bit below what 64 bits hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What a trace asks for, and what one machine serves.

    `load_requests_per_s` is requests over the span of arrivals; `capacity_requests_per_s` the
    inverse of the mean time a request takes of the machine. `ratio` is their quotient, None for a
    burst (all arrive at once, so there is no rate), `exact_ratio` the same before it was rounded.
    """

    num_requests: int
    span_s: float
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    mean_service_s: float
    best_width: int
    load_requests_per_s: float | None
    capacity_requests_per_s: float
    exact_ratio: Fraction | None

    @property
    def ratio(self) -> float | None:
        """Load over capacity, None for a burst."""
        return None if self.exact_ratio is None else float(self.exact_ratio)

    @property
    def num_machines(self) -> int | None:
        """Machines the trace needs as recorded, None for a burst."""
        return None if self.exact_ratio is None else max(1, math.ceil(self.exact_ratio))

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.num_requests:,} requests arrive at once: a burst has no rate"
        machines = f"{self.num_machines:,} such machines" if self.ratio > 1 else "one such machine"
        return (
            f"{self.load_requests_per_s:.3g} requests/s offered, {self.capacity_requests_per_s:.3g}"
            f" served at best: load {self.ratio:.2f}, needs {machines}"
        )


def best_width(cost: CostModel, max_width: int | None = None) -> int:
    """Return the measured width with the most tokens a second, at most `max_width` lanes.

    >>> from qwisp.cost import load_cost
    >>> best_width(load_cost("qwen3.6-35b-a3b", "m1-max-64gb"))
    4
    """
    cost.require(prefill=False)
    widths = [w for w, _ in cost.step_ps_by_width if max_width is None or w <= max_width]
    return min(widths or [1], key=lambda w: (Fraction(cost.step_ps(w), w), w))


def solo_prefill_ps(cost: CostModel, prompt_tokens: np.ndarray, budget: int = 1024) -> np.ndarray:
    """Return `(n,)` picoseconds in which an idle engine prefills `(n,)` prompts, nothing cached.

    `budget` tokens a round, 0 for the whole prompt in one round. The array holds 64-bit integers,
    or Python's own where 64 bits do not hold the longest.
    """
    cost.require(decode=False)
    prompts = _exact(prompt_tokens, lambda largest: _prefill_ps(cost, largest, budget))
    return _prefill_ps(cost, prompts, budget)


def solo_e2e_ps(
    cost: CostModel, prompt_tokens: np.ndarray, output_tokens: np.ndarray, budget: int = 1024
) -> np.ndarray:
    """Return `(n,)` picoseconds from arrival to end of `(n,)` requests, each alone, nothing cached.

    The first reply token comes from the round that ends the prefill; each step costs the rows that
    are in use before it. Copies, which a layout may add, are not in it.
    """
    cost.require()
    most = int(output_tokens.max(initial=0))
    prompts = _exact(prompt_tokens, lambda largest: _solo_ps(cost, largest, most, budget))
    return _solo_ps(cost, prompts, output_tokens.astype(prompts.dtype), budget)


def _exact(tokens: np.ndarray, largest_ps: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return `tokens` as 64-bit integers if what comes of the largest fits them, else as Python's.

    Costs only grow with tokens, and so does every product on the way.
    """
    largest = np.array([int(tokens.max(initial=1))], dtype=object)
    fits = int(largest_ps(largest)[0]) < _LARGEST_PS
    return tokens.astype(np.int64 if fits else object)


def _solo_ps(
    cost: CostModel, prompts: np.ndarray, outputs: np.ndarray | int, budget: int
) -> np.ndarray:
    rows = outputs * prompts + outputs * (outputs - 1) // 2
    return _prefill_ps(cost, prompts, budget) + cost.step_ps(1) * outputs + cost.row_ps * rows


def _prefill_ps(cost: CostModel, prompts: np.ndarray, budget: int) -> np.ndarray:
    tokens = prompts - int(cost.chunk_rule == "aligned")
    chunks = -(-tokens // cost.chunk_tokens)
    depth = tokens * (tokens - 1) // 2
    work = cost.round_ps * num_rounds(chunks, budget, cost.chunk_tokens) + cost.chunk_ps * chunks
    work += cost.token_ps * tokens + cost.depth_ps * depth
    if cost.window_depth_ps:
        inside = np.minimum(tokens, cost.window_tokens)
        windowed = inside * (inside - 1) // 2 + (tokens - inside) * cost.window_tokens
        work += cost.window_depth_ps * windowed
    return work


def offered_load(
    trace: Trace, cost: CostModel, *, budget: int = 1024, max_width: int | None = None
) -> Offered:
    """Return the offered load of `trace` against the capacity of a machine with `cost`.

    A request takes its solo prefill plus its reply at the best measured batch width; cached
    prefixes are not counted, so a prefix store can only lower the ratio. Requests that can never
    run belong to neither: `qwisp.sim.replay.runnable` leaves them out of a trace. Raises
    `NotCalibrated` when the cost model lacks prefill or decode, `BadTrace` for an empty trace.
    """
    cost.require()
    if not trace.requests:
        raise BadTrace(f"trace {trace.name!r} holds no request", "give a trace with requests")
    prompt = np.array([request.prompt_tokens for request in trace.requests], dtype=object)
    num = len(prompt)
    width = best_width(cost, max_width)
    # Python integers: the sum of a long trace in picoseconds does not fit 64 bits.
    service_ps = Fraction(sum(solo_prefill_ps(cost, prompt, budget).tolist()))
    service_ps += Fraction(trace.output_tokens * cost.step_ps(width), width)
    mean_s = float(service_ps / num / PS_PER_S)
    span = Fraction(trace.span_ns, 10**9)
    return Offered(
        num_requests=num,
        span_s=float(span),
        prompt_tokens_per_s=float(trace.prompt_tokens / span) if span else None,
        output_tokens_per_s=float(trace.output_tokens / span) if span else None,
        mean_service_s=mean_s,
        best_width=width,
        load_requests_per_s=float(num / span) if span else None,
        capacity_requests_per_s=1 / mean_s,
        exact_ratio=service_ps / PS_PER_S / span if span else None,
    )
