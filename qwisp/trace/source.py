"""The bytes of a trace file: opened, unzipped, freed of a byte order mark, cut into lines."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from qwisp.errors import BadInput, BadTrace

_GZIP = b"\x1f\x8b"
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


def read_bytes(path: str | Path, what: str = "trace", todo: str = "") -> bytes:
    """Return the content of a file, unzipped if it was gzip; every error names `what` it is.

    `todo` says what to do about an empty file. Raises `BadInput` if there is no such readable file,
    `BadTrace` if it is empty or torn.
    """
    path = Path(path)
    try:
        if path.is_char_device() and not path.samefile(os.devnull):
            raise BadInput(f"{what} {path} is a device", "name a file")  # it may never end
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{what} {path} does not exist", "check the path") from None
    except IsADirectoryError:
        raise BadInput(f"{what} {path} is a directory", "name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{what} {path} cannot be read: {reason}", "check the path") from None
    return plain(data, str(path), what, todo)


def plain(data: bytes, name: str, what: str = "trace", todo: str = "") -> bytes:
    """Return `data` unzipped and without a byte order mark. Raises `BadTrace`."""
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise BadTrace(
                f"{name}: gzip data is damaged: {error}", "fetch the file again"
            ) from None
    if data.startswith(_UTF16_BOMS):
        raise BadTrace(f"{name}: line 1, column 1: UTF-16 text", "save it as UTF-8", 1, 1)
    data = data.removeprefix(_UTF8_BOM)
    if not data.strip():
        raise BadTrace(
            f"{name}: line 1, column 1: the {what} is empty",
            todo or f"give a {what} with lines",
            1,
            1,
        )
    return data


def lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield `(line number from 1, line without its end)` for every line that is not blank."""
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        line = data[start:end].strip()
        if line:
            yield number, line
        start = end + 1
