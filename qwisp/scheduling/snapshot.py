"""A look into the scheduler: who sits where, what a request waits for, and what must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qwisp.errors import BadInput, SchedulerBug
from qwisp.scheduling.contract import Binding, Place
from qwisp.scheduling.stream import DECODE, OVER, PAUSED, PREFILL, STATE_NAMES, WAITING

if TYPE_CHECKING:
    from qwisp.scheduling.scheduler import Scheduler


class StreamView(NamedTuple):
    """One admitted stream: `used_tokens` of its place's `context_tokens`."""

    id: int
    state: str
    place: Place
    used_tokens: int


class Snapshot(NamedTuple):
    """The state between two rounds."""

    round: int
    streams: tuple[StreamView, ...]
    waiting: tuple[int, ...]
    free: tuple[range, ...]
    committed_bytes: int


def take_snapshot(scheduler: Scheduler) -> Snapshot:
    """Return the scheduler's state as plain values."""
    steps = scheduler.decoders.steps
    streams = tuple(
        StreamView(
            stream.id,
            STATE_NAMES[stream.state],
            stream.place,
            stream.position if stream.state == PREFILL else stream.length(steps) - 1,
        )
        for stream in scheduler.live.values()
        if stream.place is not None
    )
    waiting = tuple(stream.id for stream in scheduler.line)
    space = scheduler.space
    return Snapshot(scheduler.index, streams, waiting, space.free, space.committed_bytes)


def check_streams(scheduler: Scheduler) -> None:
    """Raise `SchedulerBug` unless streams, places and counts agree."""
    steps = scheduler.decoders.steps
    counts = scheduler.counts
    ended = sum(counts[name] for name in ("finished", "refused", "failed", "cancelled"))
    if counts["submitted"] != ended + len(scheduler.live):
        raise SchedulerBug(f"{counts} and {len(scheduler.live)} live requests do not add up")
    placed = 0
    for stream in scheduler.live.values():
        if stream.state == OVER:
            raise SchedulerBug(f"request {stream.id} is over and live")
        if (stream.place is None) != (stream.state == WAITING):
            raise SchedulerBug(
                f"request {stream.id} is {STATE_NAMES[stream.state]} in {stream.place}"
            )
        if stream.place is None:
            continue
        placed += 1
        used = stream.position if stream.state == PREFILL else stream.length(steps)
        if used > stream.place.context_tokens:
            raise SchedulerBug(f"request {stream.id} uses {used} rows of {stream.place}")
        if stream.state == PAUSED and stream.settled:
            raise SchedulerBug(f"request {stream.id} is paused in a session that holds its end")
    held = {id(s.place) for s in scheduler.live.values() if s.place is not None}
    if placed + len(scheduler.growth.left) != len(scheduler.space.taken) or len(held) != placed:
        raise SchedulerBug(f"{placed} placed streams hold {len(scheduler.space.taken)} places")
    decoding = sum(s.state == DECODE for s in scheduler.live.values())
    if decoding != len(scheduler.decoders):
        raise SchedulerBug(f"{decoding} streams decode, {len(scheduler.decoders)} are counted")


def explain(scheduler: Scheduler, request_id: int) -> Binding:
    """Return the binding resource of a live request. Raises `BadInput` for an id not live."""
    stream = scheduler.live.get(request_id)
    if stream is None:
        raise BadInput(
            f"request {request_id} is not live", "ask about a waiting or running request"
        )
    space = scheduler.space
    if stream.state == PAUSED:
        least = stream.length(0) + scheduler.settings.step_tokens  # it outgrew its own
        return Binding(
            request_id,
            "no free session large enough",
            f"paused at {stream.length(0):,} tokens in a session of "
            f"{stream.place.context_tokens:,}; a free one of {least:,} tokens or more resumes it",
        )
    if stream.state == PREFILL:
        left = stream.prefill_end - stream.position
        return Binding(request_id, "token budget", f"{left:,} prompt tokens are left to prefill")
    if stream.state != WAITING:
        return Binding(request_id, "", "it decodes and waits for nothing")
    line = list(scheduler.line)
    ahead = line.index(stream)
    if ahead and not (scheduler.line.passes and space.find(stream.want_rows) is None):
        head = line[0]
        return Binding(
            request_id,
            "order",
            f"{ahead:,} requests are ahead; the first needs {head.want_rows:,} rows and waits for: "
            f"{scheduler.resource(head)}",
        )
    free = max((len(run) for run in space.free), default=0)
    resource = scheduler.resource(stream)
    change = f"a free session of {stream.want_rows - space.margin_rows:,} tokens would admit it"
    if resource == "prefix in flight":
        change = "it starts from that prefix as soon as it is captured"
    elif resource == "lane count":
        change = f"one of the {space.lanes} lanes must end"
    elif resource == "byte budget":
        change = (
            f"{space.layout.budget_bytes - space.committed_bytes:,} bytes of the budget are left"
        )
    elif resource == "contiguous rows":
        change = f"{sum(map(len, space.free)):,} rows are free, but in pieces"
    return Binding(
        request_id,
        resource,
        f"needs {stream.want_rows:,} rows, the largest free run has {free:,}; {change}",
    )
