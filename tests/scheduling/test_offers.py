"""What `why` offers is tried: applied it admits or resumes, and one less does not."""

from __future__ import annotations

import re

import pytest

from qwisp.scheduling.contract import Ask, Outcome, Place
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.moves import compact
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.stream import DECODE, PREFILL, Stream
from qwisp.testing import RowBytes, sessions


def after(
    layout: Layout, asks: list[Ask], *outcomes: Outcome, size: RowBytes | None = None, **changes
) -> Scheduler:
    scheduler = Scheduler(RowSpace(layout, size or RowBytes()), Settings(**changes))
    for ask in asks:
        scheduler.submit(ask)
    for outcome in outcomes:
        scheduler.settle(scheduler.plan(), outcome)
    return scheduler


def run_of(budget: int, context: int = 100, lanes: int = 8) -> Layout:
    return parse_layout(
        f"per_request:{budget}",
        size=RowBytes(),
        memory_bytes=1,
        model_context_tokens=context,
        lanes=lanes,
    )


def number(pattern: str, detail: str) -> int:
    found = re.search(pattern, detail)
    assert found, detail
    return int(found[1].replace(",", ""))


def test_a_session_list_names_the_session_that_would_admit_without_its_margin() -> None:
    asks = [Ask(1, 40, 9), Ask(2, 30, 9)]
    binding = after(sessions(64, 16, margin_rows=32), asks, Outcome(1)).why(2)
    assert binding.detail == (
        "needs 72 rows, the largest free run has 48; a free session of 40 tokens would admit it"
    )
    for context, state in ((40, "decode"), (39, "waiting")):
        scheduler = after(sessions(64, context, margin_rows=32), asks, Outcome(1))
        assert scheduler.why(2).resource == ("" if state == "decode" else binding.resource)


