"""The stall law of the prefill budget: what a running stream feels while a neighbour prefills.

A budget cuts a prefill of `chunks` chunks into k rounds. The work S is the same however it is cut
but for a cost per round, so the worst stall is at least S / k, and a percentile p of a stream of L
gaps is clean exactly when k of its gaps are fewer than its share: k / L < 1 - p. Percentiles
alone therefore flatter a large budget; k, L, the worst and the sum belong beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from qwisp.cost import CostModel
from qwisp.scheduling.chunking import Chunking, granted_chunks


class GrantSpan(NamedTuple):
    """One round's share of a prefill: tokens `[start, start + tokens)` in `chunks` chunks."""

    start: int
    tokens: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLaw:
    """Stalls of running streams under one prefill, in picoseconds, in time order."""

    stalls_ps: tuple[int, ...]
    stream_gaps: int

    @property
    def k(self) -> int:
        """Rounds the prefill takes, so gaps of a stream that stall."""
        return len(self.stalls_ps)

    @property
    def sum_ps(self) -> int:
        """S: all stalls together."""
        return sum(self.stalls_ps)

    @property
    def worst_ps(self) -> int:
        """The longest stall; at least S / k."""
        return max(self.stalls_ps, default=0)

    def is_clean(self, percentile: Fraction | str) -> bool:
        """Return whether the percentile (like "0.99") of the stream's gaps shows no stall.

        >>> [StallLaw(stalls_ps=(9,) * k, stream_gaps=500).is_clean("0.99") for k in (4, 5)]
        [True, False]
        """
        return Fraction(self.k, self.stream_gaps) < 1 - Fraction(percentile)


def grant_spans(
    cost: CostModel, prompt_tokens: int, *, budget_tokens: int, running: int = 1
) -> Iterator[GrantSpan]:
    """Yield the grants that prefill one prompt from its start, one a round."""
    chunking = Chunking(cost.chunk_tokens, cost.chunk_rule)
    end = chunking.end(prompt_tokens)
    left = chunking.count(0, end)
    per_round = granted_chunks(budget_tokens, running, cost.chunk_tokens)
    start = 0
    while left > 0:
        chunks = min(per_round, left)
        stop = chunking.advance(start, chunks, end)
        yield GrantSpan(start, stop - start, chunks)
        start, left = stop, left - chunks


def stall_law(
    cost: CostModel, prompt_tokens: int, *, budget_tokens: int, stream_gaps: int, running: int = 1
) -> StallLaw:
    """Return the stalls that `running` streams feel while one prompt is prefilled.

    A stall is the time from one token of a stream to its next: the round, its grant, and the
    decode step, which the new stream joins in the last round. Nothing is taken off for the step
    that a stream without a neighbour would have needed.
    """
    spans = list(grant_spans(cost, prompt_tokens, budget_tokens=budget_tokens, running=running))
    stalls = [
        cost.round_ps + cost.grant_ps(*span) + cost.step_ps(running + (i == len(spans) - 1))
        for i, span in enumerate(spans)
    ]
    return StallLaw(stalls_ps=tuple(stalls), stream_gaps=stream_gaps)
