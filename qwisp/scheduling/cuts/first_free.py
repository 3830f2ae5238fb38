"""The first free session, whatever its size: what an engine without sizes does."""

from __future__ import annotations

from collections.abc import Sequence


def place(rows: int, free: Sequence[range]) -> range | None:
    """Return the first free range if it holds `rows`, else None."""
    return free[0] if free and len(free[0]) >= rows else None
