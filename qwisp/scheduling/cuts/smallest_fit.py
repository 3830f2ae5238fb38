"""The smallest free session that holds the rows; the first of equals."""

from __future__ import annotations

from collections.abc import Sequence


def place(rows: int, free: Sequence[range]) -> range | None:
    """Return the smallest of `free` with at least `rows` rows, else None."""
    return min((run for run in free if len(run) >= rows), key=len, default=None)
