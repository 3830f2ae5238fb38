"""Columns of a CSV trace by name: all at once where every cell is plain, else cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qwisp.errors import BadTrace
from qwisp.trace.collect import BadCell, Collector, Row
from qwisp.trace.source import lines

if TYPE_CHECKING:
    import polars as pl

TOKENS_PATTERN = r"^[0-9]{1,9}$"


def header_cells(data: bytes) -> list[str]:
    """Return the column names of the first line."""
    _, first = next(lines(data))
    return [cell.strip() for cell in first.decode("utf-8", "replace").split(",")]


def column_numbers(data: bytes, name: str, wanted: Sequence[str]) -> list[int]:
    """Return the positions (from 1) of the `wanted` columns. Raises `BadTrace`."""
    header = header_cells(data)
    for column in wanted:
        if header.count(column) != 1:
            what = "is missing" if column not in header else "stands there twice"
            raise BadTrace(
                f"{name}: line 1: column {column!r} {what} among {', '.join(header)[:120]}",
                f"the first line must name {', '.join(wanted)}",
                1,
                column,
            )
    return [header.index(column) + 1 for column in wanted]


def text_frame(data: bytes, wanted: Sequence[str]) -> pl.DataFrame | None:
    """Return the `wanted` columns as text, or None if the table is not regular."""
    import polars as pl

    try:
        # All columns: with a selection, polars does not look at what follows the last one.
        frame = pl.read_csv(data, infer_schema=False, quote_char=None)
        frame.columns = [column.strip() for column in frame.columns]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    # No line is too long here; as many commas as that makes in all: none is too short either.
    if data.count(b",") != (frame.width - 1) * (frame.height + 1):
        return None
    return frame.select(wanted)


def read_cells(
    data: bytes,
    numbers: Sequence[int],
    parse: Callable[[list[str]], Row],
    keep: Collector,
) -> None:
    """Feed every line after the first to `keep`, read by `parse` from its wanted cells."""
    rows = lines(data)
    _, first = next(rows)
    num_columns = first.count(b",") + 1
    for number, raw in rows:
        try:
            keep.add(number, parse(_cells(raw, numbers, num_columns)))
        except BadCell as cell:
            keep.bad(number, cell.column, cell.what)


def _cells(raw: bytes, numbers: Sequence[int], num_columns: int) -> list[str]:
    try:
        cells = raw.decode("utf-8").split(",")
    except UnicodeDecodeError as error:
        raise BadCell(error.start + 1, "this is not UTF-8 text") from None
    if len(cells) != num_columns:
        raise BadCell(len(cells), f"{len(cells)} cells where the first line has {num_columns}")
    return [cells[i - 1].strip() for i in numbers]


def token_cell(text: str, column: int) -> int:
    """Return a token count, or raise `BadCell` for anything but plain digits."""
    sign, digits = (text[:1], text[1:]) if text[:1] == "-" else ("", text)
    if not (digits.isascii() and digits.isdigit()):
        raise BadCell(column, f"{text[:40]!r} is not a number of tokens")
    if len(digits) > 18:
        raise BadCell(column, f"a number of {len(digits)} digits is no number of tokens")
    return int(sign + digits)
