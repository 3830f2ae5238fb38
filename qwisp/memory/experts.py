"""Routed experts: what one weighs on disk, and what a slot cache of them holds in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PAGE_BYTES = 16384  # Apple silicon; expert blobs start on page boundaries to be read directly
GROUP_BITS = 32  # a scale and a bias of 16 bits for each group of weights


def expert_stride_bytes(hidden: int, inner: int, *, bits: int = 4, group: int = 64) -> int:
    """Return the page-rounded bytes of one expert: three `hidden x inner` matrices, quantised.

    Each group of `group` weights carries a 16-bit scale and bias (MLX affine quantisation).

    >>> expert_stride_bytes(2816, 704), expert_stride_bytes(2048, 512)
    (3358720, 1769472)
    """
    weights = 3 * hidden * inner
    size = weights * bits // 8 + weights // group * GROUP_BITS // 8
    return -(-size // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlots:
    """A cache of `count` experts `per layer` or `in all`; the scope is part of the number.

    Published figures differ in it: 51 MiB for Gemma 4 is 16 slots in all, 1.13 GB for Qwen 3.6 is
    16 slots in each of 40 layers.

    >>> ExpertSlots(count=16, scope="in all", layers=30, stride_bytes=3358720).num_bytes
    53739520
    >>> ExpertSlots(count=16, scope="per layer", layers=40, stride_bytes=1769472).num_bytes
    1132462080
    """

    count: int
    scope: Literal["per layer", "in all"]
    layers: int
    stride_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots once they are filled."""
        slots = self.count * (self.layers if self.scope == "per layer" else 1)
        return slots * self.stride_bytes
