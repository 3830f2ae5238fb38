"""How an engine turns layers into bytes: the exact rules, and the places where engines differ.

A dialect subclasses `Dialect` and overrides the rule in which its engine differs: how many rows a
sequence gets, how wide a row is, what type a state has, or the whole of `terms` for engines that
hand out pages. It also says what else is known of the engine: which settings it has, what it holds
beside its caches, what its log prints and how its command line spells the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, ClassVar, Literal, NamedTuple, Self

from qwisp.errors import BadInput
from qwisp.memory.projection import Term
from qwisp.memory.row_types import row_bytes, type_of
from qwisp.memory.weights import Weights, weights_term
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
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec

F32_BYTES = 4
# MLX's groups of 64 carry a 16-bit scale and bias: 8.5 and 4.5 bits an element, as q8_0 and q4_0.
ROW_TYPES = {16: None, 8: "q8_0", 4: "q4_0"}


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


class Spelling(NamedTuple):
    """An option of an engine's own command line.

    It sets the dialect's `fields` to what `read` makes of the value; without fields, what `sets`
    names: the context of a sequence, that of all sequences together, or the share of the VRAM.
    """

    flags: tuple[str, ...]
    help: str
    value: Literal["text", "flag", "count", "share", "tokens"] | tuple[str, ...] = "text"
    fields: tuple[str, ...] = ()
    sets: Literal["fields", "context", "all contexts", "share"] = "fields"
    read: Callable[[Any], Any] = lambda value: value


class DefaultShare(NamedTuple):
    """The share of a device's VRAM that an engine takes unless told otherwise, and in words."""

    share: float
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The exact allocator: every row that is needed, none that is not.

    `k_type` and `v_type` are row types; None takes the model's own number type.
    """

    name: ClassVar[str] = "exact"
    chunk_field: ClassVar[str | None] = None
    """The field with the prefill chunk, None where rows do not depend on one."""
    has_own_prefill: ClassVar[bool] = False
    """Whether prefill is by kernels of the engine's own, so that no chunk is advised."""
    writes_scores: ClassVar[bool] = False
    """Whether scores are known to be written out where no fused kernel exists."""
    is_pooled: ClassVar[bool] = False
    """Whether one pool fills what memory is left, whatever the context."""
    streams_experts: ClassVar[bool] = False
    """Whether experts are read from disk into slots."""
    default_share: ClassVar[DefaultShare | None] = None
    spellings: ClassVar[tuple[Spelling, ...]] = ()

    k_type: str | None = None
    v_type: str | None = None

    @property
    def sequences(self) -> int:
        """How many sequences the terms are for."""
        return 1

    @property
    def ranks(self) -> int:
        """How many devices share the weights."""
        return 1

    @property
    def chunk(self) -> int | None:
        """The prefill chunk in tokens, None where rows do not depend on one."""
        return getattr(self, self.chunk_field) if self.chunk_field else None

    def with_chunk(self, chunk_tokens: int) -> Self:
        """Return the dialect with another prefill chunk, where it has one."""
        return replace(self, **{self.chunk_field: chunk_tokens}) if self.chunk_field else self

    def unchunked(self, context_tokens: int) -> Self:
        """Return the dialect as if nothing left a ring before the prompt ends: whole contexts."""
        return self.with_chunk(context_tokens)

    def with_lanes(self, lanes: int) -> Self:
        """Return the dialect for so many sequences, where it counts them itself."""
        return self

    def engine_context(self, context_tokens: int, lanes: int) -> int:
        """Return what the engine calls its context when every lane is to hold `context_tokens`."""
        return context_tokens

    def lane_context(self, engine_tokens: int, lanes: int) -> int:
        """Return what a lane holds when the engine is told a context of `engine_tokens`."""
        return engine_tokens

    def with_kv_bits(self, bits: int) -> Self:
        """Return the dialect with rows of 16, 8 or 4 bits; raises `BadInput` for other widths.

        >>> Dialect().with_kv_bits(8).k_type
        'q8_0'
        """
        row = ROW_TYPES[known_bits(bits)]
        return replace(self, k_type=row, v_type=row)

    @property
    def is_16_bit(self) -> bool:
        """Whether rows are kept in 16 bits or more, so that 8-bit rows would be smaller.

        >>> Dialect().is_16_bit, Dialect(k_type="q8_0", v_type="q8_0").is_16_bit
        (True, False)
        """
        wide = {None, "f16", "bf16", "f32"}
        return self.k_type in wide and self.v_type in wide

    def overhead(self, machine: MachineSpec | None) -> Term:
        """Return what the process takes beside weights and caches."""
        note = f"nobody measured {self.name} for this project"
        return Term(name="runtime overhead", num_bytes=None, provenance="unmeasured", note=note)

    def beside_caches(
        self,
        model: ModelSpec,
        weights: Weights | int | None,
        machine: MachineSpec | None,
        *,
        prompt_tokens: int,
        slots_per_layer: int | None = None,
    ) -> list[Term]:
        """Return what is held beside the caches: weights and overhead."""
        return [weights_term(weights, self.ranks), self.overhead(machine)]

    def log_lines(
        self, model: ModelSpec, context_tokens: int, pool_bytes: int | None = None
    ) -> tuple[str, ...]:
        """Return the lines that the engine's log will print about its caches, if it prints any.

        `context_tokens` is what the engine calls its context. `pool_bytes` is what an engine with
        a pool has left for it; without it, a pool prints nothing.
        """
        return ()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ManySequences(Dialect):
    """An engine that counts its sequences itself: its terms are for all `n_seq` of them."""

    n_seq: int = 1

    @property
    def sequences(self) -> int:
        """The sequences, slots or lanes of a batch."""
        return self.n_seq

    def with_lanes(self, lanes: int) -> Self:
        """Return the dialect for so many sequences."""
        return replace(self, n_seq=lanes)


def known_bits(bits: int) -> int:
    """Return `bits`; raises `BadInput` for a width that no engine's rows have."""
    if bits not in ROW_TYPES:
        raise BadInput(f"cache rows of {bits} bits are not known", "use 16, 8 or 4")
    return bits


def ring_rows(context_tokens: int, window_tokens: int, chunk_tokens: int) -> int:
    """Return `min(context, window + chunk)`: a chunk is written before its first row may go.

    >>> ring_rows(65536, 1024, 128), ring_rows(512, 1024, 128)
    (1152, 512)
    """
    return min(context_tokens, window_tokens + chunk_tokens)


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
