"""One decoder body for every family: mixer kinds x feed-forward kinds, declared by a spec."""

from __future__ import annotations

import mlx.core as mx

from qwisp.engine.cache.arena import Arena
from qwisp.engine.model.ffn import Dense, Mixture, Twin
from qwisp.engine.model.gated_delta import GatedDeltaBlock
from qwisp.engine.model.linear import Norm, Weights, embedding, linear
from qwisp.engine.model.mixers import Attention
from qwisp.engine.model.per_layer import LayerGate, LayerInputs
from qwisp.engine.model.step import Context, Step, Window
from qwisp.engine.spec.decoder_spec import DecoderSpec, DenseFfn, Ffn, MoeFfn, TwinFfn
from qwisp.engine.spec.dtypes import mlx_dtype
from qwisp.spec.layers import GatedDelta

FP16_MAX = 65504.0


def _ffn(spec: DecoderSpec, ffn: Ffn, weights: Weights, name: str) -> Dense | Mixture | Twin:
    if isinstance(ffn, TwinFfn):
        return Twin(spec, ffn, weights, name)
    if isinstance(ffn, MoeFfn):
        return Mixture(ffn, weights, f"{name}.mlp", spec.hidden)
    assert isinstance(ffn, DenseFfn)
    return Dense(ffn, weights, f"{name}.mlp", spec.hidden)


class Layer:
    """A mixer and a feed-forward block, each behind a norm (and before one, when sandwiched)."""

    def __init__(self, spec: DecoderSpec, index: int, weights: Weights) -> None:
        block, name = spec.blocks[index], f"{spec.prefix}model.layers.{index}"
        self.name = name
        if isinstance(block.layer, GatedDelta):
            self.mixer = GatedDeltaBlock(spec, block, weights, f"{name}.linear_attn")
        else:
            self.mixer = Attention(spec, block, weights, f"{name}.self_attn")
        self.ffn = _ffn(spec, block.ffn, weights, name)
        self.is_sandwiched = spec.is_sandwiched
        self.clips = spec.clips_residual
        self.scalar = weights[f"{name}.layer_scalar"] if spec.has_layer_scalar else None
        self.own_gate = LayerGate(spec, weights, name) if spec.per_layer else None

        def norm(which: str) -> Norm:
            return Norm(weights, f"{name}.{which}", spec.eps, spec.norm_offset)

        self.norm_in = norm("input_layernorm")
        self.norm_mid = norm("post_attention_layernorm")
        if spec.is_sandwiched:
            # Experts beside a dense block have norms of their own, and see what comes before them.
            own = isinstance(block.ffn, TwinFfn)
            self.norm_ffn = None if own else norm("pre_feedforward_layernorm")
            self.norm_out = norm("post_feedforward_layernorm")

    def __call__(
        self, c: Context, x: mx.array, cache, rows: Step | Window, own: mx.array | None
    ) -> mx.array:
        """Return the residual stream after this layer, `[M, hidden]`; `own` is its own input."""
        mix = self.mixer.decode if isinstance(rows, Step) else self.mixer.prefill
        r = mix(c, self.norm_in(x), cache, rows)

        def after(x: mx.array, r: mx.array, *own: mx.array) -> mx.array:
            return self._after(c, x, r, rows, own[0] if own else None)

        x = c.pure(self.name, rows, after, x, r, *([] if own is None else [own]))
        c.tap(self.name, x)
        return x

    def _after(
        self, c: Context, x: mx.array, r: mx.array, rows: Step | Window, own: mx.array | None
    ) -> mx.array:
        """Return the residual stream once the mixer's result r and the FFN are added."""
        if self.is_sandwiched:
            x = self._add(x, self.norm_mid(r))
            inner = x if self.norm_ffn is None else self.norm_ffn(x)
            x = self._add(x, self.norm_out(self.ffn(c, inner, rows)))
        else:
            x = x + r
            x = x + self.ffn(c, self.norm_mid(x), rows)
        if self.own_gate is not None and own is not None:
            x = x + self.own_gate(c, x, own)
        if self.scalar is not None:
            x = x * self.scalar
        return x

    def _add(self, x: mx.array, y: mx.array) -> mx.array:
        if not self.clips or x.dtype != mx.float16:
            return x + y
        total = x.astype(mx.float32) + y.astype(mx.float32)
        return mx.clip(total, -FP16_MAX, FP16_MAX).astype(mx.float16)


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
        rounded = mx.bfloat16 if spec.rounds_embed_scale else self.dtype
        scale = mx.array(spec.embed_scale, rounded).astype(self.dtype)
        self.embed_scale = scale if spec.embed_scale != 1.0 else None
        self.own_inputs = LayerInputs(spec, weights) if spec.per_layer else None

    @property
    def arrays(self) -> list[mx.array]:
        """Every weight array once, as it is kept for running; a tied map is the embedding."""
        found: dict[int, mx.array] = {}
        for name, part in vars(self).items():
            if not (name == "head" and self.spec.is_tied):
                _collect(part, found)
        return list(found.values())

    def decode(self, c: Context, tokens: mx.array, arena: Arena, step: Step) -> mx.array:
        """Return logits `[W, vocab]` for tokens `[W]` at the step's positions."""
        x = self._through(c, tokens, arena, step)
        logits = self.head(c.ops, self.norm(x))
        if self.spec.logit_cap is not None:
            logits = mx.tanh(logits / self.spec.logit_cap) * self.spec.logit_cap
        c.tap("lm_head", logits)
        return logits

    def prefill(self, c: Context, tokens: mx.array, arena: Arena, window: Window) -> None:
        """Write a window's keys, values and states; tokens `[C]`, anything in absent rows.

        Prefill computes no logits: the last prompt token is decoded.
        """
        self._through(c, tokens, arena, window)
        mx.eval(arena.arrays)

    def _embed(self, tokens: mx.array) -> mx.array:
        x = self.embed(tokens, self.dtype)
        return x if self.embed_scale is None else x * self.embed_scale

    def _through(self, c: Context, tokens: mx.array, arena: Arena, rows: Step | Window) -> mx.array:
        x = self._embed(tokens)
        if c.poisons:
            x = rows.poisoned(x)
        own = None if self.own_inputs is None else self.own_inputs(c, tokens, x)
        for index, (layer, cache) in enumerate(zip(self.layers, arena.by_block, strict=True)):
            x = layer(c, x, cache, rows, None if own is None else own[:, index])
        return x


def _collect(part: object, found: dict[int, mx.array]) -> None:
    """Find the arrays in a part of a decoder, however deep."""
    if isinstance(part, mx.array):
        found[id(part)] = part
    elif isinstance(part, list):
        for item in part:
            _collect(item, found)
    elif type(part).__module__.startswith("qwisp.engine."):
        names = getattr(type(part), "__slots__", None) or vars(part)
        for name in names:
            _collect(getattr(part, name), found)
