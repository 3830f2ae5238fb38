"""How many rows a request gets, and which requests are refused at once and visibly."""

from __future__ import annotations

import pytest

from qwisp.scheduling.contract import Ask, Refusal
from qwisp.scheduling.layout import parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.sizing import Size, generation_tokens, size_request
from qwisp.testing import RowBytes, ScriptedRequest, play, sessions

ROOMY = 10**9


def size(
    layout: str, prompt: int, max_new: int | None, *, context: int = 262_144, **changes: int
) -> Size | Refusal:
    memory_bytes = changes.pop("memory_bytes", ROOMY)
    space = RowSpace(
        parse_layout(
            layout,
            size=RowBytes(),
            memory_bytes=memory_bytes,
            model_context_tokens=context,
        ),
        RowBytes(),
    )
    return size_request(Ask(1, prompt, max_new), space, Settings(**changes))


def test_an_unset_reply_takes_the_generation_cap() -> None:
    assert generation_tokens(35_000, None, 262_144, 16_384) == 16_384
    assert size("per_request", 35_000, None) == Size(16_384, 51_385)


def test_a_long_maximum_is_cut_to_the_generation_cap() -> None:
    assert generation_tokens(1_000, 100_000, 32_768, 16_384) == 16_384
    assert size("per_request", 1_000, 100_000, context=32_768) == Size(16_384, 17_385)


@pytest.mark.parametrize("max_new", [None, 1, 100_000])
def test_a_prompt_beyond_the_context_is_oversized(max_new: int | None) -> None:
    assert generation_tokens(40_000, max_new, 32_768, 16_384) is None
    refusal = size("per_request", 40_000, max_new, context=32_768)
    assert (refusal.binding, refusal.needed, refusal.limit) == ("oversized", 40_002, 32_768)


def test_oversized_is_found_before_the_floor_of_one_token_hides_it() -> None:
    assert generation_tokens(32_767, None, 32_768, 16_384) is None
    assert generation_tokens(32_766, None, 32_768, 16_384) == 1


def test_the_generation_cap_of_a_run_is_at_least_1024() -> None:
    assert size("per_request", 100, None, gen_cap_tokens=10).cap_tokens == 1_024
    assert size("per_request", 100, 7, gen_cap_tokens=10).cap_tokens == 7


def test_a_request_that_alone_exceeds_the_budget_is_clamped_down_to_one_token() -> None:
    assert size("per_request", 50, None, memory_bytes=100) == Size(49, 100)
    assert size("per_request", 98, 40, memory_bytes=100) == Size(1, 100)
    refusal = size("per_request", 99, 40, memory_bytes=100)
    assert (refusal.binding, refusal.needed, refusal.limit) == ("byte budget", 101, 100)


def test_context_cap_and_budget_are_three_settings() -> None:
    base = {"context": 10_000, "memory_bytes": 5_000, "gen_cap_tokens": 2_000}
    assert size("per_request", 1_000, None, **base) == Size(2_000, 3_001)
    assert size("per_request", 1_000, None, **base | {"gen_cap_tokens": 3_000}).cap_tokens == 3_000
    assert size("per_request", 1_000, None, **base | {"memory_bytes": 2_000}).cap_tokens == 999
    assert size("per_request", 1_000, None, **base | {"context": 1_500}).cap_tokens == 499


def test_a_fixed_arena_refuses_visibly_what_was_not_allocated() -> None:
    refusal = size("fixed_arena:16384", 24_000, None)
    assert isinstance(refusal, Refusal)
    assert (refusal.needed, refusal.limit) == (24_002, 16_384)
    assert refusal.counter_offer == "a prompt of at most 16,382 tokens would fit"
    played = play(
        "fixed_arena:64", [ScriptedRequest(1, 90, 5), ScriptedRequest(2, 10, 5)], size=RowBytes(50)
    )
    assert played.scheduler.counts["refused"] == 1
    assert played.engine.ends[1].outcome == "refused"
    assert "92 tokens needed, 64" in played.engine.ends[1].reason
    assert played.engine.ends[2].outcome == "finished"


def test_a_fixed_arena_cuts_a_long_reply_to_what_was_allocated() -> None:
    assert size("fixed_arena:16384", 16_000, 1_000) == Size(383, 16_384)
    assert size("fixed_arena:16384", 16_382, None) == Size(1, 16_384)


def test_a_list_asks_for_the_next_growth_and_the_largest_for_the_whole_reply() -> None:
    text, settings = "16384,4096x6", {"context": 32_768}
    assert size(text, 1_000, 20_000, **settings) == Size(20_000, 1_000 + 8_192 + 1 + 32)
    assert size(text, 1_000, 100, **settings) == Size(100, 1_000 + 100 + 1 + 32)
    assert size(text, 1_000, None, **settings).cap_tokens == 16_384
    assert size(text, 20_000, None, **settings).cap_tokens == 12_767
    assert size(text, 20_000, 12_767, **settings).cap_tokens == 12_767
    refusal = size(text, 20_000, 12_768, **settings)
    assert refusal.binding == "no free session large enough"
    assert (refusal.needed, refusal.limit) == (32_769, 32_768)
    assert refusal.counter_offer == "a reply of at most 12,767 tokens would fit"
    assert size(text, 20_000, 12_764, step_tokens=5, **settings).needed == 32_769
    assert size(text, 20_000, 12_763, step_tokens=5, **settings).cap_tokens == 12_763


def test_what_a_refusal_offers_is_taken_when_asked_for() -> None:
    played = play(sessions(64, 32), [ScriptedRequest(1, 20, 9, max_new=60)])
    assert "at most 43 tokens" in played.log[1].what.counter_offer
    for max_new, outcome in ((43, "finished"), (44, "refused")):
        played = play(sessions(64, 32), [ScriptedRequest(1, 20, 9, max_new=max_new)])
        assert played.engine.ends[1].outcome == outcome


def test_approvals_of_one_round_cannot_together_exceed_the_budget() -> None:
    asks = [ScriptedRequest(i, 20, 5, max_new=19) for i in range(3)]  # 40 rows each
    played = play("per_request:100", asks)
    admitted = [e for e in played.log if e.kind == "admit"]
    assert [(e.round, e.id) for e in admitted] == [(0, 0), (0, 1), (5, 2)]
    assert played.story("wait") == [(0, "wait", 2)]
    assert [e.detail for e in played.log if e.kind == "wait"] == [("byte budget",)]
