"""Who is taken when several would do: every order and every cut, at equality and one beside it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from qwisp.scheduling.cuts import best_fit, first_free, smallest_fit
from qwisp.scheduling.orders import fcfs, first_fit, sjf
from qwisp.scheduling.settings import Settings
from qwisp.testing import Played, ScriptedRequest, play, sessions


def line(*requests: tuple[int, int, int]) -> list[SimpleNamespace]:
    """Waiting requests as (prompt, longest reply, times passed)."""
    return [SimpleNamespace(prompt_tokens=p, cap_tokens=c, passed=n) for p, c, n in requests]


def fits(*indices: int):
    return lambda index: index in indices


@pytest.mark.parametrize(
    ("requests", "able", "picked"),
    [
        (((2, 9, 0), (9, 1, 0)), (0, 1), 1),  # 11 against 10: prompt and reply both count
        (((9, 1, 0), (2, 9, 0)), (0, 1), 0),
        (((1, 12, 0), (9, 1, 0)), (0, 1), 1),
        (((10, 1, 0), (1, 10, 0), (5, 6, 0)), (0, 1, 2), 0),  # equal lengths: the oldest
        (((10, 1, 0), (1, 10, 0), (5, 6, 0)), (1, 2), 1),
        (((9, 9, 0), (1, 1, 0), (2, 2, 0)), (0, 2), 2),  # the shortest that fits
        (((9, 9, 0), (1, 1, 0)), (), None),
        (((9, 9, 2), (1, 1, 0)), (0, 1), 1),  # passed twice: not yet three times
        (((9, 9, 3), (1, 1, 0)), (0, 1), 0),  # starved: before all others
        (((9, 9, 4), (1, 1, 0)), (0, 1), 0),
        (((1, 1, 0), (9, 9, 3)), (0, 1), 1),
        (((1, 1, 0), (9, 9, 3), (5, 5, 4)), (0, 1, 2), 1),  # two starved: the older
        (((1, 1, 0), (9, 9, 3), (5, 5, 3)), (0, 2), None),  # it does not fit: nobody passes it
    ],
)
def test_shortest_first(requests: tuple, able: tuple[int, ...], picked: int | None) -> None:
    assert sjf.pick(line(*requests), fits(*able), 3) == picked


@pytest.mark.parametrize(
    ("passed", "able", "picked"),
    [
        ((0, 0, 0), (0, 1, 2), 0),
        ((0, 0, 0), (1, 2), 1),
        ((2, 0, 0), (1, 2), 1),
        ((3, 0, 0), (1, 2), None),  # passed three times: everybody waits behind it
        ((4, 0, 0), (1, 2), None),
        ((3, 0, 0), (0, 1), 0),
        ((0, 3, 0), (2,), None),
        ((0, 3, 0), (1, 2), 1),
        ((0, 0, 0), (), None),
    ],
)
def test_first_that_fits(passed: tuple, able: tuple[int, ...], picked: int | None) -> None:
    assert first_fit.pick(line(*((1, 1, n) for n in passed)), fits(*able), 3) == picked


def test_first_come_looks_at_the_head_alone() -> None:
    assert fcfs.pick(line((9, 9, 0), (1, 1, 0)), fits(0, 1), 3) == 0
    assert fcfs.pick(line((9, 9, 9), (1, 1, 0)), fits(1), 3) is None


@pytest.mark.parametrize("pick", [first_fit.pick, sjf.pick])
def test_sixty_four_candidates_are_asked_each_once(pick) -> None:
    asked: list[int] = []
    assert pick(line(*[(5, 5, 0)] * 70), lambda index: bool(asked.append(index)), 3) is None
    assert asked == list(range(64))


def test_only_the_starved_among_the_candidates_go_first() -> None:
    for at, picked in ((63, 63), (64, 0)):
        waiting = line(*[(5, 5, 0)] * 70)
        waiting[at].passed = 3
        assert sjf.pick(waiting, lambda index: True, 3) == picked


@pytest.mark.parametrize(
    ("place", "rows", "free", "found"),
    [
        (smallest_fit.place, 10, ((0, 30), (30, 45), (45, 60)), (30, 45)),  # the first of equals
        (smallest_fit.place, 15, ((0, 30), (30, 45), (45, 60)), (30, 45)),
        (smallest_fit.place, 16, ((0, 30), (30, 45), (45, 60)), (0, 30)),
        (smallest_fit.place, 31, ((0, 30), (30, 45)), None),
        (smallest_fit.place, 1, (), None),
        (best_fit.place, 10, ((0, 30), (40, 55), (60, 75)), (40, 50)),  # the first of equals
        (best_fit.place, 15, ((0, 30), (40, 55), (60, 75)), (40, 55)),
        (best_fit.place, 16, ((0, 30), (40, 55), (60, 75)), (0, 16)),
        (best_fit.place, 31, ((0, 30), (40, 55)), None),
        (best_fit.place, 1, (), None),
        (first_free.place, 10, ((0, 30), (30, 40)), (0, 30)),  # whatever its size
        (first_free.place, 30, ((0, 30), (30, 90)), (0, 30)),
        (first_free.place, 31, ((0, 30), (30, 90)), None),  # only the first is looked at
        (first_free.place, 1, (), None),
    ],
)
def test_cuts(place, rows: int, free: tuple, found: tuple[int, int] | None) -> None:
    got = place(rows, [range(*run) for run in free])
    assert got == (None if found is None else range(*found))


def admits(played: Played) -> list[tuple]:
    """(round, id, slot, start row, what it waited for, times passed)."""
    return [(e.round, e.id, *e.detail) for e in played.log if e.kind == "admit"]


NO_SESSION = "no free session large enough"


@pytest.mark.parametrize("order", ["first_fit", "sjf"])
def test_everybody_who_is_passed_counts_it(order: str) -> None:
    """0 holds the large session for rounds 0 to 19; 1 and 2 wait for it; 3 and 4 are small."""
    asks = [
        ScriptedRequest(0, 40, 20, max_new=20),
        ScriptedRequest(1, 40, 20, max_new=20, arrives=1),
        ScriptedRequest(2, 40, 20, max_new=20, arrives=1),
        ScriptedRequest(3, 4, 4, max_new=4, arrives=2),
        ScriptedRequest(4, 4, 4, max_new=4, arrives=2),
    ]
    assert admits(play(sessions(16, 64), asks, Settings(order=order))) == [
        (0, 0, 1, 16, "", 0),
        (2, 3, 0, 0, "", 0),  # in the round it came, though the head was known to be stuck
        (6, 4, 0, 0, "order", 0),  # its session was free when it came, but 3 stood before it
        (20, 1, 1, 16, NO_SESSION, 2),
        (40, 2, 1, 16, NO_SESSION, 2),
    ]


def test_an_order_of_ones_own_may_pick_without_asking_or_after_asking_for_all(tmp_path) -> None:
    asks = [
        ScriptedRequest(0, 40, 9, max_new=9),
        ScriptedRequest(1, 4, 9, max_new=9),
        ScriptedRequest(2, 4, 9, max_new=9),
    ]
    newest = tmp_path / "newest.py"
    newest.write_text("def pick(waiting, fits, most):\n    return len(waiting) - 1\n")
    assert admits(play(sessions(16, 64), asks, Settings(order=str(newest)))) == [
        (0, 2, 0, 0, "", 0),
        (
            0,
            1,
            1,
            16,
            "",
            1,
        ),  # passed by 2; with the small session taken, the large is its smallest
        (9, 0, 1, 16, NO_SESSION, 2),
    ]
    asking = tmp_path / "asking.py"
    asking.write_text(
        "def pick(waiting, fits, most):\n"
        "    able = [at for at in range(len(waiting)) if fits(at)]\n"
        "    return able[0] if able else None\n"
    )
    assert [
        row[:3] for row in admits(play(sessions(16, 64), asks, Settings(order=str(asking))))
    ] == [
        (0, 0, 1),  # its own place, not that of the last one asked about
        (0, 1, 0),
        (9, 2, 0),
    ]
