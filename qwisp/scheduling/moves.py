"""Streams that change their place: those that outgrow their session, those that slide together.

Growing streams move to a larger session, pause until one is free, resume. Waits point upward in
size only and the largest session holds every admitted reply, so every paused stream resumes or
ends. In a free row space streams slide down until a request finds a long enough run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qwisp.scheduling.contract import PLAN, Move, Operation, Pause, Place, Resume
from qwisp.scheduling.decoders import Decoders
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.stream import DECODE, PAUSED, Stream


class Growth:
    """The paused streams, the cramped ones, and the places that moves have left."""

    def __init__(
        self, space: RowSpace, decoders: Decoders, step_tokens: int, log: list[tuple]
    ) -> None:
        self.paused: list[Stream] = []
        self.cramped: list[Stream] = []
        self.left: list[Place] = []  # offered to paused streams before anybody else
        self._space = space
        self._grows = space.layout.grows
        self._decoders = decoders
        self._step_tokens = step_tokens
        self._log = log
        self._index = 0
        self._resumes: list[Operation] = []
        self._moves: list[Operation] = []
        self._pauses: list[Operation] = []

    def holds_end(self, stream: Stream) -> bool:
        """Whether its place holds the end of its reply: then it never moves or pauses."""
        end = stream.prompt_tokens + stream.cap_tokens + self._step_tokens
        return not self._grows or end <= stream.place.context_tokens

    def make_room(self, index: int) -> Iterator[Stream]:
        """Resume, then keep, move or pause what has outgrown its session; sweep until calm.

        Yields every stream for which no larger session exists: end it before going on, as its rows
        may serve the next one. `ops` has the operations afterwards.
        """
        self._index = index
        self._resumes, self._moves, self._pauses = [], [], []
        self._release_left()
        while True:
            self._resume_paused()
            ended = False
            for stream in sorted(self.cramped, key=_seq):
                if stream.state == DECODE and not self._move_or_pause(stream):
                    ended = True
                    yield stream
            self.cramped = []
            if not ended:
                break
        if not self.paused:
            self._release_left()

    def ops(self) -> list[Operation]:
        """Return the operations of the last `make_room`, in the order of a round."""
        return self._resumes + self._moves + self._pauses

    def _resume_paused(self) -> None:
        for stream in list(self.paused):
            target = self._larger_place(stream)
            if target is None:
                continue
            source, rows = stream.place, stream.length(0) - 1
            self.paused.remove(stream)
            self._resumes.append(Resume(stream.id, source, target, rows))
            self._settle_in(stream, target, "resume")
            self._decoders.join(stream)

    def _move_or_pause(self, stream: Stream) -> bool:
        """Place one cramped stream; False where no session is larger than its own."""
        target = self._larger_place(stream)
        if target is not None:
            rows = stream.length(self._decoders.steps) - 1
            self._moves.append(Move(stream.id, stream.place, target, rows))
            self._settle_in(stream, target, "move")
            self._decoders.watch(stream)
        elif self._space.exists_larger(stream.place):
            self._decoders.leave(stream, PAUSED)
            self.paused.append(stream)
            self._pauses.append(Pause(stream.id))
            self._note("pause", stream, stream.place.slot)
        else:
            return False
        return True

    def _note(self, kind: str, stream: Stream, slot: int) -> None:
        self._log.append((self._index, PLAN, kind, stream.id, (slot,)))

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


def compact(
    space: RowSpace, streams: Iterable[Stream], needed_rows: int, steps: int
) -> list[tuple[Stream, Move]]:
    """Return the moves that make a run of `needed_rows`, already made in `space`; [] if vain.

    Streams slide down in order of their rows; each slide is an ordinary move onto lower rows.
    """
    if space.fixed or space.why_not(needed_rows) != "contiguous rows":
        return []
    if sum(map(len, space.free)) < needed_rows:
        return []
    moves: list[tuple[Stream, Move]] = []
    by_row = {s.place.start_row: s for s in streams if s.place is not None}
    for start in sorted(by_row):
        if space.find(needed_rows) is not None:
            break
        stream, source = by_row[start], by_row[start].place
        target = space.slide(source)
        if target is not None:
            decodes = stream.state == DECODE
            rows = stream.length(steps) - 1 if decodes else stream.position
            stream.place = target
            moves.append((stream, Move(stream.id, source, target, rows)))
    return moves
