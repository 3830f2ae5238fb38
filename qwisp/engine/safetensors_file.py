"""What a safetensors file says it holds, checked against the file before any of it is read.

A header is a promise about bytes: sizes, types and places are compared with the file's own length,
so that a truncated or forged file is an error with its numbers and never a crash. Nothing here, or
anywhere in the engine, unpickles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qwisp.errors import BadInput

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

ITEM_BITS = {
    **{"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8},
    **{"U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8},
}
AGAIN = "download or convert the checkpoint again"


class Entry(NamedTuple):
    """A tensor as the header declares it."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, Entry]:
    """Return the tensors of a file by name.

    Raises `BadInput` for a file that is not one, is cut short, or whose header does not tile it.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise _bad(path, f"has {size:,} bytes, its header alone claims {length:,}")
            if length > MAX_HEADER_BYTES:
                raise _bad(
                    path, f"has a header of {length:,} bytes, more than {MAX_HEADER_BYTES:,}"
                )
            text = file.read(length)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", AGAIN) from None
    values = _parsed(path, text)
    entries, ranges = {}, []
    for name, value in values.items():
        if name == "__metadata__":
            continue
        entry, begin, end = _entry(path, name, value)
        entries[name] = entry
        ranges.append((begin, end, name))
    _check_tiling(path, ranges, size - 8 - length)
    return entries


def _bad(path: Path, problem: str) -> BadInput:
    return BadInput(f"{path} {problem}", AGAIN)


def _parsed(path: Path, text: bytes) -> Mapping[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name stands twice")
        return found

    try:
        values = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"has a header that is not JSON: {str(error)[:80]}") from None
    if not isinstance(values, dict):
        raise _bad(path, "has a header that is no object")
    return values


def _entry(path: Path, name: str, value: Any) -> tuple[Entry, int, int]:
    shown = name[:60]
    if not isinstance(value, dict):
        raise _bad(path, f"describes {shown} by {str(value)[:40]}, not by an object")
    dtype, shape, place = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if dtype not in ITEM_BITS:
        raise BadInput(
            f"{path}: {shown} has type {str(dtype)[:20]}, which is not read",
            "use a checkpoint in the mlx-community layout (floats, or affine-quantised)",
        )
    if not _are_sizes(shape) or not _are_sizes(place) or len(place) != 2 or len(shape) > 8:
        raise _bad(path, f"gives {shown} the shape {str(shape)[:40]} at {str(place)[:40]}")
    begin, end = place
    need = math.prod(shape) * ITEM_BITS[dtype] // 8
    if end - begin != need:
        raise _bad(path, f"gives {shown} {end - begin:,} bytes where its shape needs {need:,}")
    return Entry(dtype, tuple(shape)), begin, end


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**62 for x in value
    )


def _check_tiling(path: Path, ranges: list[tuple[int, int, str]], data_bytes: int) -> None:
    """Refuse gaps and overlaps: every byte behind the header belongs to one tensor."""
    reached = 0
    for begin, end, name in sorted(ranges):
        if begin != reached:
            raise _bad(path, f"puts {name[:60]} at byte {begin:,}, where {reached:,} was next")
        reached = end
    if reached != data_bytes:
        raise _bad(path, f"holds {data_bytes:,} bytes of weights, its header describes {reached:,}")
