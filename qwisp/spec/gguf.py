"""Metadata of a GGUF file: the header is read, no tensor is touched.

Every length is checked against what is left of the file before anything is read, so that a damaged
header is refused instead of believed. Lists of strings (vocabularies) are skipped.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from qwisp.errors import BadConfig, BadInput

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 100_000
MAX_KEPT_ITEMS = 65_536
MAX_TEXT_BYTES = 16 * 1024**2

# Value types by their number in the file: struct format, or None for text and lists.
_FORMATS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
_TEXT, _LIST = 8, 9
_MIN_TEXT_BYTES = 8


class _Header:
    """A cursor over the header that never reads past the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.left = size

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise BadConfig(
                f"the header asks for {count:,} bytes, but {self.left:,} are left",
                "the file is cut off or damaged: fetch it again",
                key="GGUF",
            )
        self.left -= count
        return self.file.read(count)

    def skip(self, count: int) -> None:
        if count > self.left:
            self.take(count)
        self.left -= count
        self.file.seek(count, 1)

    def number(self, fmt: str) -> Any:
        # A flag is one byte; any value but 0 is true, as in C.
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > MAX_TEXT_BYTES:
            raise BadConfig(f"a text of {length:,} bytes", "the file is damaged", key="GGUF")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            return self.items()
        if kind >= len(_FORMATS):
            raise BadConfig(f"value type {kind} does not exist", "the file is damaged", key="GGUF")
        return self.number(_FORMATS[kind])

    def items(self) -> list[Any] | None:
        """Return a list of numbers; None for texts, nested lists and very long ones, skipped."""
        kind, count = self.number("I"), self.number("Q")
        if kind == _LIST or kind >= len(_FORMATS):
            raise BadConfig(f"a list of type {kind}", "the file is damaged", key="GGUF")
        each = _MIN_TEXT_BYTES if kind == _TEXT else struct.calcsize(_FORMATS[kind])
        if count * each > self.left:
            self.take(count * each)
        if kind == _TEXT:
            for _ in range(count):
                self.skip(self.number("Q"))
            return None
        if count > MAX_KEPT_ITEMS:
            self.skip(count * each)
            return None
        return list(struct.unpack(f"<{count}{_FORMATS[kind]}", self.take(count * each)))


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Return the key-value pairs of a GGUF header, lists of texts as None.

    Raises `BadInput` for a file that cannot be read, `BadConfig` for one that is no GGUF file, of
    an unknown version, cut off or damaged.
    """
    try:
        with path.open("rb") as file:
            return _read(_Header(file, path.stat().st_size), path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", "give a GGUF file") from None


def _read(header: _Header, path: Path) -> dict[str, Any]:
    if header.left < len(MAGIC) or header.take(len(MAGIC)) != MAGIC:
        raise BadConfig(f"{path} is not a GGUF file", "give a file that starts with GGUF", "GGUF")
    version = header.number("I")
    if version not in VERSIONS:
        raise BadConfig(f"{path} has GGUF version {version}", "versions 2 and 3 are read", "GGUF")
    header.number("Q")
    num_keys = header.number("Q")
    if num_keys > MAX_KEYS:
        raise BadConfig(f"{path} has {num_keys:,} keys", "the file is damaged", key="GGUF")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = header.text()
        metadata[key] = header.value(header.number("I"))
    return metadata
