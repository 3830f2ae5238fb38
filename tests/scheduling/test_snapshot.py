"""The state as plain values; and `check`, which finds each invariant that was broken by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qwisp.errors import SchedulerBug
from qwisp.scheduling.contract import Ask, Outcome
from qwisp.scheduling.layout import parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.stream import DECODE, OVER
from qwisp.testing import RowBytes, sessions


def busy() -> Scheduler:
    """Request 1 decodes, 2 is paused, 3 is in prefill, 4 waits."""
    settings = Settings(grow_tokens=4, chunk_tokens=8, budget_tokens=8)
    scheduler = Scheduler(RowSpace(sessions(16, 16, 64), RowBytes()), settings)
    scheduler.submit(Ask(1, 50, 13))
    scheduler.submit(Ask(2, 8))
    for _ in range(16):
        scheduler.settle(scheduler.plan(), Outcome(1))
    scheduler.submit(Ask(3, 11, 4))
    scheduler.submit(Ask(4, 40, 7))
    scheduler.settle(scheduler.plan(), Outcome(1))
    scheduler.check()
    return scheduler


def test_a_snapshot_says_who_sits_where_and_who_waits() -> None:
    seen = busy().snapshot()
    assert [(view.id, view.state, view.place.slot, view.used_tokens) for view in seen.streams] == [
        (1, "decode", 2, 60),
        (2, "paused", 0, 15),
        (3, "prefill", 1, 8),
    ]
    assert seen._replace(streams=()) == (17, (), (4,), (), 0)


def _share(scheduler: Scheduler) -> None:
    scheduler.live[3].place = scheduler.live[2].place


def _overlap(scheduler: Scheduler) -> None:
    space = scheduler.space
    place = scheduler.live[2].place
    space._taken[place.start_row] = place._replace(num_rows=20)


def _leak(scheduler: Scheduler) -> None:
    scheduler.live[2].place = None


def _lose_rows(scheduler: Scheduler) -> None:
    del scheduler.space._taken[0]


def _share_slot(scheduler: Scheduler) -> None:
    space = scheduler.space
    space._taken[0] = space._taken[0]._replace(slot=1)


def _miscount(scheduler: Scheduler) -> None:
    scheduler.counts["finished"] += 1


def _overgrow(scheduler: Scheduler) -> None:
    scheduler.live[1].base += 40


def _linger(scheduler: Scheduler) -> None:
    scheduler.live[2].state = OVER


def _settle_paused(scheduler: Scheduler) -> None:
    scheduler.live[2].settled = True


def _decode_uncounted(scheduler: Scheduler) -> None:
    scheduler.live[3].state, scheduler.live[3].joined = DECODE, scheduler.decoders.steps


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (_share, "places"),
        (_overlap, "lost or shared"),
        (_leak, "is paused in None"),
        (_lose_rows, "lost or shared"),
        (_share_slot, "share a state slot"),
        (_miscount, "do not add up"),
        (_overgrow, "uses 101 rows"),
        (_linger, "is over and live"),
        (_settle_paused, "paused in a session that holds its end"),
        (_decode_uncounted, "2 streams decode, 1 are counted"),
    ],
)
def test_check_finds_what_was_broken(harm: Callable[[Scheduler], None], what: str) -> None:
    scheduler = busy()
    harm(scheduler)
    with pytest.raises(SchedulerBug, match=what):
        scheduler.check()


def test_check_finds_more_committed_than_the_budget_holds() -> None:
    layout = parse_layout(
        "per_request:100", size=RowBytes(), memory_bytes=1, model_context_tokens=100
    )
    scheduler = Scheduler(RowSpace(layout, RowBytes()))
    scheduler.space.committed_bytes = 101
    with pytest.raises(SchedulerBug, match="101 bytes are committed, above 100"):
        scheduler.check()


def test_rows_are_given_back_once() -> None:
    space = RowSpace(sessions(16), RowBytes())
    place = space.take(space.find(10))
    space.release(place)
    with pytest.raises(SchedulerBug, match="released twice"):
        space.release(place)
