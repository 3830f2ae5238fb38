"""BurstGPT traces v1, v2 and v3: columns found by name, since v3 inserts two.

A row without response tokens is a request that failed: counted, not replayed.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from qwisp.trace.clock_text import scaled_ns
from qwisp.trace.collect import BadCell, Collector, Columns, Row
from qwisp.trace.csv_columns import (
    TOKENS_PATTERN,
    column_numbers,
    header_cells,
    read_cells,
    text_frame,
    token_cell,
)
from qwisp.trace.request import Trace

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_SECONDS = r"^[0-9]{1,9}(?:\.[0-9]{1,9})?$"


def matches(data: bytes) -> bool:
    """Whether the first line names a column that only this format has."""
    return any(column in header_cells(data) for column in COLUMNS)


def read(data: bytes, name: str, *, lenient: bool = False) -> Trace:
    """Return the trace of a BurstGPT CSV file. Raises `BadTrace` with line and column."""
    numbers = column_numbers(data, name, COLUMNS)
    keep = Collector(name, Columns(*numbers), lenient=lenient, has_failures=True)
    columns = _columns_at_once(data)
    if columns is None or not keep.add_all(*columns):
        read_cells(data, numbers, lambda cells: _row(cells, numbers), keep)
    return keep.trace("burstgpt")


def _row(cells: list[str], numbers: list[int]) -> Row:
    try:
        if not cells[0].isascii() or "_" in cells[0]:
            raise InvalidOperation
        arrival_ns = scaled_ns(Decimal(cells[0]))
    except (InvalidOperation, ValueError):
        raise BadCell(numbers[0], f"{cells[0][:40]!r} is not a number of seconds") from None
    prompt_tokens = token_cell(cells[1], numbers[1])
    return Row(arrival_ns, prompt_tokens, token_cell(cells[2], numbers[2]))


def _columns_at_once(data: bytes) -> tuple[list[int], list[int], list[int]] | None:
    """Return all cells as whole numbers, or None unless every cell is beyond doubt."""
    import polars as pl

    frame = text_frame(data, COLUMNS)
    if frame is None or frame.height == 0:
        return None
    seconds, prompt, output = (pl.col(column) for column in COLUMNS)
    is_plain = frame.select(
        seconds.str.contains(_SECONDS).all(ignore_nulls=False)
        & prompt.str.contains(TOKENS_PATTERN).all(ignore_nulls=False)
        & output.str.contains(TOKENS_PATTERN).all(ignore_nulls=False)
    ).item()
    if not is_plain:
        return None
    whole, fraction = (
        seconds.str.extract(pattern).fill_null("0") for pattern in (r"^([0-9]+)", r"\.([0-9]+)$")
    )
    parsed = frame.select(
        whole.cast(pl.Int64) * 10**9 + fraction.str.pad_end(9, "0").cast(pl.Int64),
        prompt.cast(pl.Int64),
        output.cast(pl.Int64).alias("output"),
    )
    return tuple(column.to_list() for column in parsed.iter_columns())  # type: ignore[return-value]
