"""Gemma 3n: windows with full attention in every fifth block, and a tail that shares caches."""

from __future__ import annotations

from qwisp.spec.families.common import (
    Blocks,
    full_by_types,
    num_layers,
    read_heads,
    window_or_full,
)
from qwisp.spec.families.sharing import share_tail
from qwisp.spec.fields import Fields


def read(f: Fields) -> Blocks:
    """Return the blocks by `layer_types`; the last `num_kv_shared_layers` own no cache."""
    depth = num_layers(f)
    heads = read_heads(f, head_dim=256)
    window = window_or_full(f, heads, f.size("sliding_window"))
    full = full_by_types(f, depth, "sliding_attention", "sliding_window_pattern", 5)
    made = [heads.full() if one else window for one in full]
    return Blocks(
        layers=share_tail(f, made, full, "num_kv_shared_layers"), query_heads=heads.queries
    )
