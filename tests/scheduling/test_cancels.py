"""A client goes away: in every state, with the rows free at once and the sweep done."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.scheduling.contract import Ask
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import Played, RowBytes, ScriptedRequest, play, sessions, solo_reply

GROWING = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=4)


def ended(played: Played) -> dict[int, str]:
    return {request_id: end.outcome for request_id, end in played.engine.ends.items()}


def test_a_waiting_request_is_cancelled_and_the_next_takes_its_turn() -> None:
    asks = [
        ScriptedRequest(0, 8, 20, max_new=20),
        ScriptedRequest(1, 8, 5, arrives=1, cancelled=3),
        ScriptedRequest(2, 8, 5, arrives=2),
    ]
    played = play(sessions(40), asks)
    assert ended(played) == {0: "finished", 1: "cancelled", 2: "finished"}
    assert played.engine.ends[1].place is None
    assert played.story("wait", "cancelled", "admit") == [
        (0, "admit", 0),
        (1, "wait", 1),
        (3, "cancelled", 1),
        (3, "wait", 2),
        (20, "admit", 2),
    ]


def test_a_prompt_in_prefill_is_cancelled_and_its_session_is_free_in_that_round() -> None:
    asks = [ScriptedRequest(0, 30, 5, cancelled=3), ScriptedRequest(1, 30, 5, arrives=1)]
    played = play(sessions(40), asks, GROWING)
    assert played.story("admit", "cancelled", "decode") == [
        (0, "admit", 0),
        (3, "cancelled", 0),
        (3, "admit", 1),
        (10, "decode", 1),
    ]
    assert ended(played) == {0: "cancelled", 1: "finished"}
    assert played.engine.ends[0].place.slot == 0


def test_a_decoding_stream_is_cancelled_with_what_it_had_said() -> None:
    played = play(sessions(40), [ScriptedRequest(0, 8, 20, cancelled=5)])
    (entry,) = [e for e in played.log if e.kind == "cancelled"]
    assert (entry.round, entry.detail) == (5, ("cancelled by its client", 5))
    assert len(played.engine.replies[0]) == 5


def test_cancelling_who_holds_the_larger_session_resumes_who_waits_for_it() -> None:
    asks = [
        ScriptedRequest(0, 20, 100, max_new=19, cancelled=15),
        ScriptedRequest(1, 8, 12),
    ]
    played = play(sessions(16, 40), asks, Settings(grow_tokens=4))
    assert played.story("pause", "cancelled", "resume", "finished") == [
        (8, "pause", 1),
        (15, "cancelled", 0),
        (15, "resume", 1),
        (18, "finished", 1),
    ]
    assert played.engine.replies[1] == solo_reply(asks[1], 12)


def test_a_paused_stream_is_cancelled_and_frees_its_small_session() -> None:
    asks = [
        ScriptedRequest(0, 20, 19, max_new=19),
        ScriptedRequest(1, 8, 12, cancelled=10),
        ScriptedRequest(2, 8, 3, max_new=3, arrives=2),
    ]
    played = play(sessions(16, 40), asks, Settings(grow_tokens=4))
    assert played.story("pause", "cancelled", "resume", "admit") == [
        (0, "admit", 0),
        (0, "admit", 1),
        (8, "pause", 1),
        (10, "cancelled", 1),
        (10, "admit", 2),
    ]


def test_a_cancel_in_the_round_of_a_move_gives_both_sessions_back() -> None:
    asks = [ScriptedRequest(0, 8, 30, cancelled=9), ScriptedRequest(1, 8, 30, arrives=9)]
    played = play(sessions(16, 40), asks, Settings(grow_tokens=4))
    assert played.story("move", "cancelled", "admit") == [
        (0, "admit", 0),
        (8, "move", 0),
        (9, "cancelled", 0),
        (9, "admit", 1),
        (17, "move", 1),
    ]
    assert [e.what.slot for e in played.log if e.kind == "admit"] == [0, 0]


def test_cancelling_everybody_in_one_round_leaves_nothing() -> None:
    asks = [ScriptedRequest(i, 8, 30, cancelled=12) for i in range(5)]
    played = play(sessions(16, 16, 40), asks, Settings(grow_tokens=4))
    assert set(ended(played).values()) == {"cancelled"}
    assert played.scheduler.space.taken == ()
    assert played.scheduler.plan() is None


def test_unknown_and_finished_requests_cannot_be_cancelled() -> None:
    asks = [ScriptedRequest(0, 8, 3, cancelled=9), ScriptedRequest(1, 8, 20, cancelled=30)]
    played = play(sessions(40, 40), asks)
    assert ended(played) == {0: "finished", 1: "finished"}
    assert played.story("cancelled") == []


def test_ids_and_counts_that_cannot_be_are_refused_as_bad_input() -> None:
    scheduler = Scheduler(RowSpace(sessions(40), RowBytes()))
    scheduler.submit(Ask(1, 8, 4))
    with pytest.raises(BadInput, match="request 1 is already live"):
        scheduler.submit(Ask(1, 8, 4))
    with pytest.raises(BadInput, match="0 prompt tokens"):
        scheduler.submit(Ask(2, 0, 4))
    with pytest.raises(BadInput, match="max_new 0"):
        scheduler.submit(Ask(2, 8, 0))
    assert scheduler.counts["submitted"] == 1
