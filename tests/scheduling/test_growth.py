"""Moves, pauses and resumes: when a session gets too small, and what then."""

from __future__ import annotations

import pytest

from qwisp.scheduling.contract import Move, Pause, Resume, Round
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty
from qwisp.testing import Played, RowBytes, ScriptedRequest, play, sessions, solo_reply


def lengths_at(played: Played, kind: str) -> list[int]:
    """Tokens of prompt and reply when each such operation was carried out."""
    return [op.num_rows + 1 for op in played.engine.done if type(op).__name__.lower() == kind]


GROWING = Settings(grow_tokens=4)


def test_a_newcomer_takes_the_smallest_free_session_that_holds_its_next_growth() -> None:
    asks = [ScriptedRequest(i, 8, 3, max_new=3) for i in range(3)]
    asks.append(ScriptedRequest(3, 8, 20, max_new=20))
    asks.append(ScriptedRequest(4, 20, 3, max_new=3))
    played = play(sessions(64, 16, 12, 32, 13), asks, GROWING)
    slots = {e.id: e.what.slot for e in played.log if e.kind == "admit"}
    # 8 + 3 + 1 rows fit 12, then 13, then 16; 8 + min(4, 20) + 1 = 13 takes the next, 32.
    assert slots == {0: 2, 1: 4, 2: 1, 3: 3, 4: 0}


def test_of_equal_sessions_the_first_is_taken() -> None:
    played = play(sessions(16, 16, 16), [ScriptedRequest(i, 4, 3) for i in range(3)], GROWING)
    assert [e.what.slot for e in played.log if e.kind == "admit"] == [0, 1, 2]


def test_a_stream_moves_in_the_round_where_the_next_step_no_longer_fits() -> None:
    played = play(sessions(16, 32), [ScriptedRequest(1, 8, 12)], GROWING)
    assert played.story() == [
        (0, "arrive", 1),
        (0, "admit", 1),
        (0, "decode", 1),
        (8, "move", 1),
        (11, "finished", 1),
    ]
    assert lengths_at(played, "move") == [16]
    assert played.engine.replies[1] == solo_reply(ScriptedRequest(1, 8, 12), 12)


def test_it_moves_to_the_smallest_free_larger_session() -> None:
    played = play(sessions(16, 64, 24, 32), [ScriptedRequest(1, 8, 40)], GROWING)
    assert [e.what.slot for e in played.log if e.kind in ("admit", "move")] == [0, 2, 3, 1]
    assert lengths_at(played, "move") == [16, 24, 32]


def test_the_margin_is_not_counted() -> None:
    with_margin = play(sessions(16, 64, margin_rows=32), [ScriptedRequest(1, 8, 12)], GROWING)
    without = play(sessions(16, 64), [ScriptedRequest(1, 8, 12)], GROWING)
    assert with_margin.story() == without.story()
    assert lengths_at(with_margin, "move") == [16]


@pytest.mark.parametrize(("tokens_a_step", "left_at"), [(1, [4_092]), (2, [4_092, 4_093])])
def test_a_session_of_4096_is_left_at_4092_with_every_draft_but_one_rejected(
    tokens_a_step: int, left_at: list[int]
) -> None:
    settings = Settings(step_tokens=5, grow_tokens=16)
    for prompt in (4_061, 4_060):
        request = ScriptedRequest(1, prompt, 60)
        played = play(
            sessions(4096, 16384, margin_rows=32),
            [request],
            settings,
            yields=lambda _: tokens_a_step,
        )
        (length,) = lengths_at(played, "move")
        assert length in left_at
        assert played.engine.replies[1] == solo_reply(request, 60)


def test_a_session_of_16384_is_left_at_16380_or_just_after() -> None:
    settings = Settings(step_tokens=5, grow_tokens=16)
    for accepted in (1, 2, 5):
        played = play(
            sessions(16384, 65536, margin_rows=32),
            [ScriptedRequest(1, 16_350, 60)],
            settings,
            yields=lambda _, accepted=accepted: accepted,
        )
        (length,) = lengths_at(played, "move")
        assert 16_380 <= length <= 16_384


def test_a_session_that_holds_the_reply_is_never_left_however_many_drafts_are_rejected() -> None:
    """16 rows hold 6 + 5 + 5 exactly: near its end no whole step of drafts fits any more."""
    settings = Settings(step_tokens=5, grow_tokens=100)
    request = ScriptedRequest(1, 6, 5, max_new=5)
    played = play(sessions(16, 64), [request], settings, yields=lambda _: 1)
    assert played.story("move", "pause") == []
    assert played.engine.replies[1] == solo_reply(request, 5)
    longer = ScriptedRequest(1, 6, 7, max_new=7)
    played = play(
        sessions(16, 64), [longer], Settings(step_tokens=5, grow_tokens=5), yields=lambda _: 1
    )
    assert played.story("move", "pause") == [(6, "move", 1)]


def test_with_no_larger_session_free_it_pauses_on_a_round_that_still_fits() -> None:
    asks = [ScriptedRequest(1, 20, 12, max_new=12), ScriptedRequest(2, 8, 12)]
    played = play(sessions(16, 40), asks, GROWING)
    assert played.story("pause", "resume", "finished") == [
        (8, "pause", 2),
        (11, "finished", 1),
        (12, "resume", 2),
        (15, "finished", 2),
    ]
    assert lengths_at(played, "resume") == [16]
    assert played.engine.replies[2] == solo_reply(asks[1], 12)


