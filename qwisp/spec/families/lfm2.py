"""LFM2: gated short convolutions with attention in some blocks."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, indices, layer_types, num_layers, read_heads
from qwisp.spec.fields import Fields
from qwisp.spec.layers import ShortConv


def read(f: Fields) -> Blocks:
    """Return the blocks by `layer_types` or `full_attn_idxs`; they must agree if both are there."""
    depth = num_layers(f)
    if f.has("layer_types"):
        types = layer_types(f, depth, ("conv", "full_attention"))
        full = {index for index, word in enumerate(types) if word == "full_attention"}
        if f.has("full_attn_idxs") and indices(f, "full_attn_idxs", depth) != full:
            raise f.conflict("full_attn_idxs", "names other layers than layer_types")
    else:
        full = indices(f, "full_attn_idxs", depth)
    attention = read_heads(f).full()
    conv = ShortConv(hidden=f.size("hidden_size"), kernel=f.size("conv_L_cache"))
    return Blocks(layers=[attention if i in full else conv for i in range(depth)])
