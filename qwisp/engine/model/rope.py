"""Rotary embeddings: how the first elements of a head turn with the position, per kind of scaling.

A row turns by its own absolute position alone, so the same token has the same bits in any batch.
The frequencies are computed in fp32 in the order in which the published models were run.
"""

from __future__ import annotations

import math

import mlx.core as mx

from qwisp.engine.spec.rope import (
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    Rope,
    Scaling,
    YarnScaling,
)


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
