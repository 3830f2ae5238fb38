"""The page of `qwisp plan`: verdict, candidates side by side, and the best one over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from qwisp import charts
from qwisp.report.page import Figure, Heading, Page, Table
from qwisp.units import format_bytes

_COUNTS = ("finished", "truncated", "refused", "failed", "cancelled", "moves", "pauses")


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
    offered = document["offered"]
    facts = [
        ("model", str(document["model"])),
        ("machine", str(document["machine"])),
        ("memory for sessions", format_bytes(document["memory_bytes"])),
        ("offered load", f"{offered['ratio']:.3g} of capacity as recorded"),
        ("compared at", f"{document['rate']}"),
    ]
    return Page(
        title=f"Sessions for {document['model']} on {document['machine']}",
        verdict=document["verdict"],
        why=document["why"],
        command=command,
        facts=facts,
        tables=[candidate_table(document["candidates"])],
        figures=[
            Figure(
                chart=charts.memory_by_term(memory, limit_bytes=document["memory_bytes"]),
                caption="Memory of the recommended sessions by term, against what they may take.",
            ),
            Figure(
                chart=charts.ttft_by_candidate(quantile_frame(document["candidates"], "ttft_s")),
                caption="From the median to the tail, for every layout that fits.",
            ),
            Figure(
                chart=charts.sessions_over_time(segments, sessions=sessions),
                caption="The recommended layout: one row a session, one bar a stream.",
            ),
            Figure(chart=charts.queue_depth(charts.thinned(load))),
            Figure(chart=charts.bytes_over_time(charts.thinned(load))),
        ],
        stamp=stamp,
    )


def candidate_table(candidates: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row a candidate; one that does not fit says by its bytes why it was not run."""
    numbers = ["bytes", *_COUNTS, "TTFT p50 (s)", "TTFT p95 (s)", "E2E p95 (s)"]
    headings = [
        Heading(title="layout"),
        *[Heading(title=title, is_number=True) for title in numbers],
        Heading(title="verdict"),
        Heading(title="waits by binding resource"),
    ]
    return Table(
        title="Candidates", columns=headings, rows=[_row(candidate) for candidate in candidates]
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


def _row(candidate: Mapping[str, Any]) -> list[str]:
    head = [str(candidate["layout"]), format_bytes(candidate["bytes"])]
    if not candidate["feasible"]:
        return [*head, *["-"] * (len(_COUNTS) + 3), "does not fit", "-"]
    waits = candidate["waits_by_binding"] or {}
    return [
        *head,
        *[f"{candidate[name]:,}" for name in _COUNTS],
        _quantile(candidate["ttft_s"], "p50"),
        _quantile(candidate["ttft_s"], "p95"),
        _quantile(candidate["e2e_s"], "p95"),
        str(candidate["verdict"]),
        ", ".join(f"{name} {count:,}" for name, count in waits.items()) or "none",
    ]


def _quantile(quantiles: Mapping[str, float] | None, name: str) -> str:
    value = (quantiles or {}).get(name)
    return "-" if value is None else f"{value:,.3g}"
