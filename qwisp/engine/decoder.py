"""One decoder body for every family: mixer kinds x feed-forward kinds, declared by a spec."""

from __future__ import annotations

import mlx.core as mx

from qwisp.engine.arena import Arena, mlx_dtype
from qwisp.engine.decoder_spec import DecoderSpec, DenseFfn
from qwisp.engine.ffn import Dense, Mixture
from qwisp.engine.gated_delta import GatedDeltaBlock
from qwisp.engine.linear import Weights, embedding, linear
from qwisp.engine.mixers import Attention
from qwisp.engine.norms import Norm
from qwisp.engine.step import Context, Step, Window
from qwisp.spec.layers import GatedDelta


class Layer:
    """A mixer and a feed-forward block, each behind a norm (and before one, when sandwiched)."""

    def __init__(self, spec: DecoderSpec, index: int, weights: Weights) -> None:
        block, name = spec.blocks[index], f"{spec.prefix}model.layers.{index}"
        self.name = name
        if isinstance(block.layer, GatedDelta):
            self.mixer = GatedDeltaBlock(spec, block, weights, f"{name}.linear_attn")
        else:
            self.mixer = Attention(spec, block, weights, f"{name}.self_attn")
        kind = Dense if isinstance(block.ffn, DenseFfn) else Mixture
        self.ffn = kind(block.ffn, weights, f"{name}.mlp", spec.hidden)
        self.is_sandwiched = spec.is_sandwiched

        def norm(which: str) -> Norm:
            return Norm(weights, f"{name}.{which}", spec.eps, spec.norm_offset)

        self.norm_in = norm("input_layernorm")
        self.norm_mid = norm("post_attention_layernorm")
        if spec.is_sandwiched:
            self.norm_ffn = norm("pre_feedforward_layernorm")
            self.norm_out = norm("post_feedforward_layernorm")

    def __call__(self, c: Context, x: mx.array, cache, rows: Step | Window) -> mx.array:
        """Return the residual stream after this layer, `[M, hidden]`."""
        mix = self.mixer.decode if isinstance(rows, Step) else self.mixer.prefill
        r = mix(c, self.norm_in(x), cache, rows)
        if self.is_sandwiched:
            x = x + self.norm_mid(r)
            x = x + self.norm_out(self.ffn(c, self.norm_ffn(x), rows))
        else:
            x = x + r
            x = x + self.ffn(c, self.norm_mid(x), rows)
        c.tap(self.name, x)
        return x


class Decoder:
    """The body with its weights. It knows rows and windows, nothing of requests or rounds."""

    def __init__(self, spec: DecoderSpec, weights: Weights, dtype: str) -> None:
        self.spec = spec
        self.dtype = mlx_dtype(dtype)
        prefix = spec.prefix
        self.embed = embedding(weights, f"{prefix}model.embed_tokens", spec.hidden)
        self.layers = [Layer(spec, index, weights) for index in range(len(spec.blocks))]
        self.norm = Norm(weights, f"{prefix}model.norm", spec.eps, spec.norm_offset)
        tied = spec.is_tied
        self.head = (
            self.embed.as_linear() if tied else linear(weights, f"{prefix}lm_head", spec.hidden)
        )
        # Checkpoints of scaled embeddings were trained with the factor rounded to bf16.
        scale = mx.array(spec.embed_scale, mx.bfloat16).astype(self.dtype)
        self.embed_scale = scale if spec.embed_scale != 1.0 else None

    def decode(self, c: Context, tokens: mx.array, arena: Arena, step: Step) -> mx.array:
        """Return logits `[W, vocab]` for tokens `[W]` at the step's positions."""
        x = self._through(c, self._embed(tokens), arena, step)
        logits = self.head(c.ops, self.norm(x))
        c.tap("lm_head", logits)
        return logits

    def prefill(self, c: Context, tokens: mx.array, arena: Arena, window: Window) -> None:
        """Write a window's keys, values and states; tokens `[C]`, anything in absent rows.

        Prefill computes no logits: the last prompt token is decoded.
        """
        self._through(c, self._embed(tokens), arena, window)
        mx.eval(arena.arrays)

    def _embed(self, tokens: mx.array) -> mx.array:
        x = self.embed(tokens, self.dtype)
        return x if self.embed_scale is None else x * self.embed_scale

    def _through(self, c: Context, x: mx.array, arena: Arena, rows: Step | Window) -> mx.array:
        if c.poisons:
            x = rows.poisoned(x)
        for layer, cache in zip(self.layers, arena.buffers, strict=True):
            x = layer(c, x, cache, rows)
        return x
