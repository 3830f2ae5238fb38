"""Sizes, token counts and rates as people type them, and as they are printed.

Bytes are binary here: `g`, `G` and `GiB` all mean 2**30, because memory is sold and allocated so.
Only the spelled-out decimal units `kB MB GB TB` mean powers of ten.
"""

from __future__ import annotations

import re
from fractions import Fraction

from qwisp.errors import BadInput

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{p + s: 1024**i for i, p in enumerate("kmgt", 1) for s in ("", "i", "ib")},
    **{p + "b": 1000**i for i, p in enumerate("kmgt", 1)},
}
_NUMBER = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,12})?)\s*([a-zA-Z%]*)\s*", re.ASCII)


def _split(text: str, what: str, example: str) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(str(text))
    if match is None:
        raise BadInput(f"{what} {str(text)!r} is not a size", f"write it like {example}")
    return Fraction(match[1]), match[2].lower()


def parse_bytes(text: str | int, *, of_bytes: int | None = None) -> int:
    """Return whole bytes for `8GiB`, `12g`, `512 MB` or, when `of_bytes` is given, `80%`.

    Raises `BadInput` for anything else, and for zero.

    >>> parse_bytes("8GiB"), parse_bytes("12g") // GIB, parse_bytes("80%", of_bytes=1000)
    (8589934592, 12, 800)
    """
    if isinstance(text, int):
        value = Fraction(text)
    else:
        number, unit = _split(text, "size", "8GiB, 12g or 80%")
        if unit == "%":
            if of_bytes is None:
                raise BadInput(f"size {text!r} is a share of nothing", "write bytes, like 8GiB")
            value = number / 100 * of_bytes
        elif unit in _BYTE_UNITS:
            value = number * _BYTE_UNITS[unit]
        else:
            raise BadInput(f"size {text!r} has no unit {unit!r}", "write it like 8GiB, 12g or 80%")
    if value < 1:
        raise BadInput(f"size {text!r} is {int(value)} bytes", "give a size above zero, like 8GiB")
    return int(value)


def parse_tokens(text: str | int) -> int:
    """Return tokens for `4096`, `64K` or `1M` (binary: 64K = 65,536).

    >>> parse_tokens("64K"), parse_tokens("4096")
    (65536, 4096)
    """
    if isinstance(text, int):
        value, unit = Fraction(text), ""
    else:
        value, unit = _split(text, "token count", "4096 or 64K")
    if unit not in ("", "k", "m"):
        raise BadInput(f"token count {text!r} has no unit {unit!r}", "write it like 4096 or 64K")
    value *= {"": 1, "k": 1024, "m": 1024**2}[unit]
    if value.denominator != 1 or value < 1:
        raise BadInput(
            f"token count {text!r} is not a whole number above zero", "write 4096 or 64K"
        )
    return int(value)


def parse_rate(text: str | float) -> Fraction:
    """Return the exact arrival scale of `0.04x` (1x = as recorded).

    >>> parse_rate("0.04x")
    Fraction(1, 25)
    """
    number, unit = _split(str(text), "rate", "0.04x")
    if unit not in ("", "x") or number <= 0 or number > 10**6:
        raise BadInput(
            f"rate {text!r} is not a scale between 0 and 1,000,000", "write it like 0.04x"
        )
    return number


def format_bytes(num_bytes: int) -> str:
    """Return bytes for people: two decimals of the largest binary unit that keeps them above 1.

    >>> format_bytes(1578106880)
    '1.47 GiB'
    """
    for unit, size in (("TiB", GIB * 1024), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:,.2f} {unit}"
    return f"{num_bytes} B"


def format_tokens(tokens: int) -> str:
    """Return a context as people say it: `64K` for whole multiples of 1,024, else `16,384`-style.

    >>> format_tokens(65536), format_tokens(10553)
    ('64K', '10,553')
    """
    return f"{tokens // KIB}K" if tokens and tokens % KIB == 0 else f"{tokens:,}"
