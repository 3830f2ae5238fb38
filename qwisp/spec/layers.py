"""Layer kinds, each with the geometry of what it must remember. Sizes in bytes live in `memory`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """Every token leaves `kv_heads` keys of `k_dim` and values of `v_dim` elements."""

    kv_heads: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """As full attention, but only the last `window_tokens` are ever read."""

    kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """A recurrent state `[value_heads, value_dim, key_dim]` and a short convolution's tail."""

    value_heads: int
    key_heads: int
    value_dim: int
    key_dim: int
    conv_kernel: int

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """A recurrent state `[heads, head_dim, state_dim]` and a convolution over x, B and C."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_kernel: int
    inner_dim: int

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution."""
        return self.inner_dim + 2 * self.groups * self.state_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """A recurrent state `[inner_dim, state_dim]` and a convolution over the inner channels."""

    inner_dim: int
    state_dim: int
    conv_kernel: int

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution."""
        return self.inner_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """The last `kernel - 1` inputs of a gated short convolution over `hidden` channels."""

    hidden: int
    kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """One latent of `kv_lora_rank` and a rotary key of `rope_dim` a token, or full heads.

    An engine without the latent form keeps `heads` keys of `nope_dim + rope_dim` and values of
    `v_dim`; `heads` is 0 where only the latent sizes are known.
    """

    kv_lora_rank: int
    rope_dim: int
    heads: int = 0
    nope_dim: int = 0
    v_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledAttention:
    """Every token leaves `row_elements`; every `pool_tokens` tokens leave `pooled_elements` more.

    For caches of which only the size of a row is known, not how it splits into heads.
    """

    row_elements: int
    pooled_elements: int
    pool_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Reads the keys and values of layer `source`; remembers nothing of its own."""

    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateless:
    """A block that remembers nothing (a lone feed-forward or expert block in a hybrid pattern)."""


Attention = FullAttention | SlidingWindow | Mla | PooledAttention
Recurrent = GatedDelta | Mamba2 | Mamba1 | ShortConv


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """One block that runs several mixers side by side and remembers what each of them does."""

    parts: tuple[Attention | Recurrent, ...]


Layer = Attention | Recurrent | Shared | Stateless | Parallel
