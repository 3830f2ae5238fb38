"""Shortest job first, as a comparator: by prompt plus the longest reply it may give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from qwisp.scheduling.orders import SCAN
from qwisp.scheduling.stream import Stream

PASSES = True


def pick(waiting: Sequence[Stream], fits: Callable[[int], bool], max_passed: int) -> int | None:
    """Return the index of the shortest request that fits; a starved one goes before all others."""
    seen = list(enumerate(islice(waiting, SCAN)))
    starved = [index for index, stream in seen if stream.passed >= max_passed]
    if starved:
        return starved[0] if fits(starved[0]) else None
    by_length = sorted(seen, key=lambda item: (item[1].prompt_tokens + item[1].cap_tokens, item[0]))
    return next((index for index, _ in by_length if fits(index)), None)
