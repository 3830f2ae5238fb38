"""What engines with one pool share: ranks of a tensor-parallel server, and tokens in a pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from qwisp.errors import BadInput
from qwisp.memory.dialect import CacheRows, Dialect, ManySequences, Spelling, known_bits
from qwisp.spec.layers import FullAttention, Layer, Mla, SlidingWindow
from qwisp.spec.model import ModelSpec


class Pool(NamedTuple):
    """What a pool of so many bytes holds: the tokens a log prints, and whole contexts at once."""

    tokens: int
    contexts: float


def _row_type(value: str) -> str | None:
    return None if value == "auto" else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled(ManySequences):
    """One rank's pool, in whole blocks of `block_tokens`.

    `pool_tokens` is the size its log printed; without it, `n_seq` contexts are held.
    """

    has_own_prefill: ClassVar[bool] = True
    is_pooled: ClassVar[bool] = True
    spellings: ClassVar[tuple[Spelling, ...]] = (
        Spelling(
            ("--max-model-len",), "vLLM: context of a sequence.", value="tokens", sets="context"
        ),
        Spelling(
            ("--kv-cache-dtype",),
            "vLLM: type of cache rows.",
            fields=("k_type", "v_type"),
            read=_row_type,
        ),
        Spelling(
            ("-tp", "--tensor-parallel-size"),
            "vLLM: devices per layer.",
            value="count",
            fields=("tensor_parallel",),
        ),
        Spelling(
            ("--gpu-memory-utilization",),
            "vLLM: share of the VRAM.",
            value="share",
            sets="share",
        ),
    )

    pool_tokens: int | None = None
    tensor_parallel: int = 1
    block_tokens: int = 1
    mla_latent: bool = True

    @property
    def ranks(self) -> int:
        """The devices over which every layer is divided."""
        return self.tensor_parallel

    def full_rows(self, context_tokens: int) -> int:
        """Return the pool's tokens."""
        if self.pool_tokens is not None:
            return self.pool_tokens
        return -(-context_tokens // self.block_tokens) * self.block_tokens * self.n_seq

    def ring_rows(self, context_tokens: int, window_tokens: int) -> int:
        """Return the same: without a pool of their own, windows keep every token."""
        return self.full_rows(context_tokens)

    def rows(self, layer: Layer, spec: ModelSpec) -> CacheRows:
        """Return what one token leaves on this rank."""
        local = rank_rows(layer, self.tensor_parallel, latent=self.mla_latent)
        return Dialect.rows(self, local, spec)

    def with_kv_bits(self, bits: int) -> Self:
        """Return the dialect with rows of 16 bits, or of 8 as fp8; there are no narrower ones."""
        if known_bits(bits) == 4:
            raise BadInput(f"{self.name} keeps no rows of 4 bits", "use 16 or 8")
        row = "fp8" if bits == 8 else None
        return replace(self, k_type=row, v_type=row)

    def pool_of(self, model: ModelSpec, context_tokens: int, pool_bytes: int) -> Pool:
        """Return what a pool holds, in whole blocks."""
        row = sum(sum(self.rows(layer, model)) for layer in model.attention_caches)
        tokens = pool_bytes // (row * self.block_tokens) * self.block_tokens
        return Pool(tokens, tokens / context_tokens)


def rank_rows(layer: Layer, ranks: int, *, latent: bool = True) -> Layer:
    """Return the attention layer as one rank sees it.

    Heads are divided; with more ranks than heads each rank holds a copy of one. A latent row is
    held whole by every rank; without the latent form the heads are divided as usual.

    >>> rank_rows(FullAttention(kv_heads=4, k_dim=128, v_dim=128), 8).kv_heads
    1
    """
    match layer:
        case FullAttention() | SlidingWindow():
            return replace(layer, kv_heads=shard_heads(layer.kv_heads, ranks))
        case Mla() if not latent:
            if not layer.heads or not layer.v_dim:
                raise BadInput("a row per head needs the head sizes", "give heads, k_dim, v_dim")
            return FullAttention(
                kv_heads=shard_heads(layer.heads, ranks),
                k_dim=layer.nope_dim + layer.rope_dim,
                v_dim=layer.v_dim,
            )
    return layer


def shard_heads(heads: int, ranks: int) -> int:
    """Return the heads of one rank, at least one. Raises `BadInput` if they do not divide."""
    if max(heads, ranks) % min(heads, ranks):
        raise BadInput(f"{heads} heads do not divide over {ranks} ranks", "use a divisor")
    return max(1, heads // ranks)


def shard(elements: int, ranks: int) -> int:
    """Return a rank's share of a state, rounded up."""
    return -(-elements // ranks)
