"""`qwisp replay`: one trace under one layout, or an engine's facts through a fresh scheduler."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from qwisp.cli import output
from qwisp.cli.candidate_table import COLUMNS, row
from qwisp.cli.replay_options import ask, replay_options
from qwisp.errors import BadInput, CheckFailed
from qwisp.planner.candidates import Candidate, replay_layout
from qwisp.planner.document import replay_document
from qwisp.planner.question import Question
from qwisp.planner.remarks import more_memory, refusal_remarks, run_remarks, stall_remarks
from qwisp.sim.run import Run
from qwisp.sim.summary import Slo, goodput

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
    layout: str,
    cut: str | None,
    find_rate: bool,
    check_stepwise: bool,
    chrome_trace: Path | None,
    slo_ttft: float | None,
    slo_tpot: float | None,
    facts: str | None,
    output_format: str,
    **asked: Any,
) -> None:
    """Replay a trace under one layout: who waited, moved, paused, and why."""
    if facts is not None:
        from qwisp.cli.replay_facts import show_facts

        return show_facts(facts, output_format)
    clock = [time.process_time()]
    slo = _slo(slo_ttft, slo_tpot)
    question = ask(output_format, asked)
    if find_rate and question.rate is not None:
        raise BadInput("--rate and --sustain exclude each other", "give one of them")
    clock.append(time.process_time())
    found = replay_layout(question, layout, cut=cut, find_rate=find_rate)
    if found.run is None:
        return _say_infeasible(question, found, output_format)
    run = found.run
    if found.sustained is not None:
        output.note(str(found.sustained), "stderr")
    clock.append(time.process_time())
    document = replay_document(question, found)
    kept = None if slo is None else goodput(run, slo)
    if kept is not None:
        document["goodput"] = asdict(kept)
    clock.append(time.process_time())
    if check_stepwise:
        _check_stepwise(question, run)
    if chrome_trace is not None:
        from qwisp.sim.frames import write_chrome_trace

        write_chrome_trace(run, chrome_trace)
    output.emit([row(found)], _SHOWN, output_format, document=document)
    lines = [f"verdict: {run.summary.verdict} at {float(run.rate):g}x", f"why: {run.summary.why}"]
    if kept is not None:
        lines.append(
            f"goodput: {kept.requests:,} of {run.counts['submitted']:,} requests "
            f"({kept.share:.1%}), {kept.requests_per_s:.3g}/s"
        )
    lines += stall_remarks(run.summary)
    lines += [f"waited for {what}: {n:,}" for what, n in run.summary.waits_by_binding.items()]
    lines += [*refusal_remarks(run), *run_remarks(run)]
    if check_stepwise:
        lines.append("closed form equals single steps in every decision and time")
    for line in lines:
        output.note(line, output_format)
    read_s, replay_s, tables_s = (after - before for before, after in pairwise(clock))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _RSS_UNITS_PER_MIB
    output.note(
        f"CPU: read {read_s:.2f} s, replay {replay_s:.2f} s, tables {tables_s:.2f} s; "
        f"peak {peak_mib:,.0f} MiB",
        "stderr",
    )
    return None


# getrusage counts KiB on Linux and bytes on macOS.
_RSS_UNITS_PER_MIB = 1024 if sys.platform == "linux" else 1024**2


def _say_infeasible(question: Question, found: Candidate, output_format: str) -> None:
    document = replay_document(question, found)
    output.emit([row(found)], _SHOWN, output_format, document=document)
    output.note("verdict: infeasible", output_format)
    output.note(f"why: {document['why']}", output_format)
    next_step = f"{more_memory(found.num_bytes)}, or fewer and smaller sessions"
    output.note(f"next: {next_step}", output_format)


def _slo(ttft_s: float | None, tpot_s: float | None) -> Slo | None:
    if ttft_s is None and tpot_s is None:
        return None
    if ttft_s is None or tpot_s is None:
        raise BadInput("half a promise: --slo-ttft and --slo-tpot go together", "give both")
    return Slo(ttft_s=ttft_s, tpot_s=tpot_s)


def _check_stepwise(question: Question, run: Run) -> None:
    single = question.replays(run.layout)(run.trace, rate=run.rate, stepwise=True)
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
