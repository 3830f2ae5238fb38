"""Gemma 4: windows and full attention of different head sizes; last blocks may share caches."""

from __future__ import annotations

from qwisp.spec.families.common import (
    Blocks,
    Heads,
    full_by_types,
    num_layers,
    read_heads,
    window_or_full,
)
from qwisp.spec.families.sharing import share_tail
from qwisp.spec.fields import Fields


def read(f: Fields) -> Blocks:
    """Return the blocks; the last `num_kv_shared_layers` read an earlier block of their kind."""
    depth = num_layers(f)
    local = read_heads(f, head_dim=256)
    full = _full_heads(f, local).full()
    window = window_or_full(f, local, f.size("sliding_window"))
    types = full_by_types(f, depth, "sliding_attention", "sliding_window_pattern", 6)
    made = [full if one else window for one in types]
    return Blocks(
        layers=share_tail(f, made, types, "num_kv_shared_layers"), query_heads=local.queries
    )


def _full_heads(f: Fields, local: Heads) -> Heads:
    """Full-attention blocks have heads of their own size; fewer of them if keys are the values."""
    kv_heads = local.kv_heads
    if f.flag("attention_k_eq_v", False):
        kv_heads = f.size("num_global_key_value_heads", kv_heads)
    if local.queries % kv_heads:
        raise f.conflict(
            "num_global_key_value_heads",
            f"is {kv_heads}, which does not divide {local.queries} query heads",
        )
    return Heads(queries=local.queries, kv_heads=kv_heads, dim=f.size("global_head_dim", 512))