def test_paused_streams_resume_oldest_first_and_wait_upwards_only() -> None:
    asks = [ScriptedRequest(0, 10, 40, max_new=40)]
    asks += [ScriptedRequest(i, 8 - i, 12 + i) for i in (1, 2, 3)]
    played = play(sessions(12, 12, 12, 64), asks, GROWING)
    assert played.story("pause", "resume") == [
        (4 + 1, "pause", 1),
        (4 + 2, "pause", 2),
        (4 + 3, "pause", 3),
        (40, "resume", 1),
        (48, "resume", 2),
        (56, "resume", 3),
    ]
    for op in played.engine.done:
        if isinstance(op, Move | Resume):
            assert op.target.context_tokens > op.source.context_tokens


def fail_first(kind: type, request_id: int):
    """Fail the first operation of a kind for a request."""
    left = [1]

    def positions(round: Round) -> list[int]:
        for position, op in enumerate(round.ops):
            if isinstance(op, kind) and op.id == request_id and left:
                left.clear()
                return [position]
        return []

    return positions


def test_three_paused_one_move_fails_one_waits_one_moves() -> None:
    asks = [ScriptedRequest(0, 10, 40, max_new=40)]
    asks += [ScriptedRequest(i, 8 - i, 12 + i) for i in (1, 2, 3)]
    played = play(
        sessions(12, 12, 12, 64),
        asks,
        GROWING,
        wrap=lambda engine: Faulty(engine, fail_first(Resume, 1)),
    )
    assert played.story("resume", "failed", "finished") == [
        (39, "finished", 0),
        (40, "resume", 1),
        (40, "failed", 1),  # its session and the one it was to have are free at once
        (41, "resume", 2),
        (48, "finished", 2),
        (49, "resume", 3),
        (56, "finished", 3),
    ]
    assert played.engine.ends[1].outcome == "failed"
    assert played.engine.ends[1].reason == "injected failure"
    assert played.scheduler.counts == {
        "submitted": 4,
        "finished": 3,
        "refused": 0,
        "failed": 1,
        "cancelled": 0,
    }
    for request in asks[2:]:
        assert played.engine.replies[request.id] == solo_reply(request, request.output_tokens)


def test_a_failed_move_frees_its_session_for_those_who_wait_for_one() -> None:
    asks = [ScriptedRequest(1, 8, 30), ScriptedRequest(2, 8, 3, max_new=3, arrives=8)]
    asks.append(ScriptedRequest(3, 8, 3, max_new=3, arrives=8))
    played = play(
        sessions(16, 40),
        asks,
        GROWING,
        wrap=lambda engine: Faulty(engine, fail_first(Move, 1)),
    )
    assert [(e.round, e.kind, e.id, *e.detail[:1]) for e in played.log[3:]] == [
        (8, "arrive", 2, 8),
        (8, "arrive", 3, 8),
        (8, "move", 1, 1),
        (8, "admit", 2, 0),
        (8, "wait", 3, "no free session large enough"),
        (8, "decode", 2),
        (8, "failed", 1, "injected failure"),
        (9, "admit", 3, 1),
        (9, "decode", 3),
        (10, "finished", 2, "stop"),
        (11, "finished", 3, "stop"),
    ]
    assert played.engine.replies[2] == solo_reply(asks[1], 3)


def test_what_a_move_leaves_goes_to_a_paused_stream_before_a_newcomer() -> None:
    asks = [
        ScriptedRequest(0, 40, 20, max_new=20),
        ScriptedRequest(1, 24, 12),
        ScriptedRequest(2, 6, 8),
        ScriptedRequest(3, 20, 4, max_new=4, arrives=1),
    ]
    played = play(sessions(12, 28, 64), asks, Settings(grow_tokens=3))
    assert played.story("pause", "resume", "admit") == [
        (0, "admit", 0),
        (0, "admit", 1),
        (0, "admit", 2),
        (4, "pause", 1),
        (6, "pause", 2),
        (20, "resume", 1),  # leaves 28, which 2 may take in the next round and 3 may not now
        (21, "resume", 2),
        (23, "admit", 3),
    ]


def test_an_unset_layout_is_first_free_and_never_moves() -> None:
    asks = [ScriptedRequest(i, 10, 5 + i) for i in range(4)]
    played = play("whole_window:2", asks, context_tokens=64, size=RowBytes())
    assert [(e.round, e.id, e.what.slot) for e in played.log if e.kind == "admit"] == [
        (0, 0, 0),
        (0, 1, 1),
        (5, 2, 0),
        (6, 3, 1),
    ]
    assert played.story("move", "pause") == []


def test_a_reply_beyond_an_unset_session_fails_at_once_with_context_full() -> None:
    asks = [
        ScriptedRequest(1, 10, 50),
        ScriptedRequest(2, 60, 5, max_new=5, arrives=3),
    ]
    played = play("whole_window:1", asks, context_tokens=64)
    (entry,) = [e for e in played.log if e.kind == "refused"]
    assert (entry.round, entry.phase, entry.id) == (3, 0, 2)
    assert entry.what.reason.startswith("ContextFull: 66 tokens needed, 64")
    assert played.engine.ends[2].outcome == "refused"


def test_pauses_are_operations_the_executor_sees() -> None:
    asks = [ScriptedRequest(1, 20, 12, max_new=12), ScriptedRequest(2, 8, 12)]
    played = play(sessions(16, 40), asks, GROWING)
    assert [op.id for op in played.engine.done if isinstance(op, Pause)] == [2]
