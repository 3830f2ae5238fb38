"""This project's own engine: exact rows, a ring of window and prefill chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qwisp.memory.dialect import Dialect
from qwisp.memory.ring import ring_rows

DEFAULT_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwisp(Dialect):
    """Exact rows; a sliding window keeps `window + chunk_tokens` rows."""

    name: ClassVar[str] = "qwisp"

    chunk_tokens: int = DEFAULT_CHUNK_TOKENS

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the rows of one ring."""
        return ring_rows(context_tokens, window_tokens, self.chunk_tokens)
