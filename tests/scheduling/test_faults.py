"""Any single operation may fail: nobody is lost, no row leaks, others do not notice."""

from __future__ import annotations

from collections import Counter

import pytest

from qwisp.errors import BadInput, ExecutorFault, SchedulerBug
from qwisp.scheduling.contract import Ask, End, Outcome, Round
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty, Stepwise
from qwisp.testing import Played, RowBytes, ScriptedRequest, play, sessions, solo_reply

SETTINGS = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8)


def growing() -> tuple[Layout, list[ScriptedRequest]]:
    """Moves, pauses, resumes, a cancel, a refusal, prompts of one token."""
    asks = [ScriptedRequest(0, 10, 40, max_new=40)]
    asks += [ScriptedRequest(i, 8 - i, 12 + i) for i in (1, 2, 3)]
    asks += [ScriptedRequest(i, 1, 5, arrives=2 * i) for i in (4, 5)]
    asks.append(ScriptedRequest(6, 12, 9, arrives=15, cancelled=30))
    asks.append(ScriptedRequest(7, 99, 9, arrives=5))
    return sessions(12, 12, 12, 20, 64, margin_rows=2), asks


def sliding() -> tuple[Layout, list[ScriptedRequest]]:
    """Runs per request that are joined by moves, twice."""
    layout = parse_layout(
        "per_request:100", size=RowBytes(), memory_bytes=1, model_context_tokens=100
    )
    asks = [
        ScriptedRequest(0, 20, 4, max_new=19),
        ScriptedRequest(1, 10, 19, max_new=19),
        ScriptedRequest(2, 50, 5, max_new=19, arrives=1),
        ScriptedRequest(3, 5, 4, max_new=4, arrives=12),
        ScriptedRequest(4, 70, 5, max_new=9, arrives=13),
    ]
    return layout, asks


