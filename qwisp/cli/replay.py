"""`qwisp replay`: one trace under one layout, or an engine's facts through a fresh scheduler."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from qwisp.cli import output
from qwisp.cli.plan import COLUMNS, more_memory, row, run_remarks
from qwisp.cli.replay_options import Question, replay_options
from qwisp.errors import BadInput, CheckFailed
from qwisp.memory.session_bytes import SessionBytes
from qwisp.planner.document import summary_document
from qwisp.scheduling.layout import Layout, parse_layout
from qwisp.sim.goodput import Slo, goodput
from qwisp.sim.prefix_use import prefix_use
from qwisp.sim.replay import replay
from qwisp.sim.run import Run
from qwisp.sim.summary import Summary

_SHOWN = tuple(c for c in COLUMNS if c.key not in ("easier_ttft_p95_s", "sustained_rate"))


@click.command()
@replay_options
@click.option("--layout", default="whole_window", show_default=True, help="Session list or kind.")
@click.option("--cut", help="Rule that places streams: smallest_fit, ... or a .py.")
@click.option("--sustain", "find_rate", is_flag=True, help="Replay at the highest stable rate.")
@click.option("--check-stepwise", is_flag=True, help="Prove the closed form against single steps.")
@click.option("--chrome-trace", type=click.Path(path_type=Path), help="Write a trace-event file.")
@click.option("--slo-ttft", type=float, help="Promise: seconds to the first token.")
@click.option("--slo-tpot", type=float, help="Promise: mean seconds a further token.")
@click.option("--facts", type=click.Path(), help="Replay an engine's facts instead of a trace.")
@output.formats
def command(
    ask: Callable[[str], Question],
    layout: str,
    cut: str | None,
    find_rate: bool,
    check_stepwise: bool,
    chrome_trace: Path | None,
    slo_ttft: float | None,
    slo_tpot: float | None,
    facts: str | None,
    output_format: str,
) -> None:
    """Replay a trace under one layout: who waited, moved, paused, and why."""
    if facts is not None:
        from qwisp.cli.replay_facts import show_facts

        return show_facts(facts, output_format)
    began = time.process_time()
    slo = _slo(slo_ttft, slo_tpot)
    q = ask(output_format)
    size = SessionBytes(q.model, chunk_tokens=q.settings.chunk_tokens)
    sessions = _layout(q, layout, size, cut)
    read_s, began = time.process_time() - began, time.process_time()
    if sessions.num_bytes(size) > q.memory_bytes:
        return _say_infeasible(q, sessions, size, output_format)
    rate = q.rate or Fraction(1)
    if find_rate:
        rate = _sustained_rate(q, sessions, size)
    run = _run(q, sessions, size, rate)
    replay_s, began = time.process_time() - began, time.process_time()
    document = replay_document(q, sessions, size, run)
    if slo is not None:
        document["goodput"] = asdict(goodput(run, slo))
    tables_s = time.process_time() - began
    if check_stepwise:
        _check_stepwise(q, sessions, size, run)
    if chrome_trace is not None:
        from qwisp.sim.chrome_trace import write_chrome_trace

        write_chrome_trace(run, chrome_trace)
    output.emit([row({**document, "at_0.8": _NOTHING})], _SHOWN, output_format, document=document)
    output.note(f"verdict: {run.summary.verdict} at {float(rate):g}x", output_format)
    output.note(f"why: {run.summary.why}", output_format)
    if slo is not None:
        kept = document["goodput"]
        output.note(
            f"goodput: {kept['requests']:,} of {run.counts['submitted']:,} requests "
            f"({kept['share']:.1%}), {kept['requests_per_s']:.3g}/s",
            output_format,
        )
    for line in _stalls(run.summary):
        output.note(line, output_format)
    for text, count in run.summary.waits_by_binding.items():
        output.note(f"waited for {text}: {count:,}", output_format)
    for line in (*_refusals(run), *run_remarks(run)):
        output.note(line, output_format)
    if check_stepwise:
        output.note("closed form equals single steps in every decision and time", output_format)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _RSS_UNITS_PER_MIB
    click.echo(
        f"CPU: read {read_s:.2f} s, replay {replay_s:.2f} s, tables {tables_s:.2f} s; "
        f"peak {peak_mib:,.0f} MiB",
        err=True,
    )
    return None


# getrusage counts KiB on Linux and bytes on macOS.
_RSS_UNITS_PER_MIB = 1024 if sys.platform == "linux" else 1024**2
_NOTHING = {"ttft_s": {"p95": None}}


def replay_document(
    q: Question, layout: Layout, size: SessionBytes, run: Run | None
) -> dict[str, Any]:
    """Return the document of `qwisp replay --json`: one candidate with its settings.

    Without a run, because the layout does not fit, everything that needs one is null.
    """
    return {
        "schema": "qwisp-replay-1",
        "model": q.model.name,
        "machine": q.machine.name,
        "trace": q.trace.name,
        "memory_bytes": q.memory_bytes,
        "rate": float(run.rate) if run else None,
        "max_new": q.max_new,
        "settings": asdict(q.settings),
        "layout": layout.text,
        "cut": layout.cut,
        "context_tokens": q.own_context_tokens,
        "sessions": len(layout.contexts),
        "largest_session_tokens": layout.context_tokens,
        "feasible": run is not None,
        "bytes": layout.num_bytes(size),
        "prefix": asdict(use) if run and (use := prefix_use(run)) else None,
        **summary_document(run.summary if run else None),
    }


def _say_infeasible(q: Question, layout: Layout, size: SessionBytes, output_format: str) -> None:
    document = replay_document(q, layout, size, None)
    needed, limit = document["bytes"], q.memory_bytes
    document["why"] = f"{layout.text} takes {needed:,} bytes, above the {limit:,} for sessions"
    output.emit([row(document)], _SHOWN, output_format, document=document)
    output.note("verdict: infeasible", output_format)
    output.note(f"why: {document['why']}", output_format)
    output.note(f"next: {more_memory(needed)}, or fewer and smaller sessions", output_format)


def _refusals(run: Run) -> list[str]:
    """Return what was refused for what, and what the last of each would have needed."""
    refusals = (entry.what for entry in run.scheduler.decided("refused"))
    last = {refused.reason.split(": ")[0]: refused for refused in refusals}
    lines = []
    for binding, count in run.summary.refusals_by_binding.items():
        reason, offer = last[binding]
        lines.append(f"refused for {binding}: {count:,}; the last: {reason}; {offer}")
    return lines


def _stalls(summary: Summary) -> list[str]:
    """Return what running streams felt of others' prefills: the stall law beside percentiles."""
    worst, rounds, stalled = summary.worst_stall_s, summary.stall_rounds, summary.stalled_s
    if not rounds.max or worst.max is None:
        return []
    return [
        f"stalls: the longest {worst.max:,.1f} s, pauses included; while a request decoded, "
        f"others' prompts took k = {rounds.p50:,.0f} rounds and S = {stalled.p50:,.1f} s of it at "
        f"the median, {rounds.max:,.0f} rounds and {stalled.max:,.1f} s at most"
    ]


