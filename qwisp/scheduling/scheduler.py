"""The scheduler: a deterministic state machine that decides, and executes nothing.

It knows no clock, no arrays and no actual reply lengths. `submit`, `cancel` and `settle` bring
facts; `plan` answers with one round. Within a round: resume paused streams, make room for running
ones, admit, grant prefill, decode. Rows that a stream leaves are free at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qwisp.errors import BadInput, ExecutorFault, QwispError, SchedulerBug
from qwisp.scheduling.contract import (
    ARRIVALS,
    DETAILS,
    PLAN,
    SETTLE,
    Admit,
    Ask,
    Binding,
    Drop,
    End,
    Ending,
    Grant,
    LogEntry,
    Operation,
    Outcome,
    Refusal,
    Round,
    make,
)
from qwisp.scheduling.decoders import Decoders
from qwisp.scheduling.lines import Prefills, WaitingLine
from qwisp.scheduling.moves import Growth, compact
from qwisp.scheduling.prefixes import NoPrefixes, Prefixes
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.rules import Order, shipped_order
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.sizing import size_request
from qwisp.scheduling.snapshot import Snapshot, check_streams, explain, take_snapshot
from qwisp.scheduling.stream import DECODE, OVER, PAUSED, PREFILL, WAITING, Stream


class Scheduler:
    """Decides sessions, admission, growth, prefill grants and pausing, round by round.

    `order` says who starts next, by default the shipped one that the settings name.
    """

    def __init__(
        self, space: RowSpace, settings: Settings | None = None, order: Order | None = None
    ) -> None:
        self.space = space
        self.settings = settings or Settings()
        self.index = 0
        self.counts: dict[str, int] = dict.fromkeys(
            ("submitted", "finished", "refused", "failed", "cancelled"), 0
        )
        self.decoders = Decoders(self.settings.step_tokens)
        self.prefills = Prefills(self.settings)
        self.line = WaitingLine(
            order or shipped_order(self.settings.order), self.settings.max_passed
        )
        self.prefixes = NoPrefixes()
        if self.settings.prefix_bytes:
            self.prefixes = Prefixes(self.settings, space.size, self.prefills)
        self._log: list[tuple] = []
        self.growth = Growth(space, self.decoders, self.settings.step_tokens, self._log)
        self.live: dict[int, Stream] = {}
        self._ends: list[End] = []
        self._in_flight: Round | None = None
        self._blocked = False  # nobody in the line can be placed until rows are freed
        self._next_seq = 0

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
        if self.line.passes and self.space.find(size.want_rows) is None:
            stream.wait_binding = self.space.why_not(size.want_rows)
        self.line.append(stream)
        self.prefixes.see(stream)
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
        growth = self.growth
        if growth.paused or growth.cramped or growth.left:
            self._blocked = False
            for stream in growth.make_room(self.index):
                self._end(stream, "failed", "full: no larger session exists", self.index, PLAN)
            changes = growth.ops()
        if self.line and not self._blocked:
            changes += self._admit()
        grants, completed, repeat, drops, captures = [], (), 1, [], []
        if self.prefills:
            running = len(self.decoders.ids)
            grants, completed, repeat = self.prefills.grant(running, self.prefixes.next_stop)
            for stream in completed:
                self._join(stream)
            drops, captures = self._capture(grants)
        ops: tuple[Operation, ...] = (*self._ends, *drops, *changes, *grants, *captures)
        if len(ops) > len(grants) or completed:
            repeat = 1
        if self._ends:
            self._ends = []
        decode = self.decoders.ids
        if decode and (repeat > 1 or not ops):
            ahead = self.decoders.rounds_ahead()
            repeat = min(repeat, ahead) if grants else ahead
        if not ops and not decode:
            if self.live:
                raise self._standstill()
            return None
        wakes = (not self.line or self.line.passes) and self.space.has_free
        self._in_flight = make(Round, (self.index, ops, decode, repeat, wakes))
        return self._in_flight

    def _standstill(self) -> QwispError:
        """Return whose fault it is that requests wait and nothing runs."""
        what = f"round {self.index} is empty with {len(self.live)} live requests"
        rules = self.settings.order, self.space.layout.cut
        own = [rule for rule in rules if rule.endswith(".py")]
        if not own:
            return SchedulerBug(what)
        return BadInput(
            f"{what}: policy file {' or '.join(own)} lets nobody start while nothing runs",
            "return a request that fits, or a free place, whenever there is one",
        )

    def _capture(self, grants: list[Grant]) -> tuple[list[Operation], list[Operation]]:
        """Return what is dropped and captured where this round's grants end."""
        drops: list[Operation] = []
        captures: list[Operation] = []
        for grant in grants:
            stream = self.live[grant.id]
            dropped, captured = self.prefixes.capture(stream, grant.start + grant.num_tokens)
            drops += dropped
            captures += captured
            for op in captured:
                self._log.append((self.index, PLAN, "capture", op.id, (op.num_tokens,)))
        return drops, captures

    def _admit(self) -> list[Operation]:
        ops: list[Operation] = []
        restores: list[Operation] = []
        while self.line and (not ops or self.space.has_free):
            found = self.line.pick(self.space, self.prefixes.holds_back)
            if found is None:
                slides = (
                    [] if ops or self.space.fixed else self._compact()
                )  # moves stand before admissions
                if not slides:
                    break
                ops += slides
                continue
            stream, run = found
            stream.place = place = self.space.take(run)
            stream.seq = self._next_seq
            self._next_seq += 1
            stream.settled = self.growth.holds_end(stream)
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
            ops.append(make(Admit, (stream.id, place, stream.prompt_tokens)))
            stream.state = PREFILL
            restore = self.prefixes.admit(stream)
            if restore is not None:
                restores.append(restore)
                self._log.append((self.index, PLAN, "restore", stream.id, (restore.num_tokens,)))
            if not self.prefills.add(stream, stream.position):
                self._join(stream)
        if self.line:
            # After an admission no rows could slide in this round; in the next one they can.
            self._blocked = self.space.fixed or not ops
            self._note_wait(self.index, PLAN)
        return ops + restores

    def _compact(self) -> list[Operation]:
        """Slide streams down until the head of the line finds a long enough run."""
        rows, steps = self.line[0].want_rows, self.decoders.steps
        moves = compact(self.space, self.live.values(), rows, steps)
        for stream, move in moves:
            self._note("move", stream, move.target.slot)
        return [move for _, move in moves]

    def _note(self, kind: str, stream: Stream, slot: int) -> None:
        self._log.append((self.index, PLAN, kind, stream.id, (slot,)))

    def _join(self, stream: Stream) -> None:
        self.decoders.join(stream)
        self._log.append((self.index, PLAN, "decode", stream.id, ()))

    def resource(self, stream: Stream) -> str:
        """Return what keeps the first stream of the line from starting now."""
        held_back = self.prefixes.is_on and self.space.find(stream.want_rows) is not None
        return "prefix in flight" if held_back else self.space.why_not(stream.want_rows)

    def _note_wait(self, index: int, phase: int) -> None:
        """Log what the head of the line waits for, once per head and resource."""
        head = self.line[0]
        resource = self.resource(head)
        if head.wait_binding != resource:
            head.wait_binding = resource
            self._log.append((index, phase, "wait", head.id, (resource,)))

    # ---- the settlement ----------------------------------------------------------------------

    def settle(self, round: Round, outcome: Outcome) -> None:
        """Take what really happened: tokens, stops, failures; end whoever is done."""
        if round is not self._in_flight:
            raise SchedulerBug(f"round {round.index} is settled but was not the one planned")
        rounds, produced, stopped, failed = outcome
        if not 1 <= rounds <= round.repeat:
            raise ExecutorFault(f"{rounds} rounds ran of {round.repeat} granted")
        self._in_flight = None
        index = round.index + rounds - 1
        if round.decode:
            self.decoders.steps += rounds
        if self.prefills.begun:
            self.prefills.settle(rounds)
        for request_id, num_tokens in produced:
            stream = self.live.get(request_id)
            if stream is not None and stream.state == DECODE:
                stream.base += num_tokens - rounds
                self._within(stream, index)
        if self.prefixes.settle(round, outcome):
            self._blocked = False
        for position, reason in failed:
            self._fail(round, position, reason, index, outcome)
        for request_id in stopped:
            stream = self.live.get(request_id)
            if stream is not None:
                self._end(stream, "finished", "stop", index, SETTLE)
        due = self.decoders.due
        if due and due[0][0] <= self.decoders.steps:
            for stream in self.decoders.pop_due():
                self._look_at(stream, index)
        self.index = index + 1

    def _within(self, stream: Stream, index: int) -> None:
        """Raise `ExecutorFault` if a stream yielded what its rows cannot hold."""
        length, context = stream.length(self.decoders.steps), stream.place.context_tokens
        if not stream.prompt_tokens <= length <= context:
            raise ExecutorFault(
                f"request {stream.id} has {length} tokens after round {index}, from a prompt of"
                f" {stream.prompt_tokens} in a session of {context}"
            )

    def _look_at(self, stream: Stream, index: int) -> None:
        steps = self.decoders.steps
        if stream.produced(steps) >= stream.cap_tokens:
            self._end(stream, "finished", "length", index, SETTLE, truncated=True)
        elif (
            not stream.settled
            and stream.length(steps) + self.settings.step_tokens > stream.place.context_tokens
        ):
            self.growth.cramped.append(stream)
        else:
            self.decoders.watch(stream)

    def _fail(self, round: Round, position: int, reason: str, index: int, outcome: Outcome) -> None:
        num_ops = len(round.ops)
        if not 0 <= position < num_ops + len(round.decode):
            raise ExecutorFault(
                f"operation {position} failed in round {index}, which has"
                f" {num_ops + len(round.decode)}"
            )
        op = round.ops[position] if position < num_ops else None
        if isinstance(op, End | Drop):
            return  # the request is over, the blob forgotten: nothing is left to decide
        stream = self.live.get(op.id if op is not None else round.decode[position - num_ops])
        if stream is not None:
            if stream.state == DECODE and all(i != stream.id for i, _ in outcome.produced):
                stream.base -= 1  # its last step did not happen
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
            self.growth.paused.remove(stream)
        self._blocked = False
        self.prefixes.forget(stream)
        self.decoders.leave(stream, OVER)
        del self.live[stream.id]
        self.counts[outcome] += 1
        self._ends.append(make(End, (stream.id, outcome, reason, stream.place, truncated)))
        self._log.append((index, phase, outcome, stream.id, (reason, stream.base)))
        if stream.place is not None:
            self.space.release(stream.place)

    # ---- looking in --------------------------------------------------------------------------

    @property
    def log(self) -> list[LogEntry]:
        """Every decision that changed something, by (round, phase)."""
        return [make(LogEntry, entry) for entry in sorted(self._log, key=_when)]

    def told(self, kind: str) -> Iterator[tuple[int, Any]]:
        """Yield id and `LogEntry.what` of the decisions of a kind, as made; sorts nothing."""
        shape = DETAILS[kind]
        return ((i, make(shape, detail)) for _, _, this, i, detail in self._log if this == kind)

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
        self.prefixes.check()


def _when(entry: tuple) -> tuple[int, int]:
    return entry[0], entry[1]
