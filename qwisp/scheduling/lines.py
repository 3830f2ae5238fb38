"""The two lines of a scheduler: requests that wait for a place, and prompts being prefilled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from qwisp.scheduling.chunking import Chunking, granted_chunks
from qwisp.scheduling.contract import Grant, make
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.rules import Order
from qwisp.scheduling.settings import Settings
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


class Prefills(deque[Stream]):
    """The streams whose prompt is not complete, oldest first."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._chunking = Chunking(settings.chunk_tokens, settings.chunk_rule)
        self._budget_tokens = settings.budget_tokens
        self.begun: list[tuple[Stream, int]] = []  # this round's unfinished prompts and tokens

    def add(self, stream: Stream, start: int) -> bool:
        """Queue a prompt from token `start`; False when nothing is left to prefill."""
        stream.position = start
        stream.prefill_end = self._chunking.end(stream.prompt_tokens)
        if start >= stream.prefill_end:
            return False
        self.append(stream)
        return True

    def grant(
        self, running: int, stop_of: Callable[[Stream], int | None]
    ) -> tuple[list[Grant], list[Stream], int]:
        """Return (grants of this round, streams they complete, how often it may repeat).

        The rest of the budget after `running` decoders goes to the oldest prompts. Budget 0 takes
        one whole prompt a round. `stop_of` says where a prompt must pause to be captured, None at
        its end only. Only a single unfinished, aligned grant repeats.
        """
        chunking, grants, completed = self._chunking, [], []
        atomic = self._budget_tokens == 0
        left = granted_chunks(self._budget_tokens, running, chunking.chunk_tokens)
        repeat = 1
        for stream in tuple(self):
            if grants if atomic else left <= 0:
                break
            start, end = stream.position, stream.prefill_end
            stop = stop_of(stream) or end
            wanted = chunking.count(start, stop)
            if wanted <= left:
                num_chunks, reached = wanted, stop
            else:
                num_chunks, reached = left, chunking.advance(start, left, stop)
            last = reached == end
            grants.append(make(Grant, (stream.id, start, reached - start, num_chunks, last)))
            left -= num_chunks
            if last:
                self.remove(stream)
                completed.append(stream)
                continue
            self.begun.append((stream, reached - start))
            if reached < stop:
                whole = reached - start == num_chunks * chunking.chunk_tokens
                if len(grants) == 1 and whole:
                    repeat = max(1, -(-wanted // num_chunks) - 1)
                break
        return grants, completed, repeat

    def settle(self, rounds: int) -> None:
        """Advance the unfinished prompts by what they were granted in each of `rounds` rounds."""
        for stream, num_tokens in self.begun:
            stream.position += num_tokens * rounds
        self.begun.clear()
