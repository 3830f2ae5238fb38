"""Replays with shared prefixes: closed form, facts and tiers on random groups and conversations."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from qwisp.cost import CostModel, load_cost
from qwisp.facts.record import Recorded, facts_of
from qwisp.facts.replay import replay_records
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.contract import Ask
from qwisp.scheduling.drive import drive
from qwisp.scheduling.layout import RowBytes, parse_layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.wrappers import Stepwise
from qwisp.sim.block_lru import block_lru
from qwisp.sim.cost_executor import CostExecutor
from qwisp.sim.record import RequestRecord
from qwisp.sim.replay import replay, settings_for
from qwisp.spec.catalog import load_model
from qwisp.trace.read import read_trace
from qwisp.trace.request import Request, Trace
from qwisp.units import GIB

SIZE = RowBytes(1, 20)
STEP = 64
LAYOUTS = (
    "2500,1500x2,800x3",
    "2500x3",
    "whole_window:3",
    "fixed_arena:2200",
    "per_request:6000",
    "per_request:3500",
)
SEEDS = 120


def random_workload(rng: Random) -> tuple[list, list]:
    """Fan-outs that share a prefix, conversations that grow, and loners; some are cancelled."""
    now_ps, number, asks, cancels = 0, 0, [], []
    fresh = iter(range(10**6, 10**9))
    while number < rng.randint(5, 30):
        now_ps += rng.choice([0, rng.randint(0, 50_000), rng.randint(0, 2_000_000)])
        shared = [next(fresh) for _ in range(rng.randint(1, 20))]
        grows, history = rng.random() < 0.4, list(shared)
        for _ in range(rng.randint(1, 5)):
            now_ps += rng.choice([0, 0, rng.randint(0, 40_000), rng.randint(0, 900_000)])
            own = [next(fresh) for _ in range(rng.randint(0, 8))]
            prefix = tuple((history if grows else shared) + own)
            prompt = len(prefix) * STEP - rng.choice([0, 0, rng.randint(0, STEP - 1)])
            output = rng.choice([1, rng.randint(1, 20), rng.randint(1, 200)])
            asks.append((now_ps, Ask(number, prompt, rng.choice([None, output]), prefix), output))
            if rng.random() < 0.1:
                cancels.append((now_ps + rng.randint(0, 400_000), number))
            history, number = list(prefix), number + 1
    return asks, cancels


def run_seed(seed: int, *, stepwise: bool) -> tuple[Scheduler, CostExecutor, Recorded]:
    rng = Random(seed)
    chunk = rng.choice([16, 64, 100, 256])
    cost = CostModel(
        name="random",
        machine="none",
        model="none",
        chunk_tokens=chunk,
        chunk_rule=rng.choice(["aligned", "ceil"]),
        round_ps=rng.choice([0, 70]),
        chunk_ps=rng.choice([0, 900]),
        token_ps=rng.randint(0, 9),
        depth_ps=rng.choice([0, 1]),
        step_ps_by_width=((1, 400), (3, 700)),
        row_ps=rng.choice([0, 1]),
        copy_bytes_per_s=rng.choice([10**9, 10**12]),
    )
    settings = settings_for(
        cost,
        order=rng.choice(["fcfs", "first_fit", "sjf"]),
        max_passed=rng.choice([0, 1, 64]),
        grow_tokens=rng.choice([8, 8192]),
        budget_tokens=rng.choice([0, 1, 64, 300, 1024]),
        prefix_bytes=rng.choice([0, 1500, 5000, 40_000]),
        prefix_step_tokens=STEP,
        boundary_tokens=rng.choice([1, STEP, 512]),
        min_shared_tokens=rng.choice([64, 300]),
    )
    layout = parse_layout(
        rng.choice(LAYOUTS),
        size=SIZE,
        memory_bytes=8000,
        model_context_tokens=2500,
        own_context_tokens=1000,
    )
    asks, cancels = random_workload(rng)
    scheduler = Scheduler(RowSpace(layout, SIZE), settings)
    inner = CostExecutor(asks, cost, SIZE, cancels=cancels)
    recorded = Recorded(Stepwise(inner) if stepwise else inner)
    drive(scheduler, recorded)
    scheduler.check()
    return scheduler, inner, recorded


def life(record: RequestRecord) -> list[object]:
    return [getattr(record, name) for name in RequestRecord.__slots__]


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_closed_form_and_single_steps_agree_in_every_decision_and_time(first: int) -> None:
    for seed in range(first, first + 40):
        (closed, ours, _), (single, theirs, _) = (
            run_seed(seed, stepwise=False),
            run_seed(seed, stepwise=True),
        )
        assert closed.log == single.log, seed
        assert ours.now_ps == theirs.now_ps, seed
        assert [*map(life, ours.records.values())] == [*map(life, theirs.records.values())], seed


def test_the_facts_alone_give_the_same_log_and_the_runs_hold_what_they_should() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        scheduler, _, recorded = run_seed(seed, stepwise=False)
        layout, settings = scheduler.space.layout, scheduler.settings
        again = replay_records(facts_of(recorded), layout, SIZE, settings)
        assert again.log == scheduler.log, seed
        seen.update(entry.kind for entry in scheduler.log)
        seen.update(entry.what.resource for entry in scheduler.log if entry.kind == "wait")
    for kind in ("restore", "capture", "prefix in flight", "cancelled", "refused"):
        assert seen[kind] >= 20, seen


FLAT = CostModel(
    name="flat",
    machine="none",
    model="none",
    chunk_tokens=64,
    chunk_rule="aligned",
    round_ps=0,
    chunk_ps=0,
    token_ps=1000,
    depth_ps=0,
    step_ps_by_width=((1, 1),),
    copy_bytes_per_s=10**12,  # a picosecond a byte
)


def test_a_restored_prompt_is_charged_for_what_is_left_and_for_the_copy() -> None:
    cost = FLAT
    prefix = tuple(range(1, 17))
    asks = [(at, Ask(i, 1024, 2, prefix), 2) for i, at in enumerate((0, 10**9))]
    layout = parse_layout("2000x2", size=SIZE, memory_bytes=8000, model_context_tokens=2000)
    settings = settings_for(
        cost, prefix_bytes=9000, prefix_step_tokens=64, boundary_tokens=1, min_shared_tokens=64
    )
    executor = CostExecutor(asks, cost, SIZE)
    drive(Scheduler(RowSpace(layout, SIZE), settings), executor)
    first, second = executor.records.values()
    copy_ps = SIZE.bytes(1023)
    assert first.first_ps - first.arrival_ps == 1023 * 1000 + copy_ps + 1
    assert second.cached_tokens == 1023
    assert second.first_ps - second.arrival_ps == copy_ps + 1


def test_the_cached_share_is_that_of_finished_prompts() -> None:
    """A million tokens that were refused are no prompt that the store could have served."""
    prefix = tuple(range(1, 17))
    requests = (
        Request(0, 0, 1024, 2, None, prefix),
        Request(1, 10**9, 1024, 2, None, prefix),
        Request(2, 2 * 10**9, 10**6, 2, None, ()),
    )
    layout = parse_layout("2500x2", size=SIZE, memory_bytes=8000, model_context_tokens=2500)
    settings = settings_for(
        FLAT, prefix_bytes=9000, prefix_step_tokens=64, boundary_tokens=1, min_shared_tokens=64
    )
    trace = Trace(name="three", requests=requests, source="hand", prefix_step_tokens=64)
    summary = replay(trace, layout, SIZE, FLAT, settings).summary
    assert (summary.finished, summary.refused) == (2, 1)
    assert summary.cached == 1023 / (1024 + 1024)


@pytest.mark.truth
def test_the_store_gets_what_the_block_cache_of_its_size_gets_and_never_everything(
    traces_dir,
) -> None:
    trace = read_trace(traces_dir / "mooncake_conversation.jsonl")
    size, cost = (
        SessionBytes(load_model("qwen3.6-35b-a3b")),
        load_cost("qwen3.6-35b-a3b", "m1-max-64gb"),
    )
    layout = parse_layout(
        "131072x2,65536x3,32768x3,16384x11",
        size=size,
        memory_bytes=40 * GIB,
        model_context_tokens=262_144,
    )
    cached = []
    for prefix_bytes in (0, 8 * GIB, 64 * GIB, 10**13):
        run = replay(trace, layout, size, cost, settings_for(cost, prefix_bytes=prefix_bytes))
        run.scheduler.check()
        assert (run.requests["cached_tokens"] < run.requests["prompt_tokens"]).all()
        cached.append(run.summary.cached)
    assert cached[0] == 0
    assert cached == sorted(cached)
    # Whole blocks of whole prompts, kept at their ends alone: less than every block for ever.
    assert 0.1 < cached[-1] < block_lru(trace.requests)
