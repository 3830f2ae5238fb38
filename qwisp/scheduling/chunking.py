"""Legal prefill units and how many of them a round's token budget grants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal


@dataclass(frozen=True, slots=True)
class Chunking:
    """Where a prompt may be cut.

    >>> Chunking(256, "aligned").count(0, 1000), Chunking(1024, "ceil").count(0, 10553)
    (4, 11)
    """

    chunk_tokens: int
    rule: Literal["aligned", "ceil"] = "aligned"

    def end(self, prompt_tokens: int) -> int:
        """Return the first token that prefill leaves alone (the last prompt token decodes)."""
        return prompt_tokens - 1 if self.rule == "aligned" else prompt_tokens

    def count(self, start: int, end: int) -> int:
        """Return how many chunks `[start, end)` costs; a partly covered one costs a whole one."""
        if end <= start:
            return 0
        origin = start // self.chunk_tokens * self.chunk_tokens if self.rule == "aligned" else start
        return -(-(end - origin) // self.chunk_tokens)

    def advance(self, start: int, num_chunks: int, end: int) -> int:
        """Return the token reached after `num_chunks` chunks from `start`, at most `end`."""
        origin = start // self.chunk_tokens * self.chunk_tokens if self.rule == "aligned" else start
        return min(end, origin + num_chunks * self.chunk_tokens)


WHOLE_PROMPT = 2**62  # chunks; more than any prompt has


@lru_cache
def granted_chunks(budget_tokens: int, running: int, chunk_tokens: int) -> int:
    """Return the chunks one round may prefill: running streams take a token each first.

    At least one, so that a waiting prompt always proceeds; a started chunk is never split, so the
    rest of the budget is rounded up to whole chunks. A budget of 0 takes a prompt in one round.

    >>> granted_chunks(1024, 1, 1024), granted_chunks(2048, 1, 1024), granted_chunks(8, 8, 256)
    (1, 2, 1)
    """
    if budget_tokens == 0:
        return WHOLE_PROMPT
    return max(1, -(-(budget_tokens - running) // chunk_tokens))


def num_rounds(chunks: int, budget_tokens: int, chunk_tokens: int, running: int = 0) -> int:
    """Return the rounds (k) that prefill `chunks` chunks beside `running` decoding streams.

    For an array of chunks, an array of rounds.

    >>> [num_rounds(11, budget, 1024, 1) for budget in (0, 1024, 2048, 4096, 8192)]
    [1, 11, 6, 3, 2]
    """
    return -(-chunks // granted_chunks(budget_tokens, running, chunk_tokens))
