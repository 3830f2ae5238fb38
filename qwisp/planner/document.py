"""A plan and a replay as plain JSON documents. No time of this program itself stands in them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qwisp.planner.plan import Candidate, Plan
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


def plan_document(plan: Plan, machine: str) -> dict[str, Any]:
    """Return the document of `qwisp plan --json`. Loads and capacities are requests a second."""
    offered = plan.offered
    return {
        "schema": SCHEMA,
        "model": plan.model.name,
        "machine": machine,
        "trace": plan.trace.name,
        "memory_bytes": plan.memory_bytes,
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
