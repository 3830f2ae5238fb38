"""gemma3 and gemma3_text: sliding windows, two rope bases, norms around everything."""

from __future__ import annotations

from qwisp.engine.spec.decoder_spec import AttentionRule, Block, DecoderSpec, DenseFfn
from qwisp.engine.spec.families.common import (
    check_word,
    engine_layer,
    positive_number,
    query_heads,
    read_rope,
    refuse,
    switch,
)
from qwisp.engine.spec.rope import Rope
from qwisp.spec.families.common import full_by_types
from qwisp.spec.fields import Fields
from qwisp.spec.model import ModelSpec


def read_gemma3(model: ModelSpec, f: Fields, *, is_nested: bool) -> DecoderSpec:
    """Return the decoder; windows turn at their own base, without scaling."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if f.raw(key) is not None:
            raise refuse(key, f"is {str(f.raw(key))[:20]}: the family has no such cap", "drop it")
    check_word(f, "hidden_activation", ("gelu_pytorch_tanh",))
    check_word(f, "use_bidirectional_attention", (False,))
    hidden = f.size("hidden_size", 1152)
    # A window as long as the context is kept as full attention, but turns at the windows' base.
    pattern = ("sliding_attention", "sliding_window_pattern", 6)
    is_global = full_by_types(f, len(model.layers), *pattern)
    blocks = []
    for kind, turns_globally in zip(model.layers, is_global, strict=True):
        layer = engine_layer(kind)
        heads, dim = query_heads(model, layer)
        if turns_globally:
            rope = read_rope(f, dim, default_theta=1e6, layer_type="full_attention")
        else:
            rope = Rope(dims=dim, theta=positive_number(f, "rope_local_base_freq", 1e4))
        rule = AttentionRule(
            heads=heads,
            scale=positive_number(f, "query_pre_attn_scalar", 256.0) ** -0.5,
            rope=rope,
            has_qk_norm=True,
        )
        ffn = DenseFfn(intermediate=f.size("intermediate_size", 6912), activation="gelu_tanh")
        blocks.append(Block(layer=layer, attention=rule, ffn=ffn))
    return DecoderSpec(
        family=model.family,
        prefix="language_model." if is_nested else "",
        hidden=hidden,
        vocab=f.size("vocab_size", 262144),
        eps=positive_number(f, "rms_norm_eps", 1e-6),
        blocks=tuple(blocks),
        is_tied=switch(f, "tie_word_embeddings"),
        norm_offset=1.0,
        is_sandwiched=True,
        embed_scale=hidden**0.5,
        rounds_embed_scale=True,
        clips_residual=True,
    )
