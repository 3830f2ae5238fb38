"""Kimi Linear: gated-delta blocks with a gate per channel, and latent attention between them."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, indices, num_layers
from qwisp.spec.families.mla import latent
from qwisp.spec.fields import Fields
from qwisp.spec.layers import GatedDelta


def read(f: Fields) -> Blocks:
    """Return the blocks that `linear_attn_config` lists, counted from 1 there."""
    depth = num_layers(f)
    linear = f.section("linear_attn_config")
    delta_at = indices(linear, "kda_layers", depth, base=1)
    latent_at = indices(linear, "full_attn_layers", depth, base=1)
    if delta_at & latent_at or len(delta_at | latent_at) != depth:
        raise linear.conflict(
            "kda_layers", f"and full_attn_layers do not divide the {depth} layers between them"
        )
    heads, dim = linear.size("num_heads"), linear.size("head_dim")
    delta = GatedDelta(
        value_heads=heads,
        key_heads=heads,
        value_dim=dim,
        key_dim=dim,
        conv_kernel=linear.size("short_conv_kernel_size"),
    )
    attention = latent(f)
    return Blocks(layers=[delta if index in delta_at else attention for index in range(depth)])
