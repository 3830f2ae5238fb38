"""Who goes first: arrival order, the first that fits, the shortest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qwisp.errors import BadInput
from qwisp.policies import load_cut, load_order, rule_names, scheduler_for
from qwisp.scheduling.contract import Ask
from qwisp.scheduling.orders import SCAN
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.rules import Order, shipped_cut, shipped_order
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import Played, RowBytes, ScriptedRequest, play, sessions

LARGE, SMALL = 40, 4


def crowd(order: str, max_passed: int = 64, num_small: int = 6) -> Played:
    """One large request holds the large session, a second waits for it, small ones pass by."""
    asks = [
        ScriptedRequest(0, LARGE, 20, max_new=20),
        ScriptedRequest(1, LARGE, 20, max_new=20, arrives=1),
    ]
    asks += [ScriptedRequest(i, SMALL, 4, max_new=4, arrives=2) for i in range(2, 2 + num_small)]
    return play(sessions(16, 64), asks, Settings(order=order, max_passed=max_passed))


def admitted(played: Played) -> list[tuple[int, int]]:
    return [(e.round, e.id) for e in played.log if e.kind == "admit"]


def test_fcfs_never_reorders() -> None:
    assert admitted(crowd("fcfs")) == [
        (0, 0),
        (20, 1),
        (20, 2),
        (24, 3),
        (28, 4),
        (32, 5),
        (36, 6),
        (40, 7),
    ]


def test_first_fit_lets_those_pass_that_fit() -> None:
    assert admitted(crowd("first_fit")) == [
        (0, 0),
        (2, 2),
        (6, 3),
        (10, 4),
        (14, 5),
        (18, 6),
        (20, 1),
        (22, 7),
    ]


def test_first_fit_passes_nobody_more_often_than_allowed() -> None:
    played = crowd("first_fit", max_passed=2)
    assert admitted(played) == [(0, 0), (2, 2), (6, 3), (20, 1), (20, 4), (24, 5), (28, 6), (32, 7)]
    assert admitted(crowd("first_fit", max_passed=0)) == admitted(crowd("fcfs"))


def test_shortest_first_takes_the_shortest_that_fits() -> None:
    asks = [ScriptedRequest(i, prompt, 5, max_new=5) for i, prompt in enumerate((9, 30, 3, 8, 3))]
    played = play(sessions(64), asks, Settings(order="sjf"))
    assert [i for _, i in admitted(played)] == [2, 4, 3, 0, 1]


def test_shortest_first_starves_nobody() -> None:
    asks = [ScriptedRequest(0, 30, 5, max_new=5)]
    asks += [ScriptedRequest(i, 3, 5, max_new=5) for i in range(1, 9)]
    played = play(sessions(64), asks, Settings(order="sjf", max_passed=3))
    assert [i for _, i in admitted(played)] == [1, 2, 3, 0, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("order", ["first_fit", "sjf"])
def test_scans_are_bounded(order: str) -> None:
    """A request that fits but stands behind `SCAN` others that do not is not looked at."""
    blocked = [ScriptedRequest(i, LARGE, 9, max_new=9, arrives=1) for i in range(1, SCAN + 2)]
    asks = [ScriptedRequest(0, LARGE, 9, max_new=9), *blocked]
    for behind, at in ((SCAN - 1, 2), (SCAN, 9)):
        small = ScriptedRequest(999, SMALL, 4, max_new=4, arrives=2)
        played = play(sessions(16, 64), [*asks[: behind + 1], small], Settings(order=order))
        assert next(e.round for e in played.log if (e.kind, e.id) == ("admit", 999)) == at


def test_every_order_has_its_file_and_unknown_ones_are_named() -> None:
    assert rule_names("orders") == ["fcfs", "first_fit", "sjf"]
    assert rule_names("cuts") == ["best_fit", "first_free", "smallest_fit"]
    with pytest.raises(BadInput, match="order 'lifo' is not known") as caught:
        load_order("lifo")
    assert "fcfs, first_fit, sjf" in caught.value.todo
    assert [load_order(name) for name in rule_names("orders")] == [
        shipped_order(name) for name in ("fcfs", "first_fit", "sjf")
    ]
    assert load_cut("best_fit") is shipped_cut("best_fit")


@pytest.mark.parametrize("name", ["mine.py", "lifo", "", "fcfs.pick", "../orders/fcfs"])
def test_the_scheduler_itself_reads_no_file(name: str, tmp_path, monkeypatch) -> None:
    """A name is a shipped rule's; a function of one's own is handed in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def pick(waiting, fits, most): return 0")
    with pytest.raises(BadInput, match=r"no order .* is shipped"):
        Scheduler(RowSpace(sessions(40), RowBytes()), Settings(order=name))
    with pytest.raises(BadInput, match=r"no cut .* is shipped"):
        RowSpace(replace(sessions(40), cut=name), RowBytes())


def test_order_and_cut_are_functions_handed_in() -> None:
    def last(waiting, fits, max_passed):
        return len(waiting) - 1 if fits(len(waiting) - 1) else None

    def highest(rows, free):
        return next((run for run in reversed(free) if len(run) >= rows), None)

    space = RowSpace(sessions(40, 40), RowBytes(), highest)
    scheduler = Scheduler(space, Settings(), Order(last))
    for request_id in (1, 2, 3):
        scheduler.submit(Ask(request_id, 8, max_new=4))
    scheduler.plan()
    assert [(i, admit.slot) for i, admit in scheduler.told("admit")] == [(3, 1), (2, 0)]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "defines no pick"),
        ("pick = 3", "defines no pick"),
        ("def pick(:", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_policy_file_that_cannot_serve_is_named(source: str, why: str, tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(BadInput, match=why):
        load_order(str(path))
    with pytest.raises(BadInput, match="does not exist"):
        load_order(str(tmp_path / "absent.py"))


def admit_one(scheduler: Scheduler) -> None:
    """Bring one request, and let it start."""
    scheduler.submit(Ask(1, 8, max_new=4))
    scheduler.plan()


@pytest.mark.parametrize(
    ("kind", "source", "why"),
    [
        ("order", "def pick(waiting, fits, most): return None", "lets nobody start"),
        ("cut", "def place(rows, free): return None", "lets nobody start"),
        ("cut", "def place(rows, free): return range(rows)", "is no free session"),
        ("cut", "def place(rows, free): return range(0, 2 * rows, 2)", "cannot be"),
        ("order", "def pick(waiting, fits, most): raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_policy_that_breaks_its_promise_is_named_not_called_our_bug(
    kind: str, source: str, why: str, tmp_path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    layout = replace(sessions(40), **({"cut": str(path)} if kind == "cut" else {}))
    settings = Settings(**({"order": str(path)} if kind == "order" else {}))
    scheduler = scheduler_for(layout, RowBytes(), settings)
    with pytest.raises(BadInput, match=f"mine.py .*{why}"):
        admit_one(scheduler)
