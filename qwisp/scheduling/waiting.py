"""The line of requests that wait for a place, and the order that picks from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.rules import load_rule
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.stream import Stream


class WaitingLine(deque[Stream]):
    """The waiting streams, oldest first; `passes`: its order may let one pass another."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        order = load_rule("orders", settings.order, "pick")
        self._pick = order.pick
        self.passes: bool = getattr(order, "PASSES", True)
        self._max_passed = settings.max_passed
        self._space: RowSpace | None = None
        self._found: tuple[int, range] | None = None
        # Whether a stream that could be placed had better wait (for a prefix in flight).
        self.holds_back: Callable[[Stream], bool] | None = None

    def pick(self, space: RowSpace) -> tuple[Stream, range] | None:
        """Remove and return the stream to admit now and where it goes, or None."""
        self._space, self._found = space, None
        index = self._pick(self, self._fits, self._max_passed)
        if index is None:
            return None
        if (self._found is None or self._found[0] != index) and not self._fits(index):
            return None
        stream = self[index]
        if index:
            for passed in islice(self, index):
                passed.passed += 1
        del self[index]
        return stream, self._found[1]

    def _fits(self, index: int) -> bool:
        stream = self[index]
        run = self._space.find(stream.want_rows)
        if run is None or (self.holds_back is not None and self.holds_back(stream)):
            return False
        self._found = (index, run)
        return True
