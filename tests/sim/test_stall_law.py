"""The stall law, and the published series it has to reproduce from two of them."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwisp.cost import load_cost
from qwisp.cost.model import PS_PER_S
from qwisp.scheduling.chunking import num_rounds
from qwisp.sim.stall_law import grant_spans, stall_law

COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
budgets = st.sampled_from([0, 1, 1024, 1025, 2048, 3000, 8192])


@given(st.integers(1, 60_000), budgets, st.integers(0, 16))
def test_grants_tile_the_prompt_in_k_rounds(prompt, budget, running):
    spans = list(grant_spans(COST, prompt, budget_tokens=budget, running=running))
    at = 0
    for span in spans:
        assert span.start == at
        at += span.tokens
    assert at == prompt
    assert len(spans) == num_rounds(-(-prompt // 1024), budget, 1024, running)


@given(st.integers(1, 60_000), budgets, budgets, st.integers(1, 8))
def test_the_sum_is_conserved_but_for_the_cost_of_rounds(prompt, first, second, running):
    laws = [
        stall_law(COST, prompt, budget_tokens=b, stream_gaps=500, running=running)
        for b in (first, second)
    ]
    per_round = COST.round_ps + COST.step_ps(running)
    assert laws[0].sum_ps - laws[1].sum_ps == (laws[0].k - laws[1].k) * per_round


@given(st.integers(1, 60_000), budgets, st.integers(1, 8))
def test_the_worst_stall_is_at_least_the_sum_over_k(prompt, budget, running):
    law = stall_law(COST, prompt, budget_tokens=budget, stream_gaps=500, running=running)
    assert law.worst_ps * law.k >= law.sum_ps


@given(st.integers(1, 40), st.integers(40, 600), st.sampled_from(["0.5", "0.9", "0.99"]))
def test_a_percentile_is_clean_exactly_when_fewer_gaps_stall_than_its_share(k, gaps, p):
    law = stall_law(COST, k * 1024, budget_tokens=1024, stream_gaps=gaps)
    assert law.k == k
    at = sorted([0] * (gaps - k) + [1] * k)
    # Nearest rank: the smallest value with at least p of the gaps at or below it. Where k is
    # exactly the share, that value is still clean, and the law calls it not: it is the safe side.
    rank = -((-Fraction(p) * gaps) // 1)
    if law.is_clean(p):
        assert at[int(rank) - 1] == 0
    elif Fraction(k, gaps) > 1 - Fraction(p):
        assert at[int(rank) - 1] == 1


@pytest.fixture(scope="module")
def published(request):
    truth_dir = request.getfixturevalue("truth_dir")
    return json.loads((truth_dir / "measurements.json").read_text())


@pytest.mark.truth
@pytest.mark.parametrize("row", range(5))
def test_the_12k_sweep_is_reproduced(published, row):
    sweep = published["qwisp_token_budget_sweep"]
    budget, rounds, _, p90_ms, p99_ms, worst_ms, sum_s = sweep["rows"][row]
    law = stall_law(COST, sweep["prompt_tokens"], budget_tokens=budget, stream_gaps=500)
    own_s = sweep["stalls_s"][str(budget)][0]
    assert law.k + 1 == rounds, "one more is the stream's own short prefill"
    assert law.worst_ps / PS_PER_S == pytest.approx(worst_ms / 1000, rel=0.05)
    assert law.sum_ps / PS_PER_S + own_s == pytest.approx(sum_s, rel=0.04)
    clean = stall_law(COST, (rounds) * 1024, budget_tokens=1024, stream_gaps=500)
    assert clean.is_clean("0.99") == (p99_ms < 100)
    assert clean.is_clean("0.90") == (p90_ms < 100)


@pytest.mark.truth
def test_the_24k_series_is_reproduced(published):
    series = published["qwisp_token_budget_24k"]
    law = stall_law(COST, series["prompt_tokens"], budget_tokens=series["budget"], stream_gaps=44)
    assert law.k == len(series["stalls_s"])
    assert law.worst_ps / PS_PER_S == pytest.approx(max(series["stalls_s"]), rel=0.05)
    off = stall_law(COST, series["prompt_tokens"], budget_tokens=0, stream_gaps=44)
    assert off.worst_ps / PS_PER_S == pytest.approx(series["off_single_stall_s"], rel=0.05)


@pytest.mark.truth
def test_the_first_token_of_30778_tokens_on_an_idle_engine_is_within_a_fifth(published):
    run = published["qwisp_lane_ab"]
    spans = grant_spans(COST, run["prompt_tokens"], budget_tokens=run["budget"], running=0)
    ttft_ps = sum(COST.round_ps + COST.grant_ps(*span) for span in spans) + COST.step_ps(1)
    assert ttft_ps / PS_PER_S == pytest.approx(run["ttft_ms"] / 1000, rel=0.20)
