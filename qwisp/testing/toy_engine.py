"""A whole engine in lists: its cache holds whole numbers, its model is a checksum of its rows.

Small enough to read, exact enough to catch a scheduler that lets two streams touch one row: the
next token depends on every row before it, and each row is compared with what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qwisp.scheduling.contract import (
    Admit,
    Capture,
    Drop,
    End,
    Fact,
    Grant,
    Move,
    Operation,
    Outcome,
    Pause,
    Place,
    Restore,
    Resume,
    Round,
)
from qwisp.testing.script import Script, ScriptedRequest

_NOBODY = -1


class RowsLost(Exception):
    """A stream found rows that it did not write."""


class _Lane:
    __slots__ = ("length", "place", "request", "tokens")

    def __init__(self, request: ScriptedRequest, place: Place, step: int) -> None:
        self.request = request
        self.place = place
        self.length = request.prompt_tokens
        self.tokens = prompt_tokens(request, step)


class ToyEngine:
    """Serves scripted requests. `num_rows` is the size of its cache.

    `yields(id)` says how many tokens a decode step adds (drafts), at most `step_tokens`.
    `reads_late` looks at a repeated step only after the next was issued: a stop is reported one
    round late. `replies` and `ends` hold what every request got, `done` every operation.
    Raises `RowsLost`.
    """

    def __init__(
        self,
        requests: Iterable[ScriptedRequest],
        num_rows: int,
        *,
        yields: Callable[[int], int] | None = None,
        reads_late: bool = False,
        prefix_step_tokens: int = 512,
    ) -> None:
        requests = list(requests)
        self._requests = {request.id: request for request in requests}
        self._script = Script(requests)
        self._yields = yields
        self._reads_late = reads_late
        self._prefix_step_tokens = prefix_step_tokens
        self.blobs: dict[int, list[int]] = {}
        self.rows = [_NOBODY] * num_rows
        self.lanes: dict[int, _Lane] = {}
        self.replies: dict[int, list[int]] = {request.id: [] for request in requests}
        self.ends: dict[int, End] = {}
        self.done: list[Operation] = []
        self._do: dict[type, Callable] = {
            End: self.end,
            Drop: self.drop,
            Resume: self.move,
            Move: self.move,
            Pause: _nothing,
            Admit: self.admit,
            Restore: self.restore,
            Grant: self.grant,
            Capture: self.capture,
        }

    # ---- the four methods --------------------------------------------------------------------

    def facts(self, round_index: int) -> list[Fact]:
        """Return arrivals and cancels up to this round."""
        return self._script.facts(round_index)

    def run(self, round: Round) -> Outcome:
        """Carry out the operations in order, then decode steps until one ends a reply."""
        for op in round.ops:
            self._do[type(op)](op)
            self.done.append(op)
        before = {i: self.lanes[i].length for i in round.decode}
        most, rounds, unread = self._script.rounds_free(round), 0, []
        while rounds < most:
            if rounds:
                self._grant_again(round, rounds)
            rounds += 1
            stopped = unread + [i for i in round.decode if self.step(i)]
            if stopped and (not self._reads_late or unread):
                break
            unread = stopped  # one more step is issued before these are read
        produced = [(i, self.lanes[i].length - before[i]) for i in round.decode]
        return Outcome(rounds, tuple(p for p in produced if p[1] != rounds), tuple(stopped))

    def wait(self) -> bool:
        """Jump to the next arrival; False when there is none."""
        return self._script.wait()

    def close(self) -> None:
        """Forget every stream."""
        self.lanes.clear()

    def expect(self, request: ScriptedRequest) -> None:
        """Know a request that the script does not hold."""
        self._requests[request.id] = request
        self.replies[request.id] = []

    # ---- operations --------------------------------------------------------------------------

    def admit(self, op: Admit) -> None:
        """Give a new stream its rows, wiped."""
        self.lanes[op.id] = _Lane(self._requests[op.id], op.place, self._prefix_step_tokens)
        self.replies[op.id] = []
        self._wipe(op.place, 0)

    def grant(self, op: Grant) -> None:
        """Write the rows of a part of the prompt."""
        lane = self.lanes[op.id]
        self._check(lane, op.start)
        for position in range(op.start, op.start + op.num_tokens):
            self.rows[lane.place.start_row + position] = lane.tokens[position]

    def restore(self, op: Restore) -> None:
        """Copy a blob to the start of a stream's rows; it cannot be cut."""
        blob = self.blobs[op.key]
        if len(blob) != op.num_tokens:
            raise RowsLost(f"blob {op.key} has {len(blob)} tokens, {op.num_tokens} are restored")
        start = self.lanes[op.id].place.start_row
        self.rows[start : start + op.num_tokens] = blob

    def capture(self, op: Capture) -> None:
        """Keep a stream's first rows as a blob."""
        lane = self.lanes[op.id]
        self._check(lane, op.num_tokens)
        if op.num_tokens >= lane.request.prompt_tokens:
            raise RowsLost(f"blob {op.key} would hold rows that decode wrote")
        start = lane.place.start_row
        self.blobs[op.key] = self.rows[start : start + op.num_tokens]

    def drop(self, op: Drop) -> None:
        """Forget a blob."""
        self.blobs.pop(op.key, None)

    def move(self, op: Move | Resume) -> None:
        """Copy rows upwards one by one, so that a slide onto its own rows comes out right."""
        for at in range(op.num_rows):
            self.rows[op.target.start_row + at] = self.rows[op.source.start_row + at]
        above = op.target.start_row + op.target.num_rows - op.source.start_row
        self._wipe(op.source, above if 0 < above <= op.source.num_rows else 0)
        self.lanes[op.id].place = op.target

    def end(self, op: End) -> None:
        """Free the rows and tell the client.

        The place is the scheduler's word: after a failed move the rows this engine remembers may
        be a newcomer's already.
        """
        self.lanes.pop(op.id, None)
        if op.place is not None:
            self._wipe(op.place, 0)
        self.ends[op.id] = op

    def step(self, request_id: int) -> bool:
        """Decode once; return whether the reply is over."""
        lane = self.lanes[request_id]
        reply, most = self.replies[request_id], lane.request.output_tokens
        if len(reply) >= most:
            return False  # it ran ahead of a stop nobody has read yet
        for _ in range(self._yields(request_id) if self._yields else 1):
            self._check(lane, lane.length - 1)
            start = lane.place.start_row
            if lane.length >= lane.place.context_tokens:
                raise RowsLost(f"request {request_id} has {lane.length} tokens in {lane.place}")
            self.rows[start + lane.length - 1] = lane.tokens[-1]
            token = self.next_token(request_id, self.rows[start : start + lane.length])
            lane.tokens.append(token)
            reply.append(token)
            lane.length += 1
            if len(reply) >= most:
                return True
        return False

    def next_token(self, request_id: int, rows: list[int]) -> int:
        """Return what the stream says after `rows`, and after nothing else."""
        del request_id
        return checksum(rows)

    # ------------------------------------------------------------------------------------------

    def _grant_again(self, round: Round, times: int) -> None:
        for op in round.ops:
            if isinstance(op, Grant):
                self.grant(op._replace(start=op.start + times * op.num_tokens))

    def _check(self, lane: _Lane, num_rows: int) -> None:
        start = lane.place.start_row
        if self.rows[start : start + num_rows] != lane.tokens[:num_rows]:
            raise RowsLost(f"request {lane.request.id} finds others' rows in {lane.place}")

    def _wipe(self, place: Place, first: int) -> None:
        self.rows[place.start_row + first : place.start_row + place.num_rows] = [_NOBODY] * (
            place.num_rows - first
        )


