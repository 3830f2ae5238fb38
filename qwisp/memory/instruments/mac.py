"""macOS: `phys_footprint`, its peak, the Metal regions and RSS.

`proc_pid_rusage` is a system call away and tried first; the `footprint` tool adds the regions.
Both print binary units under decimal names (their MB is 2**20).
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable

from qwisp.errors import BadInput
from qwisp.memory.instruments.reading import Reading

_UNITS = {"B": 1, "K": 2**10, "KB": 2**10, "M": 2**20, "MB": 2**20, "G": 2**30, "GB": 2**30}
_SIZE = r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?B?)"
_GRAPHICS = re.compile(r"IOAccelerator|IOSurface|\(graphics\)|owned unmapped \(graphics\)")
# sys/resource.h, struct rusage_info_v4: a uuid, then 35 64-bit counters.
_RUSAGE = struct.Struct("=16s35Q")
_RUSAGE_V4 = 4
_RESIDENT, _PHYS, _PHYS_PEAK = 6, 7, 28


def sample(
    pid: int,
    *,
    rusage: Callable[[int], bytes | None] | None = None,
    run: Callable[[list[str]], str] | None = None,
) -> list[Reading]:
    """Return the readings of `pid`; raises `BadInput` when neither source knows the process."""
    raw = (rusage or _proc_pid_rusage)(pid)
    readings = parse_rusage(raw) if raw else []
    text = (run or _run)(["footprint", "-f", "bytes", "-p", str(pid)])
    named = {reading.instrument for reading in readings}
    readings += [r for r in parse_footprint(text, pid) if r.instrument not in named]
    if not readings:
        raise BadInput(
            f"process {pid} gave no footprint", "give a live process, as its owner or as root"
        )
    return readings


def parse_footprint(text: str, pid: int | None = None) -> list[Reading]:
    """Return what a `footprint` report says: footprint, peak, and the graphics regions' dirty sum.

    A report about several processes is cut to `pid`. An empty or foreign text gives no readings.
    """
    block = _block_of(text, pid)
    readings = []
    for name in ("phys_footprint", "phys_footprint_peak"):
        match = re.search(rf"^\s*{name}:\s*{_SIZE}\s*$", block, re.MULTILINE)
        if match:
            readings.append(Reading(name, _size_bytes(match[1], match[2])))
    regions = re.findall(rf"^\s*{_SIZE}\s+{_SIZE}\s+{_SIZE}\s+\d+\s+(.+?)\s*$", block, re.MULTILINE)
    if regions and readings:
        dirty = [_size_bytes(r[0], r[1]) for r in regions if _GRAPHICS.search(r[6])]
        readings.append(Reading("metal_heaps", sum(dirty)))
    return readings


def parse_vmmap(text: str) -> list[Reading]:
    """Return footprint and peak of a `vmmap --summary` report (one decimal of K, M or G)."""
    readings = []
    for name, label in (
        ("phys_footprint", r"Physical footprint:"),
        ("phys_footprint_peak", r"Physical footprint \(peak\):"),
    ):
        match = re.search(rf"^{label}\s*{_SIZE}\s*$", text, re.MULTILINE)
        if match:
            readings.append(Reading(name, _size_bytes(match[1], match[2])))
    return readings


def parse_rusage(raw: bytes) -> list[Reading]:
    """Return footprint, its lifetime peak and RSS of a `rusage_info_v4` buffer."""
    counters = _RUSAGE.unpack_from(raw)[1:]
    return [
        Reading("phys_footprint", counters[_PHYS]),
        # The kernel updates the peak late: a fresh maximum can stand in the current figure alone.
        Reading("phys_footprint_peak", max(counters[_PHYS], counters[_PHYS_PEAK])),
        Reading("rss", counters[_RESIDENT]),
    ]


def _block_of(text: str, pid: int | None) -> str:
    heads = list(re.finditer(r"^.*\[(\d+)\]:.*Footprint:.*$", text, re.MULTILINE))
    if pid is None or not heads:
        return text
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        if int(head[1]) == pid:
            return text[head.start() : following.start() if following else len(text)]
    return ""


def _size_bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit or "B"])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _proc_pid_rusage(pid: int) -> bytes | None:
    import ctypes

    buffer = ctypes.create_string_buffer(_RUSAGE.size + 64)
    library = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)
    failed = library.proc_pid_rusage(pid, _RUSAGE_V4, buffer)
    return None if failed else buffer.raw[: _RUSAGE.size]
