"""qwisp's own trace format, one JSON object a line, read and written here.

`{"id", "arrival_s", "prompt_tokens", "output_tokens", "max_new", "prefix": [...]}`. `arrival_s` is
decimal text and stands for exact nanoseconds. `prefix` has a chained hash per started block of 512
prompt tokens. `id`, `max_new` and `prefix` may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qwisp.trace.clock_text import NS_PER_S
from qwisp.trace.collect import BadCell, Columns, Row
from qwisp.trace.records import RecordFormat, check_prefix, prefix_ids, seconds_ns, whole
from qwisp.trace.request import PREFIX_STEP_TOKENS, Request


def _row(record: dict[str, Any]) -> Row:
    prompt_tokens = whole(record, "prompt_tokens")
    prefix = prefix_ids(record, "prefix")
    check_prefix(prefix, prompt_tokens, PREFIX_STEP_TOKENS, "prefix")
    return Row(
        seconds_ns(record, "arrival_s"),
        prompt_tokens,
        whole(record, "output_tokens"),
        None if record.get("max_new") is None else whole(record, "max_new"),
        prefix,
        _id(record.get("id")),
    )


def _id(value: object) -> int | str | None:
    if value is None or type(value) is str:
        return value
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadCell("id", f"{str(value)[:40]!r} is neither text nor a number from 0 to 2^63 - 1")
    return value


def _matches(record: dict[str, Any]) -> bool:
    return "arrival_s" in record or {"prompt_tokens", "output_tokens"} <= record.keys()


FORMAT = RecordFormat(
    source="qwisp",
    hint=(
        "qwisp's own JSONL "
        '{"id", "arrival_s", "prompt_tokens", "output_tokens", "max_new", "prefix"}'
    ),
    columns=Columns("arrival_s", "prompt_tokens", "output_tokens"),
    matches=_matches,
    row=_row,
)


def line_of(request: Request) -> str:
    """Return the line that stands for `request`, without its newline.

    >>> line_of(Request(7, 1_500_000_001, 600, 20, None, (5, 9)))[:49]
    '{"id": 7, "arrival_s": 1.500000001, "prompt_token'
    """
    seconds, rest_ns = divmod(request.arrival_ns, NS_PER_S)
    arrival_s = f"{seconds}.{rest_ns:09d}".rstrip("0").rstrip(".")
    max_new = "null" if request.max_new is None else request.max_new
    return (
        f'{{"id": {request.id}, "arrival_s": {arrival_s}, '
        f'"prompt_tokens": {request.prompt_tokens}, "output_tokens": {request.output_tokens}, '
        f'"max_new": {max_new}, "prefix": {list(request.prefix)}}}'
    )


def write(requests: Iterable[Request], path: str | Path) -> None:
    """Write `requests` so that reading them back gives equal ones."""
    text = "".join(f"{line_of(request)}\n" for request in requests)
    Path(path).write_text(text, encoding="utf-8")
