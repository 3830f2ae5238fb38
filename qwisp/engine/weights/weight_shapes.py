"""Name and shape of every weight of a decoder as in the mlx-community layout, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import mlx.core as mx

from qwisp.engine.spec.decoder_spec import Block, DecoderSpec, DenseFfn, Ffn, MoeFfn, TwinFfn
from qwisp.engine.spec.dtypes import mlx_dtype
from qwisp.spec.layers import GatedDelta

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def weight_shapes(spec: DecoderSpec) -> Shapes:
    """Yield name and shape of every weight before quantisation, in a fixed order."""
    prefix = spec.prefix
    yield f"{prefix}model.embed_tokens.weight", (spec.vocab, spec.hidden)
    if spec.per_layer:
        yield from _input_shapes(spec)
    for index, block in enumerate(spec.blocks):
        name = f"{prefix}model.layers.{index}"
        if isinstance(block.layer, GatedDelta):
            yield from _delta_shapes(spec, block.layer, f"{name}.linear_attn")
        else:
            yield from _attention_shapes(spec, block, f"{name}.self_attn")
        yield from _ffn_shapes(spec, block.ffn, name)
        yield from _extra_shapes(spec, block, name)
    yield f"{prefix}model.norm.weight", (spec.hidden,)
    if not spec.is_tied:
        yield f"{prefix}lm_head.weight", (spec.vocab, spec.hidden)


def _input_shapes(spec: DecoderSpec) -> Shapes:
    name, width = f"{spec.prefix}model", len(spec.blocks) * spec.per_layer
    yield f"{name}.embed_tokens_per_layer.weight", (spec.per_layer_vocab, width)
    yield f"{name}.per_layer_model_projection.weight", (width, spec.hidden)
    yield f"{name}.per_layer_projection_norm.weight", (spec.per_layer,)


def _extra_shapes(spec: DecoderSpec, block: Block, name: str) -> Shapes:
    """Norms around the blocks, and what stands behind them."""
    norms = ["input_layernorm", "post_attention_layernorm"]
    if spec.is_sandwiched:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if isinstance(block.ffn, TwinFfn):
        norms += ["post_feedforward_layernorm_1", "pre_feedforward_layernorm_2"]
        norms += ["post_feedforward_layernorm_2"]
    for norm in norms:
        yield f"{name}.{norm}.weight", (spec.hidden,)
    if spec.per_layer:
        yield f"{name}.per_layer_input_gate.weight", (spec.per_layer, spec.hidden)
        yield f"{name}.per_layer_projection.weight", (spec.hidden, spec.per_layer)
        yield f"{name}.post_per_layer_input_norm.weight", (spec.hidden,)
    if spec.has_layer_scalar:
        yield f"{name}.layer_scalar", (1,)


def _attention_shapes(spec: DecoderSpec, block: Block, name: str) -> Shapes:
    rule, layer = block.attention, block.layer
    assert rule is not None
    assert not isinstance(layer, GatedDelta)
    width, kept = rule.heads * layer.k_dim, layer.kv_heads * layer.k_dim
    rows = {"q_proj": width * (2 if rule.has_gate else 1)}
    if block.source is None:
        rows["k_proj"] = kept
        if not rule.keys_are_values:
            rows["v_proj"] = kept
    for which, size in rows.items():
        yield f"{name}.{which}.weight", (size, spec.hidden)
        if rule.has_bias:
            yield f"{name}.{which}.bias", (size,)
    yield f"{name}.o_proj.weight", (spec.hidden, width)
    if rule.has_bias:
        yield f"{name}.o_proj.bias", (spec.hidden,)
    if rule.has_qk_norm:
        yield f"{name}.q_norm.weight", (layer.k_dim,)
        if block.source is None:
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


def _ffn_shapes(spec: DecoderSpec, ffn: Ffn, layer: str) -> Shapes:
    hidden, name = spec.hidden, f"{layer}.mlp"
    if isinstance(ffn, DenseFfn):
        yield from _dense_shapes(name, ffn, hidden)
    elif isinstance(ffn, TwinFfn):
        yield from _dense_shapes(name, ffn.dense, hidden)
        yield f"{layer}.router.proj.weight", (ffn.num_experts, hidden)
        yield f"{layer}.router.scale", (hidden,)
        yield f"{layer}.router.per_expert_scale", (ffn.num_experts,)
        yield from _expert_shapes(f"{layer}.experts.switch_glu", ffn, hidden)
    else:
        yield f"{name}.gate.weight", (ffn.num_experts, hidden)
        yield from _expert_shapes(f"{name}.switch_mlp", ffn, hidden)
        if ffn.shared_intermediate:
            shared = DenseFfn(intermediate=ffn.shared_intermediate)
            yield from _dense_shapes(f"{name}.shared_expert", shared, hidden)
            yield f"{name}.shared_expert_gate.weight", (1, hidden)


def _expert_shapes(name: str, ffn: MoeFfn | TwinFfn, hidden: int) -> Shapes:
    yield f"{name}.gate_proj.weight", (ffn.num_experts, ffn.intermediate, hidden)
    yield f"{name}.up_proj.weight", (ffn.num_experts, ffn.intermediate, hidden)
    yield f"{name}.down_proj.weight", (ffn.num_experts, hidden, ffn.intermediate)


def _dense_shapes(name: str, ffn: DenseFfn, hidden: int) -> Shapes:
    for which in ("gate_proj", "up_proj", "down_proj"):
        out = hidden if which == "down_proj" else ffn.intermediate
        yield f"{name}.{which}.weight", (out, ffn.intermediate + hidden - out)
        if ffn.has_bias:
            yield f"{name}.{which}.bias", (out,)


F32_BYTES = 4


def resident_bytes(spec: DecoderSpec, weights: Mapping[str, mx.array], dtype: str) -> int:
    """Return the bytes of a decoder's weights in the engine's type.

    Only shapes and types of `weights` are looked at. Packed words keep theirs; decay rates and
    convolution taps are fp32, and so are experts that a CPU multiplies unpacked. Beside them stand
    the scale of the embeddings and the frequencies of scaled rope.
    """
    own = mlx_dtype(dtype).size
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    total = sum(
        array.size * _item_bytes(name, array, own, on_cpu=on_cpu) for name, array in weights.items()
    )
    if spec.embed_scale != 1.0:
        total += own
    for block in spec.blocks:
        if block.attention is not None and block.attention.rope.scaling is not None:
            total += block.attention.rope.dims // 2 * F32_BYTES
    return total


def _item_bytes(name: str, array: mx.array, own: int, *, on_cpu: bool) -> int:
    if not mx.issubdtype(array.dtype, mx.floating):
        return array.dtype.size
    is_stack = array.ndim == 3 and name.endswith("_proj.weight")
    if name.endswith(("A_log", "conv1d.weight")) or (is_stack and on_cpu):
        return F32_BYTES
    return own
