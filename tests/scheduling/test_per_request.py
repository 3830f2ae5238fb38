"""A run of rows per request: best fit, coalescing, and compaction by ordinary moves."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.scheduling.contract import Move
from qwisp.scheduling.layout import parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.settings import Settings
from qwisp.testing import RowBytes, ScriptedRequest, play, solo_reply


def space(rows: int, lanes: int | None = None, size: RowBytes | None = None) -> RowSpace:
    size = size or RowBytes()
    layout = parse_layout(
        f"per_request:{rows}", size=size, memory_bytes=1, model_context_tokens=rows, lanes=lanes
    )
    return RowSpace(layout, size)


def occupied(rows: RowSpace) -> list[tuple[int, int]]:
    return [(place.start_row, place.num_rows) for place in rows.taken]


def test_the_smallest_run_that_is_long_enough_is_cut() -> None:
    rows = space(100)
    places = [rows.take(rows.find(n)) for n in (30, 10, 20, 10, 30)]
    assert occupied(rows) == [(0, 30), (30, 10), (40, 20), (60, 10), (70, 30)]
    rows.release(places[0])
    rows.release(places[2])
    assert rows.free == (range(0, 30), range(40, 60))
    assert rows.find(15) == range(40, 55)
    assert rows.find(25) == range(0, 25)
    assert rows.find(31) is None
    rows.check()


def test_released_runs_join_their_neighbours() -> None:
    rows = space(60)
    one, two, three = (rows.take(rows.find(20)) for _ in range(3))
    rows.release(one)
    rows.release(three)
    assert rows.free == (range(0, 20), range(40, 60))
    rows.release(two)
    assert rows.free == (range(0, 60),)
    rows.check()


def test_what_is_missing_is_named() -> None:
    rows = space(100, lanes=3)
    assert rows.why_not(101) == "byte budget"
    first, second = rows.take(rows.find(40)), rows.take(rows.find(20))
    assert rows.why_not(41) == "byte budget"
    rows.release(first)
    assert rows.find(50) is None
    assert rows.why_not(50) == "contiguous rows", "80 rows are free, 40 + 40 in pieces"
    rows.take(rows.find(10))
    rows.take(rows.find(10))
    assert rows.why_not(10) == "lane count"
    rows.release(second)
    rows.check()


def test_fixed_bytes_of_every_session_count_against_the_budget() -> None:
    rows = space(100, lanes=2, size=RowBytes(1, 30))
    assert (rows.committed_bytes, rows.num_rows) == (60, 40), "a free lane has its state too"
    place = rows.take(rows.find(30))
    assert rows.committed_bytes == 90
    assert rows.find(11) is None
    assert rows.find(10) == range(30, 40)
    assert rows.why_not(11) == "byte budget"
    rows.release(place)
    assert rows.committed_bytes == 60
    assert rows.find(40) == range(40)


def test_a_budget_that_its_lanes_use_up_is_refused_with_what_would_do() -> None:
    size = RowBytes(1, 30)
    assert space(241, size=size).num_rows == 1
    with pytest.raises(BadInput) as refused:
        space(240, size=size)
    assert refused.value.what == (
        "per_request of 240 B: state and rings of 8 lanes take 240 B, which leaves no row"
    )
    # 7 x 30 leave 30 rows of 240 bytes; the next whole MiB holds everything.
    assert refused.value.todo == (
        "write per_request:1MiB or more (1MiB hold a context of 240), "
        "or open at most 7 of the lanes"
    )
    assert space(240, lanes=7, size=size).num_rows == 30
    with pytest.raises(BadInput, match=r"1MiB hold a context of 30\)$"):
        space(30, size=size)


def test_rows_in_pieces_are_joined_by_ordinary_moves() -> None:
    asks = [
        ScriptedRequest(0, 20, 4, max_new=19),  # 40 rows at 0, gone after round 3
        ScriptedRequest(1, 10, 19, max_new=19),  # 30 rows at 40, in the way
        ScriptedRequest(2, 50, 5, max_new=19, arrives=1),  # 70 rows: 30 + 40 are free in pieces
    ]
    played = play("per_request:100", asks, context_tokens=100)
    assert [(e.round, e.kind, e.id) for e in played.log if e.kind in ("admit", "wait", "move")] == [
        (0, "admit", 0),
        (0, "admit", 1),
        (1, "wait", 2),
        (4, "move", 1),
        (4, "admit", 2),
    ]
    assert [e.detail for e in played.log if e.kind == "wait"] == [("byte budget",)]
    (move,) = [op for op in played.engine.done if isinstance(op, Move)]
    assert (move.source.start_row, move.target.start_row, move.num_rows) == (40, 0, 13)
    assert move.source.slot == move.target.slot, "its state stays"
    for request in asks:
        reply = played.engine.replies[request.id]
        assert reply == solo_reply(request, len(reply))


def test_a_slide_over_its_own_rows_and_of_a_prompt_in_prefill_keep_every_row() -> None:
    settings = Settings(chunk_tokens=4, budget_tokens=4)
    asks = [
        ScriptedRequest(0, 4, 2, max_new=5),  # 10 rows at 0
        ScriptedRequest(1, 30, 6, max_new=9),  # 40 rows at 10, still in prefill when it slides
        ScriptedRequest(2, 30, 5, max_new=19, arrives=1),  # 50 rows
    ]
    played = play("per_request:100", asks, settings, context_tokens=90)
    moves = [op for op in played.engine.done if isinstance(op, Move)]
    assert [(op.id, op.source.start_row, op.target.start_row) for op in moves] == []
    played = play("per_request:95", asks, settings, context_tokens=90)
    (move,) = [op for op in played.engine.done if isinstance(op, Move)]
    assert (move.id, move.source.start_row, move.target.start_row) == (1, 10, 0)
    assert 0 < move.num_rows < 29, "a part of its prompt was there"
    for request in asks:
        assert played.engine.replies[request.id] == solo_reply(request, request.output_tokens)


def test_nothing_moves_where_moving_cannot_help() -> None:
    asks = [
        ScriptedRequest(0, 20, 4, max_new=19),
        ScriptedRequest(1, 10, 19, max_new=19),
        ScriptedRequest(2, 60, 5, max_new=19, arrives=1),  # 80 rows, only 70 can be joined
    ]
    played = play("per_request:100", asks, context_tokens=100)
    assert played.story("move") == []
    assert played.story("admit") == [(0, "admit", 0), (0, "admit", 1), (19, "admit", 2)]


def test_rows_are_joined_in_the_round_after_one_that_admitted() -> None:
    """Moves stand before admissions, so the second of two newcomers waits one round for them."""
    asks = [
        ScriptedRequest(0, 20, 4, max_new=19),  # 40 rows at 0, gone after round 3
        ScriptedRequest(1, 10, 19, max_new=19),  # 30 rows at 40
        ScriptedRequest(2, 5, 4, max_new=4, arrives=4),  # 10 rows
        ScriptedRequest(3, 40, 5, max_new=19, arrives=4),  # 60 rows: 40 + 20 are free in pieces
    ]
    played = play("per_request:100", asks, context_tokens=100)
    assert [(e.round, e.kind, e.id) for e in played.log if e.kind in ("admit", "wait", "move")] == [
        (0, "admit", 0),
        (0, "admit", 1),
        (4, "admit", 2),
        (4, "wait", 3),
        (5, "move", 1),
        (5, "move", 2),
        (5, "admit", 3),
    ]
    assert [e.detail for e in played.log if e.kind == "wait"] == [("contiguous rows",)]
    for request in asks:
        reply = played.engine.replies[request.id]
        assert reply == solo_reply(request, len(reply))
