"""llama, qwen3 and qwen3_moe: grouped attention in every block, perhaps through a window."""

from __future__ import annotations

from qwisp.engine.spec.decoder_spec import AttentionRule, Block, DecoderSpec
from qwisp.engine.spec.families.common import (
    engine_layer,
    positive_number,
    query_heads,
    read_rope,
    read_silu_ffn,
    switch,
)
from qwisp.spec.fields import Fields
from qwisp.spec.model import ModelSpec


def read_grouped(model: ModelSpec, f: Fields, *, is_nested: bool) -> DecoderSpec:
    """Return the decoder; qwen has query-key norms, llama may have biases."""
    tied = "tie_word_embeddings"
    is_qwen = model.family.startswith("qwen3")
    blocks = []
    for index, layer in enumerate(model.layers):
        heads, dim = query_heads(model, engine_layer(layer))
        rule = AttentionRule(
            heads=heads,
            scale=dim**-0.5,
            rope=read_rope(f, dim, default_theta=1e4),
            has_qk_norm=is_qwen,
            has_bias=f.flag("attention_bias", False),
        )
        ffn = read_silu_ffn(f, index, normalises=False)
        blocks.append(Block(layer=engine_layer(layer), attention=rule, ffn=ffn))
    return DecoderSpec(
        family=model.family,
        prefix="language_model." if is_nested else "",
        hidden=f.size("hidden_size"),
        vocab=f.size("vocab_size"),
        eps=positive_number(f, "rms_norm_eps", 1e-6),
        blocks=tuple(blocks),
        is_tied=f.flag(tied, False) if is_qwen else switch(f, tied),
    )
