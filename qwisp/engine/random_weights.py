"""Random weights for a decoder spec, named as checkpoints name them: equal seeds, equal bits."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from qwisp.engine.arena import mlx_dtype
from qwisp.engine.decoder_spec import Block, DecoderSpec, DenseFfn, MoeFfn
from qwisp.spec.layers import GatedDelta

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def random_weights(spec: DecoderSpec, seed: int, dtype: str = "float32") -> dict[str, mx.array]:
    """Return every weight of `spec`; matrices keep the size of what they multiply.

    `A_log` stays fp32 whatever the type, as checkpoints keep it.
    """
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in weight_shapes(spec):
        values = _values(name, shape, rng, spec.norm_offset)
        kept = mx.float32 if name.endswith("A_log") else mlx_dtype(dtype)
        made[name] = mx.array(values.astype(np.float32)).astype(kept)
    mx.eval(list(made.values()))
    return made


def _values(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, norm_offset: float
) -> np.ndarray:
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.05, 8, shape))
    if name.endswith("dt_bias"):
        return rng.normal(0, 0.5, shape)
    if name.endswith("conv1d.weight"):
        return rng.normal(0, 0.6, shape)
    if "norm" in name:
        return 1 - norm_offset + rng.normal(0, 0.1, shape)
    if name.endswith("bias"):
        return rng.normal(0, 0.1, shape)
    if "embed_tokens" in name:
        return rng.normal(0, 1, shape)
    return rng.normal(0, 1.5 / np.sqrt(shape[-1]), shape)


def weight_shapes(spec: DecoderSpec) -> Shapes:
    """Yield name and shape of every weight, in a fixed order."""
    prefix = spec.prefix
    yield f"{prefix}model.embed_tokens.weight", (spec.vocab, spec.hidden)
    for index, block in enumerate(spec.blocks):
        name = f"{prefix}model.layers.{index}"
        if isinstance(block.layer, GatedDelta):
            yield from _delta_shapes(spec, block.layer, f"{name}.linear_attn")
        else:
            yield from _attention_shapes(spec, block, f"{name}.self_attn")
        yield from _ffn_shapes(spec, block.ffn, f"{name}.mlp")
        norms = ["input_layernorm", "post_attention_layernorm"]
        if spec.is_sandwiched:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in norms:
            yield f"{name}.{norm}.weight", (spec.hidden,)
    yield f"{prefix}model.norm.weight", (spec.hidden,)
    if not spec.is_tied:
        yield f"{prefix}lm_head.weight", (spec.vocab, spec.hidden)


def _attention_shapes(spec: DecoderSpec, block: Block, name: str) -> Shapes:
    rule, layer = block.attention, block.layer
    assert rule is not None
    width = rule.heads * layer.k_dim
    yield f"{name}.q_proj.weight", (width * (2 if rule.has_gate else 1), spec.hidden)
    yield f"{name}.k_proj.weight", (layer.kv_heads * layer.k_dim, spec.hidden)
    yield f"{name}.v_proj.weight", (layer.kv_heads * layer.v_dim, spec.hidden)
    yield f"{name}.o_proj.weight", (spec.hidden, width)
    if rule.has_qk_norm:
        yield f"{name}.q_norm.weight", (layer.k_dim,)
        yield f"{name}.k_norm.weight", (layer.k_dim,)


def _delta_shapes(spec: DecoderSpec, layer: GatedDelta, name: str) -> Shapes:
    values = layer.value_heads * layer.value_dim
    yield f"{name}.in_proj_qkv.weight", (layer.conv_dim, spec.hidden)
    yield f"{name}.in_proj_z.weight", (values, spec.hidden)
    yield f"{name}.in_proj_b.weight", (layer.value_heads, spec.hidden)
    yield f"{name}.in_proj_a.weight", (layer.value_heads, spec.hidden)
    yield f"{name}.conv1d.weight", (layer.conv_dim, layer.conv_kernel, 1)
    yield f"{name}.dt_bias", (layer.value_heads,)
    yield f"{name}.A_log", (layer.value_heads,)
    yield f"{name}.norm.weight", (layer.value_dim,)
    yield f"{name}.out_proj.weight", (spec.hidden, values)


def _ffn_shapes(spec: DecoderSpec, ffn: DenseFfn | MoeFfn, name: str) -> Shapes:
    hidden = spec.hidden
    if isinstance(ffn, DenseFfn):
        yield from _dense_shapes(name, ffn.intermediate, hidden)
        return
    yield f"{name}.gate.weight", (ffn.num_experts, hidden)
    for which, shape in (("gate", (0, 1)), ("up", (0, 1)), ("down", (1, 0))):
        sizes = (ffn.intermediate, hidden)
        full = (ffn.num_experts, sizes[shape[0]], sizes[shape[1]])
        yield f"{name}.switch_mlp.{which}_proj.weight", full
    if ffn.shared_intermediate:
        yield from _dense_shapes(f"{name}.shared_expert", ffn.shared_intermediate, hidden)
        yield f"{name}.shared_expert_gate.weight", (1, hidden)


def _dense_shapes(name: str, intermediate: int, hidden: int) -> Shapes:
    yield f"{name}.gate_proj.weight", (intermediate, hidden)
    yield f"{name}.up_proj.weight", (intermediate, hidden)
    yield f"{name}.down_proj.weight", (hidden, intermediate)
