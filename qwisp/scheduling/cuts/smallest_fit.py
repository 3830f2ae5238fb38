"""The smallest free session that holds the rows; the first of equals."""

from __future__ import annotations

from collections.abc import Sequence


def place(rows: int, free: Sequence[range]) -> range | None:
    """Return the smallest of `free` with at least `rows` rows, else None."""
    best = None
    for run in free:
        if len(run) >= rows and (best is None or len(run) < len(best)):
            best = run
    return best
