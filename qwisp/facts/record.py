"""A recorded run as the records of a facts file, and the header that lets it be replayed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from qwisp.errors import BadInput
from qwisp.facts.file import (
    OPS,
    AskRecord,
    CancelRecord,
    ExtraRecord,
    FactRecord,
    FactsHeader,
    FailRecord,
    StopRecord,
    facts_lines,
)
from qwisp.scheduling.contract import LogEntry
from qwisp.scheduling.layout import Layout, SessionSize
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Recorded

_NS_PER_S = 10**9


def facts_of(recorded: Recorded) -> tuple[FactRecord, ...]:
    """Return the facts of a run by round: arrivals and cancels first, then what the round did.

    Cancels of requests that had not arrived and failures of `End` and `Drop` are left out: they
    changed nothing. Raises `BadInput` when an id was used twice, because ids name the requests.
    """
    known: set[int] = set()
    early: list[FactRecord] = []
    for time_s, fact in recorded.facts_seen:
        if fact.ask is not None:
            ask = fact.ask
            if ask.id in known:
                raise BadInput(
                    f"request {ask.id} arrived twice", "number the requests of a run once each"
                )
            known.add(ask.id)
            early.append(
                AskRecord(
                    fact.round,
                    _ns(time_s),
                    ask.id,
                    ask.prompt_tokens,
                    ask.max_new,
                    ask.prefix,
                    ask.priority,
                    ask.message_tokens,
                )
            )
        if fact.cancel is not None and fact.cancel in known:
            early.append(CancelRecord(fact.round, _ns(time_s), fact.cancel))
    late: list[FactRecord] = [
        *(ExtraRecord(index, _ns(at), i, tokens) for index, at, i, tokens in recorded.extras),
        *(
            FailRecord(index, _ns(at), None, why, *op)
            for (index, at, _, why), op in zip(recorded.fails, recorded.failed_ops, strict=True)
            if op[0] in OPS
        ),
        *(StopRecord(index, _ns(at), i) for index, at, i in recorded.stops),
    ]
    return tuple(sorted([*early, *late], key=lambda record: record.round))  # stable: early first


def header_of(
    layout: Layout,
    settings: Settings,
    size: SessionSize,
    *,
    log: Sequence[LogEntry] | None = None,
) -> FactsHeader:
    """Return the header under which a run of these settings can be replayed.

    `log` adds the digest of its decisions, so that the file alone tells whether a replay is equal.
    """
    extra: dict[str, object] = {
        "context": layout.contexts[0] if layout.kind == "sized" else layout.context_tokens,
        "model_context": layout.context_tokens,
        "cut": layout.cut,
        "step_tokens": settings.step_tokens,
        "grow": settings.grow_tokens,
        "gen_cap": settings.gen_cap_tokens,
        "chunk_rule": settings.chunk_rule,
        "max_passed": settings.max_passed,
    }
    if settings.prefix_bytes:
        extra |= {
            "prefix_bytes": settings.prefix_bytes,
            "prefix_step": settings.prefix_step_tokens,
            "boundary": settings.boundary_tokens,
            "min_shared": settings.min_shared_tokens,
        }
    text = layout.text
    if layout.kind == "whole_window":
        text = f"whole_window:{len(layout.contexts)}"
    if layout.kind == "fixed_arena":
        extra["sessions"] = len(layout.contexts)
    if layout.kind == "per_request":
        text = f"per_request:{layout.budget_bytes}"
    if layout.kind == "per_request" or settings.prefix_bytes:  # bytes decide
        fixed, row = size.bytes(0), size.bytes(1) - size.bytes(0)
        flat = all(size.bytes(n) == fixed + n * row for n in (4097, layout.context_tokens + 1))
        if flat and size.lane_bytes(4097) == fixed:  # no ring, not even one that is still growing
            extra |= {"fixed_bytes": fixed, "row_bytes": row}
    if log is not None:
        extra["log_sha256"] = log_digest(log)
    return FactsHeader(
        text,
        layout.lanes,
        settings.chunk_tokens,
        settings.budget_tokens,
        settings.order,
        tuple(sorted(extra.items())),
    )


def log_digest(log: Sequence[LogEntry]) -> str:
    """Return the SHA-256 of a log's decisions: equal digests mean equal logs.

    >>> log_digest([LogEntry(0, 1, "admit", 7, (0, 0, ""))])[:16]
    'd48bdc8127fedcec'
    """
    digest = hashlib.sha256()
    for entry in log:
        digest.update(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def write_facts(path: str | Path, header: FactsHeader, records: Sequence[FactRecord]) -> None:
    """Write a facts file; `qwisp.facts.file.read_facts` reads it back, equal."""
    Path(path).write_text("".join(facts_lines(header, records)), encoding="utf-8")


def _ns(time_s: float) -> int:
    return max(0, round(time_s * _NS_PER_S))
