"""Machines: how much memory there is, and how much of it one process may take."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from qwisp.errors import BadInput
from qwisp.units import format_bytes

# The system and whatever draws the screen need the rest; beyond it macOS starts to swap.
USABLE_SHARE = Fraction(7, 10)

MemoryKind = Literal["unified", "host", "vram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A machine's memory: total bytes, and the bytes one process may take.

    `limit_bytes` is a limit that is known (wired limit, VRAM, cgroup), called `limit_name`;
    without one, `usable_bytes` is 70 % of the memory.

    >>> MachineSpec(name="laptop", title="Laptop", memory_bytes=10 * 2**30).usable_bytes >> 30
    7
    """

    name: str
    title: str
    memory_bytes: int
    memory_kind: MemoryKind = "unified"
    limit_bytes: int | None = None
    limit_name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.memory_bytes < 1:
            raise BadInput(
                f"machine {self.name!r} has {self.memory_bytes} bytes of memory",
                "give memory_bytes above zero",
            )
        if self.limit_bytes is not None and not 0 < self.limit_bytes <= self.memory_bytes:
            raise BadInput(
                f"machine {self.name!r} has a limit of {self.limit_bytes} bytes"
                f" on {self.memory_bytes} bytes of memory",
                "give limit_bytes between 1 and memory_bytes, or leave it out",
            )

    @property
    def usable_bytes(self) -> int:
        """Bytes one process may take: the known limit, else 70 % of the memory."""
        if self.limit_bytes is not None:
            return self.limit_bytes
        return int(self.memory_bytes * USABLE_SHARE)

    @property
    def usable_rule(self) -> str:
        """How `usable_bytes` came about, in words with the numbers."""
        if self.limit_bytes is not None:
            return f"{self.limit_name or 'known limit'} of {format_bytes(self.limit_bytes)}"
        kind = {"unified": "unified memory", "host": "memory", "vram": "VRAM"}[self.memory_kind]
        return f"{int(USABLE_SHARE * 100)} % of {format_bytes(self.memory_bytes)} {kind}"
