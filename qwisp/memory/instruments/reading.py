"""A reading is a number of bytes and the instrument that gave it; two instruments never meet.

On one recorded workload `phys_footprint` was 6,641 MiB and RSS 1,075 MiB: both are right, each
about something else. A difference between the two would be about nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from qwisp.errors import BadInput
from qwisp.units import format_bytes

INSTRUMENTS = {
    "phys_footprint": "macOS: dirty, compressed and GPU memory charged to the process",
    "phys_footprint_peak": "macOS: the highest phys_footprint since the process started",
    "metal_heaps": "macOS: the graphics regions inside the footprint",
    "metal_peak": "Metal: the highest allocated size of the device, as the engine logs it",
    "pss": "Linux: resident pages, shared ones divided by their sharers",
    "uss": "Linux: resident pages that nobody else maps",
    "rss": "resident pages, shared and file-backed ones in full",
    "rss_peak": "the highest RSS since the process started",
    "cgroup": "Linux: what the process's cgroup is charged now, page cache included",
    "cgroup_peak": "Linux: the highest charge of the process's cgroup",
    "nvml_process": "NVIDIA: device memory of the process, CUDA context included",
    "mlx_active": "MLX: bytes in live arrays",
    "mlx_cache": "MLX: bytes kept for reuse",
    "mlx_peak": "MLX: the highest active bytes since the last reset",
}
# The figure a platform is judged by, first that is there. RSS is no candidate: it counts mapped
# files that could go at once and misses GPU memory, so it is wrong in both directions.
HEADLINES = ("phys_footprint", "nvml_process", "pss")


class Reading(NamedTuple):
    """`num_bytes` as `instrument` gave them."""

    instrument: str
    num_bytes: int

    def __str__(self) -> str:
        return f"{format_bytes(self.num_bytes)} ({self.instrument})"


def difference_bytes(left: Reading, right: Reading) -> int:
    """Return `left - right` in bytes; raises `BadInput` when the instruments differ.

    >>> difference_bytes(Reading("pss", 300), Reading("pss", 100))
    200
    """
    if left.instrument != right.instrument:
        raise BadInput(
            f"{left} cannot be compared with {right}",
            "compare readings of one instrument",
        )
    return left.num_bytes - right.num_bytes
