"""Gemma 2 and 3, Cohere 2: windows, with full attention at the end of each group of blocks."""

from __future__ import annotations

from qwisp.spec.families.common import (
    Blocks,
    full_by_types,
    num_layers,
    read_heads,
    window_or_full,
)
from qwisp.spec.fields import Fields

# What the published configs of a family leave out, as its reference implementation fills it in.
_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "interval": 2},
    "gemma3": {"head_dim": 256, "sliding_window": 4096, "interval": 6}
    | {"num_attention_heads": 8, "num_key_value_heads": 4},
    "cohere2": {"sliding_window": 4096, "interval": 4},
}


def read(f: Fields) -> Blocks:
    """Return windows and full attention by `layer_types` or `sliding_window_pattern`."""
    family = f.text("model_type").removesuffix("_text")
    defaults = dict(_DEFAULTS[family])
    depth = num_layers(f)
    interval, window_tokens = defaults.pop("interval"), defaults.pop("sliding_window")
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if key in defaults and not f.has(key):
            f.notes.append(f"{key} is not in the config: {defaults[key]}, the family's default")
    heads = read_heads(f, **defaults)
    window = window_or_full(f, heads, f.size("sliding_window", window_tokens))
    full = full_by_types(f, depth, "sliding_attention", "sliding_window_pattern", interval)
    return Blocks(
        layers=[heads.full() if one else window for one in full], query_heads=heads.queries
    )
