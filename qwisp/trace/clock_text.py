"""Exact nanoseconds from the ways files write a time. Integers all the way, never a float."""

from __future__ import annotations

import re
from datetime import date
from decimal import ROUND_HALF_EVEN, Context, Decimal

NS_PER_S = 10**9
_WIDE = Context(prec=60, rounding=ROUND_HALF_EVEN)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
ISO_PATTERN = (
    r"((?:19|20)[0-9]{2})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-5][0-9])"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_ISO = re.compile(ISO_PATTERN, re.ASCII)


def iso_ns(text: str) -> tuple[int, bool]:
    """Return `(nanoseconds since 1970, whether the text names its offset from UTC)`.

    A time without an offset is read as UTC: only differences matter to a replay. Up to nine
    fractional digits are kept exactly. Raises `ValueError`.

    >>> iso_ns("1970-01-01 00:00:01.5000001")
    (1500000100, False)
    >>> iso_ns("1970-01-01T02:00:00+02:00")
    (0, True)
    """
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a time like 2023-11-16 18:15:46.6805900")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if hour > 23 or minute > 59:
        raise ValueError(f"{text!r} is not a time of day")
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise ValueError(f"{text!r} is not a day of the calendar") from None
    fraction_ns = int((match[7] or "").ljust(9, "0"))
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - _offset_s(match[8])
    return seconds * NS_PER_S + fraction_ns, match[8] is not None


def _offset_s(text: str | None) -> int:
    if text in (None, "Z"):
        return 0
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text!r} is not an offset from UTC")
    return (hours * 60 + minutes) * (-60 if text[0] == "-" else 60)


def scaled_ns(value: int | Decimal, unit_ns: int = NS_PER_S) -> int:
    """Return `value` units as nanoseconds, rounded half to even below one.

    Raises `ValueError` for what is not finite or is beyond any trace.

    >>> scaled_ns(Decimal("0.1")), scaled_ns(Decimal("1.0000000005")), scaled_ns(3, 10**6)
    (100000000, 1000000000, 3000000)
    """
    if isinstance(value, Decimal):
        # The exponent first: int(Decimal("1e999999999")) would never return.
        if not value.is_finite() or value.adjusted() > 20:
            raise ValueError(f"{value} is not a time")
        return int(_WIDE.to_integral_value(_WIDE.multiply(value, Decimal(unit_ns))))
    if abs(value) > 10**20:
        raise ValueError("a number of more than 20 digits is not a time")
    return value * unit_ns
