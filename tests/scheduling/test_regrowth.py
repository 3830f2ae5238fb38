"""Growing more than once: paused, resumed, paused again, cancelled; who goes first; how far."""

from __future__ import annotations

import pytest

from qwisp.scheduling.contract import Ask, Move, Outcome, Place
from qwisp.scheduling.decoders import Decoders
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.stream import OVER, PAUSED, Stream
from qwisp.testing import RowBytes, ScriptedRequest, play, sessions, solo_reply

GROWING = Settings(grow_tokens=4)


def ladder(cancelled: int | None = None) -> list[ScriptedRequest]:
    """0 holds the session of 64 for rounds 0 to 39, 1 that of 20 for 0 to 10; 2 climbs from 12."""
    return [
        ScriptedRequest(0, 20, 40, max_new=40),
        ScriptedRequest(1, 8, 11, max_new=11),
        ScriptedRequest(2, 6, 30, cancelled=cancelled),
    ]


def test_a_resumed_stream_pauses_again_and_resumes_again() -> None:
    played = play(sessions(12, 20, 64), ladder(), GROWING)
    assert played.story("pause", "resume", "finished") == [
        (6, "pause", 2),  # 6 + 6 tokens in 12
        (10, "finished", 1),
        (11, "resume", 2),
        (19, "pause", 2),  # 8 more in 20
        (39, "finished", 0),
        (40, "resume", 2),
        (55, "finished", 2),  # 16 more make 30
    ]
    assert [e.detail for e in played.log if e.kind in ("pause", "resume")] == [
        (0,), (1,), (1,), (2,),
    ]  # fmt: skip
    assert played.engine.replies[2] == solo_reply(ladder()[2], 30)


def test_cancelled_in_its_second_pause_it_frees_its_second_session_in_that_round() -> None:
    asks = [*ladder(cancelled=25), ScriptedRequest(3, 15, 4, max_new=4, arrives=20)]
    played = play(sessions(12, 20, 64), asks, GROWING)
    assert [(e.round, e.kind, e.id, *e.detail) for e in played.log if e.round in (19, 20, 25)] == [
        (19, "pause", 2, 1),
        (20, "arrive", 3, 15, 4),
        (20, "wait", 3, "no free session large enough"),
        (25, "cancelled", 2, "cancelled by its client", 14),
        (25, "admit", 3, 1, 12, "no free session large enough", 0),
        (25, "decode", 3),
    ]
    assert played.story("resume") == [(11, "resume", 2)]


def test_what_a_resume_leaves_is_free_for_a_newcomer_in_that_round() -> None:
    asks = [
        ScriptedRequest(1, 20, 12, max_new=12),
        ScriptedRequest(2, 8, 12),
        ScriptedRequest(3, 8, 4, max_new=4, arrives=5),
    ]
    played = play(sessions(16, 40), asks, GROWING)
    assert played.story("pause", "resume", "wait") == [
        (5, "wait", 3),
        (8, "pause", 2),
        (12, "resume", 2),
    ]
    assert [(e.round, e.what.slot) for e in played.log if (e.kind, e.id) == ("admit", 3)] == [
        (12, 0)
    ]


def test_a_newcomer_starts_in_the_round_in_which_the_last_paused_stream_leaves_its_session() -> (
    None
):
    """64 is free after round 19: 1 leaves 28 for it and 2, a round later, 12 for 28."""
    asks = [
        ScriptedRequest(0, 40, 20, max_new=20),
        ScriptedRequest(1, 24, 12),
        ScriptedRequest(2, 6, 8),
        ScriptedRequest(3, 6, 3, max_new=3, arrives=1),
    ]
    played = play(sessions(12, 28, 64), asks, Settings(grow_tokens=3))
    assert played.story("wait", "pause", "resume", "admit")[3:] == [
        (1, "wait", 3),
        (4, "pause", 1),
        (6, "pause", 2),
        (20, "resume", 1),
        (21, "resume", 2),
        (21, "admit", 3),
    ]


