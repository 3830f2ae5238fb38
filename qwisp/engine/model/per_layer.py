"""An input of every layer's own: looked up by token, gated into the residual stream (gemma 4)."""

from __future__ import annotations

import mlx.core as mx

from qwisp.engine.model.ffn import activate
from qwisp.engine.model.linear import Norm, Weights, embedding, linear
from qwisp.engine.model.step import Context
from qwisp.engine.spec.decoder_spec import DecoderSpec


class LayerInputs:
    """From tokens and their embeddings to one vector per layer, `[M, layers, P]`."""

    def __init__(self, spec: DecoderSpec, weights: Weights) -> None:
        name = f"{spec.prefix}model"
        self.shape = (len(spec.blocks), spec.per_layer)
        width = len(spec.blocks) * spec.per_layer
        self.table = embedding(weights, f"{name}.embed_tokens_per_layer", width)
        self.project = linear(weights, f"{name}.per_layer_model_projection", spec.hidden)
        self.norm = Norm(weights, f"{name}.per_layer_projection_norm", spec.eps, spec.norm_offset)
        self.table_scale = spec.per_layer**0.5
        self.project_scale = spec.hidden**-0.5
        self.name = f"{name}.per_layer_model_projection"

    def __call__(self, c: Context, tokens: mx.array, x: mx.array) -> mx.array:
        """Return `[M, layers, P]` for tokens `[M]` and scaled embeddings x `[M, hidden]`."""
        shape = (x.shape[0], *self.shape)
        looked_up = (self.table(tokens, x.dtype) * self.table_scale).reshape(shape)
        projected = self.project(c.ops, x)
        c.tap(self.name, projected)
        projected = self.norm((projected * self.project_scale).reshape(shape))
        return (projected + looked_up) * 2.0**-0.5


class LayerGate:
    """`norm(project(gelu(gate(x)) * own))` for x `[M, hidden]`, own `[M, P]`."""

    def __init__(self, spec: DecoderSpec, weights: Weights, name: str) -> None:
        self.name = name
        self.gate = linear(weights, f"{name}.per_layer_input_gate", spec.hidden)
        self.project = linear(weights, f"{name}.per_layer_projection", spec.per_layer)
        self.norm = Norm(weights, f"{name}.post_per_layer_input_norm", spec.eps, spec.norm_offset)

    def __call__(self, c: Context, x: mx.array, own: mx.array) -> mx.array:
        """Return what is added to the residual stream, `[M, hidden]`."""
        gate = self.gate(c.ops, x)
        c.tap(f"{self.name}.per_layer_input_gate", gate)
        y = self.project(c.ops, activate("gelu_tanh", gate) * own)
        c.tap(f"{self.name}.per_layer_projection", y)
        return self.norm(y)
