"""`qwisp plan`: model + machine + trace -> session list, comparison, verdict, report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from qwisp.cli import output
from qwisp.cli.candidate_table import COLUMNS, row
from qwisp.cli.replay_options import ask, replay_options
from qwisp.planner.candidates import Proposal
from qwisp.planner.document import plan_document
from qwisp.planner.plan import Plan, make_plan
from qwisp.planner.remarks import more_memory, plan_remarks
from qwisp.units import format_bytes


@click.command()
@replay_options
@click.option("--layout", "layouts", multiple=True, help="Compare these instead; repeatable.")
@click.option("--report", type=click.Path(path_type=Path), help="Write an HTML report here.")
@output.formats
def command(
    layouts: tuple[str, ...], report: Path | None, output_format: str, **asked: Any
) -> None:
    """Plan sessions for a model, a machine and a trace.

    Without --rate the candidates are compared at the highest arrival rate the best one sustains.
    """
    question = ask(output_format, asked)
    proposals = tuple(Proposal(text, question.own_context_tokens) for text in layouts)
    plan = make_plan(question, proposals, progress=_progress)
    document = plan_document(plan)
    if output_format == "table":
        for line in _head(plan):
            output.note(line)
    output.emit([row(c) for c in plan.candidates], COLUMNS, output_format, document=document)
    output.note(f"verdict: {plan.verdict}", output_format)
    output.note(f"why: {plan.why}", output_format)
    for line in plan_remarks(plan):
        output.note(line, output_format)
    output.note(f"next: {next_step(plan, asked)}", output_format)
    if report is not None:
        size = _write_report(report, plan, document)
        output.note(f"report: {report} ({format_bytes(size)})", output_format)


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


_DEFAULTS = {
    "order": "fcfs",
    "budget": None,
    "grow": None,
    "prefix": None,
    "prefix_boundary": None,
    "max_new": "unset",
}


def _head(plan: Plan) -> list[str]:
    q = plan.question
    memory = format_bytes(q.memory_bytes)
    if q.memory_terms:
        terms = " - ".join(f"{t.name} {format_bytes(t.num_bytes or 0)}" for t in q.memory_terms)
        usable = format_bytes(q.machine.usable_bytes)
        memory = f"{q.machine.name} may use {usable} - {terms} = {memory}"
    return [
        f"{q.model.name} on {q.machine.name}, {q.trace.name}: {len(q.trace.requests):,} requests",
        f"memory for sessions: {memory}",
        f"offered load: {plan.offered}",
    ]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(text, err=True)


def _write_report(path: Path, plan: Plan, document: dict[str, Any]) -> int:
    from qwisp.report import page_of, write_report

    command = shlex.join(["qwisp", *sys.argv[1:]])
    return write_report(page_of(plan, document, command=command), path)
