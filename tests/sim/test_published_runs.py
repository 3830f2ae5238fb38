"""The published runs, replayed by scheduler and simulator: k, worst, sum, first token."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwisp.cost import load_cost
from qwisp.cost.model import PS_PER_S
from qwisp.sim.stall_law import stall_law
from qwisp.sim.stalls import idle_first_token_s, replayed_stalls

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
