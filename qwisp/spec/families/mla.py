"""DeepSeek V2 and V3 and what is built like them: a latent a token, in every block."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, num_layers
from qwisp.spec.fields import Fields
from qwisp.spec.layers import Mla


def read(f: Fields) -> Blocks:
    """Return latent attention for every block, and for those of the draft head.

    Raises `BadConfig` also if more dense blocks are asked for than there are blocks.
    """
    depth = num_layers(f)
    if f.count("first_k_dense_replace", 0) > depth:
        raise f.conflict(
            "first_k_dense_replace", f"is {f.count('first_k_dense_replace')} of {depth} layers"
        )
    draft = f.check_depth(f.count("num_nextn_predict_layers", 0), "num_nextn_predict_layers")
    layer = latent(f)
    return Blocks(layers=[layer] * depth, draft=[layer] * draft, query_heads=layer.heads)


def latent(f: Fields) -> Mla:
    """Return the latent attention of the `kv_lora_rank` and `*_head_dim` keys."""
    return Mla(
        kv_lora_rank=f.size("kv_lora_rank"),
        rope_dim=f.size("qk_rope_head_dim"),
        heads=f.size("num_attention_heads"),
        nope_dim=f.size("qk_nope_head_dim"),
        v_dim=f.size("v_head_dim"),
    )
