"""The settings and sessions of a run as the header of its facts file, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from qwisp.errors import BadInput
from qwisp.facts.file import FactsHeader
from qwisp.scheduling.contract import LogEntry
from qwisp.scheduling.layout import (
    MARGIN_ROWS,
    MAX_SESSIONS,
    Layout,
    RowBytes,
    SessionSize,
    parse_layout,
    parse_sessions,
)
from qwisp.scheduling.settings import Settings

# Files call a setting by the name of its field, but these by shorter ones.
_SHORT = {
    "grow_tokens": "grow",
    "gen_cap_tokens": "gen_cap",
    "prefix_step_tokens": "prefix_step",
    "boundary_tokens": "boundary",
    "min_shared_tokens": "min_shared",
}
_OF_PREFIXES = {"prefix_bytes", "prefix_step_tokens", "boundary_tokens", "min_shared_tokens"}
_NAMES = tuple(field.name for field in fields(Settings))
_IN_EVERY_HEADER = tuple(name for name in _NAMES if name in FactsHeader._fields)
SETTING_KEYS = {name: _SHORT.get(name, name) for name in _NAMES if name not in _IN_EVERY_HEADER}
"""The key of every setting that stands among the further ones."""

READ_KEYS = frozenset(SETTING_KEYS.values()) | {
    "context",
    "cut",
    "fixed_bytes",
    "log_sha256",
    "memory_bytes",
    "model_context",
    "row_bytes",
    "sessions",
}
"""Further keys of a header that the replay reads."""


def header_of(
    layout: Layout,
    settings: Settings,
    size: SessionSize,
    *,
    log: Sequence[LogEntry] | None = None,
) -> FactsHeader:
    """Return the header under which a run of these settings can be replayed.

    `log` adds the digest of its decisions, so that the file alone tells whether a replay is equal.
    Raises `BadInput` for sessions that a header cannot say.
    """
    text = layout.text
    if layout.kind == "sized" and (
        layout.margin_rows != MARGIN_ROWS or parse_sessions(text) != layout.contexts[1:]
    ):
        raise BadInput(
            f"a header cannot say the sessions {text} with {layout.margin_rows} rows of margin",
            f"use {MARGIN_ROWS} rows, and the list beside the engine's own session, as "
            "parse_layout does; or keep the layout and replay with replay_records",
        )
    extra: dict[str, Any] = {
        key: getattr(settings, name)
        for name, key in SETTING_KEYS.items()
        if settings.prefix_bytes or name not in _OF_PREFIXES
    }
    extra |= {
        "context": layout.contexts[0] if layout.kind == "sized" else layout.context_tokens,
        "model_context": layout.context_tokens,
        "cut": layout.cut,
    }
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
    shared = {name: getattr(settings, name) for name in _IN_EVERY_HEADER}
    return FactsHeader(
        layout=text, width=layout.lanes, extra=tuple(sorted(extra.items())), **shared
    )


def recorded_settings(header: FactsHeader) -> Settings:
    """Return the settings a header names; what it leaves out has its default. Raises `BadInput`."""
    default = Settings()
    found: dict[str, Any] = {name: getattr(header, name) for name in _IN_EVERY_HEADER}
    for name, key in SETTING_KEYS.items():
        value = getattr(default, name)
        found[name] = header.told(key, value, type(value))
    return Settings(**found)


def recorded_layout(header: FactsHeader, size: SessionSize | None) -> tuple[Layout, SessionSize]:
    """Return the layout a header names and the bytes its sessions take. Raises `BadInput`."""
    if header.width > MAX_SESSIONS:
        raise header.bad("W", header.width, f"at most {MAX_SESSIONS} lanes")
    row_bytes = header.told("row_bytes")
    if size is None and row_bytes is not None:
        size = RowBytes(row_bytes, header.told("fixed_bytes", 0))
    context = header.told("context")
    # Fixed sessions are counted, not measured: one byte each, as many as the run had.
    counted, memory_bytes = RowBytes(0, 1), header.told("sessions", header.width)
    if header.layout.strip().lower().startswith("per_request"):
        counted, memory_bytes = size, header.told("memory_bytes", 0)
    if size is None and (counted is None or header.told("prefix_bytes", 0)):
        raise BadInput(
            "the facts come from a run where bytes decide, but name no bytes",
            "write row_bytes and fixed_bytes into their header, or name the model",
        )
    layout = parse_layout(
        header.layout,
        size=counted,
        memory_bytes=memory_bytes,
        model_context_tokens=header.told("model_context", context or 2**30),
        own_context_tokens=context,
        lanes=header.width,
    )
    return replace(layout, cut=header.told("cut", layout.cut, str)), size or counted


def log_digest(log: Sequence[LogEntry]) -> str:
    """Return the SHA-256 of a log's decisions: equal digests mean equal logs.

    >>> log_digest([LogEntry(0, 1, "admit", 7, (0, 0, ""))])[:16]
    'd48bdc8127fedcec'
    """
    digest = hashlib.sha256()
    for entry in log:
        digest.update(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()
