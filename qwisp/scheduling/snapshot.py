"""A look at the scheduler's state as plain values, and the invariants it must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qwisp.errors import SchedulerBug
from qwisp.scheduling.contract import Place
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
