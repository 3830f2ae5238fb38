"""qwisp's own trace format, one JSON object a line, read and written here.

`{"id", "arrival_s", "prompt_tokens", "output_tokens", "max_new", "prefix": [...]}`. `arrival_s` is
decimal text and stands for exact nanoseconds. `prefix` has a chained hash per started block of 512
prompt tokens. `id`, `max_new` and `prefix` may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from qwisp.trace.clock_text import NS_PER_S, scaled_ns
from qwisp.trace.collect import BadCell, Collector, Columns, Row
from qwisp.trace.json_lines import check_prefix, prefix_ids, read_objects, whole
from qwisp.trace.request import PREFIX_STEP_TOKENS, Request, Trace


def matches(record: dict[str, Any]) -> bool:
    """Whether a line has keys that only this format has."""
    return "arrival_s" in record or {"prompt_tokens", "output_tokens"} <= record.keys()


def read(data: bytes, name: str, *, lenient: bool = False) -> Trace:
    """Return the trace of a file in qwisp's own format. Raises `BadTrace` with line and column."""
    keep = Collector(name, Columns("arrival_s", "prompt_tokens", "output_tokens"), lenient=lenient)
    read_objects(data, _row, keep)
    return keep.trace("qwisp")


def _row(record: dict[str, Any]) -> Row:
    prompt_tokens = whole(record, "prompt_tokens")
    prefix = prefix_ids(record, "prefix")
    check_prefix(prefix, prompt_tokens, PREFIX_STEP_TOKENS, "prefix")
    return Row(
        _arrival_ns(record.get("arrival_s")),
        prompt_tokens,
        whole(record, "output_tokens"),
        None if record.get("max_new") is None else whole(record, "max_new"),
        prefix,
        _id(record.get("id")),
    )


def _arrival_ns(value: object) -> int:
    if type(value) not in (int, Decimal):
        what = "is missing" if value is None else f"{str(value)[:40]!r} is not a number of seconds"
        raise BadCell("arrival_s", what)
    try:
        return scaled_ns(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadCell("arrival_s", str(error)) from None


def _id(value: object) -> int | str | None:
    if value is None or type(value) is str:
        return value
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadCell("id", f"{str(value)[:40]!r} is neither text nor a number from 0 to 2^63 - 1")
    return value


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
