import csv
from datetime import datetime
from fractions import Fraction

import numpy as np
import pytest

from qwisp.cost import load_cost
from qwisp.cost.model import PS_PER_S
from qwisp.cost.offered import best_width, offered_load, solo_prefill_ps
from qwisp.errors import BadTrace, NotCalibrated
from qwisp.sim.stall_law import grant_spans
from qwisp.trace.request import Request, Trace

COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")


def _trace(*rows):
    requests = tuple(Request(i, *row) for i, row in enumerate(rows))
    return Trace(name="toy", source="test", requests=requests)


@pytest.mark.parametrize("budget", [0, 1, 1024, 2048, 5000])
@pytest.mark.parametrize(
    "pair", [("qwen3.6-35b-a3b", "m1-max-64gb"), ("gemma-4-26b-a4b", "m5-max-36gb")]
)
def test_solo_prefill_equals_the_sum_of_its_rounds(budget, pair):
    cost = load_cost(*pair)
    prompts = [1, 2, 127, 128, 129, 1023, 1024, 1025, 1026, 9000, 131072]
    found = solo_prefill_ps(cost, np.array(prompts), budget).tolist()
    for prompt, ps in zip(prompts, found, strict=True):
        spans = grant_spans(cost, prompt, budget_tokens=budget, running=0)
        assert ps == sum(cost.round_ps + cost.grant_ps(*span) for span in spans), prompt


def test_the_ratio_is_machine_time_over_the_span_of_arrivals():
    trace = _trace((0, 1000, 40), (10**10, 3000, 8))
    load = offered_load(trace, COST)
    prefill = solo_prefill_ps(COST, np.array([1000, 3000])).sum()
    busy_s = (Fraction(int(prefill)) + Fraction(48 * COST.step_ps(4), 4)) / PS_PER_S
    assert load.ratio == float(busy_s / 10)
    assert load.capacity_requests_per_s == pytest.approx(2 / float(busy_s), rel=1e-12)
    assert load.load_requests_per_s == 0.2


def test_twice_the_rate_is_twice_the_load():
    slow = offered_load(_trace((0, 1000, 40), (10**10, 3000, 8)), COST)
    fast = offered_load(_trace((0, 1000, 40), (5 * 10**9, 3000, 8)), COST)
    assert fast.ratio == 2 * slow.ratio


def test_the_best_width_respects_the_lanes_there_are():
    assert [best_width(COST, lanes) for lanes in (None, 16, 4, 3, 1)] == [4, 4, 4, 3, 1]


def test_a_burst_has_no_rate_and_says_so():
    load = offered_load(_trace((0, 1000, 40), (0, 3000, 8)), COST)
    assert (load.ratio, load.num_machines) == (None, None)
    assert "burst" in str(load)


def test_an_empty_trace_and_an_unmeasured_decode_are_refused():
    with pytest.raises(BadTrace, match="no request"):
        offered_load(_trace(), COST)
    with pytest.raises(NotCalibrated, match="decode"):
        offered_load(_trace((0, 10, 1)), load_cost("gemma-4-26b-a4b", "m5-max-36gb"))


@pytest.mark.truth
def test_azure_conversation_needs_some_twenty_to_thirty_such_machines(traces_dir):
    with (traces_dir / "azure_llm_2023_conv.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    times = [datetime.fromisoformat(row[0]) for row in rows]
    trace = _trace(
        *(
            (int((t - times[0]).total_seconds() * 10**6) * 1000, int(row[1]), int(row[2]))
            for t, row in zip(times, rows, strict=True)
        )
    )
    load = offered_load(trace, COST)
    assert 20 < load.ratio < 30
    assert round(load.prompt_tokens_per_s, -2) == 6400
    assert round(load.output_tokens_per_s, -1) == 1170
    assert f"needs {load.num_machines} such machines" in str(load)