@pytest.mark.parametrize(("step", "drafts", "length"), [(1, 1, 16), (5, 1, 12), (5, 3, 14)])
def test_a_paused_stream_names_the_session_that_resumes_it(
    step: int, drafts: int, length: int
) -> None:
    """2 has 16 tokens of room and pauses where a whole step no longer fits; 1 holds the largest."""
    asks = [Ask(1, 40, 19), Ask(2, 8, 30)]

    def paused(*more: int) -> Scheduler:
        rounds = [Outcome(1, ((2, drafts),))] * ((length - 8) // drafts) + [Outcome(1)]
        return after(sessions(16, 64, *more), asks, *rounds, grow_tokens=3, step_tokens=step)

    binding = paused().why(2)
    least = number(r"a free one of ([\d,]+) tokens or more", binding.detail)
    assert least == length + step
    assert binding.detail == (
        f"paused at {length} tokens in a session of 16; "
        f"a free one of {least} tokens or more resumes it"
    )
    assert paused(least - 1).why(2).resource == "no free session large enough"
    assert paused(least).why(2).resource == ""


@pytest.mark.parametrize(("lanes", "waits"), [(1, "lane count"), (2, "")])
def test_one_lane_more_admits_who_waits_for_a_lane(lanes: int, waits: str) -> None:
    binding = after(run_of(100, lanes=lanes), [Ask(1, 10, 9), Ask(2, 10, 9)], Outcome(1)).why(2)
    assert binding.resource == waits
    assert ("one of the 1 lanes must end" in binding.detail) == bool(waits)


@pytest.mark.parametrize(("budget", "left"), [(89, 39), (90, None)])
def test_bytes_that_are_missing_admit_when_they_are_there(budget: int, left: int | None) -> None:
    """50 rows and 40 rows, a byte each."""
    binding = after(run_of(budget), [Ask(1, 30, 19), Ask(2, 20, 19)], Outcome(1)).why(2)
    if left is None:
        assert binding.resource == ""
    else:
        assert binding.resource == "byte budget"
        assert number(r"([\d,]+) bytes of the budget are left", binding.detail) == left


@pytest.mark.parametrize("order", ["fcfs", "first_fit"])
def test_who_stands_behind_waits_for_the_order_or_for_room_where_it_may_pass(order: str) -> None:
    asks = [Ask(1, 40, 9), Ask(2, 30, 9), Ask(3, 29, 9), Ask(4, 20, 9)]
    scheduler = after(sessions(64, 16), asks, Outcome(1), order=order)
    assert scheduler.why(2)[1] == "no free session large enough"
    detail = scheduler.why(4)[1:]
    if order == "fcfs":
        assert detail == (
            "order",
            "2 requests are ahead; the first needs 40 rows and waits for: "
            "no free session large enough",
        )
    else:
        assert detail == (
            "no free session large enough",
            "needs 30 rows, the largest free run has 16; "
            "a free session of 30 tokens would admit it",
        )


def test_one_that_would_fit_behind_a_starved_head_waits_for_the_order() -> None:
    asks = [Ask(1, 40, 9), Ask(2, 30, 9), Ask(3, 4, 4)]
    scheduler = after(sessions(64, 16), asks, Outcome(1), order="first_fit", max_passed=0)
    assert scheduler.why(3)[1] == "order"
    assert scheduler.why(3)[2].startswith("1 requests are ahead")


def test_a_prefix_in_flight_is_named_and_what_is_left_of_a_prompt() -> None:
    prefix = tuple(range(13))
    scheduler = after(
        sessions(900, 900),
        [Ask(1, 800, 9, prefix), Ask(2, 800, 9, prefix)],
        Outcome(1),
        chunk_tokens=64,
        budget_tokens=64,
        prefix_bytes=9000,
        prefix_step_tokens=64,
        boundary_tokens=1,
        min_shared_tokens=128,
    )
    assert scheduler.why(2)[1:] == (
        "prefix in flight",
        "needs 810 rows, the largest free run has 900; "
        "it starts from that prefix as soon as it is captured",
    )
    assert scheduler.why(1)[1:] == ("token budget", "735 prompt tokens are left to prefill")


# ---- sliding together --------------------------------------------------------------------------


def pieces() -> tuple[RowSpace, dict[str, Stream]]:
    """100 rows: 20 free, a, 20 free, b, 20 free."""
    space = RowSpace(run_of(100), RowBytes())
    places = [space.take(range(at, at + 20)) for at in range(0, 100, 20)]
    for place in places[::2]:
        space.release(place)
    streams = {}
    for name, place, state in (("a", places[1], DECODE), ("b", places[3], PREFILL)):
        stream = Stream(Ask(len(streams), 10), 9, 20, 0)
        stream.place, stream.state, stream.position, stream.base = place, state, 6, 3
        streams[name] = stream
    return space, streams


@pytest.mark.parametrize(
    ("rows", "moved", "free"),
    [
        (20, [], [(0, 20), (40, 60), (80, 100)]),  # there is one
        (21, ["a"], [(20, 60), (80, 100)]),
        (40, ["a"], [(20, 60), (80, 100)]),  # no more than must be
        (41, ["a", "b"], [(40, 100)]),
        (60, ["a", "b"], [(40, 100)]),
        (61, [], [(0, 20), (40, 60), (80, 100)]),  # in vain
    ],
)
def test_streams_slide_from_the_bottom_until_the_run_is_long_enough(
    rows: int, moved: list[str], free: list[tuple[int, int]]
) -> None:
    space, streams = pieces()
    waiting = Stream(Ask(9, 10), 9, 20, 0)
    moves = compact(space, [streams["b"], waiting, streams["a"]], rows, 0)
    assert [stream for stream, _ in moves] == [streams[name] for name in moved]
    assert space.free == tuple(range(*run) for run in free)
    targets = {"a": (20, 0, 12), "b": (60, 20, 6)}  # 10 + 3 - 1 rows; 6 prefilled
    for name, (stream, move) in zip(moved, moves, strict=True):
        assert (move.source.start_row, move.target.start_row, move.num_rows) == targets[name]
        assert stream.place is move.target
        assert move.target == move.source._replace(start_row=move.target.start_row)
    space.check()
    assert space.committed_bytes == 40


def test_what_lies_at_the_bottom_stays_and_the_fixed_never_slide() -> None:
    space = RowSpace(run_of(100), RowBytes())
    bottom = space.take(range(0, 20))
    assert space.slide(bottom) is None
    above = space.take(range(30, 50))
    assert space.slide(above) == Place(above.slot, 20, 20, 20)
    assert space.free == (range(40, 100),)
    fixed = RowSpace(sessions(16, 16), RowBytes())
    assert fixed.slide(fixed.take(range(16, 32))) is None
    assert fixed.free == (range(0, 16),)
    assert compact(fixed, [], 16, 0) == []


def test_released_sessions_lie_in_the_order_of_their_rows_again() -> None:
    space = RowSpace(sessions(16, 24, 16), RowBytes())
    places = [space.take(range(*run)) for run in ((0, 16), (16, 40), (40, 56))]
    assert not space.has_free
    for at in (2, 0, 1):
        space.release(places[at])
    assert space.free == (range(0, 16), range(16, 40), range(40, 56))
    assert space.taken == ()
    assert [space.take(space.find(10)).slot for _ in range(3)] == [0, 2, 1]
