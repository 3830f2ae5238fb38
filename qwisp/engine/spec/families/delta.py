"""qwen3_next, qwen3_5 and qwen3_5_moe: gated delta, and gated attention with partial rope."""

from __future__ import annotations

from qwisp.engine.spec.decoder_spec import AttentionRule, Block, DecoderSpec
from qwisp.engine.spec.families.common import (
    check_word,
    engine_layer,
    positive_number,
    query_heads,
    read_rope,
    read_silu_ffn,
)
from qwisp.spec.fields import Fields
from qwisp.spec.layers import GatedDelta
from qwisp.spec.model import ModelSpec


def read_delta(model: ModelSpec, f: Fields, *, is_nested: bool) -> DecoderSpec:
    """Return the decoder; qwen3_next normalises router weights only where its config says so."""
    del is_nested
    check_word(f, "attn_output_gate", (True,))
    is_next = model.family == "qwen3_next"
    theta, partial = (1e4, 1.0) if is_next else (1e5, 0.25)
    blocks = []
    for index, layer in enumerate(model.layers):
        rule = None
        if not isinstance(layer, GatedDelta):
            heads, dim = query_heads(model, engine_layer(layer))
            rule = AttentionRule(
                heads=heads,
                scale=dim**-0.5,
                rope=read_rope(f, dim, default_theta=theta, partial=partial),
                has_qk_norm=True,
                has_gate=True,
                has_bias=f.flag("attention_bias", False),
            )
        ffn = read_silu_ffn(f, index, normalises=not is_next)
        blocks.append(Block(layer=engine_layer(layer), attention=rule, ffn=ffn))
    return DecoderSpec(
        family=model.family,
        prefix="" if is_next else "language_model.",
        hidden=f.size("hidden_size"),
        vocab=f.size("vocab_size"),
        eps=positive_number(f, "rms_norm_eps", 1e-6),
        blocks=tuple(blocks),
        is_tied=f.flag("tie_word_embeddings", False),
    )
