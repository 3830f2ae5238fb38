"""Who waits for what, and the very round in which the wait is over."""

from __future__ import annotations

import pytest

from qwisp.scheduling.contract import Admit, Ask, Outcome
from qwisp.scheduling.layout import parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty, Stepwise
from qwisp.testing import Played, RowBytes, ScriptedRequest, play, sessions

NO_SESSION = "no free session large enough"


def told(played: Played, *kinds: str) -> list[tuple]:
    return [(e.round, e.phase, e.kind, e.id, *e.detail) for e in played.log if e.kind in kinds]


@pytest.mark.parametrize("wrap", [None, Stepwise])
def test_an_admission_names_what_it_waited_for_and_nothing_when_it_did_not(wrap) -> None:
    """Two sessions are free at once in round 3: the head waited for one, the next for its turn."""
    asks = [ScriptedRequest(i, 8, 3, max_new=3, arrives=i // 2) for i in range(4)]
    assert told(play(sessions(40, 40), asks, wrap=wrap), "wait", "admit") == [
        (0, 1, "admit", 0, 0, 0, "", 0),
        (0, 1, "admit", 1, 1, 40, "", 0),
        (1, 1, "wait", 2, NO_SESSION),
        (3, 1, "admit", 2, 0, 0, NO_SESSION, 0),
        (3, 1, "admit", 3, 1, 40, "order", 0),
    ]


@pytest.mark.parametrize("wrap", [None, Stepwise])
def test_a_wait_is_told_once_for_each_resource_and_each_head(wrap) -> None:
    """Two lanes, 100 rows: 0 takes 60 for rounds 0 to 18, 1 takes 10 for rounds 0 to 3."""
    layout = parse_layout(
        "per_request:100", size=RowBytes(), memory_bytes=1, model_context_tokens=100, lanes=2
    )
    asks = [
        ScriptedRequest(0, 40, 19, max_new=19),
        ScriptedRequest(1, 5, 4, max_new=4),
        ScriptedRequest(2, 30, 9, max_new=19, arrives=1),  # 50 rows
        ScriptedRequest(3, 30, 9, max_new=19, arrives=2),  # 50 rows
        ScriptedRequest(4, 30, 9, max_new=19, arrives=3),  # 50 rows
    ]
    assert told(play(layout, asks, wrap=wrap), "wait", "admit")[2:] == [
        (1, 1, "wait", 2, "lane count"),
        (4, 1, "wait", 2, "byte budget"),
        (19, 1, "admit", 2, 0, 0, "byte budget", 0),
        (19, 1, "admit", 3, 1, 50, "order", 0),
        (19, 1, "wait", 4, "lane count"),  # no row is free either: the lanes come first
        (28, 1, "admit", 4, 1, 0, "lane count", 0),  # of two slots the one given back last
    ]


def test_sessions_beyond_the_lanes_are_not_used() -> None:
    layout = parse_layout(
        "whole_window:3", size=RowBytes(), memory_bytes=1, model_context_tokens=64, lanes=2
    )
    asks = [ScriptedRequest(i, 8, 5 + i) for i in range(3)]
    assert told(play(layout, asks), "wait", "admit") == [
        (0, 1, "admit", 0, 0, 0, "", 0),
        (0, 1, "admit", 1, 1, 64, "", 0),
        (0, 1, "wait", 2, "lane count"),
        (5, 1, "admit", 2, 0, 0, "lane count", 0),
    ]


@pytest.mark.parametrize("order", ["first_fit", "sjf"])
def test_one_that_fits_starts_in_the_round_it_comes_beside_a_blocked_line(order: str) -> None:
    """0 holds 64 until round 22; 1 waits for it from round 1; 2 and 3 fit 16 when they come."""
    asks = [
        ScriptedRequest(0, 40, 23, max_new=23),
        ScriptedRequest(1, 40, 9, max_new=9, arrives=1),
        ScriptedRequest(2, 4, 3, max_new=3, arrives=4),
        ScriptedRequest(3, 4, 3, max_new=3, arrives=11),
    ]
    assert told(play(sessions(16, 64), asks, Settings(order=order)), "admit") == [
        (0, 1, "admit", 0, 1, 16, "", 0),
        (4, 1, "admit", 2, 0, 0, "", 0),
        (11, 1, "admit", 3, 0, 0, "", 0),
        (23, 1, "admit", 1, 1, 16, NO_SESSION, 2),
    ]


def behind(cancelled: int | None = None) -> list[ScriptedRequest]:
    """0 holds 64 for rounds 0 to 19, 1 waits for it, 2 would fit 16 but comes later."""
    return [
        ScriptedRequest(0, 40, 20, max_new=20),
        ScriptedRequest(1, 40, 9, max_new=9, arrives=1, cancelled=cancelled),
        ScriptedRequest(2, 4, 3, max_new=3, arrives=2),
    ]


def test_when_the_head_goes_away_the_next_starts_in_that_round() -> None:
    assert play(sessions(16, 64), behind()).story("admit")[-1] == (20, "admit", 2)
    assert play(sessions(16, 64), behind(cancelled=7)).story("wait", "cancelled", "admit") == [
        (0, "admit", 0),
        (1, "wait", 1),
        (7, "cancelled", 1),
        (7, "admit", 2),
    ]


def test_after_a_failure_the_head_starts_in_the_next_round() -> None:
    fails = lambda round: [len(round.ops)] if round.index == 5 else []  # noqa: E731
    played = play(sessions(16, 64), behind(), wrap=lambda engine: Stepwise(Faulty(engine, fails)))
    assert told(played, "failed", "admit")[1:] == [
        (5, 2, "failed", 0, "injected failure", 5),  # its step of round 5 did not happen
        (6, 1, "admit", 1, 1, 16, NO_SESSION, 0),
        (6, 1, "admit", 2, 0, 0, "order", 0),
    ]


def test_a_stopped_reply_frees_its_session_for_the_next_round() -> None:
    asks = [ScriptedRequest(0, 8, 6, max_new=30), ScriptedRequest(1, 8, 6, arrives=3)]
    assert play(sessions(40), asks).story("wait", "finished", "admit") == [
        (0, "admit", 0),
        (3, "wait", 1),
        (5, "finished", 0),
        (6, "admit", 1),
        (11, "finished", 1),
    ]


def started(scheduler: Scheduler) -> list[int]:
    """Play one round; whom it admitted."""
    round = scheduler.plan()
    scheduler.settle(round, Outcome(1))
    return [op.id for op in round.ops if isinstance(op, Admit)]


def test_an_arrival_wakes_a_repeated_round_only_if_it_could_start() -> None:
    """Rows or sessions must be free, and a lane, and in arrival order nobody before it."""

    def wakes(layout, asks: list[Ask], order: str = "fcfs") -> bool:
        scheduler = Scheduler(RowSpace(layout, RowBytes()), Settings(order=order))
        for ask in asks:
            scheduler.submit(ask)
        assert started(scheduler)
        return scheduler.plan().wakes

    one, two = Ask(1, 40, 20), Ask(2, 40, 20)
    assert wakes(sessions(16, 64), [one])
    assert not wakes(sessions(64), [one]), "no session is free"
    assert not wakes(sessions(16, 64), [one, two]), "2 waits and nobody may pass it"
    assert wakes(sessions(16, 64), [one, two], "first_fit")
    assert wakes(sessions(16, 64), [one, two], "sjf")
    for lanes, expected in ((1, False), (2, True)):
        run = parse_layout(
            "per_request:100",
            size=RowBytes(),
            memory_bytes=1,
            model_context_tokens=100,
            lanes=lanes,
        )
        assert wakes(run, [one]) == expected, "rows are free: 39 of 100"


def test_lanes_bytes_and_pieces_bind_at_equality_and_one_beyond() -> None:
    layout = parse_layout(
        "per_request:100", size=RowBytes(), memory_bytes=1, model_context_tokens=100, lanes=3
    )
    space = RowSpace(layout, RowBytes())
    first, second = space.take(space.find(40)), space.take(space.find(20))
    assert (first.slot, second.slot) == (0, 1)
    assert space.find(40) == range(60, 100)  # 60 bytes committed and 40 more are all
    assert space.find(41) is None
    assert space.why_not(41) == "byte budget"
    space.release(first)
    assert space.find(41) is None
    assert space.why_not(80) == "contiguous rows"  # 20 committed and 80 more are all
    assert space.why_not(81) == "byte budget"
    assert space.take(space.find(10)).slot == 0, "the slot given back is the next one used"
    assert space.has_free
    assert space.take(space.find(10)).slot == 2
    assert (space.has_free, space.find(1), space.why_not(1)) == (False, None, "lane count")
    space.check()
