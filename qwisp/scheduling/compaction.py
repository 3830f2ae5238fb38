"""Slide streams together in a free row space until a request finds a long enough run."""

from __future__ import annotations

from collections.abc import Iterable

from qwisp.scheduling.contract import Move
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.stream import DECODE, Stream


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
