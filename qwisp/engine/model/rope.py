"""Rotary embeddings: how the first elements of a head turn with the position, per kind of scaling.

A row turns by its own absolute position alone, so the same token has the same bits in any batch.
The frequencies are computed in fp32 in the order in which the published models were run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """A ramp over dimensions from kept to stretched; queries and keys grow by a factor of their
    own."""

    factor: float
    original_tokens: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    @property
    def growth(self) -> float:
        """What rotated elements are multiplied by.

        >>> YarnScaling(factor=1.0).growth
        1.0
        """
        return _grown(self.factor, self.mscale) / _grown(self.factor, self.mscale_all_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongScaling:
    """A stretch per dimension (longrope); queries and keys grow by `growth`."""

    factors: tuple[float, ...]
    growth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """Only the first `rotated_dims` of `dims` turn, at the frequencies of the whole head."""

    rotated_dims: int
    factor: float = 1.0


Scaling = Llama3Scaling | YarnScaling | LongScaling | ProportionalScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotation of the first `dims` of a head; positions are multiplied by `scale`.

    `is_traditional` pairs neighbours (0, 1), otherwise element i is paired with i + dims / 2.
    """

    dims: int
    theta: float
    scale: float = 1.0
    is_traditional: bool = False
    scaling: Scaling | None = None


class Rotation:
    """A `Rope` ready to turn arrays."""

    __slots__ = ("_freqs", "_growth", "rope")

    def __init__(self, rope: Rope) -> None:
        self.rope = rope
        self._freqs = None if rope.scaling is None else _frequencies(rope, rope.scaling)
        scaled = isinstance(rope.scaling, YarnScaling | LongScaling)
        self._growth = rope.scaling.growth if scaled else 1.0

    def __call__(self, x: mx.array, offset: mx.array | int) -> mx.array:
        """Return x `[B, heads, T, D]` turned; `offset` is the position of T = 0, one or per B."""
        rope = self.rope
        if self._growth != 1.0:
            turned = x[..., : rope.dims] * self._growth
            x = mx.concatenate([turned, x[..., rope.dims :]], axis=-1)
        return mx.fast.rope(
            x,
            rope.dims,
            traditional=rope.is_traditional,
            base=rope.theta if self._freqs is None else None,
            scale=rope.scale,
            offset=offset,
            freqs=self._freqs,
        )


def _frequencies(rope: Rope, scaling: Scaling) -> mx.array:
    """Return the wavelength over 2 pi of each pair, `[dims / 2]` in fp32."""
    if isinstance(scaling, ProportionalScaling):
        exponents = mx.arange(0, scaling.rotated_dims, 2, dtype=mx.float32) / rope.dims
        still = mx.full(((rope.dims - scaling.rotated_dims) // 2,), mx.inf)
        return mx.concatenate([scaling.factor * (rope.theta**exponents), still])
    plain = rope.theta ** (mx.arange(0, rope.dims, 2, dtype=mx.float32) / rope.dims)
    if isinstance(scaling, Llama3Scaling):
        return _llama3(plain, scaling)
    if isinstance(scaling, YarnScaling):
        return _yarn(plain, rope, scaling)
    return mx.array(scaling.factors, dtype=mx.float32) * plain


def _llama3(freqs: mx.array, s: Llama3Scaling) -> mx.array:
    low, high = s.original_tokens / s.low_freq_factor, s.original_tokens / s.high_freq_factor
    waves = 2 * mx.pi * freqs
    freqs = mx.where(waves > low, freqs * s.factor, freqs)
    between = (waves > high) & (waves < low)
    share = (s.original_tokens / waves - s.low_freq_factor) / (
        s.high_freq_factor - s.low_freq_factor
    )
    return mx.where(between, freqs / ((1 - share) / s.factor + share), freqs)


def _yarn(plain: mx.array, rope: Rope, s: YarnScaling) -> mx.array:
    def dim_of(turns: float) -> float:
        return (
            rope.dims
            * math.log(s.original_tokens / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low = max(math.floor(dim_of(s.beta_fast)), 0)
    high: float = min(math.ceil(dim_of(s.beta_slow)), rope.dims - 1)
    if low == high:
        high += 0.001  # the ramp must not divide by zero
    ramp = (mx.arange(rope.dims // 2, dtype=mx.float32) - low) / (high - low)
    kept = 1.0 - mx.clip(ramp, 0, 1)
    stretched = s.factor * plain
    return (stretched * plain) / (stretched * kept + plain * (1 - kept))


def _grown(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
