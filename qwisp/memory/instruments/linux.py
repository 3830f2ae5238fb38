"""Linux: PSS, USS and RSS from `smaps_rollup`, the peak RSS, and the cgroup's charge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qwisp.errors import BadInput
from qwisp.memory.instruments.reading import Reading
from qwisp.spec.detect import cgroup_folders

PROC = Path("/proc")
# v2 before v1: a machine that mounts both puts the memory controller in one of them.
_NOW = ("memory.current", "memory.usage_in_bytes")
_PEAK = ("memory.peak", "memory.max_usage_in_bytes")


def sample(pid: int, root: Path = Path("/")) -> list[Reading]:
    """Return the readings of `pid` below `root`; raises `BadInput` if it is gone or hidden."""
    folder = root / "proc" / str(pid)
    try:
        rollup = (folder / "smaps_rollup").read_text()
        status = (folder / "status").read_text()
    except FileNotFoundError:
        raise BadInput(f"process {pid} does not exist", "give the id of a live process") from None
    except (PermissionError, ProcessLookupError):
        raise BadInput(
            f"process {pid} may not be looked at", "run as the owner of the process, or as root"
        ) from None
    return [*parse_smaps_rollup(rollup), *parse_status(status), *_cgroup(root, pid)]


def parse_smaps_rollup(text: str) -> list[Reading]:
    """Return PSS, USS (private clean + private dirty) and RSS of a `smaps_rollup` text."""
    kib = dict(_kib_fields(text))
    if not {"Pss", "Rss", "Private_Clean", "Private_Dirty"} <= kib.keys():
        # A kernel thread or a process that is just ending has an empty rollup.
        raise BadInput("smaps_rollup holds no Pss and Rss", "give the id of a live user process")
    return [
        Reading("pss", kib["Pss"] * 1024),
        Reading("uss", (kib["Private_Clean"] + kib["Private_Dirty"]) * 1024),
        Reading("rss", kib["Rss"] * 1024),
    ]


def parse_status(text: str) -> list[Reading]:
    """Return the peak RSS (`VmHWM`) of a `/proc/PID/status` text, where it stands there."""
    kib = dict(_kib_fields(text))
    return [Reading("rss_peak", kib["VmHWM"] * 1024)] if "VmHWM" in kib else []


def _kib_fields(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if unit == "kB" and number.isdigit():
            yield name, int(number)


def _cgroup(root: Path, pid: int) -> Iterator[Reading]:
    for instrument, names in (("cgroup", _NOW), ("cgroup_peak", _PEAK)):
        paths = (folder / name for folder in cgroup_folders(root, str(pid)) for name in names)
        text = next((path.read_text().strip() for path in paths if path.is_file()), "")
        if text.isdigit():
            yield Reading(instrument, int(text))
