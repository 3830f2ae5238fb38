"""Mooncake traces: JSONL with arrivals in milliseconds and a chained hash per block of 512 tokens.

Arrivals come in buckets of three seconds; ties keep the order of the file.
"""

from __future__ import annotations

from typing import Any

from qwisp.trace.collect import Collector, Columns, Row
from qwisp.trace.json_lines import check_prefix, prefix_ids, read_objects, whole
from qwisp.trace.request import Trace

BLOCK_TOKENS = 512
_NS_PER_MS = 10**6


def matches(record: dict[str, Any]) -> bool:
    """Whether a line has a key that only this format has."""
    return "input_length" in record or "hash_ids" in record


def read(data: bytes, name: str, *, lenient: bool = False) -> Trace:
    """Return the trace of a Mooncake file. Raises `BadTrace` with line and column."""
    keep = Collector(name, Columns("timestamp", "input_length", "output_length"), lenient=lenient)
    read_objects(data, _row, keep)
    return keep.trace("mooncake", BLOCK_TOKENS)


def _row(record: dict[str, Any]) -> Row:
    prompt_tokens = whole(record, "input_length")
    prefix = prefix_ids(record, "hash_ids")
    check_prefix(prefix, prompt_tokens, BLOCK_TOKENS, "hash_ids")
    arrival_ns = whole(record, "timestamp") * _NS_PER_MS
    return Row(arrival_ns, prompt_tokens, whole(record, "output_length"), prefix=prefix)
