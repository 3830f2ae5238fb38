"""gpt-oss: a short window in every other block, the first included."""

from __future__ import annotations

from qwisp.spec.families.common import (
    Blocks,
    full_by_types,
    num_layers,
    read_heads,
    window_or_full,
)
from qwisp.spec.fields import Fields


def read(f: Fields) -> Blocks:
    """Return windows and full attention by `layer_types`, alternating where it is absent."""
    depth = num_layers(f)
    heads = read_heads(f, head_dim=64)
    window = window_or_full(f, heads, f.size("sliding_window", 128))
    full = full_by_types(f, depth, "sliding_attention", "sliding_window_pattern", 2)
    return Blocks(layers=[heads.full() if one else window for one in full])
