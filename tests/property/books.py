"""Our own books of a run: who sits where and what is owed, from the operations alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from qwisp.scheduling.contract import (
    Admit,
    Capture,
    Drop,
    End,
    Grant,
    Move,
    Outcome,
    Pause,
    Place,
    Restore,
    Resume,
    Round,
)
from qwisp.scheduling.layout import Layout, RowBytes
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import ScriptedRequest

KINDS = (End, Drop, Resume, Move, Pause, Admit, Restore, Grant, Capture)  # in this order
SIZE = RowBytes(3, 11)


class Books:
    """Follows rounds in the order an engine would carry them out; asserts every invariant.

    It believes nothing the scheduler keeps inside: sizes come from the definitions, places from
    the operations, lengths from the outcomes.
    """

    def __init__(self, layout: Layout, settings: Settings) -> None:
        self.layout = layout
        self.settings = settings
        self.requests: dict[int, ScriptedRequest] = {}
        self.waiting: list[int] = []
        self.passed: Counter[int] = Counter()
        self.seats: dict[int, Place] = {}
        self.filled: dict[int, int] = {}  # prompt tokens prefilled so far
        self.prefilling: list[int] = []
        self.decoding: list[int] = []
        self.paused: list[int] = []
        self.left: set[int] = set()
        self.restored: dict[int, int] = {}
        self.paused_prompts = 0  # granted in this round and not complete
        self.told: dict[int, End] = {}
        self.due: set[int] = set()  # over, but its End is still to come
        self.tokens: Counter[int] = Counter()
        self.blobs: dict[int, tuple[int, tuple[int, ...]]] = {}  # by key: tokens, keys up to them
        self.kinds: Counter[str] = Counter()

    # ---- facts -------------------------------------------------------------------------------

    def asked(self, request: ScriptedRequest, num_refused: int) -> None:
        """Note an arrival that was refused or not; by the definitions it had to be."""
        self.requests[request.id] = request
        if self.reply_tokens(request) is None:
            assert num_refused == 1
            self.due.add(request.id)
        else:
            assert num_refused == 0
            self.waiting.append(request.id)

    def reply_tokens(self, request: ScriptedRequest) -> int | None:
        """The longest reply allowed, by the definitions; None where it must be refused."""
        step, cap = self.settings.step_tokens, self.settings.gen_cap_tokens
        prompt, max_new = request.prompt_tokens, request.max_new
        if self.layout.kind == "per_request":
            fixed = self.layout.lanes * SIZE.fixed_bytes
            rows = (self.layout.budget_bytes - fixed) // SIZE.row_bytes
            rows = min(rows, self.layout.context_tokens + 1)  # drafts stay within the context too
            headroom = self.layout.context_tokens - prompt - 1
            if headroom <= 0 or rows - prompt - step < 1:
                return None
            most = min(max(cap, 1024), headroom, rows - prompt - step)
            return most if max_new is None else min(max_new, most)
        room = max(self.layout.contexts) - prompt - step
        if room < 1:
            return None
        if self.layout.kind == "fixed_arena":
            return min(room, cap, max_new or room)
        if max_new is None:
            return min(cap, room)
        return max_new if max_new <= room else None

    def over(self, number: int) -> None:
        self.due.add(number)
        for line in (self.waiting, self.prefilling, self.decoding, self.paused):
            if number in line:
                line.remove(number)

    # ---- one round ---------------------------------------------------------------------------

    def read(self, round: Round) -> None:
        """Follow the operations in order; nobody may touch rows another still uses."""
        ranks = [KINDS.index(type(op)) for op in round.ops]
        assert ranks == sorted(ranks)
        assert round.repeat == 1 or all(type(op) is Grant for op in round.ops)
        self.paused_prompts = 0
        self.restored = {op.id: op.num_tokens for op in round.ops if type(op) is Restore}
        self.left = {op.source.slot for op in round.ops if type(op) in (Resume, Move)}
        for op in round.ops:
            self.kinds[type(op).__name__] += 1
            getattr(self, f"on_{type(op).__name__.lower()}")(op)
            if type(op) in (Resume, Move, Admit):
                self.seats_are_apart()
        self.grants_are_legal(round)
        assert list(round.decode) == self.decoding
        assert len(round.decode) <= self.layout.lanes

    def on_end(self, op: End) -> None:
        assert op.id not in self.told, "two ends"
        assert op.id in self.due, "an end nobody caused"
        self.due.remove(op.id)
        self.told[op.id] = op
        assert op.place == self.seats.pop(op.id, None)

    def on_admit(self, op: Admit) -> None:
        request, at = self.requests[op.id], self.waiting.index(op.id)
        assert op.prompt_tokens == request.prompt_tokens
        if self.settings.order == "fcfs":
            assert at == 0, "fcfs reordered"
        for other in self.waiting[:at]:
            self.passed[other] += 1
            assert self.passed[other] <= self.settings.max_passed
        if self.layout.cut == "first_free":
            taken = {place.slot for place in self.seats.values()}
            assert op.place.slot == min(set(range(self.layout.lanes)) - taken)
        elif self.layout.kind == "sized":
            first = min(self.settings.grow_tokens, self.reply_tokens(request))
            assert self.fits(op.id, op.place, first)
            smaller = [p for p in self.free() if p < op.place.context_tokens]
            assert not any(self.fits(op.id, context, first) for context in smaller)
        del self.waiting[at]
        self.seats[op.id] = op.place
        self.filled[op.id] = 0
        if self.prefill_end(op.id) == self.restored.get(op.id, 0):
            self.decoding.append(op.id)
        else:
            self.prefilling.append(op.id)

    def on_drop(self, op: Drop) -> None:
        assert op.key in self.blobs, "a blob nobody holds is dropped"
        del self.blobs[op.key]

    def on_restore(self, op: Restore) -> None:
        request = self.requests[op.id]
        assert self.filled[op.id] == 0
        assert 0 < op.num_tokens < request.prompt_tokens, "a hit never covers the whole prompt"
        assert op.num_tokens % self.settings.boundary_tokens == 0
        num_keys = -(-op.num_tokens // self.settings.prefix_step_tokens)
        assert self.blobs[op.key] == (op.num_tokens, request.prefix[:num_keys])
        self.filled[op.id] = op.num_tokens

    def on_capture(self, op: Capture) -> None:
        request = self.requests[op.id]
        assert op.num_tokens <= self.filled[op.id]
        assert op.num_tokens < request.prompt_tokens, "rows of decode are never stored"
        assert op.num_tokens % self.settings.boundary_tokens == 0
        assert op.num_tokens >= self.settings.min_shared_tokens
        num_keys = -(-op.num_tokens // self.settings.prefix_step_tokens)
        self.blobs[op.key] = (op.num_tokens, request.prefix[:num_keys])
        held = sum(SIZE.bytes(num_tokens) for num_tokens, _ in self.blobs.values())
        assert held <= self.settings.prefix_bytes, "the store outgrew its bytes"

    def on_move(self, op: Move) -> None:
        assert op.source == self.seats[op.id]
        if self.layout.kind == "sized":
            self.moves_up(op)
            assert op.id in self.decoding
        else:
            assert self.layout.kind == "per_request"
            assert op.target.start_row < op.source.start_row
            assert (op.target.slot, op.target.num_rows) == (op.source.slot, op.source.num_rows)
        used = self.filled[op.id] if op.id in self.prefilling else self.length(op.id) - 1
        assert op.num_rows == used
        self.seats[op.id] = op.target

    def on_resume(self, op: Resume) -> None:
        assert op.source == self.seats[op.id]
        assert op.num_rows == self.length(op.id) - 1
        self.paused.remove(op.id)
        self.moves_up(op)
        self.seats[op.id] = op.target
        self.decoding.append(op.id)

    def moves_up(self, op: Move | Resume) -> None:
        assert op.target.context_tokens > op.source.context_tokens
        assert not self.holds_end(op.id), "it need not have moved"
        assert self.cramped(op.id)
        assert self.length(op.id) + self.settings.step_tokens <= op.target.context_tokens

    def on_pause(self, op: Pause) -> None:
        place = self.seats[op.id]
        assert self.layout.kind == "sized"
        assert not self.holds_end(op.id), "it need not have paused"
        assert self.cramped(op.id)
        assert place.context_tokens < max(self.layout.contexts), "the largest session never waits"
        self.decoding.remove(op.id)
        self.paused.append(op.id)

    def on_grant(self, op: Grant) -> None:
        # Only a prompt that pauses to be captured leaves the rest of a budget to the next.
        assert self.paused_prompts == 0 or self.settings.prefix_bytes
        assert op.id == self.prefilling[self.paused_prompts], "prefill is first in, first out"
        assert op.start == self.filled[op.id]
        end, chunk = self.prefill_end(op.id), self.settings.chunk_tokens
        stop = op.start + op.num_tokens
        assert op.last == (stop == end)
        # A place to capture ends a window early; without prefixes windows are whole.
        assert op.last or stop % chunk == 0 or self.settings.prefix_bytes
        origin = op.start if self.settings.chunk_rule == "ceil" else op.start // chunk * chunk
        assert op.num_chunks == -(-(stop - origin) // chunk)
        self.filled[op.id] = stop
        if op.last:
            self.prefilling.remove(op.id)
            self.decoding.append(op.id)
        else:
            self.paused_prompts += 1

    def grants_are_legal(self, round: Round) -> None:
        grants = [op for op in round.ops if isinstance(op, Grant)]
        budget, chunk = self.settings.budget_tokens, self.settings.chunk_tokens
        running = len(self.decoding) - sum(grant.last for grant in grants)
        most = max(1, -(-(budget - running) // chunk))
        if budget == 0:
            assert len(grants) <= 1
            assert self.settings.prefix_bytes or all(grant.last for grant in grants)
        else:
            assert sum(grant.num_chunks for grant in grants) <= most
        if self.prefilling:
            assert grants, "a waiting prompt always proceeds"

    def seats_are_apart(self) -> None:
        places = sorted(self.seats.values(), key=lambda place: place.start_row)
        for one, two in pairwise(places):
            assert one.start_row + one.num_rows <= two.start_row, "two streams share rows"
        assert len({place.slot for place in places}) == len(places)
        assert len(places) <= self.layout.lanes
        if self.layout.kind == "per_request":
            held = self.layout.lanes * SIZE.fixed_bytes
            held += sum(SIZE.row_bytes * place.num_rows for place in places)
            assert held <= self.layout.budget_bytes

    def settle(self, round: Round, outcome: Outcome) -> None:
        """Count what the round yielded, and who is over."""
        num = outcome.rounds
        for op in round.ops:
            if type(op) is Grant and not op.last:
                self.filled[op.id] += (num - 1) * op.num_tokens
        dead: set[int] = set()
        for position, _ in outcome.failed:
            at = position - len(round.ops)
            op = round.ops[position] if at < 0 else None
            if type(op) not in (End, Drop):
                dead.add(round.decode[at] if op is None else op.id)
                for other in round.ops[position:]:
                    if type(other) is Capture and op is not None and other.id == op.id:
                        self.blobs.pop(other.key, None)
        yielded = dict.fromkeys(round.decode, num) | dict(outcome.produced)
        for number, tokens in yielded.items():
            if number not in dead:
                self.tokens[number] += tokens
        for number in dead | set(outcome.stopped):
            self.over(number)
        for number in list(self.decoding):
            if self.tokens[number] >= self.reply_tokens(self.requests[number]):
                self.over(number)

    # ---- what must be true between facts -----------------------------------------------------

    def look(self, scheduler: Scheduler) -> None:
        """Compare with the scheduler; `check` asserts what it knows of itself."""
        scheduler.check()
        assert scheduler.live.keys() & self.due == set(), "a finished stream is live"
        counts = dict(scheduler.counts)
        assert counts.pop("submitted") == len(self.requests)
        assert sum(counts.values()) + len(scheduler.live) == len(self.requests)
        live = [*self.waiting, *self.prefilling, *self.decoding, *self.paused]
        assert sorted(live) == sorted(scheduler.live)
        assert len(self.told) + len(self.due) + len(live) == len(self.requests)
        for number in self.seats:
            if number not in self.due:
                assert self.length(number) <= self.seats[number].context_tokens

    def length(self, number: int) -> int:
        return self.requests[number].prompt_tokens + self.tokens[number]

    def prefill_end(self, number: int) -> int:
        prompt = self.requests[number].prompt_tokens
        return prompt if self.settings.chunk_rule == "ceil" else prompt - 1

    def cramped(self, number: int) -> bool:
        length = self.length(number) + self.settings.step_tokens
        return length > self.seats[number].context_tokens

    def holds_end(self, number: int) -> bool:
        request = self.requests[number]
        end = request.prompt_tokens + self.reply_tokens(request) + self.settings.step_tokens
        return end <= self.seats[number].context_tokens

    def fits(self, number: int, place: Place | int, reply: int) -> bool:
        context = place if isinstance(place, int) else place.context_tokens
        prompt = self.requests[number].prompt_tokens
        return prompt + reply + self.settings.step_tokens <= context

    def free(self) -> list[int]:
        taken = {place.slot for place in self.seats.values()}
        if self.paused:
            taken |= self.left  # what moves leave is offered to paused streams first
        return [c for slot, c in enumerate(self.layout.contexts) if slot not in taken]
