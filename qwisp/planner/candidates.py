"""The session lists that a plan compares, partly shaped by the trace, and one of them replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from qwisp.errors import CheckFailed
from qwisp.planner.question import Question
from qwisp.scheduling.layout import MARGIN_ROWS, Layout, SessionSize
from qwisp.sim.run import Run
from qwisp.sim.summary import Summary
from qwisp.sim.sustain import Sustained, sustain
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


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout and what became of the trace under it; `run` is None when it does not fit.

    `easier` is the same at 0.8 of the rate; `sustained` the highest rate it keeps up with.
    """

    proposal: Proposal
    layout: Layout
    num_bytes: int
    run: Run | None = None
    easier: Summary | None = None
    sustained: Sustained | None = None

    @property
    def feasible(self) -> bool:
        """It fits the session memory."""
        return self.run is not None


def replay_layout(
    question: Question, text: str, *, cut: str | None = None, find_rate: bool = False
) -> Candidate:
    """Return what becomes of a question's trace under one layout; no run where it does not fit.

    With `find_rate` it runs at the highest rate that the layout sustains, else at the question's
    own or as recorded. Raises `BadInput` for a text that is no layout here, and `CheckFailed` when
    no rate is sustained.
    """
    layout = question.layout(text, cut=cut)
    found = Candidate(
        proposal=Proposal(text, question.own_context_tokens),
        layout=layout,
        num_bytes=layout.num_bytes(question.size),
    )
    if found.num_bytes > question.memory_bytes:
        return found
    rate, run_at = question.rate or Fraction(1), question.replays(layout)
    if find_rate:
        served = question.served(layout)
        if not served.requests:
            raise CheckFailed(
                f"{layout.text} can run none of {len(question.trace.requests):,} requests",
                "give larger sessions with --layout",
            )
        sustained = sustain(question.trace, question.offered(served).ratio, run_at)
        if not sustained.rate:
            raise CheckFailed(
                f"{layout.text}: {sustained}",
                "give larger sessions or fewer long requests; --rate replays at any rate all the "
                "same",
            )
        rate, found = sustained.rate, replace(found, sustained=sustained)
    return replace(found, run=run_at(question.trace, rate=rate))


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
