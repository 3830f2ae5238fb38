"""How an engine turns layers into bytes: the exact rules, and the places where engines differ.

A dialect subclasses `Dialect` and overrides the rule in which its engine differs: how many rows a
sequence gets, how wide a row is, what type a state has, or the whole of `terms` for engines that
hand out pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import ClassVar, NamedTuple

from qwisp.errors import BadInput
from qwisp.memory.row_types import row_bytes, type_of
from qwisp.spec.layers import (
    FullAttention,
    GatedDelta,
    Layer,
    Mamba1,
    Mamba2,
    Mla,
    PooledAttention,
    ShortConv,
    SlidingWindow,
)
from qwisp.spec.model import ModelSpec

F32_BYTES = 4


class Terms(NamedTuple):
    """Bytes by what they hold. Keys and values apart, because some logs print them apart."""

    full_key_bytes: int = 0
    full_value_bytes: int = 0
    ring_key_bytes: int = 0
    ring_value_bytes: int = 0
    pooled_bytes: int = 0
    state_bytes: int = 0
    conv_bytes: int = 0

    def times(self, factor: int) -> Terms:
        """Return every term `factor` times."""
        return Terms(*(size * factor for size in self))


def add_terms(many: Iterable[Terms]) -> Terms:
    """Return the sum, term by term.

    >>> add_terms([Terms(state_bytes=1), Terms(state_bytes=2)]).state_bytes
    3
    """
    return Terms(*map(sum, zip(Terms(), *many, strict=True)))


class CacheRows(NamedTuple):
    """Bytes of one token's key row and value row in one layer."""

    key_bytes: int
    value_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The exact allocator: every row that is needed, none that is not.

    `k_type` and `v_type` are row types; None takes the model's own number type.
    """

    name: ClassVar[str] = "exact"

    k_type: str | None = None
    v_type: str | None = None

    @property
    def sequences(self) -> int:
        """How many sequences the terms are for."""
        return 1

    def full_rows(self, context_tokens: int) -> int:
        """Return the rows of a full-attention layer, over all sequences."""
        return context_tokens

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the rows of a sliding-window layer, over all sequences."""
        return min(context_tokens, window_tokens)

    def rows(self, layer: Layer, spec: ModelSpec) -> CacheRows:
        """Return what one token leaves in an attention layer."""
        match layer:
            case FullAttention() | SlidingWindow():
                return CacheRows(
                    self.key_bytes(layer.kv_heads * layer.k_dim, spec),
                    self.value_bytes(layer.kv_heads * layer.v_dim, spec),
                )
            case Mla():
                return self.mla_rows(layer, spec)
            case PooledAttention():
                return CacheRows(self.key_bytes(layer.row_elements, spec), 0)
        raise AssertionError(f"{layer} has no rows")

    def mla_rows(self, layer: Mla, spec: ModelSpec) -> CacheRows:
        """Return a latent row, which holds keys and values in one."""
        return CacheRows(self.key_bytes(layer.kv_lora_rank + layer.rope_dim, spec), 0)

    def key_bytes(self, elements: int, spec: ModelSpec) -> int:
        """Return the bytes of a key row of so many elements."""
        return row_bytes(self.k_type or type_of(spec.element_bytes), elements)

    def value_bytes(self, elements: int, spec: ModelSpec) -> int:
        """Return the bytes of a value row of so many elements."""
        return row_bytes(self.v_type or type_of(spec.element_bytes), elements)

    def conv_element_bytes(self, spec: ModelSpec) -> int:
        """Return the bytes of an element of a convolution's tail: the model's type."""
        return spec.element_bytes

    def state_element_bytes(self, spec: ModelSpec) -> int:
        """Return the bytes of an element of a recurrent state."""
        return F32_BYTES

    def states(self) -> int:
        """Return how many copies of the recurrent state there are, over all sequences."""
        return self.sequences

    def layer_terms(self, layer: Layer, context_tokens: int, spec: ModelSpec) -> Terms:
        """Return the bytes of one layer."""
        match layer:
            case FullAttention() | Mla():
                num, row = self.full_rows(context_tokens), self.rows(layer, spec)
                return Terms(
                    full_key_bytes=num * row.key_bytes, full_value_bytes=num * row.value_bytes
                )
            case SlidingWindow():
                num = self.ring_rows(context_tokens, layer.window_tokens)
                row = self.rows(layer, spec)
                return Terms(
                    ring_key_bytes=num * row.key_bytes, ring_value_bytes=num * row.value_bytes
                )
            case PooledAttention():
                num, row = self.full_rows(context_tokens), self.rows(layer, spec)
                pooled = -(-num // layer.pool_tokens)
                return Terms(
                    full_key_bytes=num * row.key_bytes,
                    pooled_bytes=pooled * self.key_bytes(layer.pooled_elements, spec),
                )
        return self.recurrent_terms(layer, spec).times(self.states())

    def recurrent_terms(self, layer: Layer, spec: ModelSpec) -> Terms:
        """Return what one sequence keeps of a recurrent layer."""
        state, conv = state_elements(layer), conv_elements(layer)
        return Terms(
            state_bytes=state * self.state_element_bytes(spec),
            conv_bytes=conv * self.conv_element_bytes(spec),
        )

    def terms(self, caches: Sequence[Layer], context_tokens: int, spec: ModelSpec) -> Terms:
        """Return the bytes of all caches at a context."""
        return add_terms(self.layer_terms(layer, context_tokens, spec) for layer in caches)

    def bytes_per_token(self, caches: Sequence[Layer], spec: ModelSpec) -> int:
        """Return what a further token costs where every ring is full (rounded up if pooled)."""
        pooled = [layer for layer in caches if isinstance(layer, PooledAttention)]
        tokens = lcm(*(layer.pool_tokens for layer in pooled))
        size = sum(
            sum(self.rows(layer, spec)) * tokens
            for layer in caches
            if isinstance(layer, FullAttention | Mla | PooledAttention)
        )
        for layer in pooled:
            size += tokens // layer.pool_tokens * self.key_bytes(layer.pooled_elements, spec)
        return -(-size // tokens)


def state_elements(layer: Layer) -> int:
    """Return the elements of a layer's recurrent state."""
    match layer:
        case GatedDelta():
            return layer.value_heads * layer.value_dim * layer.key_dim
        case Mamba2():
            return layer.heads * layer.head_dim * layer.state_dim
        case Mamba1():
            return layer.inner_dim * layer.state_dim
    return 0


def conv_elements(layer: Layer) -> int:
    """Return the elements of a layer's convolution tail: the last `kernel - 1` inputs."""
    match layer:
        case GatedDelta() | Mamba2() | Mamba1():
            return (layer.conv_kernel - 1) * layer.conv_dim
        case ShortConv():
            return (layer.kernel - 1) * layer.hidden
    return 0


def per_head_rows(dialect: Dialect, layer: Mla, spec: ModelSpec) -> CacheRows:
    """Return the rows of latent attention that is kept unfolded: a key and a value per head.

    Raises `BadInput` where the head sizes are not known.
    """
    if not layer.heads or not layer.v_dim:
        raise BadInput(
            "the cache has a row per head, but the head sizes are not given",
            "give heads, k_dim and v_dim",
        )
    return CacheRows(
        dialect.key_bytes(layer.heads * (layer.nope_dim + layer.rope_dim), spec),
        dialect.value_bytes(layer.heads * layer.v_dim, spec),
    )
