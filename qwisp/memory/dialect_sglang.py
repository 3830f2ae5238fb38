"""SGLang: a pool of tokens for attention, and a pool of states beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qwisp.memory.dialect import CacheRows, Dialect, Terms, conv_elements, state_elements
from qwisp.memory.dialect_tensor_parallel import rank_rows, shard
from qwisp.memory.row_types import row_bytes
from qwisp.spec.layers import Layer
from qwisp.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sglang(Dialect):
    """One rank. `pool_tokens` is the printed size; without it, `n_seq` contexts are held."""

    name: ClassVar[str] = "sglang"

    n_seq: int = 1
    pool_tokens: int | None = None
    tensor_parallel: int = 1
    state_type: str = "f32"
    mla_latent: bool = True

    @property
    def sequences(self) -> int:
        """The sequences that have a state."""
        return self.n_seq

    def full_rows(self, context_tokens: int) -> int:
        """Return the pool's tokens."""
        return context_tokens * self.n_seq if self.pool_tokens is None else self.pool_tokens

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the same: windows keep every token of the pool."""
        return self.full_rows(context_tokens)

    def rows(self, layer: Layer, spec: ModelSpec) -> CacheRows:
        """Return what one token leaves on this rank."""
        local = rank_rows(layer, self.tensor_parallel, latent=self.mla_latent)
        return Dialect.rows(self, local, spec)

    def recurrent_terms(self, layer: Layer, spec: ModelSpec) -> Terms:
        """Return one sequence's state on this rank."""
        ranks = self.tensor_parallel
        return Terms(
            state_bytes=row_bytes(self.state_type, shard(state_elements(layer), ranks)),
            conv_bytes=shard(conv_elements(layer), ranks) * self.conv_element_bytes(spec),
        )
