"""The machine this runs on: memory, and the limit that binds before it runs out.

Reads `/proc` and cgroups on Linux, `sysctl` on macOS, NVML or `nvidia-smi` where there is one.
Every source is a small function with its path or reader as argument, so that tests can feed it.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qwisp.errors import BadInput
from qwisp.spec.machine import MachineSpec

ROOT = Path("/")
# A cgroup v1 without a limit prints a page-rounded 2**63; anything near it is no limit.
_NO_LIMIT = 2**60
SMI_QUERY = [
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.reserved",
    "--format=csv,noheader,nounits",
]


def detect_machine() -> MachineSpec:
    """Return this machine as `MachineSpec` named `this`; raises `BadInput` where nothing is known.

    A visible NVIDIA device comes first, because that is where a model would be served.
    """
    device = _nvidia()
    if device is not None:
        return device
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


def _nvidia() -> MachineSpec | None:
    try:
        import pynvml
    except ImportError:
        return nvidia_machine(_run_smi())
    try:
        return nvml_machine(pynvml)
    except pynvml.NVMLError:
        return None


def nvml_machine(nvml: Any) -> MachineSpec:
    """Return the first NVIDIA device as NVML describes it."""
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return _device(str(nvml.nvmlDeviceGetName(handle)), memory.total, memory.reserved, "NVML")


def nvidia_machine(text: str) -> MachineSpec | None:
    """Return the first device of an `nvidia-smi` answer to `SMI_QUERY`; None for any other text.

    >>> nvidia_machine("NVIDIA H200, 143771, 616").limit_bytes == (143771 - 616) * 2**20
    True
    """
    fields = [field.strip() for field in text.partition("\n")[0].split(",")]
    if len(fields) != 3 or not all(field.isdigit() for field in fields[1:]):
        return None
    name, total, reserved = fields[0], int(fields[1]) << 20, int(fields[2]) << 20
    return _device(name, total, reserved, "nvidia-smi")


def _device(name: str, total: int, reserved: int, source: str) -> MachineSpec:
    # What the driver reserves is never given to a process: CUDA reports the rest as its total.
    return MachineSpec(
        name="this",
        title=f"this machine ({name})",
        memory_bytes=total,
        memory_kind="vram",
        limit_bytes=total - reserved,
        limit_name="VRAM less what the driver reserves,",
        source=source,
    )


def _run_smi() -> str:
    try:
        done = subprocess.run(SMI_QUERY, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
