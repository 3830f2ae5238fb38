"""Grants of prefill, round by round: who, from where, how much, and how often it repeats."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qwisp.scheduling.contract import Ask, End, Grant, Outcome
from qwisp.scheduling.lines import Prefills
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.stream import Stream
from qwisp.testing import RowBytes, sessions


def queue(*prompts: int | tuple[int, int], **settings: object) -> Prefills:
    """Prompts to prefill (or prompt and first token); ids count from 1. Chunks of 16."""
    prefills = Prefills(Settings(**{"chunk_tokens": 16, "budget_tokens": 32, **settings}))
    for number, prompt in enumerate(prompts, 1):
        tokens, start = prompt if isinstance(prompt, tuple) else (prompt, 0)
        prefills.add(Stream(Ask(number, tokens), 9, tokens + 10, 0), start)
    return prefills


def nowhere(stream: Stream) -> None:
    """Where a prompt pauses that is captured at its end only."""


def granted(
    prefills: Prefills, running: int = 0, stop_of: Callable[[Stream], int | None] = nowhere
) -> tuple[list[tuple], list[int], int]:
    grants, completed, repeat = prefills.grant(running, stop_of)
    return [tuple(grant) for grant in grants], [stream.id for stream in completed], repeat


@pytest.mark.parametrize(
    ("prompt", "repeat"),
    [
        (33, 1),  # 32 tokens are two chunks: done at once
        (34, 1),  # three chunks: two, then the last alone
        (65, 1),  # four: two, then two that end it
        (66, 2),  # five
        (97, 2),  # six
        (98, 3),  # seven
        (161, 4),  # ten
    ],
)
def test_a_lone_prompt_repeats_all_rounds_but_its_last(prompt: int, repeat: int) -> None:
    grants, completed, times = granted(queue(prompt))
    last = prompt == 33
    assert grants == [(1, 0, 32, 2, last)]
    assert (completed, times) == ([1] if last else [], repeat)


def test_positions_advance_by_every_repeat_and_once_only() -> None:
    prefills = queue(161)
    assert granted(prefills) == ([(1, 0, 32, 2, False)], [], 4)
    prefills.settle(3)
    assert granted(prefills) == ([(1, 96, 32, 2, False)], [], 1)
    prefills.settle(1)
    assert granted(prefills) == ([(1, 128, 32, 2, True)], [1], 1)
    prefills.settle(1)
    assert granted(prefills) == ([], [], 1)


def test_several_prompts_share_a_round_first_in_first_out() -> None:
    """Six chunks of 16 a round: 2 + 1 + 3 of 4, none for the fourth. Only one alone repeats."""
    prefills = queue(20, 17, 60, 40, budget_tokens=96)
    assert granted(prefills) == (
        [(1, 0, 19, 2, True), (2, 0, 16, 1, True), (3, 0, 48, 3, False)],
        [1, 2],
        1,
    )
    prefills.settle(1)
    assert granted(prefills) == ([(3, 48, 11, 1, True), (4, 0, 39, 3, True)], [3, 4], 1)


def test_a_long_prompt_behind_a_short_one_does_not_repeat_with_it() -> None:
    grants, completed, repeat = granted(queue(17, 500))
    assert grants == [(1, 0, 16, 1, True), (2, 0, 16, 1, False)]
    assert (completed, repeat) == ([1], 1)


@pytest.mark.parametrize(
    ("running", "tokens"),
    [
        (0, 64),
        (1, 64),
        (15, 64),
        (16, 48),
        (31, 48),
        (32, 32),
        (47, 32),
        (48, 16),
        (64, 16),
        (999, 16),
    ],
)
def test_those_that_run_take_a_token_each_and_one_chunk_is_always_left(
    running: int, tokens: int
) -> None:
    grants, _, _ = granted(queue(500, budget_tokens=64), running)
    assert grants == [(1, 0, tokens, tokens // 16, False)]


def test_what_starts_within_a_chunk_ends_on_its_edge_and_does_not_repeat() -> None:
    prefills = queue((500, 10))
    assert granted(prefills) == ([(1, 10, 22, 2, False)], [], 1)
    prefills.settle(1)
    assert granted(prefills) == (
        [(1, 32, 32, 2, False)],
        [],
        14,
    )  # 467 tokens, 30 chunks, 15 rounds


def test_chunks_of_whole_prompts_start_where_the_prefill_starts() -> None:
    prefills = queue((100, 10), chunk_rule="ceil")
    assert granted(prefills) == ([(1, 10, 32, 2, False)], [], 2)  # 90 tokens, 6 chunks, 3 rounds
    prefills.settle(2)
    assert granted(prefills) == ([(1, 74, 26, 2, True)], [1], 1)


def test_what_pauses_to_be_captured_leaves_the_rest_to_the_next_and_repeats_with_nobody() -> None:
    prefills = queue(500, 500, budget_tokens=64)
    stops = {1: 20}
    assert granted(prefills, stop_of=lambda stream: stops.get(stream.id)) == (
        [(1, 0, 20, 2, False), (2, 0, 32, 2, False)],
        [],
        1,
    )
    prefills.settle(1)
    assert [stream.position for stream in prefills] == [20, 32]


def test_budget_0_takes_one_prompt_a_round_up_to_where_it_is_captured() -> None:
    prefills = queue(500, 30, budget_tokens=0)

    def at_100(stream: Stream) -> int | None:
        return 100 if stream.position < 100 else None

    assert granted(prefills, 9, at_100) == ([(1, 0, 100, 7, False)], [], 1)
    prefills.settle(1)
    assert granted(prefills, 9, at_100) == ([(1, 100, 399, 26, True)], [1], 1)
    prefills.settle(1)
    assert granted(prefills, 9) == ([(2, 0, 29, 2, True)], [2], 1)


@pytest.mark.parametrize(
    ("prompt", "start", "rule", "queued"),
    [
        (1, 0, "aligned", False),  # its only token decodes
        (2, 0, "aligned", True),
        (9, 8, "aligned", False),
        (9, 7, "aligned", True),
        (1, 0, "ceil", True),
        (9, 8, "ceil", True),
    ],
)
def test_nothing_is_queued_where_only_the_last_token_is_left(
    prompt: int, start: int, rule: str, queued: bool
) -> None:
    prefills = queue(chunk_rule=rule)
    stream = Stream(Ask(1, prompt), 9, 20, 0)
    assert prefills.add(stream, start) == queued == (len(prefills) == 1)
    assert stream.position == start


def rounds(scheduler: Scheduler, times: int) -> list[tuple]:
    """Play whole repeats: (index, repeat, who decodes, grants as (id, start, tokens))."""
    found = []
    for _ in range(times):
        round = scheduler.plan()
        grants = [op[:3] for op in round.ops if isinstance(op, Grant)]
        found.append((round.index, round.repeat, round.decode, grants))
        scheduler.settle(round, Outcome(round.repeat))
    return found


def test_a_repeated_grant_ends_with_the_first_decoder_that_must_be_looked_at() -> None:
    """1 has 8 tokens to say, in rounds 0 to 7; 2 takes ten chunks from round 1 on, one a round."""
    scheduler = Scheduler(
        RowSpace(sessions(400, 400), RowBytes()), Settings(chunk_tokens=16, budget_tokens=16)
    )
    scheduler.submit(Ask(1, 1, 8))
    assert rounds(scheduler, 1) == [(0, 1, (1,), [])]
    scheduler.submit(Ask(2, 161, 3))
    assert rounds(scheduler, 6) == [
        (1, 1, (1,), [(2, 0, 16)]),
        (2, 6, (1,), [(2, 16, 16)]),  # eight could repeat
        (8, 1, (), [(2, 112, 16)]),  # 1 is told its end here
        (9, 1, (), [(2, 128, 16)]),
        (10, 1, (2,), [(2, 144, 16)]),
        (11, 2, (2,), []),
    ]
    assert [(e.round, e.kind) for e in scheduler.log if e.kind == "finished"] == [
        (7, "finished"),
        (12, "finished"),
    ]
    assert [type(op) for op in scheduler.plan().ops] == [End]


def test_a_decoder_alone_repeats_until_its_cap_or_its_session() -> None:
    scheduler = Scheduler(RowSpace(sessions(16, 40), RowBytes()), Settings(grow_tokens=4))
    scheduler.submit(Ask(1, 8, 20))
    assert rounds(scheduler, 4) == [
        (0, 1, (1,), [(1, 0, 7)]),
        (1, 7, (1,), []),  # 8 + 8 tokens fill 16
        (8, 1, (1,), []),  # it moves
        (9, 11, (1,), []),  # 9 of 20 are said
    ]
    assert scheduler.counts["finished"] == 1


def test_a_window_cut_by_a_capture_is_finished_before_grants_repeat() -> None:
    """0 and 1 share 320 tokens, which end within a chunk of 48; 1 goes away before the capture."""
    settings = Settings(
        chunk_tokens=48,
        budget_tokens=48,
        prefix_bytes=15_000,
        prefix_step_tokens=64,
        boundary_tokens=1,
        min_shared_tokens=128,
    )
    scheduler = Scheduler(RowSpace(sessions(1600, 1600), RowBytes()), settings)
    scheduler.submit(Ask(0, 1400, 9, tuple(range(22))))
    scheduler.submit(Ask(1, 900, 9, (*range(5), *range(100, 110))))
    assert rounds(scheduler, 1) == [(0, 1, (), [(0, 0, 48)])]
    scheduler.cancel(1)
    assert rounds(scheduler, 6) == [
        (1, 1, (), [(0, 48, 48)]),  # the end of 1 is told
        (2, 4, (), [(0, 96, 48)]),  # rounds 2 to 5
        (6, 1, (), [(0, 288, 32)]),  # and the capture
        (7, 1, (), [(0, 320, 16)]),
        (8, 22, (), [(0, 336, 48)]),  # 1063 tokens, 23 chunks
        (30, 1, (0,), [(0, 1392, 7)]),
    ]
    captures = [(e.round, e.detail) for e in scheduler.log if e.kind == "capture"]
    assert captures == [(6, (320,)), (30, (1399,))]
