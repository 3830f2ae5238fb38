"""Qwen 3-Next, 3.5, 3.6: gated-delta blocks with full attention at the end of each group."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, full_by_types, num_layers, read_heads
from qwisp.spec.fields import Fields
from qwisp.spec.layers import GatedDelta

_DRAFT_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")


def read(f: Fields) -> Blocks:
    """Return gated delta and full attention by `layer_types` or `full_attention_interval`."""
    depth = num_layers(f)
    heads = read_heads(f)
    full = full_by_types(f, depth, "linear_attention", "full_attention_interval", 4)
    delta = gated_delta(f)
    draft = next((f.check_depth(f.count(key), key) for key in _DRAFT_KEYS if f.has(key)), 0)
    return Blocks(
        layers=[heads.full() if one else delta for one in full], draft=[heads.full()] * draft
    )


def gated_delta(f: Fields) -> GatedDelta:
    """Return the recurrent layer of the `linear_*` keys."""
    layer = GatedDelta(
        value_heads=f.size("linear_num_value_heads"),
        key_heads=f.size("linear_num_key_heads"),
        value_dim=f.size("linear_value_head_dim"),
        key_dim=f.size("linear_key_head_dim"),
        conv_kernel=f.size("linear_conv_kernel_dim"),
    )
    if layer.value_heads % layer.key_heads:
        raise f.conflict(
            "linear_num_key_heads",
            f"is {layer.key_heads}, which does not divide {layer.value_heads} value heads",
        )
    return layer
