"""BurstGPT traces v1, v2 and v3: columns found by name, since v3 inserts two.

A row without response tokens is a request that failed: counted, not replayed.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from qwisp.trace.clock_text import scaled_ns
from qwisp.trace.table import TableFormat

if TYPE_CHECKING:
    import polars as pl

_SECONDS = r"^[0-9]{1,9}(?:\.[0-9]{1,9})?$"


def _time_ns(text: str) -> int:
    try:
        if not text.isascii() or "_" in text:
            raise InvalidOperation
        return scaled_ns(Decimal(text))
    except (InvalidOperation, ValueError):
        raise ValueError(f"{text[:40]!r} is not a number of seconds") from None


def _plain_times(seconds: pl.Expr, first: str) -> tuple[str, pl.Expr]:
    import polars as pl

    whole, fraction = (
        seconds.str.extract(pattern).fill_null("0") for pattern in (r"^([0-9]+)", r"\.([0-9]+)$")
    )
    parsed_ns = whole.cast(pl.Int64) * 10**9 + fraction.str.pad_end(9, "0").cast(pl.Int64)
    return _SECONDS, parsed_ns


FORMAT = TableFormat(
    source="burstgpt",
    hint="BurstGPT CSV",
    columns=("Timestamp", "Request tokens", "Response tokens"),
    times=lambda: _time_ns,
    plain_times=_plain_times,
    has_failures=True,
)
