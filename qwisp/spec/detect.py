"""The machine this runs on: memory, and the limit that binds before it runs out.

Reads `/proc` and cgroups on Linux, `sysctl` on macOS, NVML where its Python binding is installed.
Every source is a small function with its path or reader as argument, so that tests can feed it.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from qwisp.errors import BadInput
from qwisp.spec.machine import MachineSpec

ROOT = Path("/")
# A cgroup v1 without a limit prints a page-rounded 2**63; anything near it is no limit.
_NO_LIMIT = 2**60


def detect_machine() -> MachineSpec:
    """Return this machine as `MachineSpec` named `this`; raises `BadInput` where nothing is known.

    A visible NVIDIA device comes first, because that is where a model would be served.
    """
    gpu = _nvidia_memory()
    if gpu is not None:
        title, total = gpu
        return MachineSpec(
            name="this",
            title=title,
            memory_bytes=total,
            memory_kind="vram",
            limit_bytes=total,
            limit_name="VRAM",
            source="NVML",
        )
    if sys.platform == "darwin":
        return mac_machine(read_sysctl)
    if sys.platform.startswith("linux"):
        return linux_machine(ROOT)
    raise BadInput(
        f"the memory of a {platform.system() or 'nameless'} machine cannot be read",
        "name a machine of the catalog with --machine",
    )


def linux_machine(root: Path) -> MachineSpec:
    """Return a Linux machine from `root`/proc/meminfo and the tightest cgroup limit above us."""
    total = _meminfo_bytes(root / "proc/meminfo")
    limit = min(cgroup_limits(root), default=None)
    binds = limit is not None and limit < total
    return MachineSpec(
        name="this",
        title=f"this machine ({platform.machine()} Linux)",
        memory_bytes=total,
        memory_kind="host",
        limit_bytes=limit if binds else None,
        limit_name="cgroup limit" if binds else "",
        source="/proc/meminfo and cgroups",
    )


def mac_machine(sysctl: Callable[[str], str | None]) -> MachineSpec:
    """Return a Mac from `hw.memsize` and, where somebody set it, `iogpu.wired_limit_mb`."""
    text = sysctl("hw.memsize")
    if not text or not text.isdigit():
        raise BadInput(f"sysctl hw.memsize gave {text!r}", "name a machine with --machine")
    total = int(text)
    # Zero is the default and means "the system decides", which is no limit we could state.
    wired = int(sysctl("iogpu.wired_limit_mb") or 0) * 1024**2
    return MachineSpec(
        name="this",
        title=f"this machine ({sysctl('machdep.cpu.brand_string') or 'Mac'})",
        memory_bytes=total,
        limit_bytes=min(wired, total) or None,
        limit_name="wired limit" if wired else "",
        source="sysctl",
    )


def cgroup_limits(root: Path) -> Iterator[int]:
    """Yield the memory limits of this process's cgroup and of all above it, v1 and v2."""
    for folder in cgroup_folders(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text is not None and text.isdigit() and int(text) < _NO_LIMIT:
                yield int(text)


def cgroup_folders(root: Path, process: str = "self") -> Iterator[Path]:
    """Yield the memory cgroup folders of a process, innermost first, v1 and v2."""
    for line in (_read(root / "proc" / process / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        folder = base / path.strip("/")
        while folder != base:
            yield folder
            folder = folder.parent
        yield base


def read_sysctl(name: str) -> str | None:
    """Return one sysctl value as text, None where it does not exist."""
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _meminfo_bytes(path: Path) -> int:
    for line in (_read(path) or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise BadInput(f"{path} names no MemTotal", "name a machine of the catalog with --machine")


def _nvidia_memory() -> tuple[str, int] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        return f"this machine ({name})", int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
