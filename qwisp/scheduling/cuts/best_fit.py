"""Exactly the rows asked for, from the smallest free run that holds them."""

from __future__ import annotations

from collections.abc import Sequence


def place(rows: int, free: Sequence[range]) -> range | None:
    """Return the first `rows` rows of the smallest run that is long enough, else None."""
    run = min((run for run in free if len(run) >= rows), key=len, default=None)
    return None if run is None else range(run.start, run.start + rows)
