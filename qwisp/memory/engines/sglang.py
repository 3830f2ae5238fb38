"""SGLang: a pool of tokens for attention, and a pool of states beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qwisp.memory.dialect import Terms, conv_elements, state_elements
from qwisp.memory.engines.pool import Pooled, shard
from qwisp.memory.row_types import row_bytes
from qwisp.spec.layers import Layer
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Sglang(Pooled):
    """One rank's pool of tokens, and a state of `state_type` for each of `n_seq` sequences."""

    name: ClassVar[str] = "sglang"

    state_type: str = "f32"

    def recurrent_terms(self, layer: Layer, spec: ModelSpec) -> Terms:
        """Return one sequence's state on this rank."""
        ranks = self.tensor_parallel
        return Terms(
            state_bytes=row_bytes(self.state_type, shard(state_elements(layer), ranks)),
            conv_bytes=shard(conv_elements(layer), ranks) * self.conv_element_bytes(spec),
        )

    def log_lines(
        self, model: ModelSpec, context_tokens: int, pool_bytes: int | None = None
    ) -> tuple[str, ...]:
        """Return the pool's tokens with its keys and values."""
        if not pool_bytes or pool_bytes < 0:
            return ()
        tokens = self.pool_of(model, context_tokens, pool_bytes).tokens
        rows = [self.rows(layer, model) for layer in model.attention_caches]
        keys = tokens * sum(row.key_bytes for row in rows)
        values = tokens * sum(row.value_bytes for row in rows)
        return (
            f"KV Cache is allocated. #tokens: {tokens}, K size: {keys / GIB:.2f} GB,"
            f" V size: {values / GIB:.2f} GB",
        )
