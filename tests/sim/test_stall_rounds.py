"""The stall law, found again in the rounds of a replay, and a small run worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from qwisp.cost import CostModel, load_cost
from qwisp.errors import BadInput
from qwisp.scheduling.contract import Ask, Round
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.wrappers import Stepwise
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.record import RoundTable
from qwisp.sim.replay import replay, settings_for
from qwisp.sim.stall_law import stall_law
from qwisp.sim.summary import Slo, goodput
from qwisp.testing import RowBytes, sessions
from qwisp.trace.request import Request, Trace

COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")


def prefill_rounds(budget_tokens: int, prompt_tokens: int, *, stepwise: bool) -> list[dict]:
    """Rounds of a replay in which a second prompt is prefilled beside a long stream."""
    layout = sessions(65536, 65536)
    scheduler = Scheduler(
        RowSpace(layout, RowBytes()), settings_for(COST, budget_tokens=budget_tokens)
    )
    asks = [(0, Ask(1, 10, 2000), 2000), (10**12, Ask(2, prompt_tokens, 5), 5)]
    executor = CostExecutor(asks, COST, RowBytes())
    drive(scheduler, Stepwise(executor) if stepwise else executor)
    rows = [dict(zip(RoundTable.NAMES, row, strict=True)) for row in executor.rounds.rows]
    return [row for row in rows if row["grants_ps"] and row["index"] > 0]


@pytest.mark.parametrize("budget", [0, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("prompt", [1, 1024, 1025, 10_553, 24_000])
def test_a_running_stream_stalls_as_the_law_says(budget: int, prompt: int) -> None:
    law = stall_law(COST, prompt, budget_tokens=budget, stream_gaps=2000)
    single = prefill_rounds(budget, prompt, stepwise=True)
    assert len(single) == law.k
    rows_ps = [COST.row_ps * row["used_rows"] for row in single]
    stalls = [row["end_ps"] - row["begin_ps"] for row in single]
    assert [s - r for s, r in zip(stalls, rows_ps, strict=True)] == list(law.stalls_ps)
    closed = prefill_rounds(budget, prompt, stepwise=False)
    assert sum(row["rounds"] for row in closed) == law.k
    assert sum(row["end_ps"] - row["begin_ps"] for row in closed) == sum(stalls)


# A run worked out by hand, in seconds: a round that prefills takes 1, a chunk of 4 tokens 2, a step
# 1 a lane (one width was measured, so two lanes are extrapolated). Two windows of 64 rows.
#
#   request  arrives  prompt  reply
#   0        0        5       10      1 chunk
#   1        2        9        3      2 chunks
#   2        2        1        2      no chunk; waits for a window
#   3        3      100        5      never fits
#
#   0-4    0 admitted, its chunk (3), its step (1): first token of 0
#   4-8    1 admitted, first chunk (3), step of 0 (1)
#   8-13   second chunk of 1 (3), step of both (2): first token of 1
#   13-17  two steps of both: 1 ends with 3 tokens, 0 has 5
#   17-19  2 admitted, first token of 2
#   19-21  2 ends with 2 tokens, 0 has 7
#   21-24  three steps of 0 alone, 10 tokens
S = 10**12
ALONE = CostModel(
    name="seconds",
    machine="none",
    model="none",
    chunk_tokens=4,
    chunk_rule="aligned",
    round_ps=S,
    chunk_ps=2 * S,
    token_ps=0,
    depth_ps=0,
    step_ps_by_width=((1, S),),
    copy_bytes_per_s=10**9,
)
ROWS = [(0, 5, 10), (2, 9, 3), (2, 1, 2), (3, 100, 5)]


def replayed(rows, cost=ALONE, contexts=(64, 64), **changes):
    requests = tuple(Request(i, at * 10**9, *rest) for i, (at, *rest) in enumerate(rows))
    layout = replace(Layout.sessions(*contexts), kind=changes.pop("kind", "whole_window"))
    rate = changes.pop("rate", Fraction(1))
    settings = settings_for(cost, budget_tokens=4, **changes)
    trace = Trace(name="small", requests=requests, source="made here")
    return replay(trace, layout, RowBytes(10, 7), cost, settings, rate=rate)


@pytest.fixture(scope="module")
def small():
    return replayed(ROWS)


def test_every_column_of_the_requests_is_as_worked_out(small) -> None:
    frame = small.requests
    assert {name: frame[name].to_list() for name in frame.columns} == {
        "id": [0, 1, 2, 3],
        "arrival_s": [0.0, 2.0, 2.0, 3.0],
        "prompt_tokens": [5, 9, 1, 100],
        "cached_tokens": [0, 0, 0, 0],
        "output_tokens": [10, 3, 2, 5],
        "produced_tokens": [10, 3, 2, 0],
        "outcome": ["finished", "finished", "finished", "refused"],
        "reason": ["stop", "stop", "stop", frame["reason"][3]],
        "truncated": [False] * 4,
        "queue_s": [0.0, 2.0, 15.0, None],
        "waited_for": [None, None, "no free session large enough", None],
        "passed": [0, 0, 0, 0],
        "ttft_s": [4.0, 11.0, 17.0, None],
        "tpot_s": [20 / 9, 2.0, 2.0, None],
        "e2e_s": [24.0, 15.0, 19.0, None],  # a refused request has none
        "worst_stall_s": [5.0, 2.0, 2.0, None],
        "stalled_s": [4.0 + 5.0, 0.0, 0.0, None],
        "stall_rounds": [2, 0, 0, 0],
        "moves": [0] * 4,
        "pauses": [0] * 4,
        "paused_s": [0.0] * 4,
        "held_row_s": [64 * 24.0, 64 * 13.0, 64 * 4.0, 0.0],
        "slots": ["0", "1", "1", ""],
    }
    assert "102 tokens needed, 64 is the most" in frame["reason"][3]


def test_every_figure_of_the_summary_is_as_worked_out(small) -> None:
    s = small.summary
    assert (s.requests, s.finished, s.refused, s.failed, s.cancelled) == (4, 3, 1, 0, 0)
    assert (s.truncated, s.moves, s.pauses, s.passed, s.most_passed) == (0, 0, 0, 0, 0)
    assert s.waits_by_binding == {"no free session large enough": 1}
    assert s.refusals_by_binding == {"ContextFull": 1}
    spreads = (s.queue_s, s.ttft_s, s.tpot_s, s.e2e_s, s.worst_stall_s, s.stalled_s, s.stall_rounds)
    assert [x.n for x in spreads] == [3] * 7
    assert [x.p50 for x in spreads] == [2, 11, 2, 19, 2, 0, 0]
    assert [x.max for x in spreads] == [15, 17, 20 / 9, 24, 5, 9, 2]
    assert s.e2e_s.mean == (24 + 15 + 19) / 3
    # Linear between ranks 15, 19, 24: at 1.8, 1.9 and 1.98 of them.
    assert (s.e2e_s.p90, s.e2e_s.p95) == (pytest.approx(23), pytest.approx(23.5))
    assert s.e2e_s.p99 == pytest.approx(23.9)
    assert s.makespan_s == 24
    assert s.output_tokens_per_s == 15 / 24
    # One lane until 8, two until 21, one until 24.
    assert s.mean_decoding == (8 + 2 * 13 + 3) / 24
    assert s.extrapolated == 10 / 15  # 10 of 15 tokens came beside another lane
    assert s.cached == 0
    # Prompts fill evenly while they are prefilled, replies while they decode.
    used = 5 / 2 * 4 + 9 / 2 * 9 + 1 / 2 * 2 + (5 + 5) * 20 + (9 + 1.5) * 4 + (1 + 1) * 2
    assert s.wasted == pytest.approx(1 - used / (64 * (24 + 13 + 4)), rel=1e-12)
    # 9 s of prefill (the refused prompt left out) and 15 tokens at 1 s, asked within 2 s.
    assert (s.load_ratio, s.verdict) == (12, "overloaded")
    assert s.why == "offered load is 12.00 x capacity"


def test_every_round_is_as_worked_out(small) -> None:
    # (first index, begin, end, rounds, decoding, rows in use, prefill, last round)
    assert small.rounds.rows() == [
        (0, 0, 4, 1, 1, 5, 3, 4),
        (1, 4, 8, 1, 1, 6, 3, 4),
        (2, 8, 13, 1, 2, 7 + 9, 3, 5),
        (3, 13, 17, 2, 2, 8 + 10, 0, 2),
        (5, 17, 19, 1, 2, 10 + 1, 0, 2),
        (6, 19, 21, 1, 2, 11 + 2, 0, 2),
        (7, 21, 22, 1, 1, 12, 0, 1),
        (8, 22, 24, 2, 1, 13, 0, 1),
        (10, 24, 24, 1, 0, 0, 0, 0),
    ]


def test_every_stretch_of_a_stream_is_as_worked_out(small) -> None:
    # (request, slot, phase, begin, end, rows in use at both ends)
    assert sorted(small.segments.rows()) == [
        (0, 0, "decode", 4, 24, 5, 15),
        (0, 0, "prefill", 0, 4, 0, 5),
        (1, 1, "decode", 13, 17, 9, 12),
        (1, 1, "prefill", 4, 13, 0, 9),
        (2, 1, "decode", 19, 21, 1, 3),
        (2, 1, "prefill", 17, 19, 0, 1),
    ]


def test_the_load_after_every_change_is_as_worked_out(small) -> None:
    load = small.load
    assert load["time_s"].to_list() == [0, 2, 3, 4, 13, 17, 19, 21, 24]
    assert load["waiting"].to_list() == [0, 2, 2, 1, 1, 0, 0, 0, 0]
    assert load["prefill"].to_list() == [1, 1, 1, 1, 0, 1, 0, 0, 0]
    assert load["decode"].to_list() == [0, 0, 0, 1, 2, 1, 2, 1, 0]
    assert load["paused"].to_list() == [0] * 9
    assert load["allocated_bytes"].to_list() == [2 * 647] * 9  # 64 rows of 10 bytes and 7
    assert load["held_bytes"].to_list() == [647, 647, 647, 1294, 1294, 1294, 1294, 647, 0]
    # 0 fills 5 rows in 4 s, then 10 in 20 s; 1 fills 9 in 9 s, then 3 in 4 s; 2 fills 1 in 2 s.
    rows = [0, 2.5, 3.75, 5, 9.5 + 9, 11.5 + 0, 12.5 + 1, 13.5, 0]
    fixed = [7, 7, 7, 14, 14, 14, 14, 7, 0]
    used = [10 * r + f for r, f in zip(rows, fixed, strict=True)]
    assert load["used_bytes"].to_list() == pytest.approx(used, abs=1e-9)
    wasted = [h - u for h, u in zip(load["held_bytes"], used, strict=True)]
    assert load["wasted_bytes"].to_list() == pytest.approx(wasted, abs=1e-9)


def test_goodput_counts_whole_replies_at_the_promise_and_within_it() -> None:
    run = replayed([*ROWS, (30, 1, 9, 2)])  # the fifth asks for 2 of its 9 tokens
    assert run.requests["truncated"].to_list() == [False, False, False, False, True]
    assert run.requests["ttft_s"][4] == 1
    # First tokens after 4, 11, 17 and 1 s; further ones every 20/9, 2, 2 and 1 s.
    for ttft_s, tpot_s, good in (
        (11, 2, 1),
        (10.9, 2, 0),
        (11, 20 / 9, 2),
        (11, 1.9, 0),
        (17, 3, 3),
    ):
        found = goodput(run, Slo(ttft_s=ttft_s, tpot_s=tpot_s))
        assert (found.requests, found.share) == (good, good / 5)
        assert found.requests_per_s == good / 32  # from 0 to 32: the fifth takes 2 steps
    assert run.summary.truncated == 1
    lone = replayed([(0, 1, 1)])  # one token: no further one to be late
    assert goodput(lone, Slo(ttft_s=1, tpot_s=1e-9)).requests == 1
    with pytest.raises(BadInput, match="ttft_s is 0"):
        Slo(ttft_s=0, tpot_s=1)
    with pytest.raises(BadInput, match="tpot_s is inf"):
        Slo(ttft_s=1, tpot_s=float("inf"))


def test_a_stream_that_moves_and_one_that_pauses_hold_and_use_what_was_worked_out() -> None:
    """Sessions of 8, 8 and 32 tokens; replies grow 2 tokens at a time; copies take a second a row.

    Both start in a session of 8 with a prompt of 1. A step is 2 s for both and 1 s for one.
    """
    cost = replace(ALONE, copy_bytes_per_s=10)  # a row has 10 bytes
    run = replayed([(0, 1, 12), (0, 1, 12)], cost, contexts=(8, 8, 32), kind="sized", grow_tokens=2)
    frame = run.requests
    assert (frame["moves"].to_list(), frame["pauses"].to_list()) == ([1, 1], [0, 1])
    assert frame["slots"].to_list() == ["0>2", "1>2"]
    moved, paused = run.executor.records.values()
    assert frame["paused_s"].to_list() == [0, paused.paused_ps / S]
    by = {(e.kind, e.id): e.round for e in run.log}
    rounds = run.executor.rounds.columns()
    begin = dict(zip(rounds["index"].tolist(), rounds["begin_ps"].tolist(), strict=True))
    # 6 of 8 rows hold the prompt and the tokens that the next step still fits beside.
    since, until = begin[by["pause", 1]], begin[by["resume", 1]]
    assert paused.paused_ps == until - since > 0
    assert moved.held_row_ps == 8 * since + 32 * (moved.end_ps - since)
    assert paused.held_row_ps == 8 * until + 32 * (paused.end_ps - until)
    assert until == moved.end_ps
    # A copy takes 7 rows of 10 bytes and 7 of the lane, 7.7 s. Both have a token at 14 s. The next
    # one of the first follows its copy and a step of 1 s; the second waits for that, for 4 more
    # steps, for its own copy and for a step.
    assert frame["worst_stall_s"].to_list() == [7.7 + 1, 7.7 + 1 + 4 + 7.7 + 1]
    phases = {(i, phase): (a, b) for i, _, phase, a, b, *_ in run.segments.rows()}
    assert phases[1, "paused"] == (since / S, until / S)
    assert run.summary.moves == 2
    assert run.summary.pauses == 1
    at = run.load["time_s"].to_list().index(since / S)
    assert run.load["paused"][at] == 1
    assert run.load["held_bytes"][at] == 10 * (8 + 32) + 2 * 7


def test_an_arrival_that_was_not_told_yet_interrupts_rounds_that_take_no_time() -> None:
    free = replace(ALONE, step_ps_by_width=((1, 0),))
    executor = CostExecutor([(0, Ask(0, 1), 9)], free, RowBytes(1, 0))
    assert executor.run(Round(0, (), (0,), 4, True)).rounds == 1
    assert len(executor.facts(1)) == 1
    assert executor.run(Round(1, (), (0,), 4, True)).rounds == 4
