"""gemma4 and gemma4_text: windows and full attention with heads of different size, experts beside
a dense block, caches that later blocks share, an input of every layer's own."""

from __future__ import annotations

from qwisp.engine.spec.decoder_spec import AttentionRule, Block, DecoderSpec, DenseFfn, TwinFfn
from qwisp.engine.spec.families.common import (
    check_top_k,
    check_word,
    engine_layer,
    positive_number,
    query_heads,
    read_rope,
    switch,
)
from qwisp.engine.spec.rope import ProportionalScaling, Rope
from qwisp.spec.families.common import full_by_types
from qwisp.spec.fields import Fields
from qwisp.spec.layers import Shared
from qwisp.spec.model import ModelSpec


def read_gemma4(model: ModelSpec, f: Fields, *, is_nested: bool) -> DecoderSpec:
    """Return the decoder."""
    check_word(f, "hidden_activation", ("gelu_pytorch_tanh",))
    check_word(f, "use_bidirectional_attention", (False, "vision"))  # pictures are not read here
    hidden = f.size("hidden_size", 1536)
    per_layer = f.count("hidden_size_per_layer_input", 256)
    # A window as long as the context is kept as full attention, but computes as a window.
    pattern = ("sliding_attention", "sliding_window_pattern", 6)
    is_full = full_by_types(f, len(model.layers), *pattern)
    blocks = [_block(model, f, index, is_full=full) for index, full in enumerate(is_full)]
    return DecoderSpec(
        family=model.family,
        prefix="language_model." if is_nested else "",
        hidden=hidden,
        vocab=f.size("vocab_size", 262144),
        eps=positive_number(f, "rms_norm_eps", 1e-6),
        blocks=tuple(blocks),
        is_tied=switch(f, "tie_word_embeddings"),
        is_sandwiched=True,
        embed_scale=hidden**0.5,
        logit_cap=_cap(f),
        per_layer=per_layer,
        per_layer_vocab=f.size("vocab_size_per_layer_input", 262144) if per_layer else 0,
        has_layer_scalar=True,
    )


def _cap(f: Fields) -> float | None:
    """Return the logit cap: 30 where the key is absent, none where it is null."""
    if "final_logit_softcapping" in f.values and f.raw("final_logit_softcapping") is None:
        return None
    return positive_number(f, "final_logit_softcapping", 30.0)


def _block(model: ModelSpec, f: Fields, index: int, *, is_full: bool) -> Block:
    kind = model.layers[index]
    source = kind.source if isinstance(kind, Shared) else None
    layer = engine_layer(model.layers[source] if source is not None else kind)
    heads, dim = query_heads(model, layer)
    rule = AttentionRule(
        heads=heads,
        scale=1.0,
        rope=_rope(f, dim, is_full=is_full),
        has_qk_norm=True,
        has_value_norm=True,
        keys_are_values=is_full and f.flag("attention_k_eq_v", False),
    )
    return Block(layer=layer, attention=rule, ffn=_ffn(f, source is not None), source=source)


def _rope(f: Fields, dim: int, *, is_full: bool) -> Rope:
    if f.has("rope_parameters"):
        name = "full_attention" if is_full else "sliding_attention"
        return read_rope(f, dim, default_theta=1e4, layer_type=name)
    if is_full:
        turned = ProportionalScaling(rotated_dims=int(dim * 0.25))
        return Rope(dims=dim, theta=1e6, scaling=turned)
    return Rope(dims=dim, theta=1e4)


def _ffn(f: Fields, is_shared: bool) -> DenseFfn | TwinFfn:
    wide = 2 if is_shared and switch(f, "use_double_wide_mlp") else 1
    dense = DenseFfn(intermediate=wide * f.size("intermediate_size", 6144), activation="gelu_tanh")
    if not f.flag("enable_moe_block", False):
        return dense
    experts, top_k = f.size("num_experts"), f.size("top_k_experts")
    check_top_k("top_k_experts", top_k, experts)
    return TwinFfn(
        dense=dense,
        num_experts=experts,
        top_k=top_k,
        intermediate=f.size("moe_intermediate_size"),
    )
