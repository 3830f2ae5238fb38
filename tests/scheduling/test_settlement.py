"""What an outcome may say, in every combination; and what a look at the state finds broken."""

from __future__ import annotations

import pytest

from qwisp.errors import ExecutorFault, SchedulerBug
from qwisp.scheduling.contract import Ask, End, Outcome, Round
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import RowBytes, sessions


def pair() -> tuple[Scheduler, Round]:
    """Two streams of one prompt token and 9 to say, one of them said; 8 rounds may follow."""
    scheduler = Scheduler(RowSpace(sessions(40, 40), RowBytes()), Settings())
    for number in (1, 2):
        scheduler.submit(Ask(number, 1, 9))
    scheduler.settle(scheduler.plan(), Outcome(1))
    round = scheduler.plan()
    assert (round.index, round.ops, round.decode, round.repeat) == (1, (), (1, 2), 8)
    return scheduler, round


@pytest.mark.parametrize(
    ("outcome", "ended"),
    [
        (Outcome(3), []),
        (Outcome(7), []),
        (Outcome(8), [(8, "finished", 1, "length", 9), (8, "finished", 2, "length", 9)]),
        (Outcome(3, stopped=(1,)), [(3, "finished", 1, "stop", 4)]),
        (Outcome(1, stopped=(2,)), [(1, "finished", 2, "stop", 2)]),
        (
            Outcome(8, stopped=(2,)),
            [(8, "finished", 2, "stop", 9), (8, "finished", 1, "length", 9)],
        ),
        (Outcome(3, ((1, 2),), (1,)), [(3, "finished", 1, "stop", 3)]),  # not one every round
        (Outcome(3, ((1, 0),), (1,)), [(3, "finished", 1, "stop", 1)]),
        (Outcome(3, ((1, 5),), (1,)), [(3, "finished", 1, "stop", 6)]),
        (Outcome(3, ((1, 3),), (1,)), [(3, "finished", 1, "stop", 4)]),
        (Outcome(3, failed=((0, "x"),)), [(3, "failed", 1, "x", 3)]),  # none in its last round
        (Outcome(1, failed=((1, "y"),)), [(1, "failed", 2, "y", 1)]),
        (Outcome(3, ((1, 2),), failed=((0, "x"),)), [(3, "failed", 1, "x", 3)]),  # it is said
        (Outcome(3, ((2, 2),), failed=((0, "x"),)), [(3, "failed", 1, "x", 3)]),
        (Outcome(3, (), (1,), ((0, "x"),)), [(3, "failed", 1, "x", 3)]),  # once, as a failure
        (
            Outcome(3, (), (2,), ((0, "x"),)),
            [(3, "failed", 1, "x", 3), (3, "finished", 2, "stop", 4)],
        ),
        (
            Outcome(8, (), (), ((0, "x"), (1, "y"))),
            [(8, "failed", 1, "x", 8), (8, "failed", 2, "y", 8)],
        ),
    ],
)
def test_who_is_over_when_with_how_many_tokens(outcome: Outcome, ended: list[tuple]) -> None:
    scheduler, round = pair()
    scheduler.settle(round, outcome)
    kinds = ("finished", "failed")
    log = [(e.round, e.kind, e.id, *e.detail) for e in scheduler.log if e.kind in kinds]
    assert log == ended
    assert scheduler.index == outcome.rounds + 1
    assert sorted(scheduler.live) == sorted({1, 2} - {entry[2] for entry in ended})
    scheduler.check()
    told = scheduler.plan()
    ends = [op for op in told.ops if isinstance(op, End)] if told else []
    assert [(op.id, op.outcome, op.reason) for op in ends] == [(i, o, r) for _, o, i, r, _ in ended]
    assert [op.truncated for op in ends] == [entry[3] == "length" for entry in ended]
    assert [op.place.slot for op in ends] == [op.id - 1 for op in ends]


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(9), "9 rounds ran of 8 granted"),
        (Outcome(0), "0 rounds ran of 8 granted"),
        (Outcome(1, failed=((2, "x"),)), "operation 2 failed in round 1, which has 2"),
        (Outcome(4, failed=((-1, "x"),)), "operation -1 failed in round 4"),
        (Outcome(2, ((1, 39),)), "request 1 has 41 tokens after round 2, from a prompt of 1"),
        (Outcome(2, ((2, -2),)), "request 2 has 0 tokens after round 2"),
    ],
)
def test_what_cannot_be_is_the_executors_fault(outcome: Outcome, why: str) -> None:
    scheduler, round = pair()
    with pytest.raises(ExecutorFault, match=why):
        scheduler.settle(round, outcome)


