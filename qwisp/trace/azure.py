"""Azure LLM inference traces of 2023 (naive times, CRLF) and 2024 (times with an offset from UTC).

`TIMESTAMP,ContextTokens,GeneratedTokens`; times carry up to seven fractional digits, kept exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qwisp.trace.clock_text import iso_ns
from qwisp.trace.table import TableFormat

if TYPE_CHECKING:
    import polars as pl

_TIME = (
    r"^(?:19|20)[0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
)


class _Times:
    """Reads the times of a file; all lines must agree on naming an offset from UTC or not."""

    def __init__(self) -> None:
        self.has_offset: bool | None = None

    def __call__(self, text: str) -> int:
        arrival_ns, has_offset = iso_ns(text)
        if self.has_offset is None:
            self.has_offset = has_offset
        if has_offset != self.has_offset:
            raise ValueError("some times name their offset from UTC and some do not")
        return arrival_ns


def _plain_times(time: pl.Expr, first: str) -> tuple[str, pl.Expr]:
    import polars as pl

    offset, time_format = "", "%Y-%m-%d %H:%M:%S%.f"  # "%S.%f" would read .0123 as .123
    if first[-6:-5] in ("+", "-"):
        offset, time_format = r"[+-][0-9][0-9]:[0-9][0-9]", time_format + "%:z"
    parsed = time.str.to_datetime(time_format, time_unit="ns", strict=False)
    return _TIME + offset + "$", parsed.cast(pl.Int64)


FORMAT = TableFormat(
    source="azure",
    hint="Azure LLM CSV (first line TIMESTAMP,ContextTokens,GeneratedTokens)",
    columns=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    times=_Times,
    plain_times=_plain_times,
)
