"""NVIDIA: device memory of one process, through NVML or the text `nvidia-smi` prints.

The figure holds the CUDA context: on an H200 (driver 580.159.04) a process with 1 GiB allocated
reads 1,542 MiB, and 518 MiB before its first allocation.
"""

from __future__ import annotations

import subprocess
from typing import Any

from qwisp.memory.instruments.reading import Reading
from qwisp.units import MIB

QUERY = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]


def sample(pid: int, nvml: Any = None) -> list[Reading]:
    """Return the process's device memory summed over devices; nothing where there is no NVIDIA."""
    if nvml is None:
        try:
            import pynvml as nvml
        except ImportError:
            return parse_smi(_run_smi(), pid)
    try:
        nvml.nvmlInit()
        used = [
            process.usedGpuMemory
            for index in range(nvml.nvmlDeviceGetCount())
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(
                nvml.nvmlDeviceGetHandleByIndex(index)
            )
            if process.pid == pid
        ]
    except nvml.NVMLError:
        return []
    # NVML says None where the driver does not tell (a display driver in WDDM mode).
    known = [num_bytes for num_bytes in used if num_bytes is not None]
    return [Reading("nvml_process", sum(known))] if known else []


def parse_smi(text: str, pid: int) -> list[Reading]:
    """Return the device memory of `pid` from rows `PID, MIB`, one per device.

    >>> parse_smi("411, 1542\\n9, 10\\n", 411)
    [Reading(instrument='nvml_process', num_bytes=1616904192)]
    """
    rows = [line.split(",") for line in text.splitlines() if line.count(",") == 1]
    used = [
        int(size) * MIB
        for owner, size in rows
        if owner.strip() == str(pid) and size.strip().isdigit()
    ]
    return [Reading("nvml_process", sum(used))] if used else []


def _run_smi() -> str:
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