@pytest.mark.parametrize(("tokens", "said"), [(38, 39), (-1, 0)])
def test_a_session_may_be_filled_to_its_last_token_and_a_step_may_be_taken_back(
    tokens: int, said: int
) -> None:
    scheduler, round = pair()
    scheduler.settle(round, Outcome(2, ((1, tokens),), (1,)))
    (entry,) = [e for e in scheduler.log if e.kind == "finished"]
    assert entry.detail == ("stop", said)


def test_tokens_said_of_one_that_does_not_decode_count_nothing() -> None:
    """1 is in prefill until round 1; it has said nothing after round 0, whatever is claimed."""
    scheduler = Scheduler(
        RowSpace(sessions(40), RowBytes()), Settings(chunk_tokens=4, budget_tokens=4)
    )
    scheduler.submit(Ask(1, 8, 9))
    scheduler.settle(scheduler.plan(), Outcome(1, ((1, 5),)))
    round = scheduler.plan()
    assert round.decode == (1,)
    scheduler.settle(round, Outcome(1, stopped=(1,)))
    (entry,) = [e for e in scheduler.log if e.kind == "finished"]
    assert (entry.round, entry.detail) == (1, ("stop", 1))


def test_a_failed_grant_ends_its_prompt_alone_without_a_token() -> None:
    scheduler = Scheduler(RowSpace(sessions(40, 40), RowBytes()), Settings())
    for number in (1, 2):
        scheduler.submit(Ask(number, 8, 9))
    round = scheduler.plan()
    assert [type(op).__name__ for op in round.ops] == ["Admit", "Admit", "Grant", "Grant"]
    scheduler.settle(round, Outcome(1, failed=((3, "no memory"),)))
    log = [(e.round, e.kind, e.id, *e.detail) for e in scheduler.log if e.kind == "failed"]
    assert log == [(0, "failed", 2, "no memory", 0)]
    assert sorted(scheduler.live) == [1]
    assert scheduler.counts == {
        "submitted": 2, "finished": 0, "refused": 0, "failed": 1, "cancelled": 0,
    }  # fmt: skip


# ---- check -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "sound"), [(36, True), (37, False)])
def test_a_session_full_to_its_last_token_is_sound(more: int, sound: bool) -> None:
    """1 prompt token, 2 said and 1 decoded since: 40 in all are the most."""
    scheduler, round = pair()
    scheduler.settle(round, Outcome(2))
    scheduler.live[1].base += more
    if sound:
        scheduler.check()
    else:
        with pytest.raises(SchedulerBug, match="request 1 uses 41 rows"):
            scheduler.check()


def test_places_that_nobody_holds_or_two_hold_are_found() -> None:
    scheduler, _ = pair()
    scheduler.space.release(scheduler.live[2].place)
    with pytest.raises(SchedulerBug, match="2 placed streams hold 1 places"):
        scheduler.check()
    scheduler, _ = pair()
    scheduler.live[2].place = scheduler.live[1].place
    with pytest.raises(SchedulerBug, match="places"):
        scheduler.check()


def test_a_request_forgotten_or_counted_twice_is_found() -> None:
    for name in ("submitted", "finished", "refused", "failed", "cancelled"):
        scheduler, _ = pair()
        scheduler.counts[name] += 1
        with pytest.raises(SchedulerBug, match="do not add up"):
            scheduler.check()


def test_rows_lost_at_the_end_or_shared_are_found() -> None:
    space = RowSpace(sessions(16, 20), RowBytes())
    space.check()
    space.num_rows += 1
    with pytest.raises(SchedulerBug, match=r"rows 36\.\.37 are lost"):
        space.check()
    space = RowSpace(sessions(16, 20), RowBytes())
    space._free[1] = range(15, 36)
    with pytest.raises(SchedulerBug, match=r"rows 16\.\.15 are lost or shared"):
        space.check()
