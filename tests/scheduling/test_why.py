"""Why a request waits, in words and numbers, with the smallest change that would help it."""

from __future__ import annotations

import pytest

from qwisp.errors import BadInput
from qwisp.scheduling.contract import Ask, Outcome
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.testing import RowBytes, sessions


def after(layout: Layout, asks: list[Ask], rounds: int = 1, **settings: object) -> Scheduler:
    scheduler = Scheduler(RowSpace(layout, RowBytes()), Settings(**settings))
    for ask in asks:
        scheduler.submit(ask)
    for _ in range(rounds):
        scheduler.settle(scheduler.plan(), Outcome(1))
    return scheduler


def run_of(rows: int, lanes: int = 8) -> Layout:
    return parse_layout(
        f"per_request:{rows}",
        size=RowBytes(),
        memory_bytes=1,
        model_context_tokens=100,
        lanes=lanes,
    )


def test_no_free_session_is_large_enough() -> None:
    scheduler = after(sessions(64, 16), [Ask(1, 40, 9), Ask(2, 30, 9)])
    assert scheduler.why(2) == (
        2,
        "no free session large enough",
        "needs 40 rows, the largest free run has 16; a free session of 40 tokens would admit it",
    )
    assert [e.detail for e in scheduler.log if e.kind == "wait"] == [
        ("no free session large enough",)
    ]


def test_everybody_behind_a_blocked_head_waits_for_the_order() -> None:
    scheduler = after(sessions(64, 16), [Ask(1, 40, 9), Ask(2, 30, 9), Ask(3, 4, 4)])
    binding = scheduler.why(3)
    assert binding.resource == "order"
    assert binding.detail == (
        "1 requests are ahead; the first needs 40 rows and waits for: no free session large enough"
    )


def test_a_lane_count_and_a_byte_budget_bind_where_they_are_short() -> None:
    scheduler = after(run_of(100, lanes=1), [Ask(1, 10, 9), Ask(2, 10, 9)])
    assert scheduler.why(2)[1:] == (
        "lane count",
        "needs 20 rows, the largest free run has 80; one of the 1 lanes must end",
    )
    scheduler = after(run_of(100), [Ask(1, 40, 19), Ask(2, 30, 19)])
    assert scheduler.why(2)[1:] == (
        "byte budget",
        "needs 50 rows, the largest free run has 40; 40 bytes of the budget are left",
    )


def test_rows_in_pieces_bind_until_they_are_joined() -> None:
    scheduler = after(run_of(100), [Ask(1, 20, 19), Ask(2, 10, 19)])
    scheduler.cancel(1)
    scheduler.submit(Ask(3, 5, 4))
    scheduler.submit(Ask(4, 40, 19))
    scheduler.settle(scheduler.plan(), Outcome(1))
    assert scheduler.why(4)[1:] == (
        "contiguous rows",
        "needs 60 rows, the largest free run has 40; 60 rows are free, but in pieces",
    )


def test_a_prompt_in_prefill_waits_for_the_token_budget() -> None:
    scheduler = after(sessions(64), [Ask(1, 30, 9)], chunk_tokens=8, budget_tokens=8)
    assert scheduler.why(1)[1:] == ("token budget", "21 prompt tokens are left to prefill")


def test_a_paused_stream_says_which_session_it_needs() -> None:
    asks = [Ask(1, 40, 20), Ask(2, 8)]
    scheduler = after(sessions(16, 64), asks, rounds=9, grow_tokens=4)
    assert scheduler.why(2)[1:] == (
        "no free session large enough",
        "paused at 16 tokens in a session of 16; a free one of 17 tokens or more resumes it",
    )


def test_a_decoding_stream_waits_for_nothing_and_others_are_unknown() -> None:
    scheduler = after(sessions(64), [Ask(1, 8, 9)])
    assert scheduler.why(1)[1:] == ("", "it decodes and waits for nothing")
    with pytest.raises(BadInput, match="request 2 is not live"):
        scheduler.why(2)


def test_the_smallest_change_named_does_admit_the_request() -> None:
    waiting = after(sessions(64, 39), [Ask(1, 40, 9), Ask(2, 30, 9)])
    assert "a free session of 40 tokens would admit it" in waiting.why(2).detail
    admitted = after(sessions(64, 40), [Ask(1, 40, 9), Ask(2, 30, 9)])
    assert admitted.why(2).resource == ""
