"""The line of requests that wait for a place, and the order that picks from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.rules import Order
from qwisp.scheduling.stream import Stream


class WaitingLine(deque[Stream]):
    """The waiting streams, oldest first; `passes`: its order may let one pass another."""

    def __init__(self, order: Order, max_passed: int) -> None:
        super().__init__()
        self._pick, self.passes = order
        self._max_passed = max_passed

    def pick(
        self, space: RowSpace, holds_back: Callable[[Stream], bool]
    ) -> tuple[Stream, range] | None:
        """Remove and return the stream to admit now and where it goes, or None.

        `holds_back` says whether a stream that could be placed had better wait for a prefix.
        """
        found: tuple[int, range] | None = None  # who fitted last, and where

        def fits(index: int) -> bool:
            nonlocal found
            stream = self[index]
            run = space.find(stream.want_rows)
            if run is None or holds_back(stream):
                return False
            found = index, run
            return True

        index = self._pick(self, fits, self._max_passed)
        if index is None or ((found is None or found[0] != index) and not fits(index)):
            return None
        stream = self[index]
        if index:
            for passed in islice(self, index):
                passed.passed += 1
        del self[index]
        return stream, found[1]
