"""The session lists that a plan compares: a small fixed set, partly shaped by the trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qwisp.scheduling.layout import MARGIN_ROWS, Layout, SessionSize, parse_layout
from qwisp.trace.request import Trace

FIXED_LISTS = ("65536,32768x3,16384x11", "4096x12,16384x2")
_ROUND_TO = 1024


@dataclass(frozen=True, slots=True)
class Proposal:
    """A layout as one would type it: its text and, for a list, the engine's own context."""

    text: str
    own_context_tokens: int | None = None

    def __str__(self) -> str:
        own = self.own_context_tokens
        return self.text if own is None else f"{self.text} --context {own}"


def proposals(
    trace: Trace, size: SessionSize, memory_bytes: int, model_context_tokens: int
) -> list[Proposal]:
    """Return what to compare, in a fixed order and without repeats.

    Whole windows; as many equal sessions as hold the 99th percentile of the trace's requests; two
    lists known from practice; and half the memory in sessions for its largest request, half in
    sessions for its median.
    """
    # A session must hold what the client may ask for, not only what the reply came to.
    replies = [max(r.output_tokens, r.max_new or 0) for r in trace.requests]
    totals = np.array([r.prompt_tokens for r in trace.requests]) + np.array(replies) + 1
    p50, p99, largest = (
        min(_up(float(np.percentile(totals, p, method="higher"))), model_context_tokens)
        for p in (50, 99, 100)
    )
    found = [
        Proposal("whole_window"),
        Proposal(f"fixed_arena:{p99}"),
        *(Proposal(text) for text in FIXED_LISTS),
        *_halves(size, memory_bytes, large=largest, small=p50),
    ]
    return list(dict.fromkeys(found))


def layout_of(
    proposal: Proposal,
    size: SessionSize,
    memory_bytes: int,
    model_context_tokens: int,
    own_context_tokens: int | None = None,
    machine_bytes: int | None = None,
) -> Layout:
    """Return the layout of a proposal. Raises `BadInput`, also for a model too short for it."""
    return parse_layout(
        proposal.text,
        size=size,
        memory_bytes=memory_bytes,
        model_context_tokens=model_context_tokens,
        own_context_tokens=proposal.own_context_tokens or own_context_tokens,
        machine_bytes=machine_bytes,
    )


def _halves(size: SessionSize, memory_bytes: int, *, large: int, small: int) -> list[Proposal]:
    half = memory_bytes // 2
    num_large = half // size.bytes(large + MARGIN_ROWS)
    num_small = half // size.bytes(small + MARGIN_ROWS)
    if num_large < 1 or num_small < 1 or small >= large:
        return []
    items = [f"{large}x{num_large - 1}"] if num_large > 1 else []
    return [Proposal(",".join([*items, f"{small}x{num_small}"]), own_context_tokens=large)]


def _up(tokens: float) -> int:
    return -(-int(tokens) // _ROUND_TO) * _ROUND_TO
