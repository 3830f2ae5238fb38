"""Prompts being prefilled, first in first out, in whole legal chunks of a token budget."""

from __future__ import annotations

from collections import deque

from qwisp.scheduling.chunking import Chunking, granted_chunks
from qwisp.scheduling.contract import Grant
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.stream import Stream


class Prefills:
    """The streams whose prompt is not complete."""

    def __init__(self, settings: Settings) -> None:
        self._chunking = Chunking(settings.chunk_tokens, settings.chunk_rule)
        self._budget_tokens = settings.budget_tokens
        self._queue: deque[Stream] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, stream: Stream, start: int) -> bool:
        """Queue a prompt from token `start`; False when nothing is left to prefill."""
        stream.position = start
        stream.prefill_end = self._chunking.end(stream.prompt_tokens)
        if start >= stream.prefill_end:
            return False
        self._queue.append(stream)
        return True

    def remove(self, stream: Stream) -> None:
        """Forget a stream that ended."""
        if stream in self._queue:
            self._queue.remove(stream)

    @property
    def streams(self) -> list[Stream]:
        """The prefilling streams, oldest first."""
        return list(self._queue)

    def grant(self, running: int) -> tuple[list[Grant], list[Stream], int]:
        """Return (grants of this round, streams they complete, how often it may repeat).

        The rest of the budget after `running` decoders goes to the oldest prompts. Budget 0 takes
        one whole prompt a round. Only a single unfinished, aligned grant repeats.
        """
        chunking, grants, completed = self._chunking, [], []
        atomic = self._budget_tokens == 0
        left = 0 if atomic else granted_chunks(self._budget_tokens, running, chunking.chunk_tokens)
        repeat = 1
        while self._queue and (left > 0 or (atomic and not grants)):
            stream = self._queue[0]
            start, end = stream.position, stream.prefill_end
            wanted = chunking.count(start, end)
            num_chunks = wanted if atomic else min(left, wanted)
            reached = chunking.advance(start, num_chunks, end)
            last = reached == end
            grants.append(Grant(stream.id, start, reached - start, num_chunks, last))
            left -= num_chunks
            if not last:
                whole = reached - start == num_chunks * chunking.chunk_tokens
                if len(grants) == 1 and whole:
                    repeat = max(1, -(-wanted // num_chunks) - 1)
                break
            self._queue.popleft()
            completed.append(stream)
        return grants, completed, repeat

    def settle(self, grants: list[Grant], rounds: int) -> None:
        """Advance the unfinished prompt by what its grant covered in `rounds` rounds."""
        if grants and not grants[-1].last and self._queue:
            stream = self._queue[0]
            if stream.id == grants[-1].id:
                stream.position += grants[-1].num_tokens * rounds
