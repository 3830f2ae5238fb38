"""Falcon-H1, Granite 4 hybrids, Bamba: Mamba-2 beside attention or between it."""

from __future__ import annotations

from qwisp.spec.families.common import Blocks, indices, layer_types, num_layers, read_heads
from qwisp.spec.fields import Fields
from qwisp.spec.layers import Mamba2, Parallel


def read(f: Fields) -> Blocks:
    """Return both mixers in every block for Falcon-H1, else one of them by the listed types."""
    depth = num_layers(f)
    attention = read_heads(f).full()
    if f.text("model_type") == "falcon_h1":
        return Blocks(layers=[Parallel(parts=(attention, mamba2(f)))] * depth)
    if f.has("layer_types"):
        types = layer_types(f, depth, ("mamba", "attention"))
        at = {index for index, word in enumerate(types) if word == "attention"}
        if f.has("attn_layer_indices") and indices(f, "attn_layer_indices", depth) != at:
            raise f.conflict("attn_layer_indices", "names other layers than layer_types")
    else:
        at = indices(f, "attn_layer_indices", depth)
    if len(at) == depth:
        return Blocks(layers=[attention] * depth)
    recurrent = mamba2(f)
    return Blocks(layers=[attention if i in at else recurrent for i in range(depth)])


def mamba2(f: Fields) -> Mamba2:
    """Return the recurrent layer of the `mamba_*` keys; inner size and heads must agree."""
    heads, head_dim = f.size("mamba_n_heads"), f.size("mamba_d_head")
    inner = heads * head_dim
    if f.has("mamba_d_ssm"):
        _agree(f, "mamba_d_ssm", f.size("mamba_d_ssm"), inner)
    elif f.has("mamba_expand"):
        _agree(f, "mamba_expand", f.size("mamba_expand") * f.size("hidden_size"), inner)
    groups = f.size("mamba_n_groups", 1)
    if heads % groups:
        raise f.conflict("mamba_n_groups", f"is {groups}, which does not divide {heads} heads")
    return Mamba2(
        heads=heads,
        head_dim=head_dim,
        state_dim=f.size("mamba_d_state"),
        groups=groups,
        conv_kernel=f.size("mamba_d_conv"),
        inner_dim=inner,
    )


def _agree(f: Fields, key: str, given: int, inner: int) -> None:
    if given != inner:
        raise f.conflict(
            key, f"makes {given} inner channels, but mamba_n_heads x mamba_d_head is {inner}"
        )
