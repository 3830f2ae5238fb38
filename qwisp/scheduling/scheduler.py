"""The scheduler: a deterministic state machine that decides, and executes nothing.

It knows no clock, no arrays and no actual reply lengths. `submit`, `cancel` and `settle` bring
facts; `plan` answers with one round. Within a round: resume paused streams, make room for running
ones, admit, grant prefill, decode. Rows that a stream leaves are free at once.
"""

from __future__ import annotations

from qwisp.errors import BadInput, SchedulerBug
from qwisp.scheduling.contract import (
    Admit,
    Ask,
    Binding,
    Drop,
    End,
    Ending,
    LogEntry,
    Move,
    Operation,
    Outcome,
    Pause,
    Place,
    Refusal,
    Resume,
    Round,
)
from qwisp.scheduling.decoders import Decoders
from qwisp.scheduling.prefills import Prefills
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.sizing import size_request
from qwisp.scheduling.snapshot import Snapshot, check_streams, take_snapshot
from qwisp.scheduling.stream import DECODE, OVER, PAUSED, PREFILL, WAITING, Stream
from qwisp.scheduling.waiting import WaitingLine
from qwisp.scheduling.why import explain

ARRIVALS, PLAN, SETTLE = range(3)


class Scheduler:
    """Decides sessions, admission, growth, prefill grants and pausing, round by round."""

    def __init__(self, space: RowSpace, settings: Settings | None = None) -> None:
        self.space = space
        self.settings = settings or Settings()
        self.index = 0
        self.counts: dict[str, int] = dict.fromkeys(
            ("submitted", "finished", "refused", "failed", "cancelled"), 0
        )
        self.decoders = Decoders(self.settings.step_tokens)
        self.prefills = Prefills(self.settings)
        self.line = WaitingLine(self.settings)
        self.paused: list[Stream] = []
        self.live: dict[int, Stream] = {}
        self._cramped: list[Stream] = []
        self._left: list[Place] = []  # left by moves; offered to paused streams first
        self._ends: list[End] = []
        self._grants: list = []
        self._in_flight: Round | None = None
        self._blocked = False  # nobody in the line can be placed until rows are freed
        self._next_seq = 0
        self._log: list[tuple] = []

    # ---- facts -------------------------------------------------------------------------------

    def submit(self, ask: Ask, round_index: int | None = None) -> Refusal | None:
        """Take a request that arrived in `round_index`; return why not, if it cannot ever run.

        A refused request also ends visibly, as an `End` of the next round. Raises `BadInput` for
        an id that is live and for token counts below one.
        """
        index = self.index if round_index is None else round_index
        if ask.id in self.live:
            raise BadInput(f"request {ask.id} is already live", "give every request its own id")
        if ask.prompt_tokens < 1 or (ask.max_new is not None and ask.max_new < 1):
            raise BadInput(
                f"request {ask.id} has {ask.prompt_tokens} prompt tokens and max_new {ask.max_new}",
                "both must be at least 1",
            )
        self.counts["submitted"] += 1
        # With it the log holds all that was known of a request: a changed ask is a changed log.
        self._log.append((index, ARRIVALS, "arrive", ask.id, (ask.prompt_tokens, ask.max_new)))
        size = size_request(ask, self.space, self.settings)
        if isinstance(size, Refusal):
            self.counts["refused"] += 1
            self._ends.append(End(ask.id, "refused", size.reason))
            self._log.append(
                (index, ARRIVALS, "refused", ask.id, (size.reason, size.counter_offer))
            )
            return size
        stream = Stream(ask, size.cap_tokens, size.want_rows, index)
        self.live[ask.id] = stream
        self.line.add(stream)
        if self.line.passes or len(self.line) == 1:
            self._blocked = False
        if self._in_flight is not None and len(self.line) == 1:
            self._note_wait(index, PLAN)  # it came while a repeated round ran: no plan saw it
        return None

    def cancel(self, request_id: int, round_index: int | None = None) -> None:
        """End a request at its client's wish; an id that is not live is ignored."""
        stream = self.live.get(request_id)
        if stream is not None:
            index = self.index if round_index is None else round_index
            self._end(stream, "cancelled", "cancelled by its client", index, ARRIVALS)

    # ---- the plan ----------------------------------------------------------------------------

    def plan(self) -> Round | None:
        """Return the next round, or None when nothing is live and nothing is left to tell."""
        if self._in_flight is not None:
            raise SchedulerBug(f"round {self.index} was planned twice without a settlement")
        changes: list[Operation] = []
        if self.paused or self._cramped or self._left:
            changes = self._make_room()
        if len(self.line) and not self._blocked:
            changes += self._admit()
        grants, completed, repeat = (
            self.prefills.grant(len(self.decoders)) if len(self.prefills) else ([], (), 1)
        )
        for stream in completed:
            self._join(stream)
        ops: tuple[Operation, ...] = (*self._ends, *changes, *grants)
        if changes or self._ends or completed:
            repeat = 1
        self._ends = []
        decode = self.decoders.ids
        if decode and (repeat > 1 or not ops):
            ahead = self.decoders.rounds_ahead()
            repeat = min(repeat, ahead) if grants else ahead
        if not ops and not decode:
            if self.live:
                raise SchedulerBug(
                    f"round {self.index} is empty with {len(self.live)} live requests"
                )
            return None
        self._grants = grants
        wakes = self.space.has_free and (not len(self.line) or self.line.passes)
        self._in_flight = Round(self.index, ops, decode, repeat, wakes)
        return self._in_flight

    def _make_room(self) -> list[Operation]:
        """Resume, then keep, move, pause or end what has outgrown its session; sweep until calm."""
        resumes: list[Operation] = []
        moves: list[Operation] = []
        pauses: list[Operation] = []
        self._release_left()
        while True:
            resumes += self._resume_paused()
            ended = False
            for stream in sorted(self._cramped, key=_seq):
                ended |= self._move_or_pause(stream, moves, pauses)
            self._cramped = []
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
            self.decoders.join(stream)
        return resumed

    def _move_or_pause(self, stream: Stream, moves: list, pauses: list) -> bool:
        """Place one cramped stream; True when it had to end."""
        if stream.state != DECODE:
            return False
        target = self._larger_place(stream)
        if target is not None:
            rows = stream.length(self.decoders.steps) - 1
            moves.append(Move(stream.id, stream.place, target, rows))
            self._settle_in(stream, target, "move")
            self.decoders.watch(stream)
        elif self.space.exists_larger(stream.place):
            self.decoders.leave(stream, PAUSED)
            self.paused.append(stream)
            pauses.append(Pause(stream.id))
            self._log.append((self.index, PLAN, "pause", stream.id, (stream.place.slot,)))
        else:
            self._end(stream, "failed", "full: no larger session exists", self.index, PLAN)
            return True
        return False

    def _larger_place(self, stream: Stream) -> Place | None:
        step = self.settings.step_tokens
        rows = stream.length(self.decoders.steps) + step + self.space.margin_rows
        run = self.space.find_larger(stream.place, rows)
        return None if run is None else self.space.take(run)

    def _settle_in(self, stream: Stream, target: Place, kind: str) -> None:
        self._left.append(stream.place)
        stream.place = target
        stream.moves += 1
        stream.settled = self._holds_end(stream)
        self._log.append((self.index, PLAN, kind, stream.id, (target.slot,)))

    def _holds_end(self, stream: Stream) -> bool:
        end = stream.prompt_tokens + stream.cap_tokens + self.settings.step_tokens
        return not self.space.layout.grows or end <= stream.place.context_tokens

    def _release_left(self) -> None:
        for place in self._left:
            self.space.release(place)
            self._blocked = False
        self._left = []

    def _admit(self) -> list[Operation]:
        ops: list[Operation] = []
        while len(self.line):
            found = self.line.pick(self.space)
            if found is None:
                slides = [] if ops else self._compact()  # moves stand before admissions
                if not slides:
                    break
                ops += slides
                continue
            stream, run = found
            stream.place = place = self.space.take(run)
            stream.seq = self._next_seq
            self._next_seq += 1
            stream.settled = self._holds_end(stream)
            waited = ""
            if stream.arrived_round < self.index:
                waited = stream.wait_binding or "order"
            self._log.append(
                (
                    self.index,
                    PLAN,
                    "admit",
                    stream.id,
                    (place.slot, place.start_row, waited, stream.passed),
                )
            )
            ops.append(Admit(stream.id, place, stream.prompt_tokens))
            stream.state = PREFILL
            if not self.prefills.add(stream, 0):
                self._join(stream)
        if len(self.line):
            self._blocked = True
            self._note_wait(self.index, PLAN)
        return ops

    def _compact(self) -> list[Operation]:
        """Slide streams down until the head of the line finds a long enough run."""
        head = self.line.head
        if self.space.fixed or self.space.why_not(head.want_rows) != "contiguous rows":
            return []
        if sum(map(len, self.space.free)) < head.want_rows:
            return []
        moves: list[Operation] = []
        by_row = {s.place.start_row: s for s in self.live.values() if s.place is not None}
        for start in sorted(by_row):
            if self.space.find(head.want_rows) is not None:
                break
            stream, source = by_row[start], by_row[start].place
            target = self.space.slide(source)
            if target is not None:
                rows = stream.position
                if stream.state == DECODE:
                    rows = stream.length(self.decoders.steps) - 1
                stream.place = target
                stream.moves += 1
                moves.append(Move(stream.id, source, target, rows))
                self._log.append((self.index, PLAN, "move", stream.id, (target.slot,)))
        return moves

    def _join(self, stream: Stream) -> None:
        self.decoders.join(stream)
        self._log.append((self.index, PLAN, "decode", stream.id, ()))

    def _note_wait(self, index: int, phase: int) -> None:
        """Log what the head of the line waits for, once per head and resource."""
        head = self.line.head
        resource = self.space.why_not(head.want_rows)
        if head.wait_binding != resource:
            head.wait_binding = resource
            self._log.append((index, phase, "wait", head.id, (resource,)))

    # ---- the settlement ----------------------------------------------------------------------

    def settle(self, round: Round, outcome: Outcome) -> None:
        """Take what really happened: tokens, stops, failures; end whoever is done."""
        if round is not self._in_flight:
            raise SchedulerBug(f"round {round.index} is settled but was not the one planned")
        if not 1 <= outcome.rounds <= round.repeat:
            raise SchedulerBug(f"{outcome.rounds} rounds ran of {round.repeat} granted")
        self._in_flight = None
        index = round.index + outcome.rounds - 1
        if round.decode:
            self.decoders.steps += outcome.rounds
        self.prefills.settle(self._grants, outcome.rounds)
        for request_id, num_tokens in outcome.produced:
            stream = self.live.get(request_id)
            if stream is not None and stream.state == DECODE:
                stream.base += num_tokens - outcome.rounds
        for position, reason in outcome.failed:
            self._fail(round, position, reason, index)
        for request_id in outcome.stopped:
            stream = self.live.get(request_id)
            if stream is not None:
                self._end(stream, "finished", "stop", index, SETTLE)
        for stream in self.decoders.pop_due():
            self._look_at(stream, index)
        self.index = index + 1

    def _look_at(self, stream: Stream, index: int) -> None:
        steps = self.decoders.steps
        if stream.produced(steps) >= stream.cap_tokens:
            self._end(stream, "finished", "length", index, SETTLE, truncated=True)
        elif (
            not stream.settled
            and stream.length(steps) + self.settings.step_tokens > stream.place.context_tokens
        ):
            self._cramped.append(stream)
        else:
            self.decoders.watch(stream)

    def _fail(self, round: Round, position: int, reason: str, index: int) -> None:
        num_ops = len(round.ops)
        if not 0 <= position < num_ops + len(round.decode):
            raise SchedulerBug(f"operation {position} failed, but the round has {num_ops}")
        op = round.ops[position] if position < num_ops else None
        if isinstance(op, End | Drop):
            return  # the request is over, the blob forgotten: nothing is left to decide
        stream = self.live.get(op.id if op is not None else round.decode[position - num_ops])
        if stream is not None:
            self._end(stream, "failed", reason, index, SETTLE)

    def _end(
        self,
        stream: Stream,
        outcome: Ending,
        reason: str,
        index: int,
        phase: int,
        truncated: bool = False,
    ) -> None:
        if stream.state == WAITING:
            self.line.remove(stream)
        elif stream.state == PREFILL:
            self.prefills.remove(stream)
        elif stream.state == PAUSED:
            self.paused.remove(stream)
        self._blocked = False
        self.decoders.leave(stream, OVER)
        del self.live[stream.id]
        self.counts[outcome] += 1
        self._ends.append(End(stream.id, outcome, reason, stream.place, truncated))
        self._log.append((index, phase, outcome, stream.id, (reason, stream.base)))
        if stream.place is not None:
            self.space.release(stream.place)

    # ---- looking in --------------------------------------------------------------------------

    @property
    def log(self) -> list[LogEntry]:
        """Every decision that changed something, by (round, phase)."""
        return [LogEntry(*entry) for entry in sorted(self._log, key=_when)]

    def why(self, request_id: int) -> Binding:
        """Return what a live request waits for and the smallest change that would help it."""
        return explain(self, request_id)

    def snapshot(self) -> Snapshot:
        """Return who sits where, who waits, and what is free, as plain values."""
        return take_snapshot(self)

    def check(self) -> None:
        """Raise `SchedulerBug` unless every invariant holds."""
        self.space.check()
        check_streams(self)


def _seq(stream: Stream) -> int:
    return stream.seq


def _when(entry: tuple) -> tuple[int, int]:
    return entry[0], entry[1]
