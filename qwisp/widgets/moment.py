"""The state of a replay at a time: who sits where, who waits, and why.

The reasons come from the scheduler itself: the facts are played again into a fresh one, up to the
round that runs at that time, and then it is asked. No rule of admission is written down here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from qwisp.cost.model import PS_PER_S
from qwisp.policies import scheduler_for
from qwisp.scheduling.contract import Ask, Binding, Outcome, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.snapshot import StreamView
from qwisp.scheduling.wrappers import Wrapper
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.replay import arrivals
from qwisp.sim.run import Run

MAX_REASONS = 50  # a line of thousands needs no thousand sentences
BETWEEN_ROUNDS = "end of the round"


class Wait(NamedTuple):
    """A request that does not advance: `state` waiting or paused, since `since_s`."""

    id: int
    state: str
    since_s: float
    prompt_tokens: int
    resource: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A replay at `at_s`. `waits` holds the reasons of the first 50, `num_waiting` counts all."""

    at_s: float
    round: int
    streams: tuple[StreamView, ...]
    waits: tuple[Wait, ...]
    num_sessions: int
    num_waiting: int

    @property
    def num_paused(self) -> int:
        """Streams that wait for a larger session."""
        return self._counts["paused"]

    @property
    def _counts(self) -> Counter[str]:
        return Counter(stream.state for stream in self.streams)

    @property
    def finding(self) -> str:
        """The moment in one sentence."""
        counts, running = self._counts, len(self.streams)
        does = [f"{counts[name]} {name}" for name in ("prefill", "decode", "paused")]
        text = (
            f"At {self.at_s:,.1f} s {running} of {self.num_sessions} sessions hold a stream "
            f"({', '.join(does)})"
        )
        line = [wait for wait in self.waits if wait.state == "waiting"]
        if not self.num_waiting or not line:
            return f"{text}; nothing waits"
        first = f"the first for: {line[0].resource}"
        if self.num_waiting == 1:
            return f"{text}; 1 request waits for: {line[0].resource}"
        return f"{text}; {self.num_waiting:,} requests wait, {first}"


def moments(run: Run, times_s: Iterable[float], *, only: int | None = None) -> list[Moment]:
    """Return the state of `run` at each of the times, in their order, by one replay.

    With `only` the reasons are those of that request alone, wherever it is in the queue.
    A time before the first or after the last event is the empty state. A decision made at the
    start of a round counts from then on; tokens count when their step is over.
    """
    wanted = [round(at_s * PS_PER_S) for at_s in times_s]
    found = dict.fromkeys(wanted)
    asks = arrivals(run.trace, run.rate, run.max_new)
    inner = CostExecutor(asks, run.cost, run.size)
    scheduler = scheduler_for(run.layout, run.size, run.settings)
    since = [at_ps for at_ps, _, _ in asks]

    def look(at_ps: int) -> None:
        unseen = asks[len(inner.records) : bisect_right(since, at_ps)]
        # One that will be refused is refused as of its arrival: it never waits.
        unseen = [ask for _, ask, _ in unseen if run.executor.records[ask.id].end_ps > at_ps]
        found[at_ps] = _moment(run, scheduler, inner, at_ps, unseen, only)

    watched = _Watched(run, inner, sorted(found), look)
    try:
        drive(scheduler, watched)
    except _SeenAll:
        pass
    else:
        watched.look_until(None)
    return [found[at_ps] for at_ps in wanted]


class _SeenAll(Exception):
    """Every time that was asked about has been looked at."""


class _Watched(Wrapper):
    """Passes rounds on, cut so that one of them runs at each of the times, and looks then."""

    def __init__(
        self, run: Run, inner: CostExecutor, times_ps: list[int], look: Callable[[int], None]
    ) -> None:
        super().__init__(inner)
        table = run.executor.rounds.columns()
        names = ("index", "end_ps", "last_ps")
        self._index, self._end_ps, self._last_ps = (table[name].tolist() for name in names)
        self._times = times_ps[::-1]
        self._look = look

    def run(self, round: Round) -> Outcome:
        if not self._times:
            raise _SeenAll
        row = bisect_right(self._end_ps, self._times[-1])  # the line of rounds at that time
        if row < len(self._index):
            most = self._index[row] - round.index
            if most <= 0:
                # None of its rounds is longer than the last: so many are over before that time.
                left_ps = max(0, self._times[-1] - self.inner.now_ps)
                most = left_ps // max(1, self._last_ps[row])
            round = round._replace(repeat=max(1, min(round.repeat, most)))
        outcome = self.inner.run(round)
        self.look_until(self.inner.now_ps)
        return outcome

    def wait(self) -> bool:
        before = self.inner.now_ps
        found = self.inner.wait()
        if found and self.inner.now_ps > before:
            self.look_until(self.inner.now_ps)
        return found

    def look_until(self, now_ps: int | None) -> None:
        """Look at every time before `now_ps` (None: at all that are left)."""
        while self._times and (now_ps is None or self._times[-1] < now_ps):
            self._look(self._times.pop())


def _moment(
    run: Run,
    scheduler: Scheduler,
    inner: CostExecutor,
    at_ps: int,
    unseen: list[Ask],
    only: int | None,
) -> Moment:
    view = scheduler.snapshot()
    paused = [stream.id for stream in view.streams if stream.state == "paused"]
    seen = [i for i in (*view.waiting, *paused) if only in (None, i)]
    waits = [
        _wait(scheduler.why(i), inner, "paused" if i in paused else "waiting")
        for i in seen[:MAX_REASONS]
    ]
    waits += [
        Wait(ask.id, "waiting", _arrival_s(run, ask), ask.prompt_tokens, BETWEEN_ROUNDS, _ARRIVED)
        for ask in [ask for ask in unseen if only in (None, ask.id)][: MAX_REASONS - len(waits)]
    ]
    return Moment(
        at_s=at_ps / PS_PER_S,
        round=view.round,
        streams=tuple(_as_seen(stream, inner, at_ps) for stream in view.streams),
        waits=tuple(waits),
        num_sessions=run.layout.lanes,
        num_waiting=len(view.waiting) + len(unseen),
    )


def _as_seen(stream: StreamView, inner: CostExecutor, at_ps: int) -> StreamView:
    """Until its first token is out a stream prefills: last grant and first step share a round."""
    first_ps = inner.records[stream.id].first_ps
    if stream.state == "decode" and not 0 <= first_ps <= at_ps:
        return stream._replace(state="prefill")
    return stream


def _arrival_s(run: Run, ask: Ask) -> float:
    return run.executor.records[ask.id].arrival_ps / PS_PER_S


_ARRIVED = "it came while a round runs; the scheduler decides about it in the next one"


def _wait(binding: Binding, inner: CostExecutor, state: str) -> Wait:
    record = inner.records[binding.id]
    since_ps = record.paused_since_ps if state == "paused" else record.arrival_ps
    return Wait(
        binding.id,
        state,
        since_ps / PS_PER_S,
        record.prompt_tokens,
        binding.resource,
        binding.detail,
    )
