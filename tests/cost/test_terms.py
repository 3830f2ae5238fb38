"""Every coefficient alone, every rule of the points a calibration is fitted from."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from qwisp.cost import CostModel, load_cost
from qwisp.cost.fit import decode_ps, fit_copies, fit_decode, least_absolute, prefill_ps
from qwisp.cost.measured import CopyPoint, DecodePoint, PrefillPoint
from qwisp.cost.model import PS_PER_S, Residual
from qwisp.cost.offered import best_width, offered_load, solo_e2e_ps, solo_prefill_ps
from qwisp.cost.timed import (
    TimedRound,
    calibration_asks,
    hold_out,
    measured_points,
)
from qwisp.errors import BadInput
from qwisp.scheduling.contract import Admit, Capture, Drop, End, Grant, Move, Outcome, Place, Round
from qwisp.trace.request import Request, Trace

FREE = CostModel(
    name="free",
    machine="desk",
    model="toy",
    chunk_tokens=4,
    chunk_rule="ceil",
    round_ps=0,
    chunk_ps=0,
    token_ps=0,
    depth_ps=0,
    step_ps_by_width=((2, 100), (4, 140)),
    copy_bytes_per_s=1,
)
PLACE = Place(0, 0, 100, 100)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # A prompt of 10 tokens: 3 chunks, in rounds of 2 chunks 2 of them; depths 0 + 1 + ... + 9.
        ({"round_ps": 7}, 14),
        ({"chunk_ps": 7}, 21),
        ({"token_ps": 7}, 70),
        ({"depth_ps": 7}, 7 * 45),
        # Inside a window of 4: 0 + 1 + 2 + 3, then 6 times 4; one of 10 never fills.
        ({"window_depth_ps": 7, "window_tokens": 4}, 7 * (6 + 24)),
        ({"window_depth_ps": 7, "window_tokens": 10}, 7 * 45),
        ({"window_depth_ps": 7, "window_tokens": 9}, 7 * 45),
        ({"window_depth_ps": 7, "window_tokens": 8}, 7 * 44),
        # 9 tokens where the last one is left to decode: still 3 chunks, depths to 8.
        ({"chunk_rule": "aligned", "chunk_ps": 7}, 21),
        ({"chunk_rule": "aligned", "token_ps": 7}, 63),
        ({"chunk_rule": "aligned", "depth_ps": 7}, 7 * 36),
    ],
)
def test_a_coefficient_alone_costs_what_it_counts(changes: dict, expected: int) -> None:
    cost = replace(FREE, **changes)
    assert solo_prefill_ps(cost, np.array([10, 10]), 8).tolist() == [expected] * 2
    tokens = 10 - (cost.chunk_rule == "aligned")
    assert cost.grant_ps(0, tokens, 3) + 2 * cost.round_ps == expected
    # As Python's integers, where 64 bits would not hold it.
    huge = replace(cost, **{k: v * 10**20 for k, v in changes.items() if k.endswith("_ps")})
    assert solo_prefill_ps(huge, np.array([10]), 8).tolist() == [expected * 10**20]


def test_a_grant_further_down_costs_the_rows_before_it() -> None:
    assert replace(FREE, depth_ps=1).grant_ps(5, 3, 1) == 5 + 6 + 7
    windowed = replace(FREE, window_depth_ps=1, window_tokens=6)
    assert windowed.grant_ps(5, 3, 1) == 5 + 6 + 6
    assert windowed.grant_ps(9, 3, 1) == 18
    assert replace(windowed, depth_ps=1).grant_ps(5, 3, 1) == 17 + 18
    assert replace(FREE, chunk_ps=2, token_ps=3).grant_ps(5, 3, 4) == 8 + 9


def test_widths_outside_the_table_on_either_side_continue_the_nearest_slope() -> None:
    assert [FREE.step_ps(w) for w in (0, 1, 2, 3, 4, 5, 9)] == [0, 80, 100, 120, 140, 160, 240]
    assert [FREE.is_extrapolated(w) for w in (1, 2, 3, 4, 5)] == [True, False, False, False, True]
    three = replace(FREE, step_ps_by_width=((2, 100), (4, 140), (8, 340)))
    assert [three.step_ps(w) for w in (1, 3, 4, 6, 8, 10)] == [80, 120, 140, 240, 340, 440]
    steep = replace(FREE, step_ps_by_width=((4, 100), (5, 200)))
    assert steep.step_ps(1) == 0  # a step never takes less than nothing
    assert not replace(FREE, step_ps_by_width=()).is_extrapolated(1)


def test_a_copy_costs_its_bytes_rounded_down_to_a_picosecond() -> None:
    cost = replace(FREE, copy_bytes_per_s=3)
    assert [cost.copy_ps(n) for n in (0, 1, 3)] == [0, PS_PER_S // 3, PS_PER_S]


def test_a_request_alone_adds_its_steps_and_the_rows_before_each() -> None:
    cost = replace(FREE, round_ps=1000, row_ps=2)
    # 2 rounds of 2 chunks; 3 steps of 80; rows 10, 11, 12
    assert solo_e2e_ps(cost, np.array([10]), np.array([3]), 8).tolist() == [2000 + 240 + 66]
    assert solo_e2e_ps(cost, np.array([10]), np.array([0]), 0).tolist() == [1000]
    lengths = [10**9], [10**6]
    # Rows alone: 10^9 rows 10^6 times, and 0 + 1 + ... + 999,999 of the reply.
    rows = 10**15 + 10**6 * (10**6 - 1) // 2
    rounds = -(-(10**9) // 8)
    found = solo_e2e_ps(replace(cost, row_ps=10**6), *map(np.array, lengths), 8).tolist()
    assert found == [1000 * rounds + 80 * 10**6 + 10**6 * rows]


def test_load_and_capacity_are_requests_over_the_span_and_over_their_time() -> None:
    trace = Trace(
        name="made",
        requests=(Request(0, 0, 10, 3), Request(1, 0, 6, 1), Request(2, 4 * 10**9, 8, 4)),
        source="test",
    )
    cost = replace(FREE, token_ps=PS_PER_S, step_ps_by_width=((1, PS_PER_S), (2, PS_PER_S)))
    load = offered_load(trace, cost)
    # 24 prompt tokens at 1 s, 8 reply tokens at half a second: 28 s for 3, asked within 4 s.
    assert (load.num_requests, load.best_width, load.span_s) == (3, 2, 4)
    assert (load.exact_ratio, load.ratio, load.num_machines) == (7, 7.0, 7)
    assert load.mean_service_s == 28 / 3
    assert load.capacity_requests_per_s == pytest.approx(3 / 28, rel=1e-15)
    assert load.load_requests_per_s == 0.75
    assert (load.prompt_tokens_per_s, load.output_tokens_per_s) == (6, 2)
    assert str(load) == (
        "0.75 requests/s offered, 0.107 served at best: load 7.00, needs 7 such machines"
    )
    five = replace(trace, requests=(*trace.requests[:2], Request(2, 5 * 10**9, 8, 4)))
    assert offered_load(five, cost).num_machines == 6  # 5.6 of them
    easy = replace(trace, requests=(*trace.requests[:2], Request(2, 40 * 10**9, 8, 4)))
    found = offered_load(easy, cost)
    assert (found.exact_ratio, found.num_machines) == (Fraction(28, 40), 1)
    assert str(found).endswith("load 0.70, needs one such machine")
    assert best_width(replace(cost, step_ps_by_width=((1, 10), (2, 20), (4, 40)))) == 1


def rounds_by_hand() -> list[TimedRound]:
    admits = (Admit(0, PLACE, 9), Admit(1, PLACE, 5))
    grant = Grant(0, 0, 4, 1, False)
    return [
        TimedRound(Round(0, (*admits, grant), (), 2, True), Outcome(2), 4.0),
        TimedRound(Round(2, (Grant(1, 0, 4, 1, True),), (1,), 1, True), Outcome(1), 3.0),
        TimedRound(Round(3, (), (0, 1), 4, True), Outcome(4, ((1, 7),)), 8.0),
        TimedRound(Round(7, (), (0, 1), 1, True), Outcome(1), 5.0),
        TimedRound(Round(8, (Move(1, PLACE, PLACE, 3),), (0, 1), 1, True), Outcome(1), 6.0),
        TimedRound(Round(9, (grant, grant), (0,), 1, True), Outcome(1), 6.0),
        TimedRound(Round(10, (grant, Capture(0, 1, 4)), (0,), 1, True), Outcome(1), 6.0),
        TimedRound(Round(11, (End(1, "finished", ""), Drop(3)), (0,), 1, True), Outcome(1), 6.0),
        TimedRound(Round(12, (), (0,), 1, True), Outcome(1, (), (), ((0, "x"),)), 6.0),
    ]


def test_points_of_rounds_hold_the_rows_that_were_in_use() -> None:
    prefill, decode = measured_points(rounds_by_hand())
    assert [tuple(p)[1:] for p in prefill] == [
        # seconds, rounds, chunks, start, tokens, width, steps, rows, used, times
        (4.0, 2, 2, 0, 8, 0, 2, 0, True, 1),
        (3.0, 1, 1, 0, 4, 1, 1, 5, True, 1),
    ]
    # At the middle of 4 steps: 9 + 6 rows and 2 lanes x 3 / 2. Then 4 and 7 tokens are there.
    assert [tuple(p)[1:4] for p in decode] == [(2.0, 2, 18), (5.0, 2, 13 + 13)]
    assert prefill[0].label == "8 tokens from 0 in 2 chunks, 2 rounds, beside 0 lanes"
    assert decode[0].label == "2 lanes, 18 rows"
    twice = measured_points([*rounds_by_hand(), *rounds_by_hand()])
    assert [p.times for p in twice[0]] == [2, 2]


def test_a_prefill_and_the_steps_inside_it_are_charged_apart() -> None:
    cost = replace(FREE, round_ps=1000, chunk_ps=100, token_ps=10, row_ps=1)
    point = PrefillPoint("", 1.0, 3, 5, 0, 8, width=2, steps=4, rows=7)
    assert decode_ps(cost, point) == 4 * (100 + 7)
    assert prefill_ps(cost, point) == 3 * 1000 + 500 + 80 + 428
    assert decode_ps(cost, point._replace(width=0)) == 0


def test_decode_is_a_weighted_median_a_width_and_a_slope_that_is_never_negative() -> None:
    points = [DecodePoint("", s, 1, 0, times=t) for s, t in ((1.0, 1), (2.0, 9), (4.0, 1))]
    # Of relative errors: weights 1, 4.5 and 0.25.
    assert fit_decode(points) == (((1, 2 * PS_PER_S),), 0)
    assert fit_decode([*points, points[2]._replace(times=100)])[0] == ((1, 4 * PS_PER_S),)
    left_out = [*points, DecodePoint("", 9.0, 3, 0, used=False)]
    assert fit_decode(left_out)[0] == ((1, 2 * PS_PER_S),)
    slope = [DecodePoint("", 1.0 + n / 4, 2, n) for n in (0, 4, 8)]
    assert fit_decode(slope) == (((2, PS_PER_S),), PS_PER_S // 4)
    with pytest.raises(BadInput, match="no time"):
        fit_decode([DecodePoint("", 1.0, 0)])
    # Through the origin a step without rows would take nothing: then rows cost nothing.
    assert fit_decode([DecodePoint("", 1.0, 1, 1), DecodePoint("", 2.0, 1, 2)])[1] == 0


def test_of_equally_good_fits_one_through_as_many_points_as_unknowns_is_taken() -> None:
    """Losses are 10 anywhere from (0, 0.5) to (0, 1): only the ends meet points or zeros twice."""
    design = np.array([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0], [0.0, 2.0]])
    seconds = np.array([1.0, 5.0, 0.0, 3.0])
    found = least_absolute(design, seconds, np.array([1.0, 1.0, 2.0, 2.0]))
    zeros = (abs(design @ found - seconds) < 1e-9).sum() + (found < 1e-9).sum()
    assert zeros >= 2
    assert (abs(design @ found - seconds) @ [1, 1, 2, 2]) == pytest.approx(10)


def test_the_speed_of_copies_is_the_median() -> None:
    assert fit_copies([CopyPoint("", 2.0, 10), CopyPoint("", 1.0, 8), CopyPoint("", 1.0, 90)]) == 8


def test_points_kept_for_the_fit_are_spread_and_hold_both_ends() -> None:
    points = [PrefillPoint("", 1.0, 1, 1, 0, n) for n in range(1, 8)]
    assert [p.tokens for p in hold_out(points, 3) if p.used] == [1, 4, 7]
    assert [p.tokens for p in hold_out(points, 1) if p.used] == [1]
    assert [p.tokens for p in hold_out(points, 99) if p.used] == [1, 2, 3, 4, 5, 6, 7]
    assert hold_out([], 3) == ()


def test_the_requests_of_a_calibration_halve_and_end_one_after_the_other() -> None:
    asks = calibration_asks(64, 2048, 8, steps_per_width=10)
    assert [a.prompt_tokens for a in asks] == [1024, 512, 256, 128, 64, 32, 1024, 512]
    # Rounds of 64 tokens for those behind, then 10 steps more than whoever ends before.
    behind = [8 + 4 + 2 + 1 + 1 + 16 + 8, 4 + 2 + 1 + 1 + 16 + 8, 2 + 1 + 1 + 16 + 8]
    behind += [1 + 1 + 16 + 8, 1 + 16 + 8, 16 + 8, 8, 0]
    assert [a.max_new for a in asks] == [b + 10 * (i + 1) for i, b in enumerate(behind)]
    assert calibration_asks(64, 100, 1)[0].prompt_tokens == 64


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [(0, [1, 1, 1, 1]), (4, [1, 1, 2, 3]), (6, [1, 1, 1, 2]), (1, [1, 1, 2, 3])],
)
def test_a_solo_prefill_takes_rounds_of_whole_chunks_rounded_up(budget: int, rounds) -> None:
    # 1, 1, 2 and 3 chunks of 4 tokens; a budget of 6 grants two of them, 0 the whole prompt.
    cost = replace(FREE, round_ps=1)
    assert solo_prefill_ps(cost, np.array([1, 4, 5, 12]), budget).tolist() == rounds


def test_a_residual_is_positive_where_the_fit_is_too_slow() -> None:
    assert Residual("", 2.0, 3.0, True).error == 0.5


def test_prompts_of_a_billion_tokens_cost_more_and_not_less() -> None:
    cost = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
    ladder = solo_prefill_ps(cost, np.array([10**n for n in range(10)])).tolist()
    assert ladder == sorted(ladder)
    n = 10**9
    assert ladder[-1] > cost.depth_ps * (n * (n - 1) // 2) > 2**63
