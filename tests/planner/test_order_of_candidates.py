"""Which candidate is recommended: one key after the other, each alone."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from qwisp.cost import load_cost
from qwisp.planner import Question, make_plan
from qwisp.planner import plan as planning
from qwisp.planner import question as asking
from qwisp.planner.candidates import Proposal, _halves, proposals
from qwisp.planner.document import plan_document
from qwisp.scheduling.layout import RowBytes
from qwisp.sim.summary import Spread
from qwisp.sim.sustain import Sustained
from qwisp.spec.catalog import load_machine, load_model
from qwisp.trace.request import Request, Trace

MODEL = load_model("qwen3.6-35b-a3b")
COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
M1 = load_machine("m1-max-64gb")
TRACE = Trace(
    name="made",
    requests=tuple(Request(i, i * 100 * 10**9, 100, 10) for i in range(10)),
    source="made here",
)
SMALL, MIDDLE, LARGE = (f"whole_window:{n}" for n in (1, 2, 3))
NOTHING = {"moves": 0, "pauses": 0, "refused": 0, "failed": 0, "cancelled": 0, "truncated": 0}


def summary(ttft_s: float | None = 1.0, waits: int = 1, **values) -> SimpleNamespace:
    one = Spread(n=10, mean=1.0, p50=1.0, p90=1.0, p95=ttft_s, p99=1.0, max=1.0)
    names = ["queue_s", "ttft_s", "tpot_s", "e2e_s", "worst_stall_s", "stalled_s", "stall_rounds"]
    rates = "output_tokens_per_s mean_decoding extrapolated cached wasted most_passed load_ratio"
    values = {
        **NOTHING,
        **dict.fromkeys(names, one),
        **dict.fromkeys(rates.split(), 0.0),
        "passed": 0,
        "requests": 10,
        "finished": 10,
        "verdict": "stable",
        "why": "so it is",
        "waits_by_binding": {"lane count": waits} if waits else {},
        "refusals_by_binding": {},
        **values,
    }
    lost = sum(values[name] for name in ("refused", "failed", "cancelled", "truncated"))
    return SimpleNamespace(lost=lost, **values)


@pytest.fixture
def planned(monkeypatch):
    """Plan over whole windows with these summaries by layout; replays and rates are recorded."""

    def plan(found, *, rate=Fraction(1), rates=None, trace=TRACE):
        calls = []

        def replay(some, *, layout, rate, max_new, **others):
            calls.append((layout.text, rate))
            return SimpleNamespace(
                summary=found[layout.text], rate=rate, max_new=max_new, counts=NOTHING
            )

        def sustain(some, ratio, run_at):
            layout = run_at(some, rate=Fraction(1, 7)).summary
            rate = next(r for text, r in rates.items() if found[text] is layout)
            return Sustained(rate=rate, num_replays=1, num_requests=10)

        monkeypatch.setattr(asking, "replay", replay)
        monkeypatch.setattr(planning, "sustain", sustain)
        layouts = tuple(Proposal(text) for text in found)
        question = Question(
            model=MODEL, machine=M1, cost=COST, trace=trace, memory_bytes=64 << 30, rate=rate
        )
        result = make_plan(question, layouts)
        return result, calls

    return plan


def best(planned, **summaries) -> str:
    plan, _ = planned(
        {{"small": SMALL, "middle": MIDDLE, "large": LARGE}[k]: v for k, v in summaries.items()}
    )
    return plan.best.layout.text


@pytest.mark.parametrize("lost", ["refused", "failed", "cancelled", "truncated"])
def test_who_loses_less_wins_whatever_else_is_worse(planned, lost: str) -> None:
    slow = summary(ttft_s=99.0, verdict="overloaded")
    assert best(planned, small=summary(ttft_s=0.1, **{lost: 1}), large=slow) == LARGE


@pytest.mark.parametrize(
    ("better", "worse"),
    [("stable", "backlogged"), ("backlogged", "overloaded"), ("stable", "overloaded")],
)
def test_then_the_better_verdict_wins_whatever_the_first_token_takes(
    planned, better, worse
) -> None:
    quick, slow = summary(ttft_s=0.1, verdict=worse), summary(ttft_s=99.0, verdict=better)
    assert best(planned, small=quick, large=slow) == LARGE
    assert best(planned, small=slow, large=quick) == SMALL


def test_then_the_shorter_95th_percentile_wins_and_then_the_smaller_layout(planned) -> None:
    assert best(planned, small=summary(ttft_s=2.0), large=summary(ttft_s=1.9)) == LARGE
    assert best(planned, large=summary(), small=summary(), middle=summary()) == SMALL
    assert best(planned, large=summary(ttft_s=None), small=summary(ttft_s=0.1)) == LARGE


def test_who_finishes_nothing_is_not_recommended(planned) -> None:
    none = summary(finished=0, ttft_s=None)
    assert best(planned, small=none, large=summary(refused=9, finished=1)) == LARGE
    plan, _ = planned({SMALL: none})
    assert (plan.verdict, plan.best) == ("infeasible", None)


@pytest.mark.parametrize("cause", ["waits", "moves", "pauses", "refused", "truncated"])
def test_each_cause_alone_tells_the_candidates_apart(planned, cause: str) -> None:
    calm = summary(waits=0)
    plan, _ = planned({SMALL: calm, LARGE: calm})
    assert (plan.differs, plan.best) == (False, None)
    assert plan.why.endswith("no candidate moves, waits or refuses anything, so none is ranked")
    plan, _ = planned({SMALL: calm, LARGE: summary(**{"waits": 0, cause: 1})})
    assert plan.differs
    assert plan.best.layout.text == SMALL


def test_every_candidate_is_replayed_at_the_rate_and_at_four_fifths_of_it(planned) -> None:
    plan, calls = planned({SMALL: summary(), LARGE: summary(ttft_s=3.0)}, rate=Fraction(1, 2))
    fifths = Fraction(2, 5)
    assert calls == [(t, r) for t in (SMALL, LARGE) for r in (Fraction(1, 2), fifths)]
    assert plan.candidates[1].easier.ttft_s.p95 == 3.0
    row = plan_document(plan)["candidates"][1]
    assert (row["at_0.8"]["ttft_s"]["p95"], row["sustained_rate"]) == (3.0, None)
    assert plan.candidates[0].sustained is None


def test_the_reason_names_the_best_and_the_next_with_what_they_lose(planned) -> None:
    found = {
        SMALL: summary(refused=1, failed=1, cancelled=1, truncated=1, ttft_s=5.0),
        MIDDLE: summary(ttft_s=7.0),
        LARGE: summary(refused=1, truncated=1, ttft_s=6.0),
    }
    plan, _ = planned(found)
    assert f"{MIDDLE} loses 0 of 10 and answers 95 % of first tokens within 7.0 s" in plan.why
    assert f"next is {LARGE} with 2 lost and 6.0 s" in plan.why
    alone, _ = planned({MIDDLE: found[MIDDLE]})
    assert "next is" not in alone.why
    again, _ = planned({SMALL: found[SMALL], MIDDLE: found[MIDDLE]})
    assert f"next is {SMALL} with 4 lost and 5.0 s" in again.why


@pytest.mark.parametrize(
    ("rates", "at", "verdict"),
    [
        ((Fraction(1, 2), Fraction(3, 4)), Fraction(3, 4), "backlogged"),
        ((Fraction(1, 2), Fraction(1)), Fraction(1), "stable"),
        ((Fraction(3), Fraction(2)), Fraction(3), "stable"),
        ((Fraction(0), Fraction(0)), Fraction(1), "backlogged"),
    ],
)
def test_all_are_compared_at_the_best_rate_and_judged_by_the_recorded_one(
    planned, rates, at, verdict
) -> None:
    found = {SMALL: summary(), LARGE: summary()}
    plan, calls = planned(found, rate=None, rates=dict(zip(found, rates, strict=True)))
    assert (plan.rate, plan.verdict) == (at, verdict)
    assert [c.sustained.rate for c in plan.candidates] == list(rates)
    assert {rate for _, rate in calls} == {Fraction(1, 7), at, at * Fraction(4, 5)}
    assert ("no layout keeps up with the recorded arrivals" in plan.why) == (verdict != "stable")
    assert ("with any slower ones that were tried" in plan.why) == (max(rates) == 0)
    assert f"compared at {float(at):g}x" in plan.why


def test_a_load_above_one_is_overloaded_whatever_the_search_says(planned) -> None:
    fast = tuple(Request(i, i * 10**6, 1000, 100) for i in range(10))
    trace = Trace(name="fast", requests=fast, source="made here")
    plan, _ = planned({SMALL: summary()}, rate=None, rates={SMALL: Fraction(1, 1000)}, trace=trace)
    assert plan.verdict == "overloaded"
    assert f"needs {plan.offered.num_machines} such machines" in plan.why
    burst = Trace(name="burst", requests=tuple(r._replace(arrival_ns=0) for r in fast), source="x")
    plan, _ = planned({SMALL: summary()}, rate=None, rates={SMALL: Fraction(1, 2)}, trace=burst)
    assert (plan.verdict, plan.offered.ratio) == ("stable", None)


def test_proposals_are_rounded_up_to_1024_and_hold_one_token_more_than_asked() -> None:
    def proposed(*totals):
        requests = tuple(Request(i, 0, total - 10, 5, 10) for i, total in enumerate(totals))
        trace = Trace(name="made", requests=requests, source="made here")
        found = proposals(trace, RowBytes(1, 0), 100_000, 50_000)
        return [str(proposal) for proposal in found]

    # One more token than 1023 is 1024, one more than 1024 needs 2048.
    assert proposed(1023)[1] == "fixed_arena:1024"
    assert proposed(1024)[1] == "fixed_arena:2048"
    assert proposed(90_000)[1] == "fixed_arena:50000"  # what the model holds
    # Of 200 requests the 99th percentile is the 199th; the largest is above, the median below.
    found = proposed(*[1000] * 197, 5000, 6000, 9000)
    assert found[:2] == ["whole_window", "fixed_arena:6144"]
    # Half of 100,000 bytes: 5 of 9,216 + 32 rows, one of them its own; 47 of 1,024 + 32.
    assert found[-1] == "9216x4,1024x47 --context 9216"


def test_half_and_half_needs_room_for_both_and_two_sizes() -> None:
    size = RowBytes(1, 0)
    assert _halves(size, 2 * 1056, large=1024, small=512)[0].text == "512x1"
    assert _halves(size, 2 * 1056 - 1, large=1024, small=512) == []
    assert _halves(size, 10**6, large=1024, small=1024) == []
    assert _halves(size, 4 * 1056, large=1024, small=512)[0].text == "1024x1,512x3"
