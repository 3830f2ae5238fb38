"""What the scheduler and an executor say to each other. Shapes only; no decisions here.

A round is one pass: its operations in order, then one decode step of `decode`. It may be repeated
`repeat` times without asking again. Times are no business of this module: an executor has a clock,
the scheduler has round indices.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

Ending = Literal["finished", "refused", "failed", "cancelled"]


class Ask(NamedTuple):
    """A request as it arrives. Never the actual reply length: that is the executor's fact.

    `prefix` holds chained keys of the prompt, one a step; `message_tokens` is the last message
    boundary before the generation prompt, where a chat template gives it (0: unknown).
    """

    id: int
    prompt_tokens: int
    max_new: int | None = None
    prefix: tuple[int, ...] = ()
    priority: int = 0
    message_tokens: int = 0


class Place(NamedTuple):
    """Cache rows a stream occupies: `[start_row, start_row + num_rows)` of the arena.

    `context_tokens` is what a stream in it may reach (its rows less the margin). `slot` numbers the
    session for state that does not grow (recurrent state, conv tail, ring).
    """

    slot: int
    start_row: int
    num_rows: int
    context_tokens: int


class End(NamedTuple):
    """The request is over: free its `place` (None if it never ran) and tell its client."""

    id: int
    outcome: Ending
    reason: str
    place: Place | None = None
    truncated: bool = False


class Drop(NamedTuple):
    """Forget the prefix blob `key`."""

    key: int


class Resume(NamedTuple):
    """A paused stream moves `source -> target` and decodes again."""

    id: int
    source: Place
    target: Place
    num_rows: int


class Move(NamedTuple):
    """A running stream moves `source -> target`; `num_rows` rows are in use.

    A compaction may slide a stream down onto a part of its own rows: copy in ascending order.
    """

    id: int
    source: Place
    target: Place
    num_rows: int


class Pause(NamedTuple):
    """The stream keeps its place and does not decode until a larger one is free."""

    id: int


class Admit(NamedTuple):
    """The request becomes a stream in `place`; its prompt has `prompt_tokens` tokens."""

    id: int
    place: Place
    prompt_tokens: int


class Restore(NamedTuple):
    """Copy the `num_tokens` rows and the state of blob `key` into the stream's place."""

    id: int
    key: int
    num_tokens: int


class Grant(NamedTuple):
    """Prefill tokens `[start, start + num_tokens)`, which cost `num_chunks` legal chunks.

    In the i-th repeat of a round everything lies `i * num_tokens` further. `last` says that the
    prefill is complete afterwards: the stream decodes in this same round.
    """

    id: int
    start: int
    num_tokens: int
    num_chunks: int
    last: bool


class Capture(NamedTuple):
    """Save the stream's first `num_tokens` rows and state as blob `key`."""

    id: int
    key: int
    num_tokens: int


make = tuple.__new__
"""`make(Grant, (id, start, ...))`, all fields given, takes half the time of `Grant(...)`."""

Operation = End | Drop | Resume | Move | Pause | Admit | Restore | Grant | Capture


class Round(NamedTuple):
    """One answer of the scheduler.

    `repeat`: the same answer holds for so many rounds if every decoder yields one window each.
    `wakes`: an arrival could change the next round, so stop a repeated round when one comes.
    """

    index: int
    ops: tuple[Operation, ...]
    decode: tuple[int, ...]
    repeat: int
    wakes: bool


class Outcome(NamedTuple):
    """What really happened.

    `rounds` <= `Round.repeat`. `produced` lists `(id, num_tokens)` over all those rounds for every
    decoder that did not yield exactly one token a round (missing: one a round, and none in the last
    for a stream that failed). `stopped`: ids whose reply ended by itself (EOS). `failed`:
    `(position, reason)` of operations, in order; position `len(ops) + i` is the decode of
    `decode[i]`.

    A failure ends the run with the round it happened in, which `rounds` counts and the others
    finish: a grant that fails in its third repeat gives `rounds` 3, and everybody else's three
    tokens stand. What cannot be laid at one stream's door (the decode step itself) fails the decode
    of all that took part. Either way the scheduler learns what it would have learned asking for
    every round by itself.
    """

    rounds: int
    produced: tuple[tuple[int, int], ...] = ()
    stopped: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()


class Refusal(NamedTuple):
    """Why a request was not taken: the numbers, and the nearest thing that would fit."""

    id: int
    reason: str
    binding: str
    needed: int
    limit: int
    counter_offer: str


class Binding(NamedTuple):
    """What a request waits for, and the smallest change that would admit it."""

    id: int
    resource: str
    detail: str


class Fact(NamedTuple):
    """An arrival or a cancel, with the round index from which the scheduler could know it."""

    round: int
    ask: Ask | None = None
    cancel: int | None = None


class Executor(Protocol):
    """Four methods make an engine."""

    def facts(self, round_index: int) -> list[Fact]:
        """Return arrivals and cancels visible up to this round, oldest first, each once."""

    def run(self, round: Round) -> Outcome:
        """Carry out the operations in order, then the decode steps."""

    def wait(self) -> bool:
        """Block until something arrives; False when nothing ever will."""

    def close(self) -> None:
        """Release everything."""


class Arrived(NamedTuple):
    """`arrive`: all that is known of a request."""

    prompt_tokens: int
    max_new: int | None


class Refused(NamedTuple):
    """`refused`, as in `Refusal`."""

    reason: str
    counter_offer: str


class Waited(NamedTuple):
    """`wait`: what the head of the line waits for."""

    resource: str


class Admitted(NamedTuple):
    """`admit`: where, what it had waited for ("" if it did not), how many later ones went first."""

    slot: int
    start_row: int
    waited_for: str
    passed: int


class Seated(NamedTuple):
    """`move` and `resume`: where to; `pause`: where it stays."""

    slot: int


class Copied(NamedTuple):
    """`capture` and `restore`: how much of the prompt."""

    num_tokens: int


class Joined(NamedTuple):
    """`decode`: its prefill is complete."""


class Over(NamedTuple):
    """`finished`, `failed` and `cancelled`: why, and how many tokens its reply has."""

    reason: str
    num_tokens: int


DETAILS: dict[str, type] = {
    "arrive": Arrived,
    "refused": Refused,
    "wait": Waited,
    "admit": Admitted,
    "move": Seated,
    "resume": Seated,
    "pause": Seated,
    "capture": Copied,
    "restore": Copied,
    "decode": Joined,
    "finished": Over,
    "failed": Over,
    "cancelled": Over,
}
"""What the log tells of each kind of decision, in the order of `LogEntry.detail`."""


ARRIVALS, PLAN, SETTLE = range(3)
"""Phases of a round: arrivals and cancels, the plan, the settlement."""


class LogEntry(NamedTuple):
    """A decision that changed something, keyed by the round it was made in.

    `phase` is one of `ARRIVALS`, `PLAN`, `SETTLE`. Entries sort by (round, phase).
    `detail` holds plain values, as files keep them; `what` has them by name.
    """

    round: int
    phase: int
    kind: str
    id: int
    detail: tuple = ()

    @property
    def what(self) -> Any:
        """The detail as the kind's tuple of `DETAILS`: `entry.what.slot` of an `admit`."""
        return make(DETAILS[self.kind], self.detail)
