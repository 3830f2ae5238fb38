"""The row ranges of the arena: who sits where, what is free. One class for both executors."""

from __future__ import annotations

from bisect import insort
from functools import partial
from operator import attrgetter
from typing import Literal

from qwisp.errors import BadInput, SchedulerBug
from qwisp.scheduling.arena_rows import SessionSize, rows_bytes
from qwisp.scheduling.contract import Place
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.rules import Cut, shipped_cut

Resource = Literal["no free session large enough", "contiguous rows", "byte budget", "lane count"]


class RowSpace:
    """Fixed sessions, or one run of rows cut as requests come.

    `take` hands out a `Place`, `release` gives it back; ranges never overlap. In a free space the
    lanes' state and rings are committed from the start and the rows of every place when it is
    taken, so approvals of one round cannot together exceed the budget. `cut` is the function that
    places streams, by default the shipped one that the layout names.
    """

    def __init__(self, layout: Layout, size: SessionSize, cut: Cut | None = None) -> None:
        self.layout = layout
        self.fixed = layout.kind != "per_request"
        self.margin_rows = layout.margin_rows
        self.lanes = layout.lanes
        self.size = size
        self._bytes = partial(rows_bytes, size)
        self._cut = cut or shipped_cut(layout.cut)
        self._taken: dict[int, Place] = {}  # by start row
        arena = layout.arena(size)
        self.num_rows = arena.num_rows
        self.committed_bytes = 0
        if self.fixed:
            self._sessions: dict[int, tuple[Place, range]] = {}  # by start row
            self._free, start = [], 0
            for slot, context in enumerate(layout.contexts):
                rows = context + self.margin_rows
                run = range(start, start + rows)
                self._sessions[start] = Place(slot, start, rows, context), run
                self._free.append(run)
                start += rows
            self.max_rows = max(layout.contexts) + self.margin_rows
        else:
            self.max_rows = min(self.num_rows, layout.context_tokens + 1)
            self._free = [range(self.num_rows)]
            # Lanes are allocated whether or not somebody sits in them.
            self.committed_bytes = arena.num_bytes(size) - self._bytes(self.num_rows)
            self._free_slots = list(range(self.lanes - 1, -1, -1))
        self.largest_context = self.max_rows - self.margin_rows  # of any place, in tokens

    @property
    def free(self) -> tuple[range, ...]:
        """The free ranges by start row."""
        return tuple(self._free)

    @property
    def taken(self) -> tuple[Place, ...]:
        """The occupied places by start row."""
        return tuple(self._taken[start] for start in sorted(self._taken))

    @property
    def has_free(self) -> bool:
        """A newcomer might find room."""
        return bool(self._free) and len(self._taken) < self.lanes

    def find(self, rows: int) -> range | None:
        """Return where `rows` rows would go now, or None."""
        if len(self._taken) >= self.lanes or not self._free:
            return None
        if not self.fixed and self.committed_bytes + self._bytes(rows) > self.layout.budget_bytes:
            return None
        return self._cut(rows, self._free)

    def take(self, run: range) -> Place:
        """Occupy a range that `find` or `find_larger` returned."""
        if self.fixed:
            if run not in self._free:
                if self.layout.cut.endswith(".py"):
                    raise BadInput(
                        f"policy file {self.layout.cut} answers {run}, which is no free session",
                        "return one of `free` as it stands, or None: sessions here are fixed",
                    )
                raise SchedulerBug(f"rows {run.start}..{run.stop} are no free session")
            self._free.remove(run)
            place, _ = self._sessions[run.start]
        else:
            place = self._cut_out(run)
        self._taken[run.start] = place
        return place

    def _cut_out(self, run: range) -> Place:
        for index, free in enumerate(self._free):
            if free.start <= run.start and run.stop <= free.stop:
                rest = [range(free.start, run.start), range(run.stop, free.stop)]
                self._free[index : index + 1] = [part for part in rest if part]
                self.committed_bytes += self._bytes(len(run))
                slot = self._free_slots.pop()
                return Place(slot, run.start, len(run), len(run) - self.margin_rows)
        raise SchedulerBug(f"rows {run.start}..{run.stop} are not free")

    def find_larger(self, place: Place, rows: int) -> range | None:
        """Return the free session a stream in `place` may move to: larger, holding `rows`."""
        return self._cut(max(rows, place.num_rows + 1), self._free) if self._free else None

    def exists_larger(self, place: Place) -> bool:
        """Some session, free or not, is larger than `place`."""
        return self.fixed and self.max_rows > place.num_rows

    def release(self, place: Place) -> None:
        """Give a place back; neighbouring free runs of a free space join."""
        if self._taken.pop(place.start_row, None) != place:
            raise SchedulerBug(f"rows at {place.start_row} were released twice")
        if self.fixed:
            insort(self._free, self._sessions[place.start_row][1], key=_start)
            return
        self._free_slots.append(place.slot)
        self.committed_bytes -= self._bytes(place.num_rows)
        self._join(range(place.start_row, place.start_row + place.num_rows))

    def slide(self, place: Place) -> Place | None:
        """Return the place moved down onto the free run that ends where it starts, or None.

        One step of a compaction; the slot, and with it the state, stays.
        """
        below = next((run for run in self._free if run.stop == place.start_row), None)
        if self.fixed or below is None:
            return None
        self._free.remove(below)
        del self._taken[place.start_row]
        moved = place._replace(start_row=below.start)
        self._taken[moved.start_row] = moved
        self._join(range(below.start + place.num_rows, place.start_row + place.num_rows))
        return moved

    def why_not(self, rows: int) -> Resource:
        """Return what keeps `rows` rows from being placed now."""
        if len(self._taken) >= self.lanes and self._free:
            return "lane count"
        if self.fixed:
            return "no free session large enough"
        if len(self._taken) >= self.lanes:
            return "lane count"
        if self.committed_bytes + self._bytes(rows) > self.layout.budget_bytes:
            return "byte budget"
        return "contiguous rows"

    def _join(self, run: range) -> None:
        start, stop = run.start, run.stop
        for other in [r for r in self._free if r.stop == start or r.start == stop]:
            self._free.remove(other)
            start, stop = min(start, other.start), max(stop, other.stop)
        insort(self._free, range(start, stop), key=_start)

    def check(self) -> None:
        """Raise `SchedulerBug` unless free and taken ranges tile the arena without overlap."""
        runs = [*self._free, *(range(p.start_row, p.start_row + p.num_rows) for p in self.taken)]
        reached = 0
        for run in sorted(runs, key=_start):
            if run.start != reached:
                raise SchedulerBug(f"rows {reached}..{run.start} are lost or shared")
            reached = run.stop
        if reached != self.num_rows:
            raise SchedulerBug(f"rows {reached}..{self.num_rows} are lost")
        if len({place.slot for place in self._taken.values()}) != len(self._taken):
            raise SchedulerBug("two streams share a state slot")
        if not self.fixed and self.committed_bytes > self.layout.budget_bytes:
            raise SchedulerBug(
                f"{self.committed_bytes} bytes are committed, above {self.layout.budget_bytes}"
            )


_start = attrgetter("start")
