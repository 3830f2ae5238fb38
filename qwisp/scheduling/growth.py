"""Streams that outgrow their session: move to a larger one, pause until one is free, resume.

Waits point upward in size only and the largest session holds every admitted reply, so every paused
stream resumes or ends.
"""

from __future__ import annotations

from collections.abc import Callable

from qwisp.scheduling.contract import Move, Operation, Pause, Place, Resume
from qwisp.scheduling.decoders import Decoders
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.stream import DECODE, PAUSED, Stream


class Growth:
    """The paused streams, the cramped ones, and the places that moves have left.

    `note(kind, stream, slot)` logs a decision; `end_full(stream)` ends a stream for which no larger
    session exists.
    """

    def __init__(
        self,
        space: RowSpace,
        decoders: Decoders,
        step_tokens: int,
        note: Callable[[str, Stream, int], None],
        end_full: Callable[[Stream], None],
    ) -> None:
        self.paused: list[Stream] = []
        self.cramped: list[Stream] = []
        self.left: list[Place] = []  # offered to paused streams before anybody else
        self._space = space
        self._grows = space.layout.grows
        self._decoders = decoders
        self._step_tokens = step_tokens
        self._note = note
        self._end_full = end_full

    def holds_end(self, stream: Stream) -> bool:
        """Whether its place holds the end of its reply: then it never moves or pauses."""
        end = stream.prompt_tokens + stream.cap_tokens + self._step_tokens
        return not self._grows or end <= stream.place.context_tokens

    def make_room(self) -> list[Operation]:
        """Resume, then keep, move, pause or end what has outgrown its session; sweep until calm."""
        resumes: list[Operation] = []
        moves: list[Operation] = []
        pauses: list[Operation] = []
        self._release_left()
        while True:
            resumes += self._resume_paused()
            ended = False
            for stream in sorted(self.cramped, key=_seq):
                ended |= self._move_or_pause(stream, moves, pauses)
            self.cramped = []
            if not ended:
                break
        if not self.paused:
            self._release_left()
        return resumes + moves + pauses

    def _resume_paused(self) -> list[Operation]:
        resumed: list[Operation] = []
        for stream in list(self.paused):
            target = self._larger_place(stream)
            if target is None:
                continue
            source, rows = stream.place, stream.length(0) - 1
            self.paused.remove(stream)
            resumed.append(Resume(stream.id, source, target, rows))
            self._settle_in(stream, target, "resume")
            self._decoders.join(stream)
        return resumed

    def _move_or_pause(self, stream: Stream, moves: list, pauses: list) -> bool:
        """Place one cramped stream; True when it had to end."""
        if stream.state != DECODE:
            return False
        target = self._larger_place(stream)
        if target is not None:
            rows = stream.length(self._decoders.steps) - 1
            moves.append(Move(stream.id, stream.place, target, rows))
            self._settle_in(stream, target, "move")
            self._decoders.watch(stream)
        elif self._space.exists_larger(stream.place):
            self._decoders.leave(stream, PAUSED)
            self.paused.append(stream)
            pauses.append(Pause(stream.id))
            self._note("pause", stream, stream.place.slot)
        else:
            self._end_full(stream)
            return True
        return False

    def _larger_place(self, stream: Stream) -> Place | None:
        length = stream.length(self._decoders.steps)
        rows = length + self._step_tokens + self._space.margin_rows
        run = self._space.find_larger(stream.place, rows)
        return None if run is None else self._space.take(run)

    def _settle_in(self, stream: Stream, target: Place, kind: str) -> None:
        self.left.append(stream.place)
        stream.place = target
        stream.settled = self.holds_end(stream)
        self._note(kind, stream, target.slot)

    def _release_left(self) -> None:
        for place in self.left:
            self._space.release(place)
        self.left = []


def _seq(stream: Stream) -> int:
    return stream.seq
