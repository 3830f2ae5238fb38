"""Bytes of one session by its rows: the only thing scheduling knows of memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from qwisp.memory.dialect import Dialect
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.spec.layers import SlidingWindow
from qwisp.spec.model import ModelSpec


class SessionBytes:
    """What a session of so many rows occupies: its rows, its ring and its fixed state.

    `row_bytes` is what one further row costs once every ring is full, `fixed_bytes` what a session
    costs beside its rows. Inside a session the ring is `min(rows, window + chunk)`.

    >>> from qwisp.spec.catalog import load_model
    >>> session = SessionBytes(load_model("qwen3.6-35b-a3b"))
    >>> session.row_bytes, session.bytes(4096) - session.fixed_bytes == 4096 * 20480
    (20480, True)
    """

    __slots__ = ("_groups", "_spec", "dialect", "fixed_bytes", "row_bytes")

    def __init__(
        self, spec: ModelSpec, dialect: Dialect | None = None, chunk_tokens: int | None = None
    ) -> None:
        dialect = dialect or Qwisp()
        if chunk_tokens is not None:
            dialect = replace(dialect, chunk_tokens=chunk_tokens)
        self.dialect = dialect
        self._spec = spec
        self.row_bytes: int = dialect.bytes_per_token(spec.caches, spec)
        self.fixed_bytes: int = sum(dialect.terms(spec.caches, 0, spec))
        # Equal layers cost the same: three groups are summed per call instead of dozens of layers.
        self._groups = tuple(Counter(spec.attention_caches).items())

    def bytes(self, rows: int) -> int:
        """Return the bytes of one session of `rows` rows."""
        size = self.fixed_bytes
        for layer, count in self._groups:
            size += count * sum(self.dialect.layer_terms(layer, rows, self._spec))
        return size

    def lane_bytes(self, rows: int) -> int:
        """Return the part of `bytes(rows)` that no other lane can use: state and rings."""
        return self.fixed_bytes + self.ring_bytes(rows)

    def ring_bytes(self, rows: int) -> int:
        """Return the part of `bytes(rows)` that is rings."""
        return sum(
            count * sum(self.dialect.layer_terms(layer, rows, self._spec))
            for layer, count in self._groups
            if isinstance(layer, SlidingWindow)
        )
