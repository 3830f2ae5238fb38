"""Grouped attention in every block, with the windows that some of these families switch on."""

from __future__ import annotations

from qwisp.spec.families.common import (
    Blocks,
    Heads,
    layer_types,
    num_layers,
    read_heads,
    window_or_full,
)
from qwisp.spec.fields import Fields
from qwisp.spec.layers import Layer

_ALWAYS_WINDOWED = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
"""A `sliding_window` that is not null applies to every block."""

_SWITCHED = ("qwen2", "qwen3")
"""These families count a window only with `use_sliding_window`, from `max_window_layers` on."""

_DEFAULT_HEAD_DIM = {"gemma": 256}


def read(f: Fields) -> Blocks:
    """Return full attention, or windows by `layer_types` or by the family's own switch."""
    family = f.text("model_type")
    depth = num_layers(f)
    dim = _DEFAULT_HEAD_DIM.get(family)
    heads = read_heads(f, **({"head_dim": dim} if dim else {}))
    if f.has("layer_types"):
        layers = _by_types(f, depth, heads)
    elif family in _ALWAYS_WINDOWED and f.has("sliding_window"):
        layers = [window_or_full(f, heads, f.size("sliding_window"))] * depth
    elif family.startswith(_SWITCHED) and f.flag("use_sliding_window", False):
        layers = _from_layer(f, depth, heads)
    elif family == "olmo3":
        window = window_or_full(f, heads, f.size("sliding_window"))
        layers = [heads.full() if index % 4 == 3 else window for index in range(depth)]
    else:
        layers = [heads.full()] * depth
    draft = f.check_depth(f.count("num_nextn_predict_layers", 0), "num_nextn_predict_layers")
    return Blocks(layers=layers, draft=[heads.full()] * draft)


def _by_types(f: Fields, depth: int, heads: Heads) -> list[Layer]:
    types = layer_types(f, depth, ("sliding_attention", "full_attention"))
    if "sliding_attention" not in types:
        return [heads.full()] * depth
    window = window_or_full(f, heads, f.size("sliding_window"))
    return [heads.full() if word == "full_attention" else window for word in types]


def _from_layer(f: Fields, depth: int, heads: Heads) -> list[Layer]:
    """Blocks below `max_window_layers` keep every row."""
    first = f.count("max_window_layers", depth)
    if not f.has("sliding_window"):
        raise f.conflict("sliding_window", "is missing although use_sliding_window is true")
    window = window_or_full(f, heads, f.size("sliding_window"))
    return [heads.full() if index < first else window for index in range(depth)]
