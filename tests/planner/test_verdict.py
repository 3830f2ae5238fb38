"""The verdict word: whole picoseconds over the requests that ran, and why, in enough digits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from qwisp.cost import CostModel, load_cost
from qwisp.cost.offered import offered_load, solo_e2e_ps
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import Layout, RowBytes, parse_layout
from qwisp.sim.replay import replay, runnable, settings_for
from qwisp.sim.summary import judge
from qwisp.spec.catalog import load_model
from qwisp.trace.request import Request, Trace

S = 10**12
SECONDS = CostModel(
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
    row_ps=1,
    copy_bytes_per_s=10,
)
COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
SIZE = SessionBytes(load_model("qwen3.6-35b-a3b"))


def trace_of(*requests: Request) -> Trace:
    return Trace(name="made", requests=requests, source="made here")


def windows(*contexts: int, kind: str = "whole_window") -> Layout:
    return replace(Layout.sessions(*contexts), kind=kind)


def judged(queues_ps, *, drain_ps=0, ratio=Fraction(1, 2), rate=Fraction(1), prompt=5, reply=3):
    """The verdict on requests that arrive at 0 and end together after `drain_ps`.

    Alone, the longest takes 1 + 2 s for its chunk, and 3 steps of 1 s over 5, 6 and 7 rows of 1 ps.
    """
    records = {
        i: SimpleNamespace(
            id=i,
            admitted_ps=queue_ps,
            arrival_ps=0,
            end_ps=drain_ps,
            prompt_tokens=prompt,
            produced=reply,
        )
        for i, queue_ps in enumerate(queues_ps)
    }
    run = SimpleNamespace(
        executor=SimpleNamespace(records=records),
        rate=rate,
        cost=SECONDS,
        layout=SimpleNamespace(grows=False),
        settings=SimpleNamespace(prefix_bytes=0, budget_tokens=4),
    )
    return judge(run, SimpleNamespace(exact_ratio=ratio))


def test_overloaded_begins_above_one_and_scales_with_the_rate() -> None:
    assert judged([0], ratio=Fraction(1))[0] == "stable"
    word, why, ratio = judged([0], ratio=Fraction(1, 2), rate=Fraction(200_001, 100_000))
    assert (word, ratio) == ("overloaded", 1.000005)
    assert why == "offered load is 1.000005 x capacity"
    assert judged([0], ratio=Fraction(1, 2), rate=Fraction(2))[1].startswith("load is 1.00 of")
    assert judged([0], ratio=Fraction(11, 10))[:2] == (
        "overloaded",
        "offered load is 1.10 x capacity",
    )
    assert judged([0], ratio=Fraction(9999, 10_000))[1].startswith("load is 0.9999 of capacity")
    assert judged([0], ratio=None)[1:] == (
        "a burst; p95 queue time 0.0 s in the last quarter",
        None,
    )


@pytest.mark.parametrize(
    ("early_ps", "late_ps", "word"),
    [
        (0, S, "stable"),
        (0, S + 1, "backlogged"),
        (S // 10, S, "stable"),
        (2 * S, 4 * S, "stable"),
        (2 * S, 4 * S + 1, "backlogged"),
    ],
)
def test_queues_grow_above_a_second_and_above_twice_the_second_quarter(
    early_ps: int, late_ps: int, word: str
) -> None:
    first, third = [99 * S] * 2, [50 * S] * 2  # neither is compared
    found = judged([*first, early_ps, early_ps, *third, late_ps, late_ps], drain_ps=3 * S)
    assert found[0] == word
    if word == "backlogged":
        shown = "1.000000000001" if early_ps == 0 else "4.000000000001"
        assert found[1].endswith(f"to {shown} s")


def test_of_nine_requests_the_last_two_are_a_quarter() -> None:
    assert judged([0] * 6 + [100 * S, 0, 0])[0] == "stable"
    assert judged([0] * 7 + [100 * S, 0])[0] == "backlogged"


def test_the_95th_percentile_lies_between_ranks_exactly() -> None:
    # Of two queues 95 % of the way from the shorter to the longer: 0.95 x 1.0526... s.
    just = -(-100 * S // 95)
    assert judged([0] * 6 + [0, just - 1])[0] == "stable"
    assert judged([0] * 6 + [0, just])[0] == "backlogged"
    assert judged([])[0] == "stable"


def test_a_drain_as_long_as_the_longest_request_alone_is_stable_and_a_picosecond_more_is_not() -> (
    None
):
    alone_ps = 3 * S + 3 * S + (5 + 6 + 7)
    assert judged([0, 0], drain_ps=alone_ps)[0] == "stable"
    word, why, _ = judged([0, 0], drain_ps=alone_ps + 1)
    assert word == "backlogged"
    assert why == ("the drain takes 6.000000000019 s, the longest request alone 6.000000000018 s")
    assert "takes 7.0 s, the longest request alone 6.0 s" in judged([0], drain_ps=7 * S)[1]


@pytest.mark.parametrize("seed", range(40))
def test_a_lone_request_takes_what_its_lengths_say_to_the_picosecond(seed: int) -> None:
    rng = Random(seed)
    cost = CostModel(
        name="random",
        machine="none",
        model="none",
        chunk_tokens=rng.choice([1, 4, 64]),
        chunk_rule=rng.choice(["aligned", "ceil"]),
        round_ps=rng.randint(0, 99),
        chunk_ps=rng.randint(0, 99),
        token_ps=rng.randint(0, 9),
        depth_ps=rng.randint(0, 3),
        window_depth_ps=rng.choice([0, 2]),
        window_tokens=rng.choice([8, 100]),
        step_ps_by_width=((1, rng.randint(1, 500)),),
        row_ps=rng.randint(0, 4),
        copy_bytes_per_s=10**9,
    )
    prompt, reply = rng.choice([1, 2, rng.randint(1, 300)]), rng.randint(1, 200)
    settings = settings_for(cost, budget_tokens=rng.choice([0, 1, 50, 1024]))
    lone = trace_of(Request(0, 0, prompt, reply))
    run = replay(lone, windows(600), RowBytes(1, 0), cost, settings)
    solo = solo_e2e_ps(cost, np.array([prompt]), np.array([reply]), settings.budget_tokens)
    assert solo.tolist() == [run.executor.records[0].end_ps]
    assert run.summary.verdict == "stable"


@pytest.mark.parametrize(
    ("layout", "prefix_bytes"),
    [("4096x3,16384", 0), ("whole_window:2", 0), ("per_request", 0), ("4096x3,16384", 2 << 30)],
)
def test_a_machine_idle_most_of_the_time_is_never_backlogged(
    layout: str, prefix_bytes: int
) -> None:
    """A request takes 16 s alone, moves and captures included; gaps are from 18 to 92 s."""
    cut = parse_layout(layout, size=SIZE, memory_bytes=12 << 30, model_context_tokens=262_144)
    cut = replace(cut, contexts=cut.contexts[1:]) if cut.kind == "sized" else cut
    settings = settings_for(COST, grow_tokens=100, prefix_bytes=prefix_bytes, boundary_tokens=1)
    words = set()
    for step in range(100):
        gap_ns = 18_000_000_000 + step * 743_000_777
        requests = (
            Request(i, i * gap_ns, 3800 + i, 400, None, tuple(range(9 * i, 9 * i + 8)))
            for i in range(4)
        )
        run = replay(trace_of(*requests), cut, SIZE, COST, settings)
        words.add(run.summary.verdict)
        assert run.summary.moves == (4 if cut.grows else 0)
    assert words == {"stable"}


def test_the_longest_alone_includes_the_copies_of_its_own_growth_and_no_more() -> None:
    """Sessions of 8 and 32 tokens: the reply outgrows the first; a row takes a second to copy."""
    settings = settings_for(SECONDS, budget_tokens=4, grow_tokens=2)
    layout = windows(8, 32, kind="sized")
    twice = trace_of(Request(0, 0, 3, 12), Request(1, 100 * 10**9, 3, 12))
    run = replay(twice, layout, RowBytes(10, 0), SECONDS, settings)
    assert run.summary.moves == 2
    assert run.summary.verdict == "stable"
    together = trace_of(Request(0, 0, 3, 12), Request(1, 0, 3, 12))
    run = replay(together, windows(32), RowBytes(10, 0), SECONDS, settings)
    # One after the other: 3 s of prefill and 12 steps over 3 to 14 rows each, no copies.
    assert run.summary.why == "the drain takes 30.0 s, the longest request alone 15.0 s"
    assert run.executor.rounds.end_ps == 2 * (15 * S + 102)


def test_requests_that_can_never_run_change_nothing() -> None:
    """A prompt of a million tokens was refused: no longest request, no load, no end to end."""
    settings = settings_for(SECONDS, budget_tokens=4)
    served = [Request(i, i * 20 * 10**9, 5, 3) for i in range(8)]
    served += [Request(8 + i, 160 * 10**9, 5, 3) for i in range(4)]
    refused = [Request(20 + i, (i * 15 + 3) * 10**9, 10**6, 3) for i in range(40)]
    mixed = sorted([*served, *refused], key=lambda r: r.arrival_ns)
    runs = [
        replay(trace_of(*some), windows(64), RowBytes(1, 0), SECONDS, settings)
        for some in (served, mixed)
    ]
    ours, theirs = (run.summary for run in runs)
    # Four come at once and take 6 s each, one after the other: 24 s, of which the last waits 18.
    assert (ours.verdict, ours.why) == (theirs.verdict, theirs.why)
    assert ours.verdict == "backlogged"
    assert ours.load_ratio == theirs.load_ratio == 12 * 6 / 160
    assert (theirs.refused, theirs.finished, theirs.requests) == (40, 12, 52)
    for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s", "worst_stall_s", "stalled_s", "wasted"):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.e2e_s.n == 12
    assert runs[1].requests["e2e_s"].null_count() == 40
    assert runnable(trace_of(*mixed), windows(64), RowBytes(1, 0), settings).requests == tuple(
        served
    )


def test_where_nothing_can_run_there_is_no_load_and_it_says_so() -> None:
    alone = trace_of(Request(0, 0, 10**6, 3), Request(1, 10**9, 10**6, 3))
    run = replay(alone, windows(64), RowBytes(1, 0), SECONDS)
    assert (run.summary.why, run.summary.load_ratio) == ("no request could run", None)
    assert run.summary.e2e_s.n == 0


@pytest.mark.parametrize("prompt_tokens", [10**7, 10**9])
def test_absurd_prompts_and_arrivals_keep_their_sign_and_their_size(prompt_tokens: int) -> None:
    far_ns = 4 * 10**18
    trace = trace_of(Request(0, 0, prompt_tokens, 3), Request(1, far_ns, 5, 3))
    offered = offered_load(trace, COST)
    tokens, chunks = prompt_tokens, -(-prompt_tokens // 1024)
    # The sum 0 + 1 + ... + (n - 1) of depths, in Python's integers.
    work_ps = chunks * (COST.round_ps + COST.chunk_ps) + tokens * COST.token_ps
    work_ps += COST.depth_ps * (tokens * (tokens - 1) // 2)
    work_ps += COST.round_ps + COST.chunk_ps + 5 * COST.token_ps + 10 * COST.depth_ps
    work_ps += Fraction(6 * COST.step_ps(4), 4)
    assert offered.exact_ratio == work_ps / (far_ns * 1000)
    if prompt_tokens == 10**7:
        size, layout = RowBytes(1, 0), windows(2 * prompt_tokens)
        run = replay(trace, layout, size, COST, settings_for(COST, budget_tokens=0))
        assert run.executor.records[0].first_ps > work_ps * 0.99
        assert run.requests["ttft_s"][0] == pytest.approx(float(work_ps) / 1e12, rel=0.01)
        assert run.summary.verdict in ("stable", "overloaded")
        assert run.load["held_bytes"].min() >= 0


def test_lanes_times_a_long_run_of_rounds_do_not_wrap() -> None:
    """Eight lanes decode for 2 x 10^18 ps: eight times that is above what 64 bits hold."""
    slow = replace(SECONDS, step_ps_by_width=((8, 10**15),))
    requests = (Request(i, 0, 1, 2000) for i in range(8))
    run = replay(trace_of(*requests), windows(*[4000] * 8), RowBytes(1, 0), slow)
    assert run.summary.mean_decoding == pytest.approx(8, rel=1e-12)
