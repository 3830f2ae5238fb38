"""`Footprint.sample(pid)`: all figures of this platform at once, and the one that counts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from qwisp.errors import BadInput
from qwisp.memory.instruments import linux, mac, nvidia
from qwisp.memory.instruments.reading import HEADLINES, INSTRUMENTS, Reading


@dataclass(frozen=True, slots=True)
class Footprint:
    """The readings of one process at one moment, in the order the platform gave them."""

    pid: int
    readings: tuple[Reading, ...]

    @classmethod
    def sample(cls, pid: int, *, mlx_counters: Any = None) -> Footprint:
        """Return every figure this platform gives for `pid`.

        `mlx_counters` is an object with `get_active_memory`, `get_cache_memory` and
        `get_peak_memory` (the `mlx.core` module of *this* process); its figures are added.
        Raises `BadInput` when the process is gone or may not be looked at.
        """
        if pid < 1:
            raise BadInput(f"process id {pid} is not above zero", "give the id of a live process")
        if sys.platform == "darwin":
            readings = mac.sample(pid)
        elif sys.platform.startswith("linux"):
            readings = linux.sample(pid)
        else:
            raise BadInput(f"no instrument for {sys.platform}", "measure on macOS or Linux")
        found = [*readings, *nvidia.sample(pid)]
        if mlx_counters is not None:
            found += mlx_readings(mlx_counters)
        return cls.of(pid, found)

    @classmethod
    def of(cls, pid: int, readings: Iterable[Reading]) -> Footprint:
        """Return a footprint of known readings; an unknown instrument is our own mistake."""
        kept = tuple(readings)
        assert all(reading.instrument in INSTRUMENTS for reading in kept)
        return cls(pid, kept)

    @property
    def headline(self) -> Reading:
        """The reading this platform is judged by; never RSS. Raises `BadInput` without one."""
        by_name = {reading.instrument: reading for reading in self.readings}
        for name in HEADLINES:
            if name in by_name:
                return by_name[name]
        names = ", ".join(by_name) or "none"
        raise BadInput(
            f"process {self.pid} gave no headline figure (only: {names})",
            f"one of {', '.join(HEADLINES)} is needed; run as the owner of the process",
        )

    def __getitem__(self, instrument: str) -> int:
        """Return the bytes of one instrument; raises `BadInput` if it is not among them."""
        for reading in self.readings:
            if reading.instrument == instrument:
                return reading.num_bytes
        names = ", ".join(reading.instrument for reading in self.readings)
        raise BadInput(f"no reading of {instrument!r}", f"this sample has {names}")


def mlx_readings(counters: Any) -> list[Reading]:
    """Return MLX's active, cache and peak bytes from an object that carries its three counters."""
    return [
        Reading("mlx_active", int(counters.get_active_memory())),
        Reading("mlx_cache", int(counters.get_cache_memory())),
        Reading("mlx_peak", int(counters.get_peak_memory())),
    ]