def prompt_tokens(request: ScriptedRequest, prefix_step_tokens: int = 512) -> list[int]:
    """Return the tokens of a request's prompt: those under a key follow from the key alone."""
    num_keyed = min(request.prompt_tokens, len(request.prefix) * prefix_step_tokens)
    keyed = [
        checksum([request.prefix[at // prefix_step_tokens], -1 - at]) for at in range(num_keyed)
    ]
    own = [checksum([request.id, at]) for at in range(num_keyed, request.prompt_tokens)]
    return keyed + own


def checksum(rows: list[int]) -> int:
    """Return 31 bits of whole numbers, the same in every process."""
    return hash(tuple(rows)) & 0x7FFFFFFF


def solo_reply(
    request: ScriptedRequest, num_tokens: int, prefix_step_tokens: int = 512
) -> list[int]:
    """Return the first tokens of the reply as computed alone, without rows or rounds.

    >>> request = ScriptedRequest(7, 10, 5)
    >>> solo_reply(request, 2) == solo_reply(request, 5)[:2]
    True
    """
    rows = prompt_tokens(request, prefix_step_tokens)
    for _ in range(num_tokens):
        rows.append(checksum(rows))
    return rows[request.prompt_tokens :]


def _nothing(op: object) -> None:
    """Take no action: no state depends on it here."""
