"""The decoding streams, and the first round in which one of them must be looked at."""

from __future__ import annotations

from heapq import heappop, heappush

from qwisp.scheduling.stream import DECODE, Stream


class Decoders:
    """Who decodes, in the order they joined.

    A decode round advances one counter, `steps`, and touches no stream. A heap holds, per stream,
    the step count at which it may have reached its cap or the end of its session; entries of
    streams that left are dropped when they surface.
    """

    __slots__ = ("_step_tokens", "_streams", "_version", "due", "ids", "steps")

    def __init__(self, step_tokens: int) -> None:
        self.steps = 0
        self._step_tokens = step_tokens
        self._streams: dict[int, Stream] = {}
        self.due: list[tuple[int, int, int, Stream]] = []
        self._version = 0
        self.ids: tuple[int, ...] = ()  # in joining order

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def streams(self) -> list[Stream]:
        """The decoding streams in joining order."""
        return list(self._streams.values())

    def join(self, stream: Stream) -> None:
        """Let a stream decode from this round on."""
        stream.state = DECODE
        stream.joined = self.steps
        self._streams[stream.id] = stream
        self.ids += (stream.id,)
        self.watch(stream)

    def leave(self, stream: Stream, state: int) -> None:
        """Stop a stream from decoding; what it produced is kept in `base`."""
        if self._streams.pop(stream.id, None) is not None:
            stream.base += self.steps - stream.joined
            self.ids = tuple(self._streams)
        stream.state = state

    def watch(self, stream: Stream) -> None:
        """Look at the stream when it may have reached its cap or cannot take a whole step."""
        window = self._step_tokens
        produced = stream.base + self.steps - stream.joined
        rounds = -(-(stream.cap_tokens - produced) // window)
        if not stream.settled:
            assert stream.place is not None
            spare = stream.place.context_tokens - stream.prompt_tokens - produced
            if spare // window < rounds:
                rounds = spare // window
        self._version += 1
        heappush(self.due, (self.steps + rounds, self._version, stream.joined, stream))

    def rounds_ahead(self) -> int:
        """Return the rounds before somebody must be looked at (0 when somebody must be now)."""
        due = self.due
        while due:
            when, _, joined, stream = due[0]
            if stream.state == DECODE and stream.joined == joined:
                return when - self.steps
            heappop(due)
        return 0

    def pop_due(self) -> list[Stream]:
        """Return and forget the streams to be looked at now; put them back with `watch`."""
        due, steps, found = self.due, self.steps, []
        while due and due[0][0] <= steps:
            _, _, joined, stream = heappop(due)
            if stream.state == DECODE and stream.joined == joined:
                found.append(stream)
        if len(found) > 1:
            found.sort(key=_seq)
        return found


def _seq(stream: Stream) -> int:
    return stream.seq
