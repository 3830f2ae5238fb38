"""Logs of OpenAI-style servers: JSONL whose lines hold a time and a `usage` object.

A line is a completion as the API returned it, or a record with such a `response` (and `request`)
inside, as in batch output files, or a flat record with token counts. The time is `created`,
`timestamp` and the like: seconds, milliseconds, microseconds or nanoseconds since 1970 (told by
size) or ISO 8601. Logs are written when a reply ends, so lines are sorted by time. A line with an
`error`, a status from 400 on, or no completion tokens is a failed request: counted, not replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from qwisp.trace.clock_text import iso_ns, scaled_ns
from qwisp.trace.collect import BadCell, Columns, Row
from qwisp.trace.records import RecordFormat, whole

_INSIDE = ("response", "body", "request")
_TIME_KEYS = ("created", "created_at", "timestamp", "time", "ts", "start_time", "startTime")
_TOKEN_KEYS = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
_MAX_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_LARGEST_S = 10**11
_UNITS_NS = ((_LARGEST_S, 10**9), (10**14, 10**6), (10**17, 10**3), (10**20, 1))


def _parts(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the record and the objects inside it that may hold what we look for."""
    yield record
    for key in _INSIDE:
        part = record.get(key)
        if isinstance(part, dict):
            yield part
            inner = part.get("body")
            if isinstance(inner, dict):
                yield inner


def _row(record: dict[str, Any]) -> Row:
    parts = list(_parts(record))
    arrival_ns = _arrival_ns(parts)
    if any(_has_failed(part) for part in parts):
        return Row(arrival_ns, 0, 0)
    for part in parts:
        usage = part.get("usage")
        counts = usage if isinstance(usage, dict) else part
        for prompt_key, output_key in _TOKEN_KEYS:
            if prompt_key in counts or output_key in counts:
                prompt_tokens = whole(counts, prompt_key)
                output_tokens = whole(counts, output_key)
                return Row(arrival_ns, prompt_tokens, output_tokens, _max_new(parts))
    raise BadCell("usage", "no prompt_tokens and completion_tokens on the line, and no error")


def _has_failed(part: dict[str, Any]) -> bool:
    statuses = (part.get("status"), part.get("status_code"))
    return bool(part.get("error")) or any(type(s) is int and s >= 400 for s in statuses)


def _arrival_ns(parts: list[dict[str, Any]]) -> int:
    for part in parts:
        for key in _TIME_KEYS:
            value = part.get(key)
            if value is None:
                continue
            try:
                if type(value) is str:
                    return iso_ns(value)[0]
                if type(value) in (int, Decimal) and value >= 0:
                    for limit, unit_ns in _UNITS_NS:
                        if value < limit:
                            return scaled_ns(value, unit_ns)
            except ValueError as error:
                raise BadCell(key, str(error)) from None
            raise BadCell(key, f"{str(value)[:40]!r} is not a time")
    raise BadCell("created", f"no time on the line: none of {', '.join(_TIME_KEYS)}")


def _max_new(parts: list[dict[str, Any]]) -> int | None:
    for part in parts:
        for key in _MAX_KEYS:
            if part.get(key) is not None:
                return whole(part, key)
    return None


def _matches(record: dict[str, Any]) -> bool:
    return any(
        "usage" in part or "response" in part or any(out in part for _, out in _TOKEN_KEYS)
        for part in _parts(record)
    )


FORMAT = RecordFormat(
    source="server log",
    hint="server log JSONL",
    columns=Columns("created", "prompt_tokens", "completion_tokens"),
    matches=_matches,
    row=_row,
    sort=True,
    has_failures=True,
)
