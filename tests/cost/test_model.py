from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwisp.cost import CostModel, depth_sum
from qwisp.errors import NotCalibrated

TOY = CostModel(
    name="toy",
    machine="desk",
    model="toy",
    chunk_tokens=64,
    chunk_rule="aligned",
    round_ps=7,
    chunk_ps=1001,
    token_ps=13,
    depth_ps=3,
    window_depth_ps=5,
    window_tokens=100,
    step_ps_by_width=((1, 1000), (2, 2600), (4, 3000)),
    copy_bytes_per_s=10**9,
)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 200))
def test_depth_sum_equals_the_sum_over_tokens(start, tokens, window):
    rows = [min(p, window) if window else p for p in range(start, start + tokens)]
    assert depth_sum(start, tokens, window) == sum(rows)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), st.integers(0, 500))
def test_a_prefill_costs_the_same_however_its_tokens_are_cut(cuts, start):
    at, parts = start, 0
    for tokens in cuts:
        parts += TOY.grant_ps(at, tokens, 1)
        at += tokens
    assert parts == TOY.grant_ps(start, sum(cuts), len(cuts))


def test_a_step_is_interpolated_between_measured_widths_and_may_be_slower_than_two_alone():
    assert [TOY.step_ps(w) for w in (0, 1, 2, 3, 4)] == [0, 1000, 2600, 2800, 3000]
    assert Fraction(TOY.step_ps(2), 2) > TOY.step_ps(1)


def test_widths_beyond_the_table_continue_its_last_slope_and_say_so():
    assert TOY.step_ps(16) == 3000 + 12 * 200
    assert [TOY.is_extrapolated(w) for w in (1, 3, 4, 5)] == [False, False, False, True]


def test_a_lone_width_is_not_held_to_be_free_for_more_lanes():
    lone = replace(TOY, step_ps_by_width=((2, 1000),))
    assert [lone.step_ps(w) for w in (1, 2, 4)] == [1000, 1000, 2000]


def test_a_copy_costs_its_bytes_over_the_bandwidth():
    assert TOY.copy_ps(10**9) == 10**12
    assert TOY.copy_ps(0) == 0


def test_an_unmeasured_decode_is_refused_with_the_remedy():
    model = replace(TOY, step_ps_by_width=())
    assert model.require(decode=False) is model
    with pytest.raises(NotCalibrated, match=r"decode of toy on desk(.|\n)*qwisp calibrate"):
        model.step_ps(1)


def test_an_unmeasured_prefill_is_refused_with_the_remedy():
    model = replace(TOY, round_ps=None, chunk_ps=None, token_ps=None, depth_ps=None)
    assert model.step_ps(1) == 1000
    with pytest.raises(NotCalibrated, match=r"prefill of toy on desk(.|\n)*qwisp calibrate"):
        model.grant_ps(0, 1, 1)
