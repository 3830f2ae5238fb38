"""Azure LLM inference traces of 2023 (naive times, CRLF) and 2024 (times with an offset from UTC).

`TIMESTAMP,ContextTokens,GeneratedTokens`; times carry up to seven fractional digits, kept exactly.
"""

from __future__ import annotations

from qwisp.trace.clock_text import iso_ns
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

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = (
    r"^(?:19|20)[0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
)


def matches(data: bytes) -> bool:
    """Whether the first line names a column of this format."""
    return any(column in header_cells(data) for column in COLUMNS)


def read(data: bytes, name: str, *, lenient: bool = False) -> Trace:
    """Return the trace of an Azure CSV file. Raises `BadTrace` with line and column."""
    numbers = column_numbers(data, name, COLUMNS)
    keep = Collector(name, Columns(*numbers), lenient=lenient)
    columns = _columns_at_once(data)
    if columns is None or not keep.add_all(*columns):
        read_cells(data, numbers, _RowParser(numbers), keep)
    return keep.trace("azure")


class _RowParser:
    """Reads the cells of a line; all lines must agree on naming an offset from UTC or not."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.has_offset: bool | None = None

    def __call__(self, cells: list[str]) -> Row:
        time_column, prompt_column, output_column = self.numbers
        try:
            arrival_ns, has_offset = iso_ns(cells[0])
        except ValueError as error:
            raise BadCell(time_column, str(error)) from None
        if self.has_offset is None:
            self.has_offset = has_offset
        if has_offset != self.has_offset:
            raise BadCell(time_column, "some times name their offset from UTC and some do not")
        prompt_tokens = token_cell(cells[1], prompt_column)
        return Row(arrival_ns, prompt_tokens, token_cell(cells[2], output_column))


def _columns_at_once(data: bytes) -> tuple[list[int], list[int], list[int]] | None:
    """Return all cells as whole numbers, or None unless every cell is beyond doubt."""
    import polars as pl

    frame = text_frame(data, COLUMNS)
    if frame is None or frame.height == 0:
        return None
    time, prompt, output = (pl.col(column) for column in COLUMNS)
    offset, time_format = "", "%Y-%m-%d %H:%M:%S%.f"  # "%S.%f" would read .0123 as .123
    if frame[COLUMNS[0]][0] and frame[COLUMNS[0]][0][-6:-5] in ("+", "-"):
        offset, time_format = r"[+-][0-9][0-9]:[0-9][0-9]", time_format + "%:z"
    is_plain = frame.select(
        time.str.contains(_TIME + offset + "$").all(ignore_nulls=False)
        & prompt.str.contains(TOKENS_PATTERN).all(ignore_nulls=False)
        & output.str.contains(TOKENS_PATTERN).all(ignore_nulls=False)
    ).item()
    if not is_plain:
        return None
    parsed = frame.select(
        time.str.to_datetime(time_format, time_unit="ns", strict=False).cast(pl.Int64),
        prompt.cast(pl.Int64),
        output.cast(pl.Int64),
    )
    if any(parsed.null_count().row(0)):
        return None
    return tuple(column.to_list() for column in parsed.iter_columns())  # type: ignore[return-value]
