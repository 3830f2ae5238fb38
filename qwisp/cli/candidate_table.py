"""The table of `plan` and `replay`: a row a candidate."""

from __future__ import annotations

from typing import Any

from qwisp.cli.output import Column
from qwisp.planner.candidates import Candidate
from qwisp.units import format_bytes

COLUMNS = (
    Column("layout"),
    Column("bytes", "memory", format_bytes),
    Column("finished"),
    Column("lost", "refused, failed, cut"),
    Column("moves"),
    Column("pauses"),
    Column("waited", "waited"),
    Column("ttft_p50_s", "TTFT p50 (s)"),
    Column("ttft_p95_s", "p95 (s)"),
    Column("e2e_p95_s", "E2E p95 (s)"),
    Column("easier_ttft_p95_s", "TTFT p95 at 0.8 (s)"),
    Column("sustained_rate", "sustains"),
    Column("verdict"),
)


def row(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as a table row; one that does not fit has its bytes alone."""
    own = candidate.proposal.own_context_tokens
    known = {
        "layout": candidate.layout.text + (f" --context {own}" if own else ""),
        "bytes": candidate.num_bytes,
    }
    if candidate.run is None:
        return known | {"verdict": "does not fit"}
    summary, easier, sustained = candidate.run.summary, candidate.easier, candidate.sustained
    return known | {
        "finished": summary.finished,
        "lost": summary.lost,
        "moves": summary.moves,
        "pauses": summary.pauses,
        "waited": sum(summary.waits_by_binding.values()),
        "ttft_p50_s": summary.ttft_s.p50,
        "ttft_p95_s": summary.ttft_s.p95,
        "e2e_p95_s": summary.e2e_s.p95,
        "easier_ttft_p95_s": None if easier is None else easier.ttft_s.p95,
        "sustained_rate": None if sustained is None else float(sustained.rate),
        "verdict": summary.verdict,
    }