def test_of_two_that_outgrow_in_one_round_the_one_admitted_first_takes_what_is_free() -> None:
    """1 joins in round 2 (three chunks of 2), 2 at once; both are full after round 10.

    1: 7 + 9 tokens in 16. 2: 1 + 11 tokens in 12. One session of 20 is free. What 1 leaves is
    offered to 2 in the next round; when 1 is done (12 tokens, round 13), 2 goes on at 16 tokens.
    """
    settings = Settings(grow_tokens=8, chunk_tokens=2, budget_tokens=2)
    asks = [ScriptedRequest(1, 7, 12), ScriptedRequest(2, 1, 18)]
    played = play(sessions(12, 16, 20), asks, settings)
    assert played.story("decode", "move", "pause", "resume", "finished") == [
        (0, "decode", 2),
        (2, "decode", 1),
        (11, "move", 1),
        (11, "pause", 2),
        (12, "resume", 2),
        (13, "finished", 1),
        (16, "move", 2),
        (18, "finished", 2),
    ]


def test_those_that_end_in_one_round_are_told_in_the_order_they_were_admitted() -> None:
    """1 decodes from round 1 on and 2 from round 0; both reach their maximum in round 4."""
    settings = Settings(chunk_tokens=4, budget_tokens=4)
    asks = [ScriptedRequest(1, 8, 99, max_new=4), ScriptedRequest(2, 1, 99, max_new=5)]
    played = play(sessions(16, 16), asks, settings)
    assert played.story("decode", "finished") == [
        (0, "decode", 2),
        (1, "decode", 1),
        (4, "finished", 1),
        (4, "finished", 2),
    ]
    assert [(e.kind, e.detail) for e in played.log if e.kind == "finished"] == [
        ("finished", ("length", 4)),
        ("finished", ("length", 5)),
    ]
    assert all(end.truncated for end in played.engine.ends.values())


@pytest.mark.parametrize(("drafts", "target"), [(1, 18), (3, 40)])
def test_a_larger_session_must_take_a_whole_step_without_its_margin(
    drafts: int, target: int
) -> None:
    """16 is left where 5 more do not fit: at 12 by ones (17 fit 18), at 14 by threes (19 do not).

    The 32 rows of margin would hold them; they are not for tokens.
    """
    settings = Settings(step_tokens=5, grow_tokens=3)
    played = play(
        sessions(16, 18, 40, margin_rows=32),
        [ScriptedRequest(1, 8, 20)],
        settings,
        yields=lambda _: drafts,
    )
    moves = [op for op in played.engine.done if isinstance(op, Move)]
    assert moves[0].target.context_tokens == target
    assert moves[0].num_rows == {1: 11, 3: 13}[drafts]
    assert played.story("move")[0] == ({1: 4, 3: 2}[drafts], "move", 1)


def test_only_larger_sessions_are_offered_and_only_to_those_below_the_largest() -> None:
    space = RowSpace(sessions(16, 16, 20), RowBytes())
    small, large = space.take(range(0, 16)), space.take(range(32, 52))
    assert space.find_larger(small, 5) is None, "the other 16 is free, but no larger"
    space.release(large)
    assert space.find_larger(small, 5) == range(32, 52)
    assert space.find_larger(small, 20) == range(32, 52)
    assert space.find_larger(small, 21) is None
    assert space.exists_larger(small)
    assert not space.exists_larger(large), "the largest never waits"
    run = RowSpace(sessions(16), RowBytes())
    assert not run.exists_larger(run.take(range(0, 16)))


