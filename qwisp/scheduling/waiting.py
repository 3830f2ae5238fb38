"""The line of requests that wait for a place, and the order that picks from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.rules import load_rule
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.stream import Stream


class WaitingLine:
    """Waiting streams by arrival; `passes` says whether its order may let one pass another."""

    def __init__(self, settings: Settings) -> None:
        order = load_rule("orders", settings.order, "pick")
        self._pick = order.pick
        self.passes: bool = getattr(order, "PASSES", True)
        self._max_passed = settings.max_passed
        self._line: deque[Stream] = deque()
        self._space: RowSpace | None = None
        self._found: tuple[int, range] | None = None
        # Whether a stream that could be placed had better wait (for a prefix in flight).
        self.holds_back: Callable[[Stream], bool] | None = None

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._line)

    @property
    def head(self) -> Stream:
        """The oldest waiting stream."""
        return self._line[0]

    def add(self, stream: Stream) -> None:
        """Join the end of the line."""
        self._line.append(stream)

    def remove(self, stream: Stream) -> None:
        """Leave the line without having been served."""
        self._line.remove(stream)

    def pick(self, space: RowSpace) -> tuple[Stream, range] | None:
        """Remove and return the stream to admit now and where it goes, or None."""
        self._space, self._found = space, None
        index = self._pick(self._line, self._fits, self._max_passed)
        if index is None:
            return None
        if (self._found is None or self._found[0] != index) and not self._fits(index):
            return None
        stream = self._line[index]
        for passed in islice(self._line, index):
            passed.passed += 1
        del self._line[index]
        return stream, self._found[1]

    def _fits(self, index: int) -> bool:
        stream = self._line[index]
        run = self._space.find(stream.want_rows)
        if run is not None and self.holds_back is not None and self.holds_back(stream):
            return False
        if run is not None:
            self._found = (index, run)
        return run is not None
