"""The published engine whose figures are the reference: allocation at the context cap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qwisp.memory.dialect import Dialect
from qwisp.memory.ring import ring_rows
from qwisp.spec.model import ModelSpec

F16_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fieldfare(Dialect):
    """Rings of window and chunk under chunked prefill, whole contexts without; f16 conv tails."""

    name: ClassVar[str] = "fieldfare"

    chunk_tokens: int = 128
    chunked: bool = True

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the rows of one ring; without chunks nothing leaves it before the prompt ends."""
        if not self.chunked:
            return context_tokens
        return ring_rows(context_tokens, window_tokens, self.chunk_tokens)

    def conv_element_bytes(self, spec: ModelSpec) -> int:
        """Return f16, whatever the model's type."""
        return F16_BYTES
