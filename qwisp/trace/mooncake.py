"""Mooncake traces: JSONL with arrivals in milliseconds and a chained hash per block of 512 tokens.

Arrivals come in buckets of three seconds; ties keep the order of the file.
"""

from __future__ import annotations

from typing import Any

from qwisp.trace.collect import Columns, Row
from qwisp.trace.records import RecordFormat, check_prefix, prefix_ids, whole

BLOCK_TOKENS = 512
_NS_PER_MS = 10**6


def _row(record: dict[str, Any]) -> Row:
    prompt_tokens = whole(record, "input_length")
    prefix = prefix_ids(record, "hash_ids")
    check_prefix(prefix, prompt_tokens, BLOCK_TOKENS, "hash_ids")
    arrival_ns = whole(record, "timestamp") * _NS_PER_MS
    return Row(arrival_ns, prompt_tokens, whole(record, "output_length"), prefix=prefix)


FORMAT = RecordFormat(
    source="mooncake",
    hint="Mooncake JSONL",
    columns=Columns("timestamp", "input_length", "output_length"),
    matches=lambda record: "input_length" in record or "hash_ids" in record,
    row=_row,
    prefix_step_tokens=BLOCK_TOKENS,
)
