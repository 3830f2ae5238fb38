"""Every reader's rows end here: checked by the same rules, in strict or lenient mode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, count, islice, repeat
from operator import le
from typing import NamedTuple

from qwisp.errors import BadTrace
from qwisp.trace.request import PREFIX_STEP_TOKENS, Request, Trace

MAX_TOKENS = 10**8
MAX_ARRIVAL_NS = 4 * 10**18
_MAX_NOTES = 5
_LENIENT = "correct the line, or read with --lenient to skip and count such lines"


class BadCell(Exception):
    """A cell that cannot be read; a reader raises it, `Collector` turns it into line and column."""

    def __init__(self, column: int | str, what: str) -> None:
        super().__init__(column, what)
        self.column = column
        self.what = what


class Row(NamedTuple):
    """What a line says. `arrival_ns` on the file's own clock; an output of 0 is a failure."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_new: int | None = None
    prefix: tuple[int, ...] = ()
    id: int | str | None = None


class Columns(NamedTuple):
    """Column numbers or names that the checks blame."""

    arrival: int | str
    prompt: int | str
    output: int | str


class Collector:
    """Takes rows in file order and makes the `Trace`.

    `sort`: rows may come in any order (logs are written when a request ends). `has_failures`: a
    row without output is a failed request, counted and left out; elsewhere it is an error.
    """

    def __init__(
        self,
        name: str,
        columns: Columns,
        *,
        lenient: bool = False,
        sort: bool = False,
        has_failures: bool = False,
    ) -> None:
        self.name = name
        self.columns = columns
        self.lenient = lenient
        self.sort = sort
        self.has_failures = has_failures
        self.num_failed = 0
        self.num_skipped = 0
        self.num_reordered = 0
        self.notes: list[str] = []
        self._rows: list[Row] = []
        self._requests: tuple[Request, ...] = ()
        self._ids: set[int | str] = set()
        self._last_ns = 0

    def bad(self, line: int, column: int | str, what: str) -> None:
        """Refuse the line (strict), or skip and count it (lenient)."""
        text = f"line {line}, column {column}: {what}"
        if not self.lenient:
            raise BadTrace(f"{self.name}: {text}", _LENIENT, line, column)
        self.num_skipped += 1
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(f"skipped {text}")

    def add(self, line: int, row: Row) -> None:
        """Take a row, or refuse it."""
        try:
            self._check(row)
        except BadCell as cell:
            self.bad(line, cell.column, cell.what)
            return
        if row.id is not None:
            self._ids.add(row.id)
        if row.arrival_ns < self._last_ns:
            self.num_reordered += 1
        self._last_ns = max(self._last_ns, row.arrival_ns)
        if row.output_tokens == 0:
            self.num_failed += 1
        else:
            self._rows.append(row)

    def add_all(self, arrivals_ns: list[int], prompts: list[int], outputs: list[int]) -> bool:
        """Take whole columns at once if no row of them is in doubt, else take none of them.

        The answer False means: go line by line, which finds the line to blame.
        """
        is_ordered = all(map(le, arrivals_ns, islice(arrivals_ns, 1, None)))
        if self._rows or arrivals_ns[0] < 0 or arrivals_ns[-1] > MAX_ARRIVAL_NS or not is_ordered:
            return False
        columns = (arrivals_ns, prompts, outputs)
        num_failed = outputs.count(0) if self.has_failures else 0
        if num_failed:
            if min(prompts) < 0:
                return False
            columns = tuple(list(compress(column, outputs)) for column in columns)
        arrivals_ns, prompts, outputs = columns
        if not outputs or min(min(prompts), min(outputs)) < 1:
            return False
        if max(max(prompts), max(outputs)) > MAX_TOKENS:
            return False
        start_ns = arrivals_ns[0]
        since_first_ns = [arrival_ns - start_ns for arrival_ns in arrivals_ns]
        no_max, no_prefix = repeat(None), repeat(())
        rows = zip(count(), since_first_ns, prompts, outputs, no_max, no_prefix, strict=False)
        self._requests = tuple(map(Request._make, rows))
        self.num_failed = num_failed
        return True

    def _check(self, row: Row) -> None:
        column = self.columns
        if not 0 <= row.arrival_ns <= MAX_ARRIVAL_NS:
            raise BadCell(column.arrival, f"arrival of {row.arrival_ns} ns is not a time")
        if row.arrival_ns < self._last_ns and not self.sort:
            behind_ns = self._last_ns - row.arrival_ns
            raise BadCell(column.arrival, f"arrives {behind_ns} ns before the line above it")
        is_failure = self.has_failures and row.output_tokens == 0
        lowest = 0 if is_failure else 1  # it may have failed before its prompt was counted
        for where, tokens in (
            (column.prompt, row.prompt_tokens),
            (column.output, row.output_tokens),
        ):
            if tokens < lowest:
                raise BadCell(where, f"{tokens} tokens is below {lowest}")
            if tokens > MAX_TOKENS:
                raise BadCell(where, f"{tokens} tokens is above {MAX_TOKENS}")
        if row.max_new is not None and not 1 <= row.max_new <= MAX_TOKENS:
            raise BadCell("max_new", f"max_new {row.max_new} is not between 1 and {MAX_TOKENS}")
        if row.id is not None and row.id in self._ids:
            raise BadCell("id", f"id {row.id!r} is on an earlier line too")
        has_rows = bool(self._rows or self.num_failed)
        if has_rows and (row.id is not None) != bool(self._ids):
            raise BadCell("id", "some lines have an id and some have none")

    def trace(self, source: str, prefix_step_tokens: int = PREFIX_STEP_TOKENS) -> Trace:
        """Return the trace: arrivals from 0, ids of the file or 0..n-1. Raises `BadTrace`."""
        if not self._rows and not self._requests:
            raise BadTrace(
                f"{self.name}: no request in it ({self.num_skipped} lines skipped, "
                f"{self.num_failed} failed requests)",
                "give a trace with at least one finished request",
            )
        notes = list(self.notes)
        if self.num_reordered:
            self._rows.sort(key=lambda row: row.arrival_ns)
            notes.append(f"{self.num_reordered} lines stood after a later arrival: sorted")
        has_numbers = all(type(id) is int for id in self._ids)
        labels = () if has_numbers else tuple(str(row.id) for row in self._rows)
        return Trace(
            name=self.name,
            requests=self._requests or tuple(self._numbered(has_numbers and bool(self._ids))),
            source=source,
            labels=labels,
            prefix_step_tokens=prefix_step_tokens,
            num_failed=self.num_failed,
            num_skipped=self.num_skipped,
            notes=tuple(notes),
        )

    def _numbered(self, has_numbers: bool) -> Iterator[Request]:
        rows, self._rows = self._rows, []
        start_ns = rows[0].arrival_ns
        rows.reverse()
        for i in range(len(rows)):
            row = rows.pop()  # so that rows and requests are never in memory together
            id = row.id if has_numbers else i
            yield Request(id, row.arrival_ns - start_ns, *row[1:5])  # type: ignore[arg-type]
