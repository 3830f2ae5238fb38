"""What a layout allocates, once and for good: rows that are cut, and what each lane has for itself.

    bytes of an arena = rows of every run + state and ring of every slot

A lane's state and rings are there whether a stream sits in it or not, so a budget pays for all of
them first, and rows get what is left.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from qwisp.errors import BadInput
from qwisp.units import MIB, format_bytes

MAX_ROWS = 2**40  # bounds every sum well inside 64-bit row indices


class SessionSize(Protocol):
    """All that scheduling knows of bytes."""

    def bytes(self, rows: int) -> int:
        """Return the bytes of one session of `rows` rows, its state and rings included."""

    def lane_bytes(self, rows: int) -> int:
        """Return the part of `bytes(rows)` that no other lane can use: state and rings."""


class ArenaRows(NamedTuple):
    """`runs` are the lengths of the shared rows; `slot_rows` the most rows each slot may get.

    With fixed cuts every session is a run and a slot. With free cuts there is one run, and a slot
    for each lane.
    """

    runs: tuple[int, ...]
    slot_rows: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all runs together."""
        return sum(self.runs)

    def num_bytes(self, size: SessionSize) -> int:
        """Return the bytes of the whole arena: what reports say, and what the engine allocates."""
        cut = sum(n * rows_bytes(size, rows) for rows, n in Counter(self.runs).items())
        own = sum(n * size.lane_bytes(rows) for rows, n in Counter(self.slot_rows).items())
        return cut + own


def rows_bytes(size: SessionSize, rows: int) -> int:
    """Return what `rows` rows cost beside a lane that is there already."""
    return size.bytes(rows) - size.lane_bytes(rows)


def free_rows(
    size: SessionSize, *, budget_bytes: int, lanes: int, context_tokens: int
) -> ArenaRows:
    """Return one run of as many rows as the budget holds beside `lanes` lanes.

    Any slot may get a request of any length, so each has the ring of a whole context. Raises
    `BadInput` where states and rings leave no row, with the budget and the lanes that would.
    """

    def of(rows: int, slots: int = lanes) -> ArenaRows:
        return ArenaRows((rows,), (context_tokens,) * slots)

    num_rows = _most_rows(size, budget_bytes - of(0).num_bytes(size))
    if num_rows:
        return of(num_rows)
    fewer = [n for n in range(1, lanes) if of(1, n).num_bytes(size) <= budget_bytes]
    least, whole = (-(-of(n).num_bytes(size) // MIB) for n in (1, context_tokens))
    raise BadInput(
        f"per_request of {format_bytes(budget_bytes)}: state and rings of {lanes} lanes take "
        f"{format_bytes(of(0).num_bytes(size))}, which leaves no row",
        f"write per_request:{least}MiB or more ({whole}MiB hold a context of {context_tokens:,})"
        + (f", or open at most {fewer[-1]} of the lanes" if fewer else ""),
    )


def _most_rows(size: SessionSize, left_bytes: int) -> int:
    """Return the most rows that cost at most `left_bytes` (0 when not even one does)."""
    low, high = 0, 1
    while high < MAX_ROWS and rows_bytes(size, high) <= left_bytes:  # rows may cost nothing
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rows_bytes(size, middle) <= left_bytes else (low, middle)
    return low
