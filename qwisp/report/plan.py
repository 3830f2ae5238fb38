"""The page of `qwisp plan`: verdict, candidates side by side, and the best one over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from qwisp import charts
from qwisp.planner.plan import Plan
from qwisp.receipts.stamp import Stamp
from qwisp.report.page import Figure, Heading, Page, Table
from qwisp.units import format_bytes, format_tokens

_COUNTS = ("finished", "truncated", "refused", "failed", "cancelled", "moves", "pauses")
_SEGMENTS = {"id": pl.Int64, "slot": pl.Int64, "phase": pl.String} | dict.fromkeys(
    ("begin_s", "end_s"), pl.Float64
)
_LOAD = {"time_s": pl.Float64, "waiting": pl.Int64} | dict.fromkeys(
    ("allocated_bytes", "held_bytes", "used_bytes"), pl.Float64
)


def plan_page(
    document: Mapping[str, Any],
    *,
    memory: pl.DataFrame,
    segments: pl.DataFrame,
    load: pl.DataFrame,
    sessions: Sequence[str] = (),
    command: str,
    stamp: Sequence[tuple[str, str]] = (),
) -> Page:
    """Return the page of a plan document (the JSON of `qwisp plan`).

    `memory` has the columns `term`, `bytes`; `segments` and `load` are the frames of the run that
    is recommended (`qwisp.sim.run.Run`), `sessions` the names of its sessions by slot.
    """
    return Page(
        title=f"Sessions for {document['model']} on {document['machine']}",
        verdict=document["verdict"],
        why=document["why"],
        command=command,
        facts=_facts(document),
        tables=[
            candidate_table(document["candidates"], document["best"]),
            waits_table(document["candidates"]),
        ],
        figures=[
            Figure(
                chart=charts.memory_by_term(memory),
                caption="Memory by term: what comes before any session, and the sessions shown.",
            ),
            Figure(
                chart=charts.ttft_by_candidate(quantile_frame(document["candidates"], "ttft_s")),
                caption="From the median to the tail, for every layout that fits.",
            ),
            Figure(
                chart=charts.sessions_over_time(segments, sessions=sessions),
                caption="One row a session, one bar a stream: each colour is what the stream does.",
            ),
            Figure(chart=charts.queue_depth(charts.thinned(load))),
            Figure(chart=charts.bytes_over_time(charts.thinned(load))),
        ],
        stamp=stamp,
    )


def page_of(plan: Plan, document: Mapping[str, Any], *, command: str) -> Page:
    """Return the page of a plan and its document.

    Shows the recommended candidate over time; without one, the fitting one that finished the most.
    """
    ran = [candidate for candidate in plan.candidates if candidate.run is not None]
    shown = plan.best or max(ran, key=lambda c: c.run.counts["finished"], default=None)
    terms = plan.question.known_terms()
    rows = [(term.name, term.num_bytes) for term in terms if term.num_bytes is not None]
    if shown is not None:
        rows.append((f"sessions {shown.layout.text}", shown.num_bytes))
    here = Stamp.here()
    return plan_page(
        document,
        memory=pl.DataFrame(rows, schema={"term": pl.String, "bytes": pl.Int64}, orient="row"),
        segments=shown.run.segments if shown else pl.DataFrame(schema=_SEGMENTS),
        load=shown.run.load if shown else pl.DataFrame(schema=_LOAD),
        sessions=[format_tokens(n) for n in shown.layout.contexts] if shown else (),
        command=command,
        stamp=[*here.machine, *here.packages, ("commit", here.commit or "none")],
    )


def candidate_table(candidates: Sequence[Mapping[str, Any]], best: str | None = None) -> Table:
    """Return one row a candidate, the `best` marked; one that does not fit says so by its bytes."""
    numbers = ["bytes", *_COUNTS, "TTFT p50 (s)", "TTFT p95 (s)", "E2E p95 (s)"]
    headings = [
        Heading(title="layout"),
        Heading(title="verdict"),
        *[Heading(title=title, is_number=True) for title in numbers],
    ]
    rows = [_row(candidate, best) for candidate in candidates]
    return Table(title="Candidates", columns=headings, rows=rows)


def waits_table(candidates: Sequence[Mapping[str, Any]]) -> Table:
    """Return how many requests waited for what, one column a binding resource."""
    ran = [candidate for candidate in candidates if candidate["feasible"]]
    names = sorted({name for candidate in ran for name in candidate["waits_by_binding"] or ()})
    headings = [Heading(title=name, is_number=True) for name in names]
    return Table(
        title="Requests that waited, by binding resource" if names else "No request waited",
        columns=[Heading(title="layout"), *headings],
        rows=[
            [str(c["layout"]), *[f"{(c['waits_by_binding'] or {}).get(n, 0):,}" for n in names]]
            for c in ran
        ],
    )


def quantile_frame(candidates: Sequence[Mapping[str, Any]], key: str) -> pl.DataFrame:
    """Return `layout`, `quantile`, `<key>` of the candidates that ran."""
    rows = [
        (candidate["layout"], quantile, float(value))
        for candidate in candidates
        if candidate["feasible"]
        for quantile, value in (candidate[key] or {}).items()
        if quantile in ("p50", "p95", "p99") and value is not None
    ]
    schema = {"layout": pl.String, "quantile": pl.String, key: pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    ratio = document["offered"]["ratio"]
    load = "a burst: all at once" if ratio is None else f"{ratio:.3g} x capacity as recorded"
    oracle = [("reply lengths", "clairvoyant: given to the scheduler (--max-new oracle)")]
    return [
        ("model", str(document["model"])),
        ("machine", str(document["machine"])),
        ("trace", str(document["trace"])),
        ("memory for sessions", format_bytes(document["memory_bytes"])),
        ("offered load", load),
        ("compared at", f"{document['rate']:g}x of the recorded arrivals"),
        *(oracle if document.get("max_new") == "oracle" else []),
    ]


def _row(candidate: Mapping[str, Any], best: str | None) -> list[str]:
    layout, size = str(candidate["layout"]), format_bytes(candidate["bytes"])
    own = candidate.get("context_tokens")
    name = f"{layout} --context {own}" if own else layout
    if not candidate["feasible"]:
        return [name, "does not fit", size, *["-"] * (len(_COUNTS) + 3)]
    recommended = ", recommended" if layout == best else ""
    return [
        name,
        f"{candidate['verdict']}{recommended}",
        size,
        *[f"{candidate[name]:,}" for name in _COUNTS],
        _quantile(candidate["ttft_s"], "p50"),
        _quantile(candidate["ttft_s"], "p95"),
        _quantile(candidate["e2e_s"], "p95"),
    ]


def _quantile(quantiles: Mapping[str, float] | None, name: str) -> str:
    value = (quantiles or {}).get(name)
    return "-" if value is None else f"{value:,.3g}"
