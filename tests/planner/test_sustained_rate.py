"""The sustained rate: found in few replays, confirmed on all requests, or said not to exist."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from qwisp.cost import load_cost
from qwisp.cost.offered import offered_load
from qwisp.memory.session_bytes import SessionBytes
from qwisp.planner import Plan, Question, make_plan
from qwisp.planner.candidates import Proposal
from qwisp.planner.document import plan_document
from qwisp.scheduling.layout import parse_layout
from qwisp.sim import sustain as search
from qwisp.sim.replay import replay
from qwisp.sim.sustain import before_last_burst, sustain
from qwisp.spec.catalog import load_machine, load_model
from qwisp.trace.request import Request, Trace

MODEL = load_model("qwen3.6-35b-a3b")
COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
NS = 10**9


def made(num: int) -> Trace:
    requests = tuple(Request(i, i * NS, 5, 3) for i in range(num))
    return Trace(name="made", requests=requests, source="made here")


def plan_of(trace: Trace, *layouts: Proposal) -> Plan:
    machine = load_machine("m1-max-64gb")
    return make_plan(
        Question(model=MODEL, machine=machine, cost=COST, trace=trace, memory_bytes=12 << 30),
        layouts,
    )


class Machine:
    """Stable up to `sample` on the first 2,000 requests or fewer, up to `every` on more."""

    def __init__(self, sample: str, every: str | None = None) -> None:
        self.limits = Fraction(sample), Fraction(every or sample)
        self.replays: list[tuple[int, Fraction, bool]] = []

    def __call__(self, trace: Trace, rate: Fraction) -> SimpleNamespace:
        num = len(trace.requests)
        stable = rate <= self.limits[num > 2000]
        self.replays.append((num, rate, stable))
        records = {
            r.id: SimpleNamespace(
                arrival_ps=i * 10, end_ps=i * 10 + (5 if i < 2500 else 10**6), admitted_ps=0
            )
            for i, r in enumerate(trace.requests)
        }
        summary = SimpleNamespace(verdict="stable" if stable else "backlogged", why="so it is")
        executor = SimpleNamespace(records=records)
        return SimpleNamespace(summary=summary, rate=rate, trace=trace, executor=executor)


@pytest.mark.parametrize("limit", ["0.995", "0.7", "0.26", "0.24", "0.06", "0.0151", "0.00395"])
def test_the_rate_lies_within_2_percent_of_one_that_failed_after_at_most_12_replays(limit) -> None:
    machine = Machine(limit)
    found = sustain(made(10), 1.0, machine)
    assert found.num_replays == len(machine.replays) <= 12
    stable = [rate for _, rate, held in machine.replays if held]
    failed = [rate for _, rate, held in machine.replays if not held]
    assert found.rate == max(stable) <= Fraction(limit)
    assert min(failed) <= found.rate * Fraction(51, 50)
    assert (found.why, found.part_rate, found.num_requests) == ("", 0, 10)
    replays = f"{found.num_replays} replays, confirmed on all 10 requests"
    assert str(found) == f"sustains {float(found.rate):g}x ({replays})"


def test_what_is_stable_at_capacity_needs_one_replay_and_nothing_above_is_tried() -> None:
    machine = Machine("100")
    assert sustain(made(10), 0.3, machine).rate == Fraction("3.33")  # 1 / 0.3 in three digits
    assert machine.replays == [(10, Fraction("3.33"), True)]
    assert sustain(made(10), None, machine).rate == 1  # a burst has no load


def test_the_search_stops_at_its_number_of_replays(monkeypatch) -> None:
    monkeypatch.setattr(search, "MAX_REPLAYS", 4)
    machine = Machine("0.7")
    found = sustain(made(10), 1.0, machine)
    # 1 fails, 0.25 holds, then the geometric means 0.5 of 0.25 and 1, and 0.707 of 0.5 and 1.
    assert [rate for _, rate, _ in machine.replays] == [1, *map(Fraction, ("0.25", "0.5", "0.707"))]
    assert found.rate == Fraction("0.5")


def test_long_traces_are_searched_on_2000_requests_and_confirmed_once_on_all() -> None:
    machine = Machine("0.7")
    found = sustain(made(2001), 1.0, machine)
    assert [num for num, _, _ in machine.replays] == [2000] * (found.num_replays - 1) + [2001]
    assert machine.replays[-1] == (2001, found.rate, True)
    exact = Machine("0.7")
    sustain(made(2000), 1.0, exact)
    assert len(exact.replays) == found.num_replays - 1  # the sample was all


def test_a_rate_that_does_not_hold_on_all_steps_down_by_a_tenth_until_one_does() -> None:
    machine = Machine("2", every="0.75")
    found = sustain(made(3000), 1.0, machine)
    # 1 on the sample; on all 1 fails, the lowest holds, then 0.9, 0.81, 0.729.
    rates = [1, 1, *map(Fraction, ("0.00391", "0.9", "0.81", "0.729"))]
    assert [rate for _, rate, _ in machine.replays] == rates
    assert [num for num, _, _ in machine.replays] == [2000] + [3000] * 5
    assert (found.rate, found.num_replays) == (Fraction("0.729"), 6)


def test_what_no_step_confirms_falls_back_to_the_lowest_rate_which_did_hold() -> None:
    machine = Machine("2", every="0.1")
    found = sustain(made(3000), 1.0, machine)
    assert (found.rate, found.num_replays) == (Fraction("0.00391"), 1 + 1 + 1 + 12)
    assert machine.replays[2] == (3000, found.rate, True)


def test_where_no_rate_holds_on_all_none_is_given_but_that_of_the_part_before_the_burst() -> None:
    machine = Machine("0.5", every="0")
    found = sustain(made(2510), 1.0, machine)
    assert found.rate == 0
    assert found.why == "at 0.00391x so it is"
    # The part before the burst, 2,500 requests, is no more stable here than all.
    assert (found.part_requests, found.part_rate) == (2500, 0)
    assert str(found).startswith("no rate keeps all 2,510 requests stable (")
    assert found.num_replays == len(machine.replays)
    assert "before the last burst" not in str(found)


def bursty() -> Trace:
    """40 requests with time to spare, then 30 at once, and one that can never run."""
    spaced = [Request(i, i * 30 * NS, 3000, 300) for i in range(40)]
    burst = [Request(40 + i, 1200 * NS, 3000, 300) for i in range(30)]
    never = Request(70, 1230 * NS, 1_000_000, 3)
    return Trace(name="bursty", requests=(*spaced, *burst, never), source="made here")


LAYOUT = "32768x3,16384x2"


def test_a_last_burst_that_no_rate_cures_is_said_with_the_rate_before_it() -> None:
    size, trace = SessionBytes(MODEL), bursty()
    layout = parse_layout(LAYOUT, size=size, memory_bytes=12 << 30, model_context_tokens=262_144)
    found = sustain(trace, 0.5, lambda some, rate: replay(some, layout, size, COST, rate=rate))
    assert (found.rate, found.part_requests) == (0, 40)
    part = Trace(name="part", requests=trace.requests[:40], source="made here")
    at = replay(part, layout, size, COST, rate=found.part_rate)
    assert at.summary.verdict == "stable"
    faster = replay(part, layout, size, COST, rate=found.part_rate * Fraction(103, 100))
    assert found.part_rate == 2 or faster.summary.verdict != "stable"
    assert f"the first 40, before the last burst, are stable at {float(found.part_rate):g}x" in str(
        found
    )
    assert "p95 queue time grows" in found.why
    slow = replay(trace, layout, size, COST, rate=Fraction(1, 100))
    assert before_last_burst(slow) == trace.requests[:40]


def test_a_request_that_comes_as_the_last_one_ends_begins_a_burst() -> None:
    """0 runs from 0 to 10, 1 from 10 to 30; 2 comes at 20, so the last busy time began with 1."""
    trace = made(3)
    times = {0: (0, 10), 1: (10, 30), 2: (20, 25)}
    records = {
        i: SimpleNamespace(arrival_ps=begin, end_ps=end, admitted_ps=begin)
        for i, (begin, end) in times.items()
    }
    run = SimpleNamespace(trace=trace, executor=SimpleNamespace(records=records))
    assert before_last_burst(run) == trace.requests[:1]
    records[0].end_ps = 11
    assert before_last_burst(run) == ()


def test_a_candidate_that_can_run_nothing_sustains_nothing_and_sets_no_rate() -> None:
    trace = Trace(name="spaced", requests=bursty().requests[:40], source="made here")
    layouts = (Proposal(LAYOUT), Proposal("fixed_arena:1024"))
    plan = plan_of(trace, *layouts)
    serves, refuses = plan.candidates
    assert refuses.run.counts["refused"] == 40
    assert (refuses.sustained, plan.rate) == (None, serves.sustained.rate)
    assert plan.best is serves


def test_a_plan_without_a_sustained_rate_recommends_none_as_sustained() -> None:
    plan = plan_of(bursty(), Proposal(LAYOUT))
    assert plan.verdict == "backlogged"
    assert "sustains" not in plan.why
    assert "before the last burst, the first 40 requests are stable at" in plan.why
    assert plan.rate == 1
    row = plan_document(plan)["candidates"][0]
    assert row["sustained_rate"] == 0
    assert row["verdict"] == "backlogged"
    # One of 71 can never run, and is left out of load and capacity.
    assert plan.offered.num_requests == 70
    served = Trace(name="served", requests=bursty().requests[:70], source="made here")
    assert plan.offered == offered_load(served, COST)
