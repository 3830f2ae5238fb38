"""Jamba: Mamba-1 blocks with attention at a fixed offset of each period."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, layer_types, num_layers, read_heads
from qwisp.spec.fields import Fields
from qwisp.spec.layers import Mamba1


def read(f: Fields) -> Blocks:
    """Return the blocks by `layers_block_type`, or by `attn_layer_period` and its offset."""
    depth = num_layers(f)
    attention = read_heads(f).full()
    recurrent = Mamba1(
        inner_dim=f.size("mamba_expand") * f.size("hidden_size"),
        state_dim=f.size("mamba_d_state"),
        conv_kernel=f.size("mamba_d_conv"),
    )
    if f.has("layers_block_type"):
        types = layer_types(f, depth, ("mamba", "attention"), "layers_block_type")
        full = [word == "attention" for word in types]
    else:
        period, offset = f.size("attn_layer_period"), f.count("attn_layer_offset")
        if offset >= period:
            raise f.conflict("attn_layer_offset", f"is {offset} in a period of {period}")
        full = [index % period == offset for index in range(depth)]
    return Blocks(layers=[attention if one else recurrent for one in full])
