"""The published runs, replayed by scheduler and simulator: k, worst, sum, first token."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwisp.cost import load_cost
from qwisp.cost.model import PS_PER_S
from qwisp.memory.session_bytes import SessionBytes
from qwisp.scheduling.layout import Layout
from qwisp.sim.replay import replay, settings_for
from qwisp.sim.stall_law import stall_law
from qwisp.sim.stalls import idle_first_token_s, replayed_stalls
from qwisp.spec.catalog import load_model
from qwisp.trace.request import Request, Trace
from qwisp.units import GIB

COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")


@pytest.fixture(scope="module")
def published(request):
    truth_dir = request.getfixturevalue("truth_dir")
    return json.loads((truth_dir / "measurements.json").read_text())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40_000), st.sampled_from([0, 1, 1024, 1025, 2048, 3000, 8192]))
def test_the_law_is_what_the_scheduler_does_to_the_picosecond(prompt, budget):
    _, *stalls = replayed_stalls(COST, prompt, budget_tokens=budget, stream_tokens=500)
    law = stall_law(COST, prompt, budget_tokens=budget, stream_gaps=500)
    assert tuple(stalls) == law.stalls_ps


@pytest.mark.truth
@pytest.mark.parametrize("row", range(5))
def test_the_12k_sweep_is_reproduced_with_the_own_prefill_replayed(published, row):
    sweep = published["qwisp_token_budget_sweep"]
    budget, rounds, _, _, _, worst_ms, sum_s = sweep["rows"][row]
    stalls = replayed_stalls(
        COST,
        sweep["prompt_tokens"],
        budget_tokens=budget,
        stream_tokens=sweep["stream_tokens"],
    )
    assert len(stalls) == rounds
    assert max(stalls) / PS_PER_S == pytest.approx(worst_ms / 1000, rel=0.05)
    assert sum(stalls) / PS_PER_S == pytest.approx(sum_s, rel=0.04)


@pytest.mark.truth
def test_the_24k_series_is_reproduced(published):
    series = published["qwisp_token_budget_24k"]
    stalls = replayed_stalls(
        COST, series["prompt_tokens"], budget_tokens=series["budget"], stream_tokens=45
    )
    assert len(stalls[1:]) == len(series["stalls_s"])
    assert max(stalls) / PS_PER_S == pytest.approx(max(series["stalls_s"]), rel=0.05)


@pytest.mark.truth
def test_the_idle_first_token_is_within_a_fifth(published):
    run = published["qwisp_lane_ab"]
    found = idle_first_token_s(COST, run["prompt_tokens"], budget_tokens=run["budget"])
    assert found == pytest.approx(run["ttft_ms"] / 1000, rel=0.20)


def _burst(prefix_bytes):
    """Three equal prompts within 3 ms on an idle engine of three lanes, as published."""
    prompt_tokens, rows = 30778, 30795
    keys = tuple(range(1, -(-prompt_tokens // 512) + 1))
    requests = tuple(Request(i, i * 1_500_000, prompt_tokens, 17, None, keys) for i in range(3))
    layout = Layout.windows(3, rows)
    return replay(
        Trace(name="burst", requests=requests, source="generated"),
        layout,
        SessionBytes(load_model("qwen3.6-35b-a3b")),
        COST,
        settings_for(COST, budget_tokens=2048, prefix_bytes=prefix_bytes, boundary_tokens=1),
    )


def test_of_three_equal_prompts_two_wait_for_the_blob_of_the_first():
    run = _burst(prefix_bytes=2 * GIB)
    at = {(e.kind, e.id): e for e in run.log}
    assert at["wait", 1].detail == ("prefix in flight",)
    captured = at["capture", 0].round
    for waiting in (1, 2):
        assert at["admit", waiting].round == captured + 1
        assert at["restore", waiting].detail == (30777,)
    assert ("wait", 0) not in at
    assert run.counts["finished"] == 3


def test_without_a_store_the_burst_prefills_three_times():
    with_store, without = _burst(2 * GIB), _burst(0)
    last = [max(r.first_ps for r in run.executor.records.values()) for run in (with_store, without)]
    assert 2.9 < last[1] / last[0] < 3.1


@pytest.mark.truth
def test_the_burst_has_its_first_tokens_as_published(published):
    run = _burst(prefix_bytes=2 * GIB)
    last_s = max(r.first_ps for r in run.executor.records.values()) / PS_PER_S
    published_s = published["qwisp_lane_ab"]["three_concurrent_ttft_ms"] / 1000
    assert last_s == pytest.approx(published_s, rel=0.20)
