"""A CSV format: columns by name, all at once where every cell is plain, else cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qwisp.errors import BadTrace
from qwisp.trace.collect import BadCell, Collector, Columns, Row
from qwisp.trace.request import Trace
from qwisp.trace.source import lines

if TYPE_CHECKING:
    import polars as pl

_TOKENS = r"^[0-9]{1,9}$"


class TableFormat(NamedTuple):
    """A format of CSV files whose rows hold an arrival, prompt tokens and output tokens.

    `columns` are their names in that order, `source` and `hint` what traces and messages call it.
    `times()` returns a function for one file: the text of a time to nanoseconds, or `ValueError`.
    `plain_times(column, first text)` returns a pattern of times beyond doubt and the polars
    expression that reads them all to the same nanoseconds. `has_failures` as in `Collector`.
    """

    source: str
    hint: str
    columns: tuple[str, str, str]
    times: Callable[[], Callable[[str], int]]
    plain_times: Callable[[pl.Expr, str], tuple[str, pl.Expr]]
    has_failures: bool = False

    def matches(self, header: Sequence[str]) -> bool:
        """Whether a first line of these cells names a column of this format."""
        return not set(self.columns).isdisjoint(header)

    def read(self, data: bytes, name: str, *, lenient: bool = False) -> Trace:
        """Return the trace of a file. Raises `BadTrace` with line and column."""
        numbers = _column_numbers(data, name, self.columns)
        columns = Columns(*numbers)
        keep = Collector(name, columns, lenient=lenient, has_failures=self.has_failures)
        at_once = self.columns_at_once(data)
        if at_once is None or not keep.add_all(*at_once):
            _read_cells(data, columns, self.times(), keep)
        return keep.trace(self.source)

    def columns_at_once(self, data: bytes) -> tuple[list[int], list[int], list[int]] | None:
        """Return all cells as whole numbers, or None unless every cell is beyond doubt."""
        import polars as pl

        frame = _text_frame(data, self.columns)
        if frame is None or frame.height == 0:
            return None
        time, prompt, output = (pl.col(column) for column in self.columns)
        pattern, arrival_ns = self.plain_times(time, frame[self.columns[0]][0] or "")
        patterns = ((time, pattern), (prompt, _TOKENS), (output, _TOKENS))
        if not frame.select(
            pl.all_horizontal(
                cell.str.contains(plain).all(ignore_nulls=False) for cell, plain in patterns
            )
        ).item():
            return None
        parsed = frame.select(arrival_ns, prompt.cast(pl.Int64), output.cast(pl.Int64))
        if any(parsed.null_count().row(0)):
            return None
        return tuple(column.to_list() for column in parsed.iter_columns())  # type: ignore[return-value]


def header_cells(data: bytes) -> list[str]:
    """Return the column names of the first line."""
    _, first = next(lines(data))
    return [cell.strip() for cell in first.decode("utf-8", "replace").split(",")]


def _column_numbers(data: bytes, name: str, wanted: Sequence[str]) -> list[int]:
    """Return the positions (from 1) of the `wanted` columns. Raises `BadTrace`."""
    header = header_cells(data)
    for column in wanted:
        if header.count(column) != 1:
            what = "is missing" if column not in header else "appears twice"
            raise BadTrace(
                f"{name}: line 1: column {column!r} {what} among {', '.join(header)[:120]}",
                f"the first line must name {', '.join(wanted)}",
                1,
                column,
            )
    return [header.index(column) + 1 for column in wanted]


def _text_frame(data: bytes, wanted: Sequence[str]) -> pl.DataFrame | None:
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


def _read_cells(
    data: bytes, columns: Columns, time_ns: Callable[[str], int], keep: Collector
) -> None:
    """Feed every line after the first to `keep`."""
    rows = lines(data)
    _, first = next(rows)
    num_columns = first.count(b",") + 1
    for number, raw in rows:
        try:
            keep.add(number, _row(raw, columns, num_columns, time_ns))
        except BadCell as cell:
            keep.bad(number, cell.column, cell.what)


def _row(raw: bytes, columns: Columns, num_columns: int, time_ns: Callable[[str], int]) -> Row:
    try:
        cells = raw.decode("utf-8").split(",")
    except UnicodeDecodeError as error:
        raise BadCell(error.start + 1, "this is not UTF-8 text") from None
    if len(cells) != num_columns:
        raise BadCell(len(cells), f"{len(cells)} cells where the first line has {num_columns}")
    time, prompt, output = (cells[i - 1].strip() for i in columns)
    try:
        arrival_ns = time_ns(time)
    except ValueError as error:
        raise BadCell(columns.arrival, str(error)) from None
    prompt_tokens = _token_cell(prompt, columns.prompt)
    return Row(arrival_ns, prompt_tokens, _token_cell(output, columns.output))


def _token_cell(text: str, column: int) -> int:
    """Return a token count, or raise `BadCell` for anything but plain digits."""
    sign, digits = (text[:1], text[1:]) if text[:1] == "-" else ("", text)
    if not (digits.isascii() and digits.isdigit()):
        raise BadCell(column, f"{text[:40]!r} is not a number of tokens")
    if len(digits) > 18:
        raise BadCell(column, f"{len(digits)} digits are too many for a number of tokens")
    return int(sign + digits)
