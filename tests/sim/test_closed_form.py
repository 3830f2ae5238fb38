"""A repeated round closed over its repeats is the same run as every step taken alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from random import Random

import pytest

from qwisp.cost import CostModel, load_cost
from qwisp.facts.record import Recorded, facts_of
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import (
    Admit,
    Ask,
    Capture,
    End,
    Grant,
    Move,
    Pause,
    Place,
    Restore,
    Resume,
    Round,
)
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import RowBytes, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Stepwise
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.record import RequestRecord
from qwisp.sim.replay import arrivals, settings_for
from qwisp.spec.catalog import load_model
from qwisp.trace.read import read_trace

STEP = 8  # prompt tokens a prefix key stands for
LAYOUTS = (
    "200,100x2,50x3",
    "50x4,400",
    "120x3",
    "whole_window:2",
    "fixed_arena:150",
    "per_request:600",
    "per_request:1500",
)


def random_cost(rng: Random, chunk_tokens: int, grid_ps: int) -> CostModel:
    """Coefficients of every size, zero included; depths that saturate in a window.

    All are multiples of `grid_ps`, as arrivals are: on a coarse grid these meet ends of rounds.
    """
    widths = sorted(rng.sample(range(1, 9), rng.randint(1, 3)))
    step_ps = 0
    table = []
    for width in widths:
        step_ps += rng.randint(0, 500)
        table.append((width, max(1, step_ps) * grid_ps))
    return CostModel(
        name="random",
        machine="none",
        model="none",
        chunk_tokens=chunk_tokens,
        chunk_rule=rng.choice(["aligned", "ceil"]),
        round_ps=rng.choice([0, rng.randint(1, 300)]) * grid_ps,
        chunk_ps=rng.choice([0, rng.randint(1, 900)]) * grid_ps,
        token_ps=rng.randint(0, 9) * grid_ps,
        depth_ps=rng.choice([0, 1]) * grid_ps,
        window_depth_ps=rng.choice([0, 2]) * grid_ps,
        window_tokens=rng.choice([8, 40]),
        step_ps_by_width=tuple(table),
        row_ps=rng.choice([0, 0, 1, 3]) * grid_ps,
        copy_bytes_per_s=rng.choice([10**9, 10**12]),  # 1000 or 1 ps a byte
    )


def random_workload(rng: Random, grid_ps: int) -> tuple[list, list]:
    """Simultaneous arrivals, bursts and idle gaps; prompts of one token; cancels at any time."""
    gap_ps = rng.choice([10, 500, 5_000, 50_000])
    now_ps, asks, cancels = 0, [], []
    gap_ps *= max(1, grid_ps // 50)
    for number in range(rng.randint(1, 40)):
        now_ps += rng.choice([0, 0, rng.randint(0, gap_ps), rng.randint(0, 40 * gap_ps)])
        prompt = rng.choice([1, 2, rng.randint(1, 30), rng.randint(1, 260)])
        output = rng.choice([1, rng.randint(1, 20), rng.randint(1, 200)])
        max_new = rng.choice([None, output, rng.randint(1, 120)])
        shared, family = rng.randint(0, prompt // STEP + 1), rng.randint(1, 3) * 1000
        keys = (family + at if at < shared else 10**6 * (number + 1) + at for at in range(10**3))
        prefix = tuple(islice(keys, rng.choice([0, -(-prompt // STEP)])))
        at_ps = now_ps // grid_ps * grid_ps
        asks.append((at_ps, Ask(number, prompt, max_new, prefix), output))
        if rng.random() < 0.15:
            cancels.append((at_ps + rng.randint(0, 60 * gap_ps // grid_ps) * grid_ps, number))
    return asks, cancels


def replayed(layout_text: str, settings: Settings, cost: CostModel, work: tuple, stepwise: bool):
    size = RowBytes(1, 20)
    layout = parse_layout(
        layout_text, size=size, memory_bytes=500, model_context_tokens=400, own_context_tokens=130
    )
    scheduler = Scheduler(RowSpace(layout, size), settings)
    inner = CostExecutor(work[0], cost, size, cancels=work[1])
    recorded = Recorded(Stepwise(inner) if stepwise else inner)
    drive(scheduler, recorded)
    scheduler.check()
    return scheduler, inner, recorded


def life(record: RequestRecord) -> dict[str, object]:
    """Everything that happened to a request: first token, finish, moves, pauses, tokens."""
    return {name: getattr(record, name) for name in RequestRecord.__slots__}


def num_rounds(run: tuple) -> int:
    return sum(run[1].rounds.columns()["rounds"].tolist())


def assert_equal_runs(closed: tuple, single: tuple) -> None:
    assert closed[0].log == single[0].log
    assert closed[0].counts == single[0].counts
    assert closed[0].index == single[0].index
    assert closed[1].now_ps == single[1].now_ps
    assert closed[1].records.keys() == single[1].records.keys()
    for request_id, record in closed[1].records.items():
        assert life(record) == life(single[1].records[request_id]), request_id
    assert num_rounds(closed) == num_rounds(single) == len(single[1].rounds)
    assert facts_of(closed[2]) == facts_of(single[2])


SEEDS = 300


def run_seed(seed: int, *, stepwise: bool) -> tuple:
    rng = Random(seed)
    grid_ps = rng.choice([1, 1, 1000])
    cost = random_cost(rng, rng.choice([1, 4, 16, 64]), grid_ps)
    settings = settings_for(
        cost,
        order=rng.choice(["fcfs", "first_fit", "sjf"]),
        max_passed=rng.choice([0, 1, 64]),
        step_tokens=rng.choice([1, 1, 2, 5]),
        grow_tokens=rng.choice([1, 8, 30, 8192]),
        gen_cap_tokens=rng.choice([5, 100, 16384]),
        budget_tokens=rng.choice([0, 1, 16, 50, 1024]),
        prefix_bytes=rng.choice([0, 0, 200, 2000]),
        prefix_step_tokens=STEP,
        boundary_tokens=rng.choice([1, 4, 8, 16]),
        min_shared_tokens=rng.choice([1, 10, 40]),
    )
    work = random_workload(rng, grid_ps)
    return replayed(rng.choice(LAYOUTS), settings, cost, work, stepwise)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_random_workloads_give_the_same_run_closed_or_step_by_step(first: int) -> None:
    for seed in range(first, first + 50):
        assert_equal_runs(run_seed(seed, stepwise=False), run_seed(seed, stepwise=True))


def test_the_random_workloads_hold_what_they_are_meant_to_hold() -> None:
    seen: Counter[str] = Counter()
    calls = rounds = 0
    for seed in range(SEEDS):
        run = run_seed(seed, stepwise=False)
        calls, rounds = calls + len(run[1].rounds), rounds + num_rounds(run)
        seen.update(entry.kind for entry in run[0].log)
    for kind in ("admit", "decode", "wait", "move", "pause", "resume"):
        assert seen[kind] >= 20, seen
    for kind in ("finished", "refused", "cancelled", "restore", "capture"):
        assert seen[kind] >= 20, seen
    assert rounds >= 2 * calls


@pytest.mark.parametrize("layout", ["100x2", "per_request:1500"])
@pytest.mark.parametrize("row_ps", [0, 3])
def test_arrivals_and_cancels_at_the_very_end_of_a_round_are_seen_in_the_same_one(
    layout: str, row_ps: int
) -> None:
    """An arrival, or a cancel, a picosecond before, at and after the end of every round."""
    cost = replace(random_cost(Random(3), 4, 1), row_ps=row_ps, chunk_rule="aligned")
    settings = settings_for(cost, budget_tokens=8, grow_tokens=8)
    first = (0, Ask(0, 90, 30), 30)
    _, alone, _ = replayed(layout, settings, cost, ([first], []), True)
    assert len(alone.rounds.rows) > 40
    for _, _, end_ps, *_ in alone.rounds.rows:
        for at_ps in (end_ps - 1, end_ps, end_ps + 1):
            for work in (
                ([first, (at_ps, Ask(1, 20, 9), 9)], []),
                ([first], [(at_ps, 0)]),
                ([first, (5, Ask(1, 60, 40), 40)], [(at_ps, 1)]),
            ):
                closed = replayed(layout, settings, cost, work, False)
                assert_equal_runs(closed, replayed(layout, settings, cost, work, True))


MODEL, MACHINE = "qwen3.6-35b-a3b", "m1-max-64gb"


@pytest.fixture(scope="module")
def azure_500(request: pytest.FixtureRequest) -> list:
    path = request.getfixturevalue("traces_dir") / "azure_llm_2023_conv.csv"
    trace = read_trace(path)
    return [
        arrivals(replace(trace, requests=trace.requests[:500]), rate)
        for rate in (Fraction(1), Fraction(1, 20))
    ]


@pytest.mark.truth
@pytest.mark.parametrize("layout_text", ["65536,32768x3,16384x11", "2048x6,8192x2", "per_request"])
@pytest.mark.parametrize("step_tokens", [1, 5])
def test_500_real_requests_give_the_same_run_in_few_calls(
    azure_500: list, layout_text: str, step_tokens: int
) -> None:
    cost, size = load_cost(MODEL, MACHINE), SessionBytes(load_model(MODEL))
    layout = parse_layout(
        layout_text, size=size, memory_bytes=12 << 30, model_context_tokens=262_144
    )
    settings = settings_for(cost, grow_tokens=256, step_tokens=step_tokens)
    for asks in azure_500:
        runs = []
        for wrap in (lambda inner: inner, Stepwise):
            scheduler = Scheduler(RowSpace(layout, size), settings)
            inner = CostExecutor(
                asks, cost, size, cancels=[(t + 10**13, a.id) for t, a, _ in asks[::9]]
            )
            recorded = Recorded(wrap(inner))
            drive(scheduler, recorded)
            runs.append((scheduler, inner, recorded))
        closed, single = runs
        assert_equal_runs(closed, single)
        assert num_rounds(closed) >= 2 * len(closed[1].rounds)
        assert num_rounds(single) == len(single[1].rounds)


# One rule at a time, in rounds written by hand. Times are picoseconds: a round that prefills costs
# 100, a chunk 10, a token 1; a step 1000 alone and 1500 for two, 3 a used row; a copied row 1.
RULES = CostModel(
    name="rules",
    machine="none",
    model="none",
    chunk_tokens=4,
    chunk_rule="aligned",
    round_ps=100,
    chunk_ps=10,
    token_ps=1,
    depth_ps=0,
    step_ps_by_width=((1, 1000), (2, 1500)),
    row_ps=3,
    copy_bytes_per_s=10**12,
)
SMALL, LARGE = Place(0, 0, 40, 40), Place(1, 40, 80, 80)


def by_hand(*asks: tuple, cancels: tuple = (), cost: CostModel = RULES) -> CostExecutor:
    executor = CostExecutor(asks, cost, RowBytes(1, 0), cancels=cancels)
    executor.facts(0)  # what arrived at 0 was handed out
    return executor


def test_a_round_costs_itself_its_chunks_its_tokens_and_one_step_over_the_rows_in_use() -> None:
    executor = by_hand((0, Ask(0, 9), 50), (0, Ask(1, 5), 50))
    grants = (Grant(0, 0, 8, 2, True), Grant(1, 0, 4, 1, True))
    admits = (Admit(0, SMALL, 9), Admit(1, LARGE, 5))
    executor.run(Round(0, (*admits, *grants), (0, 1), 1, True))
    # 100 for the round, once; 30 for 3 chunks; 12 for 12 tokens; 1500; 3 x (9 + 5) rows
    assert executor.now_ps == 100 + 30 + 12 + 1500 + 42
    assert executor.rounds.rows == [(0, 0, 1684, 1, 2, 14, 1684, 142)]
    assert [r.first_ps for r in executor.records.values()] == [1684, 1684]
    executor.run(Round(1, (), (0, 1), 3, True))
    # rows 16, 18, 20 in use before the three steps
    assert executor.now_ps == 1684 + 3 * 1500 + 3 * (16 + 18 + 20)
    assert executor.rounds.rows[-1] == (1, 1684, 6346, 3, 2, 16, 1560, 0)


def test_a_prompt_of_one_token_decodes_at_once_and_a_restored_one_but_for_its_last_token_too() -> (
    None
):
    executor = by_hand((0, Ask(0, 1), 5), (0, Ask(1, 9), 5), (0, Ask(2, 9), 5))
    ops = (Admit(0, SMALL, 1), Admit(1, LARGE, 9), Admit(2, SMALL, 9))
    executor.run(Round(0, (*ops, Restore(1, 77, 8), Restore(2, 78, 4)), (0, 1), 1, True))
    # 8 + 4 rows restored; no round of prefill; rows 1 + 9 in use
    assert executor.now_ps == 8 + 4 + 1500 + 3 * 10
    assert [r.first_ps for r in executor.records.values()] == [1542, 1542, -1]
    assert [r.cached_tokens for r in executor.records.values()] == [0, 8, 4]


def test_where_the_last_token_is_prefilled_too_nothing_decodes_before_its_grant() -> None:
    cost = replace(RULES, chunk_rule="ceil")
    executor = by_hand((0, Ask(0, 1), 5), (0, Ask(1, 9), 5), cost=cost)
    ops = (Admit(0, SMALL, 1), Admit(1, LARGE, 9), Restore(1, 77, 8))
    executor.run(Round(0, ops, (), 1, True))
    assert (executor.now_ps, executor.records[0].first_ps) == (8, -1)
    executor.run(Round(1, (Grant(0, 0, 1, 1, True),), (0,), 1, True))
    assert (executor.now_ps, executor.records[0].first_ps) == (8 + 111 + 1000 + 3,) * 2


def test_moves_captures_and_resumes_cost_their_rows_and_both_pauses_count() -> None:
    executor = by_hand((0, Ask(0, 1), 99), (0, Ask(1, 1), 99))
    record = executor.records[0]
    step = Round(0, (Admit(0, SMALL, 1), Admit(1, LARGE, 1)), (0, 1), 1, True)
    executor.run(step)
    assert executor.now_ps == 1506  # 1500, 3 x 2 rows
    executor.run(Round(1, (Pause(0),), (1,), 1, True))
    assert executor.now_ps == 1506 + 1006  # one lane, 2 rows
    executor.run(Round(2, (), (1,), 1, True))
    assert executor.now_ps == 2512 + 1009
    executor.run(Round(3, (Resume(0, SMALL, LARGE, 2),), (0, 1), 1, True))
    assert record.paused_ps == 3521 - 1506
    # 2 rows copied; rows 2 + 4 in use
    assert executor.now_ps == 3521 + 2 + 1500 + 18
    # From the pause to the next token, the copy and the step included.
    assert (record.longest_pause_ps, record.moves, record.pauses) == (5041 - 1506, 1, 1)
    executor.run(Round(4, (Pause(0),), (1,), 1, True))
    assert executor.now_ps == 5041 + 1000 + 3 * 5
    executor.run(Round(5, (Resume(0, LARGE, SMALL, 3),), (0, 1), 1, True))
    assert record.paused_ps == (3521 - 1506) + (6056 - 5041)
    assert record.longest_pause_ps == 5041 - 1506
    assert executor.now_ps == 6056 + 3 + 1500 + 3 * (3 + 6)
    executor.run(Round(6, (Move(1, LARGE, SMALL, 7), Capture(1, 5, 6)), (0, 1), 1, True))
    assert executor.now_ps == 7586 + 7 + 6 + 1500 + 3 * (4 + 7)
    assert (record.path, executor.records[1].path) == ("0>1>0", "1>0")
    executor.run(Round(7, (Pause(0),), (1,), 1, True))
    executor.run(Round(8, (End(0, "cancelled", "", SMALL),), (1,), 1, True))
    # It ended in its third pause, which began at 9132 and took one step over 8 rows.
    assert record.paused_ps == (3521 - 1506) + (6056 - 5041) + 1024
    # 40 rows, 80 from the first resume on, 40 again from the second until the end.
    assert record.held_row_ps == 40 * 3521 + 80 * (6056 - 3521) + 40 * (9132 + 1024 - 6056)
    assert record.produced == 4


@pytest.mark.parametrize("wakes", [True, False])
def test_an_arrival_ends_a_repeated_round_only_where_it_could_change_the_next(wakes: bool) -> None:
    """Steps over 1, 2, 3, ... rows end at 1003, 2009, 3018, 4030, 5045."""
    for at_ps, rounds in ((3017, 3), (3018, 3), (3019, 4)):
        executor = by_hand((0, Ask(0, 1), 99), (at_ps, Ask(1, 1), 99))
        executor.run(Round(0, (Admit(0, SMALL, 1),), (0,), 1, True))
        assert executor.now_ps == 1003
        outcome = executor.run(Round(1, (), (0,), 4, wakes))
        assert outcome.rounds == (rounds - 1 if wakes else 4)
        assert executor.now_ps == (3018, 4030)[rounds - 3] if wakes else 5045
        # The first round that could know of it is the one after its arrival.
        assert [f.round for f in executor.facts(1 + outcome.rounds)] == [rounds]


def test_a_cancel_ends_a_repeated_round_where_an_arrival_does_not() -> None:
    executor = by_hand((0, Ask(0, 1), 99), cancels=((2009, 0), (3018, 0)))
    executor.run(Round(0, (Admit(0, SMALL, 1),), (0,), 1, True))
    assert executor.run(Round(1, (), (0,), 4, False)).rounds == 1
    assert executor.run(Round(2, (), (0,), 4, False)).rounds == 1
    assert executor.run(Round(3, (), (0,), 4, False)).rounds == 4
    assert [(f.round, f.cancel) for f in executor.facts(7)] == [(7, 0), (7, 0)]


def test_repeated_grants_end_with_the_one_in_which_something_arrives() -> None:
    """Four grants of 4 tokens, 114 each: ends at 114, 228, 342, 456."""
    for at_ps, rounds in ((227, 2), (228, 2), (229, 3)):
        executor = by_hand((0, Ask(0, 99), 9), (at_ps, Ask(1, 1), 9))
        outcome = executor.run(Round(0, (Grant(0, 0, 4, 1, False),), (), 4, True))
        assert (outcome.rounds, executor.now_ps) == (rounds, 114 * rounds)
        assert executor.rounds.rows == [(0, 0, 114 * rounds, rounds, 0, 0, 114, 114)]
        assert [f.round for f in executor.facts(rounds)] == [rounds]


def test_a_repeated_round_ends_with_the_first_reply_that_ends() -> None:
    executor = by_hand((0, Ask(0, 1), 4), (0, Ask(1, 1), 3))
    executor.run(Round(0, (Admit(0, SMALL, 1), Admit(1, LARGE, 1)), (0, 1), 1, True))
    outcome = executor.run(Round(1, (), (0, 1), 50, True))
    assert (outcome.rounds, outcome.stopped) == (2, (1,))
    outcome = executor.run(Round(3, (End(1, "finished", "", LARGE),), (0,), 1, True))
    assert (outcome.rounds, outcome.stopped) == (1, (0,))
    assert executor.records[1].end_ps == executor.rounds.rows[2][1]
    assert not executor.wait()


def test_waiting_jumps_to_the_next_arrival_and_never_back() -> None:
    executor = by_hand((0, Ask(0, 1), 4), (500, Ask(1, 1), 4))
    executor.run(Round(0, (Admit(0, SMALL, 1),), (0,), 1, True))
    assert executor.wait()
    assert executor.now_ps == 1003
    assert len(executor.facts(1)) == 1
    later = by_hand((0, Ask(0, 1), 4), (500, Ask(1, 1), 4))
    assert later.wait()
    assert later.now_ps == 500


def test_a_refused_request_ends_as_it_comes() -> None:
    executor = by_hand((0, Ask(0, 1), 4), (7, Ask(1, 1), 4))
    executor.run(Round(0, (Admit(0, SMALL, 1),), (0,), 1, True))
    executor.facts(1)
    executor.run(Round(1, (End(1, "refused", "too long"),), (0,), 1, True))
    refused = executor.records[1]
    assert (refused.end_ps, refused.held_row_ps, refused.admitted_ps) == (7, 0, -1)
    assert (refused.outcome, refused.reason) == ("refused", "too long")
