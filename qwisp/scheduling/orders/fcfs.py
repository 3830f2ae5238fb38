"""First come, first served: the head of the line waits, and everybody waits behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qwisp.scheduling.stream import Stream

PASSES = False


def pick(waiting: Sequence[Stream], fits: Callable[[int], bool], max_passed: int) -> int | None:
    """Return 0 when the oldest request fits, else None."""
    return 0 if fits(0) else None
