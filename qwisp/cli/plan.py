"""`qwisp plan`: model + machine + trace -> session list, comparison, verdict, report."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from qwisp.cli import output
from qwisp.cli.replay_options import Question, replay_options
from qwisp.errors import BadInput
from qwisp.planner import Plan, make_plan
from qwisp.planner.candidates import Proposal
from qwisp.planner.document import plan_document
from qwisp.planner.session_memory import session_memory
from qwisp.sim.prefix_use import prefix_use
from qwisp.sim.run import Run
from qwisp.units import MIB, format_bytes

COLUMNS = (
    output.Column("layout"),
    output.Column("bytes", "memory", format_bytes),
    output.Column("finished"),
    output.Column("lost", "refused, failed, cut"),
    output.Column("moves"),
    output.Column("pauses"),
    output.Column("waited", "waited"),
    output.Column("ttft_p50_s", "TTFT p50 (s)"),
    output.Column("ttft_p95_s", "p95 (s)"),
    output.Column("e2e_p95_s", "E2E p95 (s)"),
    output.Column("easier_ttft_p95_s", "TTFT p95 at 0.8 (s)"),
    output.Column("sustained_rate", "sustains"),
    output.Column("verdict"),
)


@click.command()
@replay_options
@click.option("--layout", "layouts", multiple=True, help="Compare these instead; repeatable.")
@click.option("--report", type=click.Path(path_type=Path), help="Write an HTML report here.")
@output.formats
def command(
    ask: Callable[[str], Question],
    layouts: tuple[str, ...],
    report: Path | None,
    output_format: str,
) -> None:
    """Plan sessions for a model, a machine and a trace.

    Without --rate the candidates are compared at the highest arrival rate the best one sustains.
    """
    q = ask(output_format)
    proposals = tuple(Proposal(text, q.own_context_tokens) for text in layouts)
    plan = make_plan(
        q.model,
        q.cost,
        q.trace,
        q.memory_bytes,
        layouts=proposals,
        settings=q.settings,
        rate=q.rate,
        max_new=q.max_new,
        own_context_tokens=q.own_context_tokens,
        machine_bytes=q.machine.memory_bytes,
        progress=_progress,
    )
    document = plan_document(plan, q.machine.name)
    rows = [row(candidate) for candidate in document["candidates"]]
    if output_format == "table":
        _head(q, plan)
    output.emit(rows, COLUMNS, output_format, document=document)
    output.note(f"verdict: {plan.verdict}", output_format)
    output.note(f"why: {plan.why}", output_format)
    for line in remarks(plan):
        output.note(line, output_format)
    output.note(f"next: {next_step(plan, click.get_current_context().params)}", output_format)
    if report is not None:
        size = _write_report(report, q, plan, document)
        output.note(f"report: {report} ({format_bytes(size)})", output_format)


def row(candidate: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate as a table row."""
    own = candidate["context_tokens"]
    flat = {
        **candidate,
        "layout": candidate["layout"] + (f" --context {own}" if own else ""),
        "verdict": candidate["verdict"] or "does not fit",
    }
    if candidate["feasible"]:
        names = ("refused", "failed", "cancelled", "truncated")
        flat |= {
            "lost": sum(candidate[name] for name in names),
            "waited": sum(candidate["waits_by_binding"].values()),
            "ttft_p50_s": candidate["ttft_s"]["p50"],
            "ttft_p95_s": candidate["ttft_s"]["p95"],
            "e2e_p95_s": candidate["e2e_s"]["p95"],
            "easier_ttft_p95_s": candidate["at_0.8"]["ttft_s"]["p95"],
        }
    return flat


def remarks(plan: Plan) -> list[str]:
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


def next_step(plan: Plan, given: Mapping[str, Any]) -> str:
    """Return what to do with the plan; `given` are the options it was asked with, by name."""
    if plan.best is None and any(candidate.run for candidate in plan.candidates):
        if plan.verdict == "infeasible":
            return "give larger sessions with --layout, or requests that the model can hold"
        return "keep the layout you have, or plan with less --memory or a higher --rate"
    if plan.best is None:
        least = min(candidate.num_bytes for candidate in plan.candidates)
        return f"{more_memory(least)}, or shorter sessions with --layout"
    words = ["qwisp", "replay"]
    given = {**given, "context": plan.best.proposal.own_context_tokens or given["context"]}
    for name in ("model", "machine", "memory", "trace", "context", *_DEFAULTS):
        if given[name] != _DEFAULTS.get(name):
            words += ["--" + name.replace("_", "-"), str(given[name])]
    if given["lenient"]:
        words.append("--lenient")
    words += ["--layout", plan.best.proposal.text, "--rate", f"{float(plan.rate):g}x"]
    return shlex.join(words)


def more_memory(num_bytes: int) -> str:
    """Return the option that makes room for `num_bytes` of sessions."""
    return f"give --memory {-(-num_bytes // MIB)}MiB or more"


_DEFAULTS = {
    "order": "fcfs",
    "budget": None,
    "grow": None,
    "prefix": None,
    "prefix_boundary": None,
    "max_new": "unset",
}


def _head(q: Question, plan: Plan) -> None:
    click.echo(
        f"{q.model.name} on {q.machine.name}, {q.trace.name}: {len(q.trace.requests):,} requests"
    )
    if q.memory_terms:
        terms = " - ".join(f"{t.name} {format_bytes(t.num_bytes or 0)}" for t in q.memory_terms)
        click.echo(
            f"memory for sessions: {q.machine.name} may use {format_bytes(q.machine.usable_bytes)}"
            f" - {terms} = {format_bytes(q.memory_bytes)}"
        )
    else:
        click.echo(f"memory for sessions: {format_bytes(q.memory_bytes)}")
    click.echo(f"offered load: {plan.offered}")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(text, err=True)


def _write_report(path: Path, q: Question, plan: Plan, document: dict[str, Any]) -> int:
    from qwisp.report import page_of, write_report

    terms = q.memory_terms
    if not terms:  # the memory was named: say what else the model takes, where it is known
        with contextlib.suppress(BadInput):
            longest = max(request.prompt_tokens for request in q.trace.requests)
            terms = session_memory(q.model, q.machine, longest)[1]
    command = shlex.join(["qwisp", *sys.argv[1:]])
    return write_report(page_of(plan, document, terms, command=command), path)
