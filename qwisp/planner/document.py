"""A plan and a replay as plain JSON documents. They hold no time of this program itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qwisp.planner.candidates import Candidate
from qwisp.planner.plan import Plan
from qwisp.planner.question import Question
from qwisp.sim.prefix_use import prefix_use
from qwisp.sim.summary import Spread, Summary

SCHEMA = "qwisp-plan-1"
_COUNTS = (
    "requests",
    "finished",
    "refused",
    "failed",
    "cancelled",
    "truncated",
    "moves",
    "pauses",
    "waits_by_binding",
    "refusals_by_binding",
)
_RATES = (
    "output_tokens_per_s",
    "mean_decoding",
    "extrapolated",
    "cached",
    "wasted",
    "passed",
    "most_passed",
    "load_ratio",
)
_SPREADS = (
    "queue_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "worst_stall_s",
    "stalled_s",
    "stall_rounds",
)


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the document of `qwisp plan --json`. Loads and capacities are requests a second."""
    question, offered = plan.question, plan.offered
    return {
        "schema": SCHEMA,
        "model": question.model.name,
        "machine": question.machine.name,
        "trace": question.trace.name,
        "memory_bytes": question.memory_bytes,
        "offered": {
            "load": offered.load_requests_per_s,
            "capacity": offered.capacity_requests_per_s,
            "ratio": offered.ratio,
            "machines": offered.num_machines,
        },
        "rate": float(plan.rate),
        "max_new": next((c.run.max_new for c in plan.candidates if c.run), None),
        "verdict": plan.verdict,
        "why": plan.why,
        "best": None if plan.best is None else plan.best.layout.text,
        "candidates": [candidate_document(candidate) for candidate in plan.candidates],
    }


def candidate_document(candidate: Candidate) -> dict[str, Any]:
    """Return one candidate; one that does not fit has nulls for everything that needs a replay."""
    summary = candidate.run.summary if candidate.run else None
    sustained = candidate.sustained
    return {
        "layout": candidate.layout.text,
        "context_tokens": candidate.proposal.own_context_tokens,
        "sessions": len(candidate.layout.contexts),
        "largest_session_tokens": candidate.layout.context_tokens,
        "feasible": candidate.feasible,
        "bytes": candidate.num_bytes,
        **summary_document(summary),
        "sustained_rate": None if sustained is None else float(sustained.rate),
        "at_0.8": None
        if candidate.easier is None
        else {
            "verdict": candidate.easier.verdict,
            "ttft_s": asdict(candidate.easier.ttft_s),
            "e2e_s": asdict(candidate.easier.e2e_s),
        },
    }


def replay_document(question: Question, candidate: Candidate) -> dict[str, Any]:
    """Return the document of `qwisp replay --json`: one candidate with its settings.

    Without a run, because the layout does not fit, everything that needs one is null.
    """
    layout, run = candidate.layout, candidate.run
    document = {
        "schema": "qwisp-replay-1",
        "model": question.model.name,
        "machine": question.machine.name,
        "trace": question.trace.name,
        "memory_bytes": question.memory_bytes,
        "rate": float(run.rate) if run else None,
        "max_new": question.max_new,
        "settings": asdict(question.settings),
        "layout": layout.text,
        "cut": layout.cut,
        "context_tokens": question.own_context_tokens,
        "sessions": len(layout.contexts),
        "largest_session_tokens": layout.context_tokens,
        "feasible": candidate.feasible,
        "bytes": candidate.num_bytes,
        "prefix": asdict(use) if run and (use := prefix_use(run)) else None,
        **summary_document(run.summary if run else None),
    }
    if run is None:
        document["why"] = (
            f"{layout.text} takes {candidate.num_bytes:,} bytes, above the "
            f"{question.memory_bytes:,} for sessions"
        )
    return document


def summary_document(summary: Summary | None) -> dict[str, Any]:
    """Return a summary's counts, spreads and verdict; nulls without one."""
    keys = (*_COUNTS, *_SPREADS, *_RATES)
    if summary is None:
        return {**dict.fromkeys(keys), "verdict": None, "why": "does not fit"}
    values = {key: getattr(summary, key) for key in keys}
    return {
        **{k: asdict(v) if isinstance(v, Spread) else v for k, v in values.items()},
        "verdict": summary.verdict,
        "why": summary.why,
    }
