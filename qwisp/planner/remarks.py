"""Sentences beside a plan or a replay: how far its figures carry, and what would change them."""

from __future__ import annotations

from qwisp.planner.plan import Plan
from qwisp.sim.prefix_use import prefix_use
from qwisp.sim.run import Run
from qwisp.sim.summary import Summary
from qwisp.units import MIB, format_bytes


def plan_remarks(plan: Plan) -> list[str]:
    """Return what a reader must know about how far the figures carry."""
    lines = []
    if plan.best is not None:
        if plan.best.sustained is not None and plan.best.sustained.rate:
            lines.append(
                "stable means that queues do not keep growing, not that they are short: "
                f"at 0.8 of this rate 95 % of first tokens come within "
                f"{plan.best.easier.ttft_s.p95 or 0:,.1f} s"
            )
        lines += run_remarks(plan.best.run)
    return lines


def run_remarks(run: Run) -> list[str]:
    """Return what bounds the figures of one run: widths nobody measured, lengths given away."""
    lines = []
    if (use := prefix_use(run)) is not None:
        lines.append(
            f"prefix store: {use.cached:.1%} of the prompt tokens restored in {use.restores:,} "
            f"hits; {use.waits:,} waited for a capture; {use.entries:,} of {use.captures:,} blobs "
            f"are left, {format_bytes(use.shared_bytes)} shared and "
            f"{format_bytes(use.conversation_bytes)} of conversations; its "
            f"{format_bytes(use.limit_bytes)} come beside the sessions' memory"
        )
    if run.summary.extrapolated > 0:
        widest = run.cost.step_ps_by_width[-1][0]
        lines.append(
            f"extrapolated: {run.summary.extrapolated:.0%} of the reply tokens come at more than "
            f"{widest} lanes, which nobody measured here"
        )
    if run.max_new == "oracle":
        lines.append("clairvoyant: reply lengths were given to the scheduler (--max-new oracle)")
    return lines


def refusal_remarks(run: Run) -> list[str]:
    """Return what was refused for what, and what the last of each would have needed."""
    if not run.counts["refused"]:
        return []  # a log of a hundred thousand entries need not be read for that
    last = {what.reason.split(": ")[0]: what for _, what in run.scheduler.told("refused")}
    lines = []
    for binding, count in run.summary.refusals_by_binding.items():
        reason, offer = last[binding]
        lines.append(f"refused for {binding}: {count:,}; the last: {reason}; {offer}")
    return lines


def stall_remarks(summary: Summary) -> list[str]:
    """Return what running streams felt of others' prefills: the stall law beside percentiles."""
    worst, rounds, stalled = summary.worst_stall_s, summary.stall_rounds, summary.stalled_s
    if not rounds.max or worst.max is None:
        return []
    return [
        f"stalls: the longest {worst.max:,.1f} s, pauses included; while a request decoded, "
        f"others' prompts took k = {rounds.p50:,.0f} rounds and S = {stalled.p50:,.1f} s of it at "
        f"the median, {rounds.max:,.0f} rounds and {stalled.max:,.1f} s at most"
    ]


def more_memory(num_bytes: int) -> str:
    """Return the option that makes room for `num_bytes` of sessions."""
    return f"give --memory {-(-num_bytes // MIB)}MiB or more"
