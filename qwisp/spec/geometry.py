"""Layers written down as groups: `{"kind": ..., "count": ..., sizes}`, for models without a config.

The catalog uses it for models whose config is not public, and the tables of what allocators printed
use it for every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qwisp.errors import BadConfig
from qwisp.spec.fields import Fields
from qwisp.spec.layers import (
    FullAttention,
    GatedDelta,
    Layer,
    Mamba1,
    Mamba2,
    Mla,
    PooledAttention,
    Shared,
    ShortConv,
    SlidingWindow,
    Stateless,
)


def _full(f: Fields) -> Layer:
    return FullAttention(kv_heads=f.size("kv_heads"), k_dim=f.size("k_dim"), v_dim=f.size("v_dim"))


def _sliding(f: Fields) -> Layer:
    return SlidingWindow(
        kv_heads=f.size("kv_heads"),
        k_dim=f.size("k_dim"),
        v_dim=f.size("v_dim"),
        window_tokens=f.size("window"),
    )


def _gated_delta(f: Fields) -> Layer:
    return GatedDelta(
        value_heads=f.size("value_heads"),
        key_heads=f.size("key_heads"),
        value_dim=f.size("value_dim"),
        key_dim=f.size("key_dim"),
        conv_kernel=f.size("conv_kernel"),
    )


def _mamba2(f: Fields) -> Layer:
    """Only the product heads x head_dim = d_inner is given, and only the product is remembered."""
    inner = f.size("d_inner")
    head_dim = f.size("head_dim", 1)
    if inner % head_dim:
        raise BadConfig(
            f"d_inner is {inner}, not a multiple of head_dim {head_dim}",
            "check both sizes",
            key="d_inner",
        )
    return Mamba2(
        heads=inner // head_dim,
        head_dim=head_dim,
        state_dim=f.size("d_state"),
        groups=f.size("groups", 1),
        conv_kernel=f.size("conv_kernel"),
        inner_dim=inner,
    )


def _mamba1(f: Fields) -> Layer:
    return Mamba1(
        inner_dim=f.size("d_inner"),
        state_dim=f.size("d_state"),
        conv_kernel=f.size("conv_kernel"),
    )


def _short_conv(f: Fields) -> Layer:
    return ShortConv(hidden=f.size("hidden"), kernel=f.size("l_cache"))


def _mla(f: Fields) -> Layer:
    rope = f.size("rope_dim")
    key_dim = f.size("k_dim", rope)
    if key_dim < rope:
        raise BadConfig(f"k_dim {key_dim} is below rope_dim {rope}", "check both", key="k_dim")
    return Mla(
        kv_lora_rank=f.size("kv_lora_rank"),
        rope_dim=rope,
        heads=f.count("heads", 0),
        nope_dim=key_dim - rope,
        v_dim=f.count("v_dim", 0),
    )


def _pooled(f: Fields) -> Layer:
    return PooledAttention(
        row_elements=f.size("row_elements"),
        pooled_elements=f.size("pooled_elements"),
        pool_tokens=f.size("pool_tokens"),
    )


_KINDS: dict[str, Callable[[Fields], Layer]] = {
    "full_attention": _full,
    "sliding_window": _sliding,
    "gated_delta": _gated_delta,
    "mamba2": _mamba2,
    "mamba1": _mamba1,
    "short_conv": _short_conv,
    "mla": _mla,
    "pooled_attention": _pooled,
    "shared": lambda f: Shared(source=f.count("source", 0)),
    "stateless": lambda f: Stateless(),
}


def layers_from_geometry(groups: object) -> tuple[Layer, ...]:
    """Return the layers of `groups`, group after group.

    Raises `BadConfig` for an unknown kind, a missing or negative size, or no group at all.

    >>> layers_from_geometry([{"kind": "short_conv", "count": 2, "hidden": 8, "l_cache": 3}])
    (ShortConv(hidden=8, kernel=3), ShortConv(hidden=8, kernel=3))
    """
    if not isinstance(groups, list) or not groups:
        raise BadConfig("geometry is not a list of layer groups", "give at least one", "geometry")
    layers: list[Layer] = []
    for group in groups:
        if not isinstance(group, Mapping):
            raise BadConfig("a layer group is not an object", "write kind and count", "geometry")
        fields = Fields(group)
        kind = group.get("kind")
        read = _KINDS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise BadConfig(
                f"layer kind {kind!r} is not known", f"use one of {', '.join(_KINDS)}", key="kind"
            )
        count = fields.count("count")
        fields.check_depth(len(layers) + count, "count")
        layers.extend([read(fields)] * count)
    return tuple(layers)