def test_a_stream_beyond_the_largest_session_ends_with_full() -> None:
    """Admission never lets one in; told a longer reply afterwards, it ends."""
    scheduler = Scheduler(RowSpace(sessions(16), RowBytes()), GROWING)
    scheduler.submit(Ask(1, 8, 7))
    scheduler.settle(scheduler.plan(), Outcome(1))
    stream = scheduler.live[1]
    stream.cap_tokens, stream.settled = 100, False
    scheduler.decoders.watch(stream)
    while 1 in scheduler.live:
        round = scheduler.plan()
        scheduler.settle(round, Outcome(round.repeat))
    (end,) = [e for e in scheduler.log if e.kind in ("failed", "finished")]
    assert (end.round, end.kind, end.detail) == (8, "failed", ("full: no larger session exists", 8))
    assert scheduler.space.taken == ()


def stream(number: int, *, prompt: int = 4, cap: int = 20, context: int = 10) -> Stream:
    found = Stream(Ask(number, prompt), cap, context, 0)
    found.place, found.seq = Place(number, 0, context, context), number
    return found


@pytest.mark.parametrize(
    ("cap", "context", "settled", "rounds"),
    [
        (7, 10, True, 3),  # ceil(7 / 3), whatever the session
        (6, 10, True, 2),
        (7, 10, False, 2),  # 6 spare tokens hold two steps of 3
        (7, 12, False, 2),  # 8 too
        (7, 13, False, 3),
        (3, 10, False, 1),  # the cap comes first
        (4, 10, False, 2),
    ],
)
def test_a_stream_is_looked_at_when_its_cap_or_its_session_may_be_reached(
    cap: int, context: int, settled: bool, rounds: int
) -> None:
    decoders, one = Decoders(3), stream(1, cap=cap, context=context)
    one.settled = settled
    decoders.join(one)
    assert decoders.rounds_ahead() == rounds
    decoders.steps += rounds - 1
    assert decoders.pop_due() == []
    decoders.steps += 1
    assert decoders.pop_due() == [one]
    assert decoders.pop_due() == [], "forgotten until watched again"
    assert decoders.rounds_ahead() == 0


def test_what_was_noted_of_a_stream_before_it_paused_no_longer_counts() -> None:
    """In step 0 it has 6 rounds ahead; it pauses in 2, is back in 3 with 14 and 18 from then on."""
    decoders, one, other = Decoders(1), stream(1, cap=20), stream(2, cap=30, context=50)
    decoders.join(one)
    decoders.join(other)
    assert (decoders.rounds_ahead(), decoders.ids, len(decoders)) == (6, (1, 2), 2)
    decoders.steps = 2
    decoders.leave(one, PAUSED)
    assert (one.produced(2), one.length(9), decoders.ids) == (2, 6, (2,))
    decoders.steps = 3
    one.place = Place(0, 0, 20, 20)
    decoders.join(one)
    assert decoders.ids == (2, 1), "behind those who went on"
    assert [found.id for found in decoders.streams] == [2, 1]
    assert decoders.rounds_ahead() == 14  # 20 - 4 - 2
    decoders.steps = 6  # the note of step 0 is due and void
    assert decoders.pop_due() == []
    assert (one.produced(6), one.length(6)) == (5, 9)
    decoders.leave(one, OVER)
    assert decoders.rounds_ahead() == 24  # only the other's: 30 - 6
    decoders.leave(one, OVER)
    assert one.base == 5, "leaving twice counts nothing twice"


def test_a_note_of_before_a_pause_does_not_come_due() -> None:
    decoders, one = Decoders(1), stream(1, cap=20)
    decoders.join(one)  # 6 rounds ahead
    decoders.steps = 2
    decoders.leave(one, PAUSED)
    one.place = Place(0, 0, 20, 20)
    decoders.join(one)  # 14 ahead of step 2
    decoders.steps = 6
    assert decoders.pop_due() == []
    decoders.steps = 16
    assert decoders.pop_due() == [one]


def test_those_due_together_come_in_the_order_of_their_admission() -> None:
    decoders = Decoders(1)
    young, old = stream(2, cap=4), stream(1, cap=4)
    decoders.join(young)
    decoders.join(old)
    decoders.steps = 4
    assert decoders.pop_due() == [old, young]
