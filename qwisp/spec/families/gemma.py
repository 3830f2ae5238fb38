"""Gemma 3: sliding windows with full attention in every sixth block."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, every, layer_types, num_layers, read_heads
from qwisp.spec.fields import Fields


def read(f: Fields) -> Blocks:
    """Return sliding and full attention by `layer_types` or `sliding_window_pattern`."""
    depth = num_layers(f)
    heads = read_heads(f, num_attention_heads=8, num_key_value_heads=4, head_dim=256)
    window = f.size("sliding_window", 4096)
    if f.has("layer_types"):
        types = layer_types(f, depth, ("sliding_attention", "full_attention"))
        full = [word == "full_attention" for word in types]
    else:
        full = every(depth, f.size("sliding_window_pattern", 6))
    return Blocks(
        layers=[heads.full() if one else heads.sliding(window) for one in full],
        query_heads=heads.queries,
    )
