"""The same physical pages at the start of several lanes' ranges: Linux memfd and MAP_FIXED.

A buffer `[G, B x rows, D]` is reserved as one range of addresses. In every head region, the pages
that the shared rows fill whole are mapped from one memory file at each lane's base; everything else
is private. A kernel sees an ordinary buffer in which each lane's rows are contiguous.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from qwisp.errors import BadInput
from qwisp.memory.shared_prefix import Granule

_MAP_FIXED = 0x10  # Linux, all architectures that numpy runs on
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def why_not() -> str:
    """Return why this platform cannot alias, or nothing."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no memfd"
    return "" if hasattr(os, "memfd_create") else "this Python has no os.memfd_create"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """B lanes of `rows` rows in G head regions, D elements each, `shared` rows in common."""

    lanes: int
    groups: int
    rows: int
    dim: int
    shared: int
    granule_bytes: int = PAGE_BYTES
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.granule_bytes % PAGE_BYTES:
            what = f"granule of {self.granule_bytes} bytes, pages of {PAGE_BYTES}"
            raise BadInput(what, "use a multiple of the page")
        if self.lane_bytes % self.granule_bytes:
            what = f"a lane's region of {self.lane_bytes} bytes ends inside a granule"
            raise BadInput(what, f"use a multiple of {self.granule.rows} rows")
        if not 0 <= self.shared <= self.rows:
            raise BadInput(f"{self.shared} of {self.rows} rows shared", "share at most a lane")

    @property
    def granule(self) -> Granule:
        return Granule(granule_bytes=self.granule_bytes, row_bytes=self.row_bytes)

    @property
    def row_bytes(self) -> int:
        return self.dim * np.dtype(self.dtype).itemsize

    @property
    def lane_bytes(self) -> int:
        """Bytes of one lane in one head region."""
        return self.rows * self.row_bytes

    @property
    def mapped_bytes(self) -> int:
        """Bytes of one head region's shared rows that whole granules cover."""
        return self.granule.mapped_bytes(self.shared)

    @property
    def num_bytes(self) -> int:
        """Bytes of addresses."""
        return self.groups * self.lanes * self.lane_bytes


class LaneBuffer:
    """A buffer `[G, B x rows, D]` of private memory; with `aliases`, shared pages exist once.

    `array` is the whole of it. Shared rows are written by `write_shared`, own rows through `array`:
    mapped pages are read-only there, so that no lane can write into another's.
    """

    def __init__(self, shape: Shape, *, aliases: bool) -> None:
        if aliases and (reason := why_not()):
            raise BadInput(f"pages cannot be aliased: {reason}", "run on Linux")
        self.shape = shape
        self.aliases = aliases
        self._libc = _libc()
        granule = shape.granule_bytes
        # Addresses first, without access: room to start on a granule, and an untouched granule on
        # either side, so that no neighbour's pages are merged into this range and counted with it.
        self._reserved_bytes = shape.num_bytes + 3 * granule
        self._reserved = self._map(0, self._reserved_bytes, _ANONYMOUS, access=0)
        self.address = (self._reserved // granule + 2) * granule
        self._map(self.address, shape.num_bytes, _ANONYMOUS | _MAP_FIXED, access=_READ_WRITE)
        self._fd = -1
        if aliases and shape.mapped_bytes:
            self._fd = os.memfd_create("shared rows")
            os.ftruncate(self._fd, shape.groups * shape.mapped_bytes)
            for group in range(shape.groups):
                for lane in range(shape.lanes):
                    self._alias(group, lane)
        raw = (ctypes.c_char * shape.num_bytes).from_address(self.address)
        self.array = np.frombuffer(raw, shape.dtype).reshape(
            shape.groups, shape.lanes * shape.rows, shape.dim
        )

    def _map(
        self, address: int, size: int, flags: int, *, access: int, fd: int = -1, offset: int = 0
    ) -> int:
        found = self._libc.mmap(address, size, access, flags, fd, offset)
        if found == _FAILED:
            reason = os.strerror(ctypes.get_errno())
            raise BadInput(f"{size} bytes could not be mapped: {reason}", "share fewer rows")
        return found

    def _alias(self, group: int, lane: int) -> None:
        size = self.shape.mapped_bytes
        address = self.address + (group * self.shape.lanes + lane) * self.shape.lane_bytes
        flags = mmap.MAP_SHARED | _MAP_FIXED
        found = self._map(
            address, size, flags, access=mmap.PROT_READ, fd=self._fd, offset=group * size
        )
        assert found == address

    def base(self, lane: int) -> int:
        """Return a lane's first row."""
        return lane * self.shape.rows

    def write_shared(self, rows: np.ndarray) -> None:
        """Write the shared rows `[G, shared, D]` of all lanes: whole granules once, the rest each.

        Without aliases every lane gets its own copy of all of them.
        """
        shape = self.shape
        mapped_rows = shape.mapped_bytes // shape.row_bytes if self.aliases else 0
        for group in range(shape.groups if mapped_rows else 0):
            data = np.ascontiguousarray(rows[group, :mapped_rows]).tobytes()
            os.pwrite(self._fd, data, group * shape.mapped_bytes)
        for lane in range(shape.lanes):
            start = self.base(lane)
            self.array[:, start + mapped_rows : start + shape.shared] = rows[:, mapped_rows:]

    def touch(self) -> None:
        """Read every page once, so that each mapping is resident."""
        flat = self.array.reshape(-1).view(np.uint8)
        assert int(flat[::PAGE_BYTES].sum(dtype=np.int64)) >= 0

    def pss_bytes(self) -> int:
        """Return the resident bytes of this range, shared pages divided by their mappings."""
        return range_pss_bytes(self.address, self.address + self.shape.num_bytes)

    def close(self) -> None:
        """Give the addresses back; `array` must not be used afterwards."""
        if self._reserved:
            self._libc.munmap(self._reserved, self._reserved_bytes)
            self._reserved = 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def range_pss_bytes(start: int, end: int) -> int:
    """Return the PSS of the mappings that touch `[start, end)`, by `/proc/self/smaps`."""
    total_kib, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head and not head.endswith(":"):
            first, last = (int(part, 16) for part in head.split("-"))
            inside = first < end and last > start
        elif inside and line.startswith("Pss:"):
            total_kib += int(line.split()[1])
    return total_kib * 1024


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, size]
    return libc
