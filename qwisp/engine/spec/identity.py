"""What fixes the engine's bits, and the safeguards that keep them fixed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from qwisp.errors import BadInput

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Safeguards:
    """The rules that make a lane's bits its own. All on is strict; tests take one away at a time.

    `fixed_width`: every decode operation sees W rows. `aligned_windows`: prefill runs whole windows
    [iC, (i+1)C) of C rows. `blocked_attention`: blocks of 256 keys, combined in order, per lane.
    `ordered_router`: experts by (-score, index), summed in that order, never sorted by expert.
    `raw_rings`: a ring moves raw with its index (position mod R) instead of in temporal order.

    >>> Safeguards.none().ordered_router
    False
    """

    fixed_width: bool = True
    aligned_windows: bool = True
    blocked_attention: bool = True
    ordered_router: bool = True
    raw_rings: bool = True

    @classmethod
    def none(cls) -> Safeguards:
        """Return the stock way: dynamic width, stock attention, sorted experts."""
        return cls(**{field.name: False for field in fields(cls)})

    def without(self, name: str) -> Safeguards:
        """Return these safeguards with one taken away."""
        return replace(self, **{name: False})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Backend, type, width W and chunk C: bits are promised for equal identities only.

    A compiled step fuses what a plain one rounds in between, so that is part of it too. Stands in
    every receipt. Raises `BadInput` for a width below 8 or a chunk that is no power of 2.

    >>> Identity(width=8).label
    'cpu float32 W=8 C=256 strict'
    """

    width: int = 8
    chunk_tokens: int = 256
    dtype: Dtype = "float32"
    backend: str = "cpu"
    safeguards: Safeguards = Safeguards()
    is_compiled: bool = False
    has_kernels: bool = False

    def __post_init__(self) -> None:
        if self.width < 8:
            raise BadInput(
                f"decode width is {self.width} rows",
                "use 8 or more: below 8 rows kernels switch their order",
            )
        if self.chunk_tokens < 8 or self.chunk_tokens & (self.chunk_tokens - 1):
            raise BadInput(
                f"prefill chunk is {self.chunk_tokens} tokens", "use a power of two from 8 on"
            )

    @property
    def is_strict(self) -> bool:
        """Bits are promised."""
        return self.safeguards == Safeguards()

    @property
    def label(self) -> str:
        """One line for receipts and reports."""
        mode = "strict" if self.is_strict else "non-strict"
        how = " compiled" * self.is_compiled + " own kernels" * self.has_kernels
        return f"{self.backend} {self.dtype} W={self.width} C={self.chunk_tokens} {mode}{how}"


def decode_width(lanes: int) -> int:
    """Return W for so many lanes: at least 8.

    >>> decode_width(3), decode_width(19)
    (8, 19)
    """
    return max(8, lanes)