class FailNth:
    """Fails the n-th operation or decode of a run, counted over all rounds."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.kind = ""
        self.victim: int | None = None

    def __call__(self, round: Round) -> list[int]:
        num = len(round.ops) + len(round.decode)
        at, self.left = self.left, self.left - num
        if not 0 <= at < num:
            return []
        if at < len(round.ops):
            op = round.ops[at]
            self.kind, self.victim = type(op).__name__, op.id
        else:
            self.kind, self.victim = "decode", round.decode[at - len(round.ops)]
        return [at]


def check_whole(played: Played, asks: list[ScriptedRequest]) -> None:
    scheduler = played.scheduler
    scheduler.check()
    counts = dict(scheduler.counts)
    assert counts.pop("submitted") == len(asks) == sum(counts.values())
    assert scheduler.live == {}
    assert scheduler.space.taken == (), "a row leaked"
    assert scheduler.space.committed_bytes == 0
    for request in asks:
        reply = played.engine.replies[request.id]
        assert reply == solo_reply(request, len(reply)), "a stream noticed"


@pytest.mark.parametrize("scene", [growing, sliding])
@pytest.mark.parametrize("stepwise", [False, True])
def test_any_single_failure_ends_that_request_alone(scene, stepwise: bool) -> None:
    layout, asks = scene()
    sound = play(layout, asks, SETTINGS)
    check_whole(sound, asks)
    outcomes = {i: end.outcome for i, end in sound.engine.ends.items()}
    kinds: Counter[str] = Counter()
    nth = 0
    while True:
        fault = FailNth(nth)

        def wrap(engine, fault=fault):
            faulty = Faulty(engine, fault)
            return Stepwise(faulty) if stepwise else faulty

        played = play(layout, asks, SETTINGS, wrap=wrap)
        if not fault.kind:
            break
        nth += 1
        kinds[fault.kind] += 1
        check_whole(played, asks)
        expected = dict(outcomes)
        if fault.kind == "End":
            del expected[fault.victim]  # its engine never heard of it; the others did
        else:
            expected[fault.victim] = "failed"
        found = {i: end.outcome for i, end in played.engine.ends.items()}
        # A cancel that comes later finds others in other states, but never changes how they end
        # unless they end before it.
        late = {r.id for r in asks if r.cancelled is not None} - {fault.victim}
        for request_id in expected.keys() - late:
            assert found[request_id] == expected[request_id], (nth, fault.kind, request_id)
        assert found.keys() == expected.keys()
    assert nth >= 40
    for kind in {type(op).__name__ for op in sound.engine.done} | {"decode"}:
        assert kinds[kind] >= 1, kinds


def test_all_operations_of_a_round_may_fail_together() -> None:
    layout, asks = growing()
    for at in range(0, 60, 3):
        played = play(
            layout,
            asks,
            SETTINGS,
            wrap=lambda engine, at=at: Faulty(
                engine,
                lambda round: (
                    range(len(round.ops) + len(round.decode)) if round.index == at else ()
                ),
            ),
        )
        check_whole(played, asks)


def test_after_a_failed_operation_the_rest_of_that_stream_is_skipped() -> None:
    asks = [ScriptedRequest(1, 1, 5), ScriptedRequest(2, 1, 5)]
    played = play(
        sessions(12, 12), asks, wrap=lambda e: Faulty(e, lambda r: [0] if r.index == 0 else [])
    )
    assert [type(op).__name__ for op in played.engine.done] == ["Admit", "End", "End"]
    assert played.engine.replies[1] == []
    assert played.engine.replies[2] == solo_reply(asks[1], 5)


def test_approved_bytes_come_back_with_a_failure() -> None:
    layout, _ = sliding()
    scheduler = Scheduler(RowSpace(layout, RowBytes()))
    scheduler.submit(Ask(1, 60, 30))
    scheduler.submit(Ask(2, 60, 30))
    round = scheduler.plan()
    assert scheduler.space.committed_bytes == 91
    scheduler.settle(round, Outcome(1, failed=((0, "out of memory"),)))
    assert scheduler.space.committed_bytes == 0
    assert [type(op).__name__ for op in scheduler.plan().ops] == ["End", "Admit", "Grant"]


def broken_cut(tmp_path, source: str) -> str:
    path = tmp_path / "broken.py"
    path.write_text(source)
    return str(path)


def test_a_cut_that_finds_room_for_nobody_raises_instead_of_spinning(tmp_path) -> None:
    cut = broken_cut(tmp_path, "def place(rows, free):\n    return None\n")
    with pytest.raises(BadInput, match="round 0 is empty with 1 live requests"):
        play(sessions(40), [ScriptedRequest(1, 4, 4)], cut=cut)


def test_an_order_that_picks_nobody_raises_instead_of_spinning(tmp_path) -> None:
    order = broken_cut(tmp_path, "def pick(waiting, fits, max_passed):\n    return None\n")
    with pytest.raises(BadInput, match="round 0 is empty with 1 live requests"):
        play(sessions(40), [ScriptedRequest(1, 4, 4)], Settings(order=order))


def test_a_cut_that_hands_out_a_part_of_a_session_is_stopped(tmp_path) -> None:
    cut = broken_cut(tmp_path, "def place(rows, free):\n    return range(0, rows)\n")
    with pytest.raises(BadInput, match=r"answers range\(0, 9\), which is no free session"):
        play(sessions(40, 40), [ScriptedRequest(1, 4, 4, max_new=4)], cut=cut)


@pytest.mark.parametrize("answer", ["range(0, 40)", "range(1000, 1040)", "range(40, 41)", "7"])
def test_a_cut_of_ones_own_that_hands_out_what_is_not_free_is_named(tmp_path, answer: str) -> None:
    cut = broken_cut(tmp_path, f"def place(rows, free):\n    return {answer}\n")
    asks = [ScriptedRequest(i, 4, 4) for i in range(2)]
    with pytest.raises(BadInput, match=r"broken.py answers .*, which cannot be"):
        play(sessions(40, 40), asks, cut=cut)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("len(waiting)", "answers 1, which cannot be"),
        ("-1", "answers -1, which cannot be"),
        ("waiting[0]", "which cannot be"),
        ("waiting[5]", "raises IndexError"),
        ("fits(9)", "raises IndexError"),
        ("1 / 0", "raises ZeroDivisionError"),
    ],
)
def test_an_order_of_ones_own_that_picks_nobody_there_is_named(
    tmp_path, answer: str, what: str
) -> None:
    order = broken_cut(tmp_path, f"def pick(waiting, fits, max_passed):\n    return {answer}\n")
    with pytest.raises(BadInput, match=rf"broken.py {what}|broken.py answers .*{what}"):
        play(sessions(40), [ScriptedRequest(1, 4, 4)], Settings(order=order))


def test_rounds_are_settled_once_and_as_planned() -> None:
    scheduler = Scheduler(RowSpace(sessions(40), RowBytes()))
    scheduler.submit(Ask(1, 4, 4))
    round = scheduler.plan()
    with pytest.raises(SchedulerBug, match="planned twice"):
        scheduler.plan()
    with pytest.raises(SchedulerBug, match="not the one planned"):
        scheduler.settle(round._replace(index=5), Outcome(1))
    for rounds in (0, 2, -1):
        with pytest.raises(ExecutorFault, match=f"{rounds} rounds ran of 1"):
            scheduler.settle(round, Outcome(rounds))
    scheduler.settle(round, Outcome(1))
    with pytest.raises(SchedulerBug, match="not the one planned"):
        scheduler.settle(round, Outcome(1))


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(1, produced=((1, -2),)), "has 2 tokens after round 0"),
        (Outcome(1, produced=((1, 99),)), "has 103 tokens after round 0"),
        (Outcome(1, failed=((3, "x"),)), "operation 3 failed in round 0, which has 3"),
        (Outcome(1, failed=((-1, "x"),)), "operation -1 failed"),
    ],
)
def test_an_outcome_that_cannot_be_is_the_executors_fault(outcome: Outcome, why: str) -> None:
    scheduler = Scheduler(RowSpace(sessions(40), RowBytes()))
    scheduler.submit(Ask(1, 4, 4))
    with pytest.raises(ExecutorFault, match=why):
        scheduler.settle(scheduler.plan(), outcome)


def test_what_is_said_of_requests_that_are_over_changes_nothing() -> None:
    scheduler = Scheduler(RowSpace(sessions(40), RowBytes()))
    scheduler.submit(Ask(1, 4, 4))
    round = scheduler.plan()
    scheduler.settle(round, Outcome(1, produced=((7, 5),), stopped=(7, 1, 1)))
    assert scheduler.counts["finished"] == 1
    last = scheduler.plan()
    assert [type(op) for op in last.ops] == [End]
    scheduler.settle(last, Outcome(1, stopped=(1,), failed=((0, "client gone"),)))
    assert scheduler.plan() is None
    scheduler.check()
