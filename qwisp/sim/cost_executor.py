"""The executor that computes instead of running: a cost model, an integer clock, no arrays.

A round that may repeat is closed over its repeats in one go; the clock lands on the same picosecond
as when every step is taken alone, because all costs are integers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import isqrt
from operator import itemgetter

from qwisp.cost import CostModel
from qwisp.scheduling.contract import (
    Admit,
    Ask,
    Capture,
    Drop,
    End,
    Fact,
    Grant,
    Move,
    Outcome,
    Pause,
    Restore,
    Resume,
    Round,
    make,
)
from qwisp.scheduling.layout import SessionSize
from qwisp.sim.record import RequestRecord, RoundTable

WIDTHS = 65  # decode steps up to 64 lanes are looked up
ONE_ROUND = Outcome(1)
NEVER = 2**200  # picoseconds; arrivals may be stretched at will, integers do not overflow


class CostExecutor:
    """Runs rounds against `cost`. Arrivals `(time_ps, ask, output_tokens)` come in order of time.

    `records` holds what happened to each request, `rounds` what each run of rounds cost.
    """

    def __init__(
        self,
        arrivals: Sequence[tuple[int, Ask, int]],
        cost: CostModel,
        size: SessionSize,
        cancels: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.now_ps = 0
        self.records: dict[int, RequestRecord] = {}
        self.rounds = RoundTable()
        self._cost = cost
        self._size = size
        # `(time_ps, ask, output_tokens)`, or `(time_ps, id, None)` for a cancel
        events = [*arrivals, *((time_ps, i, None) for time_ps, i in cancels)]
        self._events: list[tuple] = sorted(events, key=itemgetter(0))
        self._next = 0
        self._next_ps = self._events[0][0] if self._events else NEVER
        self._cancel_times = sorted((t for t, _ in cancels), reverse=True)
        self._steps = 0
        self._used_rows = 0
        self._decoding: dict[int, RequestRecord] = {}
        self._stops: list[tuple[int, int, RequestRecord]] = []
        self._joined: list[RequestRecord] = []
        self._width_ps = [cost.step_ps(width) for width in range(WIDTHS)]
        self._run = (0, 0, 0, 0, 0)  # index, begin_ps, rounds, first_ps, growth_ps
        self._ends: Sequence[int] = ()
        self._grant_ps = lru_cache(2**14)(cost.grant_ps)
        self._copy_ps = lru_cache(2**14)(self._rows_copied_ps)
        self._round_ps, self._row_ps = cost.round_ps, cost.row_ps
        self._add_run = self.rounds.add
        self._do = {
            End: self._end,
            Drop: _free,
            Resume: self._resume,
            Move: self._move,
            Pause: self._pause,
            Admit: self._admit,
            Restore: self._restore,
            Capture: self._capture,
        }

    # ---- the four methods --------------------------------------------------------------------

    def facts(self, round_index: int) -> Sequence[Fact]:
        """Return what arrived by now and was known to round `round_index`, oldest first."""
        if self._next_ps > self.now_ps:
            return ()
        found: list[Fact] = []
        while self._next_ps <= self.now_ps:
            index = self._index_at(self._next_ps, round_index)
            if index > round_index:
                break
            time_ps, what, output = self._events[self._next]
            if output is None:
                found.append(Fact(index, cancel=what))
            else:
                self.records[what.id] = RequestRecord(what, output, time_ps)
                found.append(make(Fact, (index, what, None)))
            self._next += 1
            more = self._next < len(self._events)
            self._next_ps = self._events[self._next][0] if more else NEVER
        return found

    def run(self, round: Round) -> Outcome:
        """Advance the clock by the operations and by as many repeats as nothing interrupts."""
        index, ops, decode, repeat, _ = round
        begin_ps, ops_ps, grants_ps, grant = self.now_ps, 0, 0, None
        for op in ops:
            if op.__class__ is Grant:
                grant = op
                request_id, start, num_tokens, num_chunks, last = op
                grants_ps += self._grant_ps(start, num_tokens, num_chunks)
                if last:
                    self._join(self.records[request_id])
            else:
                ops_ps += self._do[op.__class__](op)
        if grant is not None:
            grants_ps += self._round_ps
        used_rows, width = self._used_rows, len(decode)
        first_ps, growth_ps = ops_ps + grants_ps, 0
        if width:
            first_ps += self._width_ps[width] if width < WIDTHS else self._cost.step_ps(width)
            first_ps += self._row_ps * used_rows
            growth_ps = self._row_ps * width
        count, last_ps, now_ps = 1, first_ps, begin_ps + first_ps
        self._ends = ()
        if repeat > 1:
            count = self._limit(repeat, width)
            if grant is not None:
                count = self._grant_run(round, grant, first_ps, grants_ps, growth_ps, count)
                now_ps = begin_ps + self._ends[-1]
                last_ps = now_ps - begin_ps - (self._ends[-2] if count > 1 else 0)
            else:
                count = self._interrupted(round, count, first_ps, growth_ps)
                now_ps = begin_ps + count * first_ps + growth_ps * (count * (count - 1) // 2)
                last_ps = first_ps + growth_ps * (count - 1)
        self.now_ps = now_ps
        self._run = (index, begin_ps, count, first_ps, growth_ps)
        self._add_run((index, begin_ps, now_ps, count, width, used_rows, last_ps, grants_ps))
        if self._joined:
            for record in self._joined:
                record.tokens_from(now_ps)
            self._joined.clear()
        if width:
            self._steps += count
            self._used_rows += width * count
            if self._stops and self._stops[0][0] <= self._steps:
                return make(Outcome, (count, (), self._stopped(), ()))
        return ONE_ROUND if count == 1 else make(Outcome, (count, (), (), ()))

    def wait(self) -> bool:
        """Jump to the next arrival; False when there is none."""
        if self._next_ps == NEVER:
            return False
        self.now_ps = max(self.now_ps, self._next_ps)
        return True

    def close(self) -> None:
        """Nothing is held."""

    # ---- a clock for somebody else's facts ----------------------------------------------------

    def expect(self, ask: Ask) -> None:
        """Let a request arrive now whose reply ends only when its `End` comes."""
        self.records[ask.id] = RequestRecord(ask, NEVER, self.now_ps)

    def yield_more(self, request_id: int, num_tokens: int) -> None:
        """Count tokens of the last run beyond one a round (fewer, where negative)."""
        self.records[request_id].produced += num_tokens
        self._used_rows += num_tokens

    # ---- how far a repeated round goes -------------------------------------------------------

    def _limit(self, repeat: int, width: int) -> int:
        """Return the repeats until a reply ends by itself."""
        count = repeat
        if width:
            stops = self._stops
            while stops and stops[0][2].stop_step != stops[0][0]:
                heappop(stops)  # it left the decoders meanwhile
            if stops:
                count = min(count, stops[0][0] - self._steps)
        return count

    def _watched_ps(self, round: Round) -> int:
        """Return the time of the next arrival or cancel that must interrupt."""
        if round.wakes:
            return self._next_ps
        cancels = self._cancel_times
        while cancels and cancels[-1] <= self.now_ps:
            cancels.pop()
        return cancels[-1] if cancels else NEVER

    def _interrupted(self, round: Round, count: int, first_ps: int, growth_ps: int) -> int:
        until_ps = self._watched_ps(round) - self.now_ps
        if until_ps > count * first_ps + growth_ps * (count * (count - 1) // 2):
            return count
        return min(count, _rounds_to(until_ps, first_ps, growth_ps))

    def _grant_run(
        self, round: Round, grant: Grant, first_ps: int, grants_ps: int, growth_ps: int, count: int
    ) -> int:
        """Close a repeated grant: each repeat prefills further down, so costs are added up."""
        base_ps = first_ps - grants_ps + self._cost.round_ps
        until_ps = self._watched_ps(round) - self.now_ps
        total_ps, ends = 0, []
        for i in range(count):
            start = grant.start + i * grant.num_tokens
            total_ps += base_ps + growth_ps * i
            total_ps += self._grant_ps(start, grant.num_tokens, grant.num_chunks)
            ends.append(total_ps)
            if total_ps >= until_ps:
                break
        self._ends = ends
        return len(ends)

    def _index_at(self, time_ps: int, default: int) -> int:
        """Return the first round that could know of something that came at `time_ps`."""
        index, begin_ps, count, first_ps, growth_ps = self._run
        since_ps = time_ps - begin_ps
        if count <= 1 or since_ps <= 0 or default > index + count:
            return default
        if self._ends:
            passed = bisect_left(self._ends, since_ps) + 1
        else:
            passed = _rounds_to(since_ps, first_ps, growth_ps)
        return index + min(passed, count)

    # ---- operations; each returns its picoseconds --------------------------------------------

    def _end(self, op: End) -> int:
        record = self.records[op.id]
        self._leave(record)
        record.end(op, self.now_ps)
        return 0

    def _admit(self, op: Admit) -> int:
        record = self.records[op.id]
        record.admitted_ps = self.now_ps
        record.path = str(op.place.slot)
        record.hold(op.place.num_rows, self.now_ps)
        if op.prompt_tokens == 1 and self._cost.chunk_rule == "aligned":
            self._join(record)
        return 0

    def _move(self, op: Move) -> int:
        record = self.records[op.id]
        record.moves += 1
        record.path += f">{op.target.slot}"
        record.hold(op.target.num_rows, self.now_ps)
        return self._copy_ps(op.num_rows)

    def _pause(self, op: Pause) -> int:
        record = self.records[op.id]
        self._leave(record)
        record.pauses += 1
        record.paused_since_ps = self.now_ps
        return 0

    def _resume(self, op: Resume) -> int:
        record = self.records[op.id]
        record.paused_ps += self.now_ps - record.paused_since_ps
        self._join(record)
        return self._move(op)

    def _restore(self, op: Restore) -> int:
        record = self.records[op.id]
        record.cached_tokens = op.num_tokens
        if op.num_tokens == record.prompt_tokens - 1 and self._cost.chunk_rule == "aligned":
            self._join(record)
        return self._copy_ps(op.num_tokens)

    def _capture(self, op: Capture) -> int:
        return self._copy_ps(op.num_tokens)

    def _rows_copied_ps(self, num_rows: int) -> int:
        return self._cost.copy_ps(self._size.bytes(num_rows)) if num_rows else 0

    def _join(self, record: RequestRecord) -> None:
        record.joined_step = self._steps
        record.stop_step = self._steps + record.output_tokens - record.produced
        heappush(self._stops, (record.stop_step, record.id, record))
        self._decoding[record.id] = record
        self._joined.append(record)
        self._used_rows += record.prompt_tokens + record.produced

    def _leave(self, record: RequestRecord) -> None:
        if self._decoding.pop(record.id, None) is not None:
            record.produced += self._steps - record.joined_step
            record.stop_step = -1
            self._used_rows -= record.prompt_tokens + record.produced

    def _stopped(self) -> tuple[int, ...]:
        """Return whose replies have ended by now."""
        stops, stopped = self._stops, []
        while stops and stops[0][0] <= self._steps:
            step, request_id, record = heappop(stops)
            if record.stop_step == step:
                stopped.append(request_id)
        return tuple(stopped)


def _rounds_to(time_ps: int, first_ps: int, growth_ps: int) -> int:
    """Return the least n >= 1 with n rounds (first, first + growth, ...) lasting `time_ps`."""
    if growth_ps == 0:
        return max(1, -(-time_ps // first_ps)) if first_ps else 1
    # n first + growth n (n - 1) / 2 >= time: floor of the positive root, then at most one step up
    b = 2 * first_ps - growth_ps
    n = max(1, (isqrt(b * b + 8 * growth_ps * time_ps) - b) // (2 * growth_ps))
    while n * first_ps + growth_ps * (n * (n - 1) // 2) < time_ps:
        n += 1
    while n > 1 and (n - 1) * first_ps + growth_ps * ((n - 1) * (n - 2) // 2) >= time_ps:
        n -= 1
    return n


def _free(op: object) -> int:
    return 0
