"""How `fit` reads: the finding first, then the terms, the ladder, and what to do next."""

from __future__ import annotations

from typing import Any

from qwisp.cli import output
from qwisp.cli.output import Column, Row
from qwisp.memory.admission import ContextAdmission
from qwisp.memory.fit import Fit
from qwisp.memory.weights import Weights, load_weights
from qwisp.units import format_bytes, format_tokens


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value < 120 else f"{value / 60:,.0f} min"


TERMS = [
    Column("term", "term"),
    Column("num_bytes", "memory", format_bytes),
    Column("provenance", "known"),
    Column("note", "why"),
]
LADDER = [
    Column("context_tokens", "context", format_tokens),
    Column("cache_bytes", "cache", format_bytes),
    Column("needs_bytes", "needs", format_bytes),
    Column("verdict", ""),
    Column("prefill_s", "prompt read in", _seconds),
]


def term_rows(fit: Fit) -> list[Row]:
    """Return a row per term, and the sum."""
    rows: list[Row] = [
        {
            "term": term.name,
            "num_bytes": term.num_bytes,
            "provenance": term.provenance,
            "note": term.note if term.is_counted else f"not counted: {term.note}",
            "is_counted": term.is_counted,
        }
        for term in fit.memory.terms
    ]
    left = fit.memory.unmeasured
    note = f"at least; {len(left)} unmeasured" if left else ""
    total = {"num_bytes": fit.memory.known_bytes, "provenance": fit.memory.provenance}
    return [*rows, {"term": "sum", "note": note, "is_counted": False, **total}]


def rung_rows(fit: Fit) -> list[Row]:
    """Return a row per rung of the ladder."""
    fits, word = (True, "fits") if fit.is_decided else (None, "undecided")
    return [
        {
            **{key: value for key, value in rung._asdict().items() if key != "broken_rule"},
            "fits": fits if rung.fits else False,
            "verdict": word if rung.fits else f"no: {rung.broken_rule}",
        }
        for rung in fit.rungs
    ]


def finding(fit: Fit) -> str:
    """Return the answer in one line with its numbers."""
    admission = fit.admission
    assert admission.model is not None
    assert admission.machine is not None
    lanes = f" x {admission.lanes} lanes" if admission.lanes > 1 else ""
    who = f"{admission.model.name} on {admission.machine.title}"
    if fit.refusal is not None:
        return f"NO. {who}: {fit.refusal.what}"
    missing = {term.name for term in fit.memory.unmeasured}
    least = "at least " if missing else ""
    word = "YES" if fit.is_decided else "UNDECIDED"
    free = admission.machine.usable_bytes - fit.memory.known_bytes
    return (
        f"{word}. {who}: {format_tokens(fit.context_tokens)}{lanes} needs {least}"
        f"{format_bytes(fit.memory.known_bytes)}, {format_bytes(free)} below"
        f" {admission.machine.usable_rule}"
    )


def setting(admission: ContextAdmission) -> str:
    """Return the setting the numbers are for."""
    chunk = admission.dialect.chunk
    how = f"prefill {admission.prefill}"
    if chunk is not None and admission.prefill == "chunked":
        how += f" by {chunk:,}"
    return f"engine {admission.dialect.name}, {how}, lanes {admission.lanes}"


def advice(fit: Fit) -> list[str]:
    """Return what follows: largest, recommended, chunk, what is missing, what to do."""
    lines = []
    if not fit.is_decided:
        assert fit.usable_bytes is not None
        left = format_bytes(fit.usable_bytes - fit.memory.known_bytes)
        context = format_tokens(fit.context_tokens)
        lines.append(f"fits at {context} only if the weights take no more than {left}")
    elif fit.largest_tokens:
        lines.append(f"largest that fits: {fit.largest_tokens:,} tokens")
    chosen = fit.recommended
    where = format_tokens(chosen.context_tokens) if chosen.context_tokens else "none"
    lines.append(f"recommended: {where} ({chosen.why})")
    if fit.cost_name is not None:
        lines.append(f"times: one prompt as long as the context, calibration {fit.cost_name!r}")
    if fit.chunk is not None and fit.is_decided:
        lines.append(fit.chunk.says)
    lines += [f"unmeasured: {term.name} ({term.note})" for term in fit.memory.unmeasured]
    if fit.admission.model is not None:
        lines += [f"note: {note}" for note in fit.admission.model.notes]
        if fit.admission.model.context_max_tokens is None:
            top = format_tokens(fit.admission.native_max_tokens)
            lines.append(f"note: the config states no longest context; the ladder ends at {top}")
    if fit.refusal is not None:
        lines.append(fit.refusal.todo)
        lines += _could_stream(fit)
    return lines


def _could_stream(fit: Fit) -> list[str]:
    admission = fit.admission
    given = admission.weights
    weights = given if isinstance(given, Weights) else load_weights(admission.known_model.name)
    if weights is None or not weights.has_experts or admission.dialect.streams_experts:
        return []
    if fit.usable_bytes is None or weights.file_bytes <= fit.usable_bytes:
        return []
    return ["its experts can be streamed from disk: add --engine fieldfare"]


def show(fit: Fit, output_format: str) -> None:
    """Print the answer: finding, setting, terms, ladder, advice; in CSV the ladder alone."""
    quote = "`" if output_format == "markdown" else ""
    output.emit_answer(
        finding(fit),
        setting(fit.admission),
        tables=[(term_rows(fit), TERMS), (rung_rows(fit), _ladder(fit))],
        lines=[*advice(fit), *[f"its log will print: {quote}{x}{quote}" for x in fit.log_lines]],
        output_format=output_format,
        document=as_document(fit),
        csv=(rung_rows(fit), LADDER),
    )


def as_document(fit: Fit) -> dict[str, Any]:
    """Return everything as one JSON document."""
    admission = fit.admission
    model, machine = admission.model, admission.machine
    assert model is not None
    assert machine is not None
    return {
        "schema": 1,
        "model": model.name,
        "machine": machine.name,
        "engine": admission.dialect.name,
        "prefill": admission.prefill,
        "chunk_tokens": admission.dialect.chunk,
        "lanes": admission.lanes,
        "context_tokens": fit.context_tokens,
        "fits": fit.refusal is None if fit.is_decided else None,
        "unmeasured": [term.name for term in fit.memory.unmeasured],
        "finding": finding(fit),
        "terms": [
            {key: row.get(key) for key in ("term", "num_bytes", "provenance", "is_counted", "note")}
            for row in term_rows(fit)[:-1]
        ],
        "known_bytes": fit.memory.known_bytes,
        "total_bytes": fit.memory.total_bytes,
        "usable_bytes": machine.usable_bytes,
        "usable_rule": machine.usable_rule,
        "native_max_tokens": admission.native_max_tokens,
        "ladder": rung_rows(fit),
        "largest_tokens": fit.largest_tokens if fit.is_decided else None,
        "recommended_tokens": fit.recommended.context_tokens,
        "recommended_why": fit.recommended.why,
        "prefill_calibration": fit.cost_name,
        "widest_chunk": fit.chunk._asdict() if fit.chunk else None,
        "refusal": fit.refusal.to_dict() if fit.refusal else None,
        "log_lines": list(fit.log_lines),
        "notes": list(model.notes),
    }


def _ladder(fit: Fit) -> list[Column]:
    timed = any(rung.prefill_s is not None for rung in fit.rungs)
    return LADDER if timed else LADDER[:-1]