def _slo(ttft_s: float | None, tpot_s: float | None) -> Slo | None:
    if ttft_s is None and tpot_s is None:
        return None
    if ttft_s is None or tpot_s is None:
        raise BadInput("half a promise: --slo-ttft and --slo-tpot go together", "give both")
    return Slo(ttft_s=ttft_s, tpot_s=tpot_s)


def _layout(q: Question, text: str, size: SessionBytes, cut: str | None) -> Layout:
    layout = parse_layout(
        text,
        size=size,
        memory_bytes=q.memory_bytes,
        model_context_tokens=q.model.context_max_tokens,
        own_context_tokens=q.own_context_tokens,
        machine_bytes=q.machine.memory_bytes,
    )
    return replace(layout, cut=cut) if cut else layout


def _run(
    q: Question, layout: Layout, size: SessionBytes, rate: Fraction, stepwise: bool = False
) -> Run:
    return replay(
        q.trace,
        layout,
        size,
        q.cost,
        q.settings,
        rate=rate,
        max_new=q.max_new,
        stepwise=stepwise,
    )


def _sustained_rate(q: Question, layout: Layout, size: SessionBytes) -> Fraction:
    from qwisp.cost.offered import offered_load
    from qwisp.sim.replay import runnable
    from qwisp.sim.sustain import sustain

    if q.rate is not None:
        raise BadInput("--rate and --sustain exclude each other", "give one of them")
    served = runnable(q.trace, layout, size, q.settings, q.max_new)
    if not served.requests:
        raise CheckFailed(
            f"{layout.text} can run none of {len(q.trace.requests):,} requests",
            "give larger sessions with --layout",
        )
    offered = offered_load(served, q.cost, budget=q.settings.budget_tokens)
    found = sustain(
        q.trace,
        offered.ratio,
        lambda trace, rate: replay(
            trace, layout, size, q.cost, q.settings, rate=rate, max_new=q.max_new
        ),
    )
    if not found.rate:
        raise CheckFailed(
            f"{layout.text}: {found}",
            "give larger sessions or fewer long requests; --rate replays at any rate all the same",
        )
    click.echo(str(found), err=True)
    return found.rate


def _check_stepwise(q: Question, layout: Layout, size: SessionBytes, run: Run) -> None:
    single = _run(q, layout, size, run.rate, stepwise=True)
    pairs = zip(run.log, single.log, strict=False)
    for ours, theirs in pairs:
        if ours != theirs:
            raise CheckFailed(
                f"closed form decided {ours}, single steps {theirs}",
                "this is a bug in qwisp: please report it with the trace",
            )
    if len(run.log) != len(single.log) or not run.requests.equals(single.requests):
        raise CheckFailed(
            "closed form and single steps end with other times",
            "this is a bug in qwisp: please report it with the trace",
        )
