"""The plan: the right candidates, a sustainable rate, every request accounted for."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from qwisp.cost import load_cost
from qwisp.errors import BadInput
from qwisp.memory.session_bytes import SessionBytes
from qwisp.planner import Plan, Question, make_plan
from qwisp.planner.candidates import Proposal, proposals
from qwisp.planner.document import plan_document
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.data_files import data_path
from qwisp.trace.read import read_trace
from qwisp.trace.request import Request, Trace
from qwisp.units import GIB

MODEL = load_model("qwen3.6-35b-a3b")
COST = load_cost("qwen3.6-35b-a3b", "m1-max-64gb")
M1 = load_machine("m1-max-64gb")
ENDINGS = ("finished", "refused", "failed", "cancelled")


def plan_of(trace: Trace, memory_bytes: int, layouts=(), rate: Fraction | None = None) -> Plan:
    question = Question(
        model=MODEL, machine=M1, cost=COST, trace=trace, memory_bytes=memory_bytes, rate=rate
    )
    return make_plan(question, layouts)


@pytest.fixture(scope="module")
def agents() -> Trace:
    return read_trace(data_path("traces", "agents.jsonl"))


@pytest.fixture(scope="module")
def plan(agents):
    return plan_of(agents, 12 * GIB)


def test_every_request_of_every_candidate_is_accounted_for(plan, agents) -> None:
    for candidate in plan.candidates:
        assert candidate.feasible
        counts = candidate.run.counts
        assert sum(counts[name] for name in ENDINGS) == len(agents.requests)


def test_all_are_compared_at_the_best_sustained_rate(plan) -> None:
    assert plan.rate == max(c.sustained.rate for c in plan.candidates)
    assert {c.run.rate for c in plan.candidates} == {plan.rate}
    assert plan.best.run.summary.verdict == "stable"


def test_the_verdict_is_about_the_recorded_arrivals_not_about_the_rate_that_was_found(plan) -> None:
    assert plan.offered.ratio < 1
    assert plan.rate < 1
    assert plan.verdict == "backlogged"
    assert f"sustains {float(plan.rate):g}x" in plan.why


def test_candidates_differ_on_the_agent_trace_and_the_best_loses_least(plan) -> None:
    assert plan.differs
    losses = {c.proposal: _lost(c) for c in plan.candidates}
    assert losses[plan.best.proposal] == min(losses.values()) < max(losses.values())
    assert any(c.run.summary.moves and c.run.summary.pauses for c in plan.candidates)


def _lost(candidate) -> int:
    s = candidate.run.summary
    return s.refused + s.failed + s.cancelled + s.truncated


def test_traffic_that_fits_everywhere_ranks_nobody() -> None:
    easy = Trace(
        name="easy",
        requests=tuple(Request(i, i * 60 * 10**9, 100, 10) for i in range(20)),
        source="made here",
    )
    plan = plan_of(easy, 12 * GIB, rate=Fraction(1))
    assert not plan.differs
    assert plan.best is None
    assert "none is ranked" in plan.why


def test_too_little_memory_makes_rows_that_do_not_fit_with_their_bytes(agents) -> None:
    plan = plan_of(agents, 2 * GIB, rate=Fraction(1, 100))
    document = plan_document(plan)
    sized = next(c for c in document["candidates"] if c["layout"] == "65536,32768x3,16384x11")
    assert not sized["feasible"]
    assert sized["bytes"] == 16 * 64_389_120 + (32800 + 65568 + 3 * 32800 + 11 * 16416) * 20480
    assert sized["finished"] is None


def test_the_document_is_json_without_nan_and_the_same_twice(plan, agents) -> None:
    first = json.dumps(plan_document(plan), allow_nan=False)
    again = plan_of(agents, 12 * GIB, rate=plan.rate)
    second = plan_document(again)
    for ours, theirs in zip(json.loads(first)["candidates"], second["candidates"], strict=True):
        assert {k: v for k, v in ours.items() if k != "sustained_rate"} == {
            k: v for k, v in theirs.items() if k != "sustained_rate"
        }


def test_proposals_hold_what_the_trace_asks_for(agents) -> None:
    found = proposals(agents, SessionBytes(MODEL), 12 * GIB, MODEL.context_max_tokens)
    halves = found[-1]
    most = max(r.prompt_tokens + max(r.output_tokens, r.max_new or 0) for r in agents.requests)
    assert halves.own_context_tokens > most
    assert len(found) == len(set(found)) == 5


def test_an_empty_trace_is_refused() -> None:
    empty = Trace(name="empty", requests=(), source="made here")
    with pytest.raises(BadInput, match="holds no request"):
        plan_of(empty, 12 * GIB)


def test_azure_finishes_nearly_all_untruncated_and_states_the_overload(traces_dir) -> None:
    azure = read_trace(traces_dir / "azure_llm_2023_conv.csv")
    layouts = (Proposal("65536,32768x3,16384x11"), Proposal("4096x12,16384x2"))
    plan = plan_of(azure, 12 * GIB, layouts=layouts, rate=Fraction(1, 30))
    assert plan.verdict == "overloaded"
    assert "such machines" in plan.why
    for candidate in plan.candidates:
        counts = candidate.run.counts
        assert sum(counts[name] for name in ENDINGS) == 19_366
        assert counts["finished"] - candidate.run.summary.truncated >= 0.999 * 19_366


def test_a_burst_has_no_rate_and_is_still_planned() -> None:
    burst = Trace(
        name="burst",
        requests=tuple(Request(i, 0, 20_000, 500) for i in range(12)),
        source="made here",
    )
    plan = plan_of(burst, 12 * GIB)
    assert plan.offered.ratio is None
    assert plan.best is not None
    assert "recorded arrivals" not in plan.why
    json.dumps(plan_document(plan), allow_nan=False)


def test_slower_arrivals_never_make_an_easier_plan_worse(agents) -> None:
    few = replace(agents, requests=agents.requests[:100])
    only = (Proposal("65536,32768x3,16384x11"),)
    waits = [
        plan_of(few, 12 * GIB, layouts=only, rate=rate).candidates[0].run.summary
        for rate in (Fraction(1), Fraction(1, 100))
    ]
    assert waits[1].queue_s.mean < waits[0].queue_s.mean


def test_a_plan_that_finishes_nothing_recommends_nothing() -> None:
    long = Trace(
        name="long",
        requests=tuple(Request(i, i * 10**12, 300_000, 50) for i in range(5)),
        source="made here",
    )
    plan = plan_of(long, 12 * GIB, rate=Fraction(1))
    assert (plan.verdict, plan.best) == ("infeasible", None)
    assert "no candidate finishes any of 5 requests" in plan.why
    assert "refused for ContextFull, no free session large enough" in plan.why
