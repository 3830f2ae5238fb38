"""The oldest request that fits goes first, but nobody is passed more than `max_passed` times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from qwisp.scheduling.orders import SCAN
from qwisp.scheduling.stream import Stream

PASSES = True


def pick(waiting: Sequence[Stream], fits: Callable[[int], bool], max_passed: int) -> int | None:
    """Return the first index that fits; stop at a request that was passed often enough."""
    for index, stream in enumerate(islice(waiting, SCAN)):
        if fits(index):
            return index
        if stream.passed >= max_passed:
            return None
    return None
